"""Two processes with two devices each, started by one command."""

import os
import pathlib
import subprocess
import sys

import pytest

from ascend_jax.hccl import processes

ROOT = pathlib.Path(__file__).parents[2]


def test_two_processes_with_two_cards_each():
    command = [sys.executable, "-m", "ascend_jax.hccl.processes", "--processes", "2", "--devices", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("process"))
    rows = [[float(3 * card + place) for place in range(3)] for card in range(4)]
    total = [sum(column) for column in zip(*rows, strict=True)]
    assert lines == [
        f"process {card // 2}, card {card}: sum {total}, from the card before {rows[card - 1]}" for card in range(4)
    ]


def test_wrong_numbers():
    with pytest.raises(ValueError, match="processes = 0"):
        processes.launch(0, 2)
