"""The benchmark's program on its peer: SimPy, written as a SimPy user would, gives the engine's times."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import ascend_jax as aj

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture(scope="module")
def bench():
    pytest.importorskip("simpy")
    sys.path.insert(0, str(TOOLS))
    spec = importlib.util.spec_from_file_location("ascend_jax_bench_engine", TOOLS / "bench_engine.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(TOOLS))


@pytest.mark.parametrize("seed", range(3))
def test_simpy_and_the_engine_agree_command_by_command(bench, seed):
    rows = bench.contended(64, 8, seed)
    chip = aj.chip("Ascend910B2").replace(cube_cores=32, vector_cores=64)
    schedule = aj.simulate(bench.program_of(rows, 8), chip)
    times = [np.asarray(at.hi).astype(np.int64) * 2**30 + np.asarray(at.lo) for at in (schedule.start, schedule.end)]
    assert list(zip(*(one.tolist() for one in times), strict=True)) == bench.simpy_simulate(rows, bench.CAPACITY)
