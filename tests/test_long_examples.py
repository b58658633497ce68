"""The examples that take longest."""

import pytest

from tests.example_runs import LONG, check


@pytest.mark.parametrize("name", LONG)
def test_example(name, tmp_path):
    check(name, tmp_path)
