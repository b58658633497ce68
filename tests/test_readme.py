"""The README's program prints what the README says."""

import pathlib
import re

README = (pathlib.Path(__file__).parent.parent / "README.md").read_text()


def test_the_program_prints_what_is_shown(capsys):
    program, shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.S).groups()
    exec(compile(program, "README.md", "exec"), {})
    assert capsys.readouterr().out == shown


def test_links_lead_somewhere():
    root = pathlib.Path(__file__).parent.parent
    for target in re.findall(r"\]\(([^)]+)\)", README) + re.findall(r"`((?:examples|docs)/[^`]+)`", README):
        assert (root / target).exists(), target
