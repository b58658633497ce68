"""Timelines of real cards; times worked out by hand: calls take 10 ns, a fill of n bytes n + 100 ns."""

import jax
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import Field, Kind, Resource
from tests.runtime.cards import SIZES, card_of

COSTS = {
    "host_copy_enqueue_ns": 10, "host_launch_ns": 10, "host_malloc_ns": 0, "host_stream_create_ns": 0,
    "host_event_ns": 10, "host_sync_ns": 0, "copy_latency_ns": 100, "d2d_bytes_per_s": 1e9, "has_priorities": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def card():
    """Streams 1 and 2 beside the default one, and memory to fill; the host stands at 0."""
    card = card_of(COSTS, SIZES)
    card, _ = aj.malloc(card, 1 << 20)
    card, _ = aj.create_stream(card)
    card, _ = aj.create_stream(card, priority=3)
    assert aj.host_time_ns(card) == 0
    return card


HBM = (2 << 20) // 64


def fill(card, stream, ns):
    return aj.memset_async(card, HBM, 0, ns - 100, stream)


def rows(card, *columns):
    return [tuple(row[column] for column in columns) for row in aj.insight.timeline(card).rows()]


def test_every_kind_has_a_name_and_knows_what_released_it(card):
    card, plain = aj.create_event(card)  # 10
    card, flag = aj.create_event_with_flag(card, aj.EventFlag.SYNC)  # 20
    card, notify = aj.create_notify(card)  # 30
    card = aj.subscribe_report(card, 0, 1)
    card = fill(card, 1, 1000)  # command 0, from 40 to 1040
    card = aj.record_event(card, plain, 1)
    card = aj.stream_wait_event(card, 2, plain)
    card = aj.record_event(card, flag, 1)
    card = aj.stream_wait_event(card, 2, flag)
    card = aj.reset_event(card, flag, 2)
    card = aj.record_notify(card, notify, 1)
    card = aj.wait_and_reset_notify(card, notify, 2)
    card = aj.value_write(card, HBM, 5, 1, offset=8)
    card = aj.value_wait(card, HBM, 5, 2, offset=8)
    card = aj.launch_callback(card, 1, 77)  # two commands
    card, number = aj.process_report(card, -1)
    card = aj.synchronize_device(card)
    assert (int(aj.last_code(card)), int(number)) == (0, 77)
    assert rows(card, "name", "stream", "waits_for", "state", "end_ns") == [
        ("fill device memory", 1, None, "done", 1040),
        ("event record 0", 1, None, "done", 1040),
        ("event wait 0", 2, 1, "done", 1040),
        ("event record 1", 1, None, "done", 1040),
        ("event wait 1", 2, 3, "done", 1040),
        ("event reset 1", 2, None, "done", 1040),
        ("notify record 0", 1, None, "done", 1040),
        ("notify wait 0", 2, 6, "done", 1040),
        (f"value write at {HBM} + 8 bytes", 1, None, "done", 1040),
        (f"value wait at {HBM} + 8 bytes", 2, 8, "done", 1040),
        ("callback 77", 1, None, "done", 1040),
        ("callback wait", 1, None, "done", 1040),
    ]
    kinds = {name.rstrip("0123456789 ") for (name,) in rows(card, "kind")}
    assert kinds == {
        "memset", "event record", "event wait", "event reset", "notify record", "notify wait", "value write",
        "value wait", "callback", "callback wait",
    }  # fmt: skip


def test_a_wait_is_ready_at_the_head_and_starts_when_it_is_released(card):
    card, notify = aj.create_notify(card)  # 10
    card = fill(card, 2, 500)  # issued 20, to 520
    card = aj.wait_and_reset_notify(card, notify, 2)  # issued 30, up at 520
    card = fill(card, 1, 1000)  # issued 40; the engine for fills is free at 520: to 1520
    card = aj.record_notify(card, notify, 1)
    card = fill(card, 2, 200)
    card = aj.synchronize_device(card)
    columns = ("issue_ns", "ready_ns", "start_ns", "end_ns", "wait_reason", "waits_for")
    assert rows(card, *columns) == [
        (20, 20, 20, 520, "", None),
        (30, 520, 1520, 1520, "notify", 3),
        (40, 40, 520, 1520, "copy engine", None),
        (50, 1520, 1520, 1520, "stream order", None),
        (60, 1520, 1520, 1720, "notify", None),
    ]
    assert rows(card, "thread", "priority", "blocks")[1:3] == [(0, 3, 0), (0, 0, 1)]


def test_the_latest_change_before_the_release_counts(card):
    card, flag = aj.create_event_with_flag(card, aj.EventFlag.SYNC)
    for stream in (1, 2, 1):
        card = aj.record_event(card, flag, stream)
    card = fill(card, 1, 1000)
    card = aj.stream_wait_event(card, 1, flag)
    card = aj.record_event(card, flag, 1)
    card = aj.synchronize_device(card)
    assert rows(card, "kind", "waits_for")[4] == ("event wait", 2)


def test_what_has_not_happened_yet(card):
    card, notify = aj.create_notify(card)  # 10
    card = fill(card, 1, 500)  # 20
    card = aj.wait_and_reset_notify(card, notify, 2)  # 30
    card = fill(card, 2, 500)  # 40
    card, _ = aj.stream_query(aj.host_work(card, 100), 1)
    assert rows(card, "state", "ready_ns", "start_ns", "end_ns", "wait_reason") == [
        ("running", 20, 20, None, ""),
        ("ready", 30, None, None, "notify"),
        ("queued", None, None, None, "notify"),
    ]
    assert aj.insight.timeline(card).horizon_ns >= 140


def test_failures_have_their_code(card):
    card, notify = aj.create_notify(card)
    card = aj.inject_fault(card, aj.Code.RT_AICPU_EXCEPTION)
    card = fill(card, 1, 500)
    card = aj.wait_and_reset_notify(card, notify, 2, 1)  # 1 s
    card = aj.synchronize_device(card)
    assert rows(card, "state", "code", "start_ns", "end_ns") == [
        ("failed", aj.Code.RT_AICPU_EXCEPTION, 20, 520),
        ("failed", aj.Code.RT_WAIT_TIMEOUT, 1_000_000_030, 1_000_000_030),
    ]


def test_dropped_commands_have_no_end(card):
    card = fill(card, 1, 500)  # 10
    card = fill(card, 1, 500)  # 20
    card = fill(card, 1, 500)  # 30
    card = aj.stream_abort(aj.host_work(card, 600), 1)
    card = aj.synchronize_device(fill(aj.host_work(card, 360), 1, 500))  # 1000
    assert rows(card, "state", "start_ns", "end_ns", "dropped_ns") == [
        ("done", 10, 510, None),
        ("dropped", 510, None, 630),
        ("dropped", None, None, 630),
        ("done", 1000, 1500, None),
    ]
    assert rows(card, "ready_ns", "wait_reason") == [
        (10, ""), (510, "stream order"), (None, "stream order"), (1000, "host"),
    ]  # fmt: skip


def test_a_lost_device_drops_everything(card):
    card, notify = aj.create_notify(card)  # 10
    card = aj.inject_fault(card, aj.Code.RT_AICORE_EXCEPTION)
    card = fill(card, 1, 500)  # 20 to 520
    card = fill(card, 1, 500)  # 30
    card = aj.wait_and_reset_notify(card, notify, 2)  # 40
    card = aj.synchronize_device(card)
    assert int(aj.last_code(card)) == aj.Code.RT_AICORE_EXCEPTION
    assert rows(card, "state", "ready_ns", "start_ns", "end_ns", "dropped_ns") == [
        ("failed", 20, 20, 520, None),
        ("dropped", 520, None, None, 520),  # it had just come up
        ("dropped", 40, None, None, 520),
    ]
    assert aj.insight.deadlock_report(card).stops == ()


def test_captured_commands_are_no_part_of_it(card):
    card = fill(card, 2, 500)
    card = aj.capture_begin(card, 1)
    card = fill(card, 1, 500)
    assert rows(card, "command", "stream") == [(0, 2)]
    card, program = aj.capture_end(card, 1)
    card = fill(card, 2, 300)
    assert rows(card, "command", "stream") == [(0, 2), (2, 2)]
    card = aj.synchronize_device(aj.execute_program(card, program, 1))
    assert rows(card, "command", "stream", "state") == [(0, 2, "done"), (2, 2, "done"), (3, 1, "done")]


@pytest.mark.parametrize(
    ("blocks", "cube", "vector", "held"),
    [(100, 0, 1, (0, 48)), (7, 1, 2, (7, 14)), (30, 1, 2, (24, 48)), (30, 0, 2, (0, 48)), (30, 1, 0, (24, 0))],
)
def test_a_kernel_holds_as_many_cores_as_its_blocks_can(card, blocks, cube, vector, held):
    need = {Field.NEED + Resource.CUBE: cube, Field.NEED + Resource.VECTOR: vector}
    command = {Field.KIND: Kind.KERNEL, Field.STREAM: 0, Field.BLOCKS: blocks, Field.BLOCK_LO: 50, **need}
    program = aj.program_from_rows([command | {Field.KERNEL: -1}])
    card = aj.synchronize_device(aj.execute_program(card, program, 1))
    assert rows(card, "kind", "blocks", "held_cube", "held_vector") == [("kernel", blocks, *held)]
    cores = aj.insight.assign_cores(aj.insight.timeline(card))
    assert (len(cores.cube), len(cores.vector)) == held


def test_kernels_that_share_the_chip_can_be_drawn(card):
    rows = [
        {Field.KIND: Kind.EVENT_RECORD, Field.STREAM: 0},
        {Field.KIND: Kind.KERNEL, Field.STREAM: 0},
        {Field.KIND: Kind.EVENT_WAIT, Field.STREAM: 1, Field.DEPENDS: 0},
        {Field.KIND: Kind.KERNEL, Field.STREAM: 1},
        {Field.KIND: Kind.EVENT_WAIT, Field.STREAM: 0, Field.DEPENDS: 3},
    ]
    for kernel in (1, 3):
        rows[kernel] |= {Field.BLOCKS: 25, Field.BLOCK_LO: 100, Field.NEED + Resource.CUBE: 1, Field.KERNEL: -1}
    card = aj.synchronize_device(aj.execute_program(card, aj.program_from_rows(rows), 1))
    log = aj.insight.timeline(card).of_kind("kernel")
    # 24 blocks at 10; at 110 the last one of the first kernel and 23 of the second; at 210 its last two
    assert (log.start_ns.tolist(), log.end_ns.tolist()) == ([10, 110], [210, 310])
    assert log.held_cube.tolist() == [24, 24]
    assert log.wait_reason()[1] == "cores"
    shares = aj.insight.assign_cores(log).cube
    assert len(shares.of(0)) == 24 and shares.of(1).tolist() == [0]
    assert "cube 0" in aj.insight.gantt(log, by="core")


def test_of_two_writes_at_one_moment_the_one_that_fits_has_released(card):
    card = fill(card, 1, 1000)
    for value in (3, 5, 6):
        card = aj.value_write(card, HBM, value, 1)
    card = aj.value_wait(card, HBM, 5, 2, flag=0)
    card = aj.synchronize_device(card)
    assert rows(card, "kind", "ready_ns", "end_ns", "waits_for")[4] == ("value wait", 50, 1010, 2)


def test_the_log_says_how_much_it_has_forgotten(card):
    for _ in range(35):
        card = aj.synchronize_device(fill(card, 1, 200))
    log = aj.insight.timeline(card)
    assert (log.forgotten, log.command[0], len(log)) == (3, 3, 32)


def test_a_batch_is_refused(card):
    cards = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), card)
    with pytest.raises(ValueError, match="batch axes"):
        aj.insight.timeline(cards)
