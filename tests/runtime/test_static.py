"""The static engine against plain Python, and against the exact engine where nobody competes."""

import dataclasses
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime import static
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.layout import LIMB, Change, Condition, Field, Kind, Phase, Resource
from ascend_jax.runtime.program import Program, program_from_rows
from ascend_jax.runtime.simulate import simulate

CUBE, VECTOR, H2D = (Field.NEED + resource for resource in (Resource.CUBE, Resource.VECTOR, Resource.H2D))
CHIP = aj.chip("Ascend910B2")  # 24 cube and 48 vector cores
SHARES = 65536
KERNEL = {Field.KIND: Kind.KERNEL, Field.STREAM: 0, CUBE: 1, Field.BLOCK_LO: 1}


def random_rows(rng: random.Random, length: int, streams: int) -> list[dict]:
    """A program of kernels, records and waits in which every stream is waited for at the end."""
    rows: list[dict] = [{Field.KIND: Kind.EVENT_RECORD, Field.STREAM: 0}]
    rows += [{Field.KIND: Kind.EVENT_WAIT, Field.STREAM: stream, Field.DEPENDS: 0} for stream in range(1, streams)]
    for _ in range(length):
        kind = rng.choice([Kind.KERNEL, Kind.KERNEL, Kind.EVENT_RECORD, Kind.EVENT_WAIT])
        row = {Field.KIND: kind, Field.STREAM: rng.randrange(streams)}
        if kind == Kind.KERNEL:
            row |= {Field.BLOCK_LO: rng.choice([1, 10, 10, 20, rng.randrange(1, 10**5)])}
            row |= {CUBE: 1, Field.BLOCKS: rng.randrange(1, 3), Field.HEAD_NS: rng.choice([0, 3])}
        elif kind == Kind.EVENT_WAIT:
            row |= {Field.DEPENDS: rng.randrange(len(rows))}
        rows.append(row)
    for stream in range(1, streams):
        rows.append({Field.KIND: Kind.EVENT_RECORD, Field.STREAM: stream})
        rows.append({Field.KIND: Kind.EVENT_WAIT, Field.STREAM: 0, Field.DEPENDS: len(rows) - 1})
    return rows


def ends_of(rows: list[dict], durations: list[int]) -> list[int]:
    """When each row ends: the twin, from the rows themselves."""
    ends, last = [], {}
    for row, duration in zip(rows, durations, strict=True):
        before = [last.get(row[Field.STREAM], 0), ends[row[Field.DEPENDS]] if Field.DEPENDS in row else 0]
        ends.append(max(before) + duration)
        last[row[Field.STREAM]] = ends[-1]
    return ends


def random_case(seed: int, length: int = 40) -> tuple[list[dict], Program, list[int]]:
    rng = random.Random(seed)
    rows = random_rows(rng, length, rng.randrange(1, 6))
    durations = [rng.choice([0, 1, 5, 5, rng.randrange(10**6)]) for _ in rows]
    return rows, program_from_rows(rows).padded(64), durations + [0] * (64 - len(rows))


@pytest.mark.parametrize("seed", range(40))
def test_every_kind_of_time_equals_plain_python(seed):
    rows, program, durations = random_case(seed)
    expected = ends_of(rows, durations[: len(rows)])
    pred = static.lower(program)
    for dtype in (jnp.int32, jnp.float32):
        ends = static.static_end_ns(pred, jnp.array(durations, dtype))
        assert ends[: len(rows)].tolist() == expected
        assert int(static.makespan(ends)) == max(expected)
    longer = [one * 4_000_003 for one in durations]  # beyond one limb
    ends = static.static_end(pred, Instant(*np.array([divmod(one, LIMB) for one in longer], np.int32).T))
    got = np.asarray(ends.hi, np.int64) * LIMB + np.asarray(ends.lo)
    assert got[: len(rows)].tolist() == ends_of(rows, longer[: len(rows)])
    assert int(static.makespan(ends).hi) * LIMB + int(static.makespan(ends).lo) == max(got)


def test_wider_times_of_the_caller_are_kept():
    rows, program, durations = random_case(1)
    with jax.enable_x64(True):
        for dtype in (np.int64, np.float64):
            ends = static.static_end_ns(static.lower(program), jnp.array(durations, dtype) * 10**7)
            assert ends.dtype == dtype
            assert ends[: len(rows)].tolist() == ends_of(rows, [one * 10**7 for one in durations[: len(rows)]])


