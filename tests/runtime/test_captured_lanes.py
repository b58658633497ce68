"""A capture and its executions compiled for many lanes: each does what the plain Python twin does."""

import random

import jax
import numpy as np
import pytest

import ascend_jax as aj
from tests.runtime import draw

LANES = 8
SCRIPT = (
    ("create_stream", {"priority": 3, "flags": 1}), ("create_ex_event", {"flags": 9}),
    ("create_ex_event", {"flags": 9}), ("capture_begin", {"stream": 1, "capture_mode": 0}),
    ("launch_mix", {"stream": 1}), ("record", {"event": 1, "stream": 1}), ("wait", {"stream": 2, "event": 1}),
    ("fill_async", {"stream": 2, "space": 0, "offset": 40, "nbytes": 40}),
    ("host_func", {"stream": 1, "number": 3}), ("record", {"event": 2, "stream": 2}),
    ("wait", {"stream": 1, "event": 2}), ("capture_end", {"stream": 1}), ("execute", {"stream": 2}), ("work", {}),
    ("launch_pair", {"stream": 0}), ("execute", {"stream": 2}), ("sync_device", {}),
)  # fmt: skip


@pytest.fixture(scope="module")
def compiled(programs, kits):
    """``arguments [LANES, L, ARGUMENTS] -> (cards, what is seen after each call)``."""
    kit = kits["ties"]
    branches = [programs.branch(kit, name) for name, _ in SCRIPT]

    def run(arguments):
        card, seen = kit.card, []
        kit.shelf.clear()
        for number, branch in enumerate(branches):
            card, answer, out = branch(card, arguments[number])
            seen.append(programs.outcome(card, answer, out))
        kit.shelf.clear()
        return card, seen

    options = aj.QUICK_TO_COMPILE | {"xla_backend_optimization_level": 0}
    return jax.jit(jax.vmap(run), compiler_options=options)


def test_lanes_of_captures_equal_the_twin(programs, kits, compiled):
    for seed in range(12):
        drawn = []
        for lane in range(LANES):
            twin, rng = programs.twin(programs.SHEETS["ties"]), random.Random(f"{seed} {lane}")
            program, expected = draw.program(rng, kits["ties"], twin, len(SCRIPT), ties=True, names=SCRIPT)
            drawn.append((program, expected, twin))
        cards, seen = jax.device_get(compiled(np.stack([program[:, 1:] for program, _, _ in drawn])))
        executed = 0
        for lane, (program, expected, twin) in enumerate(drawn):
            mine = [tuple(np.asarray(part)[lane] for part in one) for one in seen]
            parts = tuple(np.stack([one[part] for one in mine]) for part in range(4))
            card = jax.tree.map(lambda leaf, lane=lane: leaf[lane], cards)
            text = programs.difference(twin, expected, program, card, parts)
            assert not text, f"seed {seed} lane {lane}: {text}"
            executed += expected[12][1] == 0 and len(twin.program) > 6
        assert executed > LANES // 2
