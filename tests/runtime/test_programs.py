"""Random programs against the plain Python twin, and the same program by every way to run it."""

import random

import chex
import jax
import numpy as np
import pytest

import ascend_jax as aj

LENGTH, LANES = 24, 6
SHEETS = ("odd", "ties")


def draw(programs, seed, sheet, calls=None):
    rng = random.Random(seed)
    if calls is None:
        calls = programs.random_calls(rng, LENGTH, table=programs.sizes()["max_commands"])
    return np.concatenate([calls[:, None], programs.random_arguments(rng, calls, ties=sheet == "ties")], axis=1)


def twin(programs, oracle, sheet):
    return programs.twin(oracle, {"ties": programs.TIES, "odd": programs.ODD}[sheet])


@pytest.mark.parametrize("sheet", SHEETS)
def test_jitted_programs_equal_the_twin(programs, oracle, kits, compiled, sheet):
    for seed in range(150):
        program = draw(programs, seed, sheet)
        card, seen = jax.device_get(compiled(kits[sheet].card, program[:, 0], program[:, 1:]))
        difference = programs.difference(kits[sheet], twin(programs, oracle, sheet), program, card, seen)
        assert not difference, f"seed {seed}: {difference}\n" + "\n".join(map(programs.text, program))


@pytest.mark.parametrize("sheet", SHEETS)
def test_eager_equals_the_twin_and_the_jitted_program(programs, oracle, kits, compiled, sheet):
    for seed in range(200, 210):
        program = draw(programs, seed, sheet)
        card, seen = programs.run_eager(kits[sheet], program)
        seen = [np.stack([np.asarray(one[part]) for one in seen]) for part in range(4)]
        assert not programs.difference(kits[sheet], twin(programs, oracle, sheet), program, card, seen), seed
        jitted, jitted_seen = compiled(kits[sheet].card, program[:, 0], program[:, 1:])
        chex.assert_trees_all_equal(card, jitted)
        chex.assert_trees_all_equal(tuple(seen), jitted_seen)


def test_lanes_equal_a_loop_and_permute(programs, kits, compiled):
    kit, rng = kits["ties"], random.Random(7)
    names = ("launch_pair", "copy_async", "record", "wait", "work", "host_read", "sync_device")
    kinds = np.array([rng.randrange(len(names) - 1) for _ in range(18)] + [len(names) - 1], np.int32)
    calls = np.array([programs.CALL[names[kind]] for kind in kinds], np.int32)
    lanes = np.stack([draw(programs, seed, "ties", calls)[:, 1:] for seed in range(LANES)])
    batched = jax.jit(jax.vmap(programs.runner(kit, names), in_axes=(None, None, 0)))
    together = batched(kit.card, kinds, lanes)
    apart = [compiled(kit.card, calls, lane) for lane in lanes]
    chex.assert_trees_all_equal(together, jax.tree.map(lambda *leaves: np.stack(leaves), *apart))
    order = np.random.default_rng(0).permutation(LANES)
    permuted = batched(kit.card, kinds, lanes[order])
    chex.assert_trees_all_equal(permuted, jax.tree.map(lambda leaf: leaf[order], together))


def test_time_never_runs_backwards_and_streams_are_fifo(programs, kits, compiled):
    for seed in range(300, 330):
        program = draw(programs, seed, "ties")
        card, seen = jax.device_get(compiled(kits["ties"].card, program[:, 0], program[:, 1:]))
        host = seen[0][:, 0].astype(np.int64) * 2**30 + seen[0][:, 1]
        assert (np.diff(host) >= 0).all()
        log = aj.insight.timeline(card)
        assert (np.diff(log.issue_ns) >= 0).all()
        assert (log.issue_ns <= log.ready_ns).all() and (log.ready_ns <= log.start_ns).all()
        assert (log.start_ns <= log.end_ns).all() and (log.end_ns <= host[-1]).all()
        for stream in set(log.stream):
            mine = log.stream == stream
            assert (log.end_ns[mine][:-1] <= log.ready_ns[mine][1:]).all()