def test_padding_changes_nothing():
    rows, _, durations = random_case(2)
    program = program_from_rows(rows)
    short = static.static_end_ns(static.lower(program), jnp.array(durations[: len(rows)]))
    long = static.static_end_ns(static.lower(program.padded(100)), jnp.array((durations + [0] * 100)[:100]))
    np.testing.assert_array_equal(long[: len(rows)], short)
    assert static.makespan(long) == static.makespan(short)


def test_lanes_last_equal_vmap_and_a_loop():
    _, program, durations = random_case(3)
    pred = static.lower(program)
    lanes = jnp.array(durations)[:, None] * jnp.arange(1, 7)[None]
    ends = static.static_end_ns(pred, lanes)
    first = jax.vmap(static.static_end_ns, (None, 0))(pred, lanes.T)
    np.testing.assert_array_equal(ends, first.T)
    np.testing.assert_array_equal(ends[:, 4], static.static_end_ns(pred, lanes[:, 4]))
    grid = static.static_end_ns(pred, lanes.reshape(64, 2, 3))
    np.testing.assert_array_equal(grid.reshape(64, 6), ends)
    exact = static.static_end(pred, Instant(jnp.zeros_like(lanes), lanes))
    np.testing.assert_array_equal(exact.lo, ends)


def test_other_values_need_no_new_compilation():
    _, program, durations = random_case(4)
    traces = []

    @jax.jit
    def run(pred, duration):
        traces.append(1)
        return static.static_end_ns(pred, duration)

    run(static.lower(program), jnp.array(durations))
    run(static.lower(random_case(5)[1]), jnp.array(durations) + 1)
    assert len(traces) == 1


def test_the_window_of_int32_says_when_it_is_left():
    pred = static.lower(program_from_rows([KERNEL] * 4))
    half = 2**29
    lanes = jnp.array([[half - 2, half], [half, half], [0, half], [0, 2**30 - 1]])
    ends = static.static_end_ns(pred, lanes)
    assert ends[:, 0].tolist() == [half - 2, 2**30 - 2, 2**30 - 2, 2**30 - 2]
    assert ends[:, 1].tolist() == [half] + [static.WINDOW_NS] * 3
    assert static.is_outside_window(ends).tolist() == [False, True]
    longest = Instant(jnp.array([0, 1, 300]), jnp.array([5, 0, 7]))
    assert static.window_ns(longest).tolist() == [5, static.WINDOW_NS, static.WINDOW_NS]


def test_an_hour_is_exact_to_1_ns():
    block = 250 * 10**9 + 1
    program = program_from_rows([KERNEL] * 20).with_block_ns(block)
    ends = static.static_end(static.lower(program), static.durations(program, CHIP))
    assert int(ends.hi[-1]) * LIMB + int(ends.lo[-1]) == 20 * block  # 83 minutes


@pytest.mark.parametrize("seed", range(8))
def test_the_gradient_is_the_critical_path(seed):
    _, program, durations = random_case(seed)
    pred = static.lower(program)

    def span(duration):
        return static.makespan(static.static_end_ns(pred, duration)).sum()

    value, gradient = jax.value_and_grad(span)(jnp.array(durations, jnp.float32))
    assert float((gradient * jnp.array(durations)).sum()) == pytest.approx(float(value))
    lanes = jnp.stack([jnp.array(durations, jnp.float32), jnp.array(durations[::-1], jnp.float32)], 1)
    together = jax.grad(span)(lanes)
    np.testing.assert_array_equal(together[:, 0], gradient)
    np.testing.assert_array_equal(together[:, 1], jax.grad(span)(lanes[:, 1]))


