"""Random programs against the plain Python twin: call by call eagerly, and compiled once for many lanes."""

import random

import chex
import jax
import numpy as np
import pytest

import ascend_jax as aj
from tests.runtime import draw
from tests.runtime import programs as host_programs

LENGTH, LANES = 30, 8
SHEETS = ("odd", "ties")
# most that only queue, and a few that let time pass: each of these has the whole engine in it, which costs compile time
JITTED = (
    "launch_mix", "launch_pair", "copy_async", "fill_async", "record", "reset", "wait", "wait_timed", "record_notify",
    "wait_notify", "create_stream", "create_event", "create_flag_event", "create_notify", "destroy_event",
    "inject_fault", "wait_timeout", "op_timeout", "subscribe", "callback_async", "work", "value_write", "value_wait",
    "sync_device", "host_read", "stream_abort",
)  # fmt: skip
# 35 runs: a little optimisation takes 15 s and makes each ten times as fast
LANE_OPTIONS = aj.QUICK_TO_RUN | aj.QUICK_TO_COMPILE | {"xla_backend_optimization_level": 1}


def explain(programs, seed, text, program):
    return f"seed {seed}: {text}\n" + "\n".join(map(programs.text, program))


def check_eager(programs, kit, sheet, seed, **options):
    twin = programs.twin(programs.SHEETS[sheet], waits_for_room=True)
    program, expected = draw.program(random.Random(seed), kit, twin, LENGTH, ties=sheet == "ties", **options)
    card, seen = programs.run_eager(kit, program)
    text = programs.difference(twin, expected, program, card, seen)
    assert not text, explain(programs, seed, text, program)


@pytest.mark.parametrize("sheet", SHEETS)
def test_eager_programs_equal_the_twin(programs, kits, sheet):
    for seed in range(50):
        check_eager(programs, kits[sheet], sheet, seed)


@pytest.mark.parametrize("sheet", SHEETS)
def test_eager_programs_that_fill_the_table_equal_the_twin(programs, kits, sheet):
    for seed in range(1000, 1020):
        check_eager(programs, kits[sheet], sheet, seed, fills=True)


def test_eager_programs_execute_what_they_capture(programs, kits):
    """The programs above capture side streams and host functions, and run a program more than once."""
    executed, with_side, repeated, called = 0, 0, 0, 0
    for seed in range(80):
        twin = programs.twin(programs.SHEETS["ties"], waits_for_room=True)
        program, expected = draw.program(random.Random(seed), kits["ties"], twin, LENGTH, ties=True)
        good = [
            row for row, answer in zip(program, expected, strict=True)
            if programs.NAMES[row[0]] == "execute" and answer[1] == 0
        ]  # fmt: skip
        if not twin.program:
            continue
        executed += len(good)
        repeated += len(good) > 1
        with_side += len({job.stream for job in twin.program}) > 1
        called += any(job.kind in ("host function", "callback") for job in twin.program)
    assert executed > 30 and repeated > 10 and with_side > 10 and called > 5


@pytest.fixture(scope="module")
def lanes(programs, kits):
    """``(sheet, seed) -> (names, programs [LANES, L, 1 + ARGUMENTS], expected, twins, card, seen)``, all in one run."""
    compiled = jax.jit(programs.runner(kits["ties"], JITTED), compiler_options=LANE_OPTIONS)

    def run(sheet, seed):
        kit, fields = kits[sheet], programs.SHEETS[sheet]
        names, drawn = (), []
        for lane in range(LANES):
            twin, rng = programs.twin(fields), random.Random(f"{seed} {lane}")
            program, expected = draw.program(rng, kit, twin, LENGTH, ties=sheet == "ties", names=names, allowed=JITTED)
            names = [programs.NAMES[call] for call in program[:, 0]]
            drawn.append((program, expected, twin))
        calls = np.array([JITTED.index(name) for name in names], np.int32)
        arguments = np.stack([program[:, 1:] for program, _, _ in drawn])
        return drawn, *jax.device_get(compiled(kit.card, calls, arguments))

    run.compiled = compiled
    return run


def lane_of(tree, lane):
    return jax.tree.map(lambda leaf: leaf[lane], tree)


@pytest.mark.parametrize("sheet", SHEETS)
def test_lanes_of_a_compiled_program_equal_the_twin(programs, lanes, sheet):
    for seed in range(12):
        drawn, cards, seen = lanes(sheet, seed)
        for lane, (program, expected, twin) in enumerate(drawn):
            text = programs.difference(twin, expected, program, lane_of(cards, lane), lane_of(seen, lane))
            assert not text, explain(programs, (seed, lane), text, program)


def test_eager_programs_equal_the_lanes_of_a_compiled_one(programs, kits, lanes):
    compared = 0
    for seed in range(100, 104):
        drawn, cards, seen = lanes("ties", seed)
        for lane, (program, expected, _) in enumerate(drawn):
            patient = programs.twin(programs.SHEETS["ties"], waits_for_room=True)
            if programs.expect(kits["ties"], patient, program) != expected:
                continue  # a program that is not compiled waits for a row where a compiled one is refused
            card, eager = programs.run_eager(kits["ties"], program)
            chex.assert_trees_all_equal(card, lane_of(cards, lane))
            chex.assert_trees_all_equal(eager, lane_of(seen, lane))
            compared += 1
    assert compared > 8


def test_lanes_permute(kits, lanes):
    drawn, cards, seen = lanes("ties", 200)
    calls = np.array([JITTED.index(name) for name in names_of(drawn[0][0])], np.int32)
    order = np.random.default_rng(0).permutation(LANES)
    arguments = np.stack([drawn[lane][0][:, 1:] for lane in order])
    permuted = lanes.compiled(kits["ties"].card, calls, arguments)
    chex.assert_trees_all_equal(permuted, jax.tree.map(lambda leaf: leaf[order], (cards, seen)))


def names_of(program):
    return [host_programs.NAMES[call] for call in program[:, 0]]


def test_time_never_runs_backwards_and_streams_are_fifo(lanes):
    for seed in range(300, 306):
        _, cards, seen = lanes("ties", seed)
        for lane in range(LANES):
            host = seen[0][lane][:, 0].astype(np.int64) * 2**30 + seen[0][lane][:, 1]
            assert (np.diff(host) >= 0).all()
            log = aj.insight.timeline(lane_of(cards, lane))
            assert (np.diff(log.issue_ns) >= 0).all()
            over = log.finished
            assert (log.issue_ns <= log.ready_ns)[over].all() and (log.ready_ns <= log.start_ns)[over].all()
            assert (log.start_ns <= log.end_ns)[over].all() and (log.end_ns <= host[-1])[over].all()
            for stream in set(log.stream):
                mine = over & (log.stream == stream)
                assert (log.end_ns[mine][:-1] <= log.ready_ns[mine][1:]).all()
