"""Every example runs, without warnings, and prints what it promises."""

import pytest

from tests.example_runs import EXAMPLES, LONG, PROMISES, check


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PROMISES)


@pytest.mark.parametrize("name", sorted(PROMISES.keys() - set(LONG)))
def test_example(name, tmp_path):
    check(name, tmp_path)