def test_the_gradient_by_hand():
    # stream 0: a, then a wait for b and c of stream 1; a = b + c is a tie
    rows = [
        {Field.KIND: Kind.EVENT_RECORD, Field.STREAM: 0},
        {Field.KIND: Kind.EVENT_WAIT, Field.STREAM: 1, Field.DEPENDS: 0},
        KERNEL,
        KERNEL | {Field.STREAM: 1},
        KERNEL | {Field.STREAM: 1},
        {Field.KIND: Kind.EVENT_WAIT, Field.STREAM: 0, Field.DEPENDS: 4},
    ]
    pred = static.lower(program_from_rows(rows))

    def span(duration):
        return static.makespan(static.static_end_ns(pred, duration)).sum()

    def gradient(*durations: float) -> list:
        return jax.grad(span)(jnp.array([1.0, 0.0, *durations])).tolist()

    assert gradient(9, 4, 4, 1) == [1, 0, 1, 0, 0, 1]
    assert gradient(7, 4, 4, 1) == [1, 1, 0, 1, 1, 1]
    assert gradient(8, 4, 4, 1) == [1, 0.5, 0.5, 0.5, 0.5, 1]
    ends = static.static_end_ns(pred, jnp.array([1, 0, 7, 4, 4, 1]))
    assert static.critical_path(pred, ends).tolist() == [0, 1, 3, 4, 5]
    exact = static.static_end(pred, Instant(jnp.array([0, 0, 9, 4, 4, 0]), jnp.array([0, 0, 0, 0, 0, 1])))
    assert static.critical_path(pred, exact).tolist() == [0, 2, 5]


@pytest.mark.parametrize("seed", range(8))
def test_without_ties_the_gradient_marks_the_critical_path(seed):
    _, program, _ = random_case(seed)
    pred = static.lower(program)
    durations = jnp.array(random.Random(seed).sample(range(1, 10**5), 64), jnp.float32)
    gradient = jax.grad(lambda own: static.makespan(static.static_end_ns(pred, own)))(durations)
    path = static.critical_path(pred, static.static_end_ns(pred, durations))
    assert np.flatnonzero(gradient).tolist() == path.tolist()
    assert (np.asarray(gradient)[path] == 1).all()


@pytest.mark.parametrize("seed", range(12))
def test_the_critical_path_adds_up_to_the_makespan(seed):
    _, program, durations = random_case(seed)
    pred = static.lower(program)
    ends = static.static_end_ns(pred, jnp.array(durations))
    path = static.critical_path(pred, ends)
    assert sum(durations[row] for row in path) == int(static.makespan(ends))
    assert all(before in np.asarray(pred)[row] for before, row in itertools.pairwise(path))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({Field.KIND: Kind.NOTIFY_WAIT, Field.CONDITION: Condition.GE}, "row 1 .NOTIFY_WAIT. waits for a value"),
        ({Field.KIND: Kind.EVENT_RESET, Field.CHANGE: Change.CLEAR}, "row 1 .EVENT_RESET. changes a value"),
        ({Field.KIND: Kind.CALLBACK}, "row 1 .CALLBACK. belongs to a callback"),
        ({Field.TIMEOUT_LO: 1}, "row 1 .KERNEL. has a timeout"),
        ({Field.FAULT: 507015}, "row 1 .KERNEL. carries a fault"),
    ],
)
def test_what_is_only_known_at_run_time_is_refused(change, reason):
    with pytest.raises(ValueError, match=reason):
        static.lower(program_from_rows([KERNEL, KERNEL | change]))


def test_a_batch_is_lowered_by_one_lane():
    lanes = program_from_rows([KERNEL]).with_block_ns(np.ones((3, 1), int))
    with pytest.raises(ValueError, match="batch axes"):
        static.lower(lanes)


# Durations ----------------------------------------------------------------------------------------------------


