"""The fuzzer finds a bug that is planted in the engine, and shows it by the shortest list of commands."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import Field

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def fuzz(monkeypatch):
    spec = importlib.util.spec_from_file_location("ascend_jax_fuzz_engine", TOOLS / "fuzz_engine.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    lanes = module.lanes.LANES

    def in_this_process(self, programs):
        return (module.draw(self.seed, first) for first in range(0, programs, lanes))

    monkeypatch.setattr(module.ScheduleFuzzer, "batches", in_this_process)
    return module


def test_a_planted_bug_is_found_and_made_small(fuzz, monkeypatch):
    assert fuzz.ScheduleFuzzer(3).run(8) is None
    sound = fuzz.lanes.simulated

    def late(programs, chip, *, stops=False):
        found = sound(programs, chip, stops=stops)
        is_it = (np.asarray(programs.fields)[..., Field.STREAM] == 1) & (found.end >= 0)
        return found._replace(end=found.end + is_it)

    monkeypatch.setattr(fuzz.lanes, "simulated", late)
    bug = fuzz.ScheduleFuzzer(3).run(8)
    assert bug is not None
    assert len(bug.lines) == 1
    assert "end" in bug.what, bug.what


def test_a_planted_bug_in_executions_is_found_and_made_small(fuzz, monkeypatch):
    fuzzer = fuzz.HostFuzzer(5)
    monkeypatch.setattr(fuzz, "HOST_LENGTHS", (24,))
    monkeypatch.setattr(fuzzer.drawing, "CAPTURING", 1.0)
    assert fuzzer.run(2) is None
    assert fuzzer.report["programs_equal"] == 2
    sound = aj.execute_program
    monkeypatch.setattr(
        aj, "execute_program", lambda card, *given, **named: aj.host_work(sound(card, *given, **named), 1)
    )
    bug = fuzzer.run(2)
    assert bug is not None
    assert [line.split("(")[0] for line in bug.lines] == ["execute", "sync_device"]
    assert "host ns" in bug.what, bug.what
