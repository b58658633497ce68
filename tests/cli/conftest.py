"""The default main job, run once as a user would, in a process of its own, and once more in this one for its files."""

import contextlib
import io
import json
import subprocess
import sys

import pytest

from ascend_jax.cli.main import main


@pytest.fixture(scope="session")
def default_job(tmp_path_factory):
    """(text printed, JSON of a second run, folder with out.npz and trace.json)."""
    folder = tmp_path_factory.mktemp("job")
    command = [sys.executable, "-W", "error", "-m", "ascend_jax.cli.main", "run", "flash-attention"]
    text = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    assert text.returncode == 0, text.stderr
    printed, files = io.StringIO(), ["--output", str(folder / "out.npz"), "--trace", str(folder / "trace.json")]
    with contextlib.redirect_stdout(printed):
        assert main(["ascend-jax", "run", "flash-attention", "--json", *files]) == 0
    return text.stdout, json.loads(printed.getvalue()), folder