def kernel_ns(cores: int, blocks: int, block_ns: int, head_ns: int = 0, **columns: int) -> int:
    """How long a kernel of one cube core per block takes on a chip with so many; without any, it needs none."""
    row = KERNEL | {CUBE: int(cores > 0), Field.BLOCKS: blocks, Field.HEAD_NS: head_ns}
    row |= {Field.BLOCK_HI: block_ns // LIMB, Field.BLOCK_LO: block_ns % LIMB}
    row |= {Field[name]: value for name, value in columns.items()}
    time = static.durations(program_from_rows([row]), CHIP.replace(cube_cores=cores))
    return int(time.hi[0]) * LIMB + int(time.lo[0])


def waves_ns(fits: int, blocks: int, block_ns: int, head_ns: int, share: int) -> int:
    """The rules of one task alone, wave by wave."""
    total, is_first = 0, True
    while blocks:
        running = min(fits, blocks)
        fill = running * share
        rate = 256 if fill <= SHARES else max(1, 256 * SHARES // fill)
        work = 256 * (block_ns + (head_ns if is_first else 0))
        total += -(-work // rate)
        blocks, is_first = blocks - running, False
    return total


def test_durations_by_hand():
    assert kernel_ns(24, 24, 1000, 77) == 1077  # one wave
    assert kernel_ns(24, 25, 1000, 77) == 2077
    assert kernel_ns(4, 9, 1000) == 3000  # 4 + 4 + 1
    assert kernel_ns(0, 9, 1000) == 1000  # needs nothing that is counted
    assert kernel_ns(0, 2, 500, HBM_SHARE=SHARES // 2) == 500
    assert kernel_ns(0, 2, 500, HBM_SHARE=SHARES - 1) == 1000  # 131070 of 65536: 128.002 of 256, so rate 128
    assert kernel_ns(24, 24, 1001, L2_SHARE=5462) == 2018  # 131088 of 65536: 127.98, so rate 127
    pair = program_from_rows([KERNEL | {VECTOR: 2, Field.BLOCKS: 24}])
    assert static.durations(pair, CHIP.replace(vector_cores=17)).lo.tolist() == [3]  # 8 fit
    copy = program_from_rows([KERNEL | {Field.KIND: Kind.COPY, CUBE: 0, H2D: 1, Field.BLOCK_LO: 70}])
    assert static.durations(copy, CHIP).lo.tolist() == [70]


@pytest.mark.parametrize("seed", range(60))
def test_durations_equal_the_waves(seed):
    rng = random.Random(seed)
    cores, blocks = rng.randrange(1, 41), rng.choice([1, 2, 24, 25, rng.randrange(1, 400), 65535])
    block = rng.choice([1, 7, 1000, rng.randrange(1, 2**30), rng.randrange(1, 2**34)])
    head = rng.choice([0, 1, rng.randrange(2**22)])
    share = rng.choice([0, 1, 2730, 2731, rng.randrange(SHARES), SHARES - 1])
    pools = {rng.choice(["HBM_SHARE", "L2_SHARE"]): share}
    assert kernel_ns(cores, blocks, block, head, **pools) == waves_ns(cores, blocks, block, head, share)


def test_a_command_that_never_fits_takes_13_days():
    never = static.NEVER_HI * LIMB
    without = CHIP.replace(cube_cores=0)
    assert static.durations(program_from_rows([KERNEL]), without).hi.tolist() == [static.NEVER_HI]
    assert kernel_ns(24, 25, 10, MODE=1) == never
    assert kernel_ns(24, 24, 10, MODE=1) == 10


def test_chips_and_programs_are_batches_of_durations():
    program = program_from_rows([KERNEL | {Field.BLOCKS: 24}] * 2)
    slow = program.with_block_ns(np.array([[10, 10], [30, 40]]))
    chips = CHIP.replace(cube_cores=np.array([24.0, 12.0, 1.0]))
    assert static.durations(slow, CHIP).lo.tolist() == [[10, 30], [10, 40]]
    assert static.durations(program.with_block_ns(10), chips).lo.tolist() == [[10, 20, 240]] * 2
    both = static.durations(jax.tree.map(lambda x: x[:, None], slow), chips)
    assert both.lo.tolist() == [[[10, 20, 240], [30, 60, 720]], [[10, 20, 240], [40, 80, 960]]]


# The exact engine ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_the_exact_engine_says_the_same_where_nobody_competes(seed):
    rng = random.Random(seed)
    rows = random_rows(rng, 40, rng.randrange(1, 6))  # at most 5 streams of 2 blocks on 24 cores
    program = dataclasses.replace(program_from_rows(rows).padded(64), streams=5)
    schedule = simulate(program, CHIP)
    assert schedule.phase[: len(rows)].tolist() == [Phase.DONE] * len(rows)
    ends = static.static_end(static.lower(program), static.durations(program, CHIP))
    for exact, own in zip(schedule.end, ends, strict=True):
        np.testing.assert_array_equal(exact[: len(rows)], own[: len(rows)])
