"""A CPU device for each core gives the results of one device, which needs a process of its own; cores are counted."""

import os
import pathlib
import re
import subprocess
import sys

import jax

from ascend_jax.ops.attention.host_cores import device_cores, usable_cores

ROOT = pathlib.Path(__file__).parent.parent.parent


def printed(*arguments):
    """Run Python and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_heads_on_two_devices_are_those_of_one():
    assert printed("-m", "tests.ops.per_core_cases") == "equal\n"


def test_the_documented_program_prints_what_is_shown():
    page = (ROOT / "docs" / "attention.md").read_text()
    program, shown = re.search(r"## A device per core.*?```python\n(.*?)```\n\n```text\n(.*?)```", page, re.S).groups()
    assert printed("-c", program) == shown


def test_cores_are_known_without_a_cpu_backend(monkeypatch):
    def unknown(backend=None):
        raise RuntimeError(f"Unknown backend {backend}")

    for name in ("local_device_count", "local_devices", "device_count", "devices"):
        monkeypatch.setattr(jax, name, unknown)
    assert device_cores() == usable_cores()
