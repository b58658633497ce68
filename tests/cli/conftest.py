"""The default main job, run once as a user would: in a process of its own."""

import json
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def default_job(tmp_path_factory):
    """(text printed, JSON of a second run, folder with out.npz and trace.json)."""
    folder = tmp_path_factory.mktemp("job")
    command = [sys.executable, "-W", "error", "-m", "ascend_jax.cli.main", "run", "flash-attention"]
    text = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    assert text.returncode == 0, text.stderr
    more = ["--json", "--output", "out.npz", "--trace", "trace.json"]
    as_json = subprocess.run(command + more, capture_output=True, text=True, cwd=folder, timeout=300)
    assert as_json.returncode == 0, as_json.stderr
    return text.stdout, json.loads(as_json.stdout), folder
