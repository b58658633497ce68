"""When commands run: cores, copy engines, queues, events. Directed cases beside the random programs."""

import pytest

import ascend_jax as aj


@pytest.fixture
def lab(kits, programs):
    """``(card with streams 0..2 and event 0, launch)`` on a sheet of round costs."""
    kit = kits["ties"]
    card, _ = aj.create_stream(kit.card)

    def launch(card, stream, duration, **options):
        return programs.launch(kit, card, stream, duration, **options)

    return card, launch, kit


def kernels(card):
    """(ready, start, end) of each kernel, after everything has ended."""
    log = aj.insight.timeline(aj.synchronize_device(card))
    keep = log.kind == "kernel"
    return [
        tuple(int(x) for x in row) for row in zip(log.ready_ns[keep], log.start_ns[keep], log.end_ns[keep], strict=True)
    ]


UNITS = pytest.mark.parametrize("unit, capacity", [("cube", 24), ("vector", 48)])


@UNITS
def test_blocks_that_need_each_other_wait_for_all_their_cores(lab, unit, capacity):
    card, launch, _ = lab
    for stream in (0, 1):
        card = launch(card, stream, 1000, **{unit: 1}, blocks=capacity // 2 + 1, all_at_once=True)
    (_, start, end), (ready, second, _) = kernels(card)
    assert end == start + 1000
    assert ready < end and second == end


@UNITS
def test_kernels_that_fit_together_overlap(lab, unit, capacity):
    card, launch, _ = lab
    for stream in (0, 1):
        card = launch(card, stream, 1000, **{unit: 1}, blocks=capacity // 2, all_at_once=True)
    assert all(start == ready for ready, start, _ in kernels(card))


@UNITS
def test_blocks_start_as_cores_free_up(lab, unit, capacity):
    card, launch, _ = lab
    card = launch(card, 0, 1000, **{unit: 1}, blocks=capacity - 5)
    card = launch(card, 1, 600, **{unit: 1}, blocks=7)
    (_, start, end), (ready, second, second_end) = kernels(card)
    assert end == start + 1000
    assert second == ready and second_end == ready + 600 + 600  # 5 blocks at once, then 2 on cores of the first 5


def test_more_blocks_than_cores_run_in_waves_behind_one_head(lab):
    card, launch, _ = lab
    card = launch(card, 0, 1000, cube=1, vector=2, blocks=50, head_ns=30)
    ((_, start, end),) = kernels(card)
    assert end == start + 30 + 3 * 1000  # 24, 24 and 2


def test_cube_only_and_vector_only_kernels_overlap(lab):
    card, launch, _ = lab
    card = launch(card, 0, 1000, cube=1, blocks=24)
    card = launch(card, 1, 1000, vector=1, blocks=48)
    assert all(start == ready for ready, start, _ in kernels(card))


def test_nobody_overtakes_in_a_queue(lab):
    card, launch, _ = lab
    card = launch(card, 0, 1000, cube=1, blocks=20)  # leaves 4
    card = launch(card, 1, 1000, cube=1, blocks=8, all_at_once=True)  # must wait
    card = launch(card, 2, 1000, cube=1, blocks=4)  # would fit, but it is behind the one above
    (_, _, end), (_, big, _), (_, small, _) = kernels(card)
    assert big == end and small == end


def test_another_resource_is_another_queue(lab):
    card, launch, _ = lab
    card = launch(card, 0, 1000, cube=1, blocks=20)
    card = launch(card, 1, 1000, cube=1, blocks=8, all_at_once=True)
    card = launch(card, 2, 1000, vector=1, blocks=48)
    _, _, (ready, start, _) = kernels(card)
    assert start == ready


def test_queue_order_holds_however_long_the_wait(lab):
    card, launch, _ = lab
    half = {"cube": 1, "blocks": 13, "all_at_once": True}
    card = launch(card, 0, 5e9, cube=1, blocks=24)
    card = launch(card, 2, 1000, **half)
    card = aj.host_work(card, 2_000_000_000)
    card = launch(card, 1, 1000, **half)
    (_, _, end), (_, first, first_end), (_, second, _) = kernels(card)
    assert (first, second) == (end, first_end)


def test_marks_of_an_instant_settle_before_anything_starts(lab):
    card, launch, _ = lab
    card = launch(card, 1, 50_000)
    card = aj.record_event(card, 0, 1)
    card = aj.stream_wait_event(card, 0, 0)
    card = launch(card, 0, 1000, vector=1, blocks=25, all_at_once=True)
    card = launch(card, 1, 1000, vector=1, blocks=24, all_at_once=True)
    _, (ready, start, end), (ready_too, late, _) = kernels(card)
    assert ready == ready_too == start and late == end


def test_blocks_that_draw_too_much_share_the_memory(lab):
    card, launch, _ = lab
    whole = 1000 * 16  # bytes that the HBM moves in 1000 ns
    card = launch(card, 0, 1000, hbm_bytes=whole * 3 // 4)
    card = aj.host_work(card, 90)
    card = launch(card, 1, 1000, hbm_bytes=whole * 3 // 4)
    (_, first, first_end), (_, second, second_end) = kernels(card)
    assert second == first + 100
    # a half each instead of three quarters: 2/3 of the speed, in 1/256 rounded down, until the first one is over
    slow = 170
    together = -(-(1000 - 100) * 256 // slow)
    assert first_end == second + together
    assert second_end == first_end + -(-(1000 * 256 - together * slow) // 256)


def test_a_block_that_draws_little_is_never_slowed(lab):
    card, launch, _ = lab
    card = launch(card, 0, 1000, hbm_bytes=16_000 * 9 // 10)
    card = launch(card, 1, 1000, hbm_bytes=16_000 // 3)
    (_, first, first_end), (_, second, second_end) = kernels(card)
    assert second_end == second + 1000 and first_end > first + 1000


def test_a_copy_and_a_kernel_share_the_memory(lab):
    card, launch, kit = lab
    card = aj.memcpy_async(card, kit.device, kit.device + 200, 4000, 0)  # 1020 ns, reads and writes
    card = launch(card, 1, 1000, hbm_bytes=16_000 - 1)
    log = aj.insight.timeline(aj.synchronize_device(card))
    copy, kernel = log.end_ns - log.start_ns  # the copy asks for 8000 / 1020 of 16 bytes per ns: less than half
    assert copy == 1020 and kernel > 1400


def test_copies_of_one_direction_serialise_and_of_two_overlap(lab):
    card, _, kit = lab
    card = aj.memcpy_async(card, kit.device, kit.host, 400, 0)
    card = aj.memcpy_async(card, kit.device + 10, kit.host, 400, 1)
    card = aj.memcpy_async(card, kit.host, kit.device, 400, 2)
    log = aj.insight.timeline(aj.synchronize_device(card))
    assert log.engine.tolist() == ["h2d", "h2d", "d2h"]
    assert log.start_ns[1] == log.end_ns[0] > log.ready_ns[1]
    assert log.start_ns[2] == log.ready_ns[2]
    assert (log.end_ns - log.start_ns).tolist() == [420, 420, 220]


def test_direction_comes_from_the_addresses(lab):
    card, _, kit = lab
    places = {"h2d": (kit.device, kit.host), "d2h": (kit.host, kit.device), "d2d": (kit.device + 4, kit.device)}
    for dst, src in [*places.values(), (kit.host + 4, kit.host)]:
        card = aj.memcpy(card, dst, src, 100)
    log = aj.insight.timeline(card)
    assert log.engine.tolist() == [*places, ""]
    assert log.stream.tolist() == [-1] * 4
    assert (log.end_ns - log.start_ns).tolist() == [120, 70, 45, 120]


def test_fill_of_device_memory_holds_the_d2d_engine(lab):
    card, _, kit = lab
    card = aj.memset_async(card, kit.device, 1, 4000, 0)
    card = aj.memcpy_async(card, kit.device, kit.device + 10, 400, 1)
    log = aj.insight.timeline(aj.synchronize_device(card))
    assert log.engine.tolist() == ["d2d", "d2d"]
    assert log.start_ns[1] == log.end_ns[0] == log.start_ns[0] + 1020


def test_a_wait_is_bound_when_it_is_called(lab):
    card, launch, _ = lab
    card = launch(card, 1, 500)
    card = aj.record_event(card, 0, 1)
    card = aj.stream_wait_event(card, 0, 0)
    card = launch(card, 1, 90_000)
    card = aj.record_event(card, 0, 1)  # moves the mark; the wait above stays where it was
    card = launch(card, 0, 10)
    first, long, waited = kernels(card)
    assert waited[0] == max(first[2], waited[0]) < long[2]
    log = aj.insight.timeline(aj.synchronize_device(card))
    assert log.waits_for[log.kind == "event wait"].tolist() == [1]


def test_a_wait_for_an_event_without_record_holds_nobody_up(lab):
    card, launch, _ = lab
    card = launch(card, 1, 90_000)
    card = aj.stream_wait_event(card, 0, 0)
    card = launch(card, 0, 10)
    long, waited = kernels(card)
    assert waited[2] < long[2]
    before = aj.host_time_ns(card)
    assert aj.host_time_ns(aj.synchronize_event(card, 0)) == before + 10


def test_a_destroyed_event_still_holds_the_waits_queued_before(lab):
    card, launch, _ = lab
    card = launch(card, 1, 9000)
    card = aj.record_event(card, 0, 1)
    card = aj.stream_wait_event(card, 0, 0)
    card = launch(card, 0, 10)
    card = aj.destroy_event(card, 0)
    long, waited = kernels(card)
    assert waited[0] == long[2]


def test_a_blocking_copy_waits_for_no_stream(lab):
    card, launch, kit = lab
    card = launch(card, 0, 90_000, cube=1, vector=2, blocks=24)
    before = aj.host_time_ns(card)
    card = aj.memcpy(card, kit.host, kit.device, 400)
    assert aj.host_time_ns(card) == before + 20 + 220
    assert not aj.insight.timeline(card).finished[0]


def test_synchronizing_finished_work_costs_the_call_only(lab):
    card, launch, _ = lab
    card = aj.host_work(launch(card, 0, 100), 5000)
    before = aj.host_time_ns(card)
    assert aj.host_time_ns(aj.synchronize_stream(card, 0)) == before + 10
    assert aj.host_time_ns(aj.synchronize_device(card)) == before + 10


def test_elapsed_time_of_events(lab):
    card, launch, _ = lab
    card, second = aj.create_event(card)
    card = aj.record_event(card, 0, 1)
    card = launch(card, 1, 2_000_000)
    card = aj.record_event(card, second, 1)
    card = aj.synchronize_stream(card, 1)
    log = aj.insight.timeline(card)
    assert aj.event_elapsed_ms(card, 0, second) == (log.end_ns[2] - log.end_ns[0]) / 1e6 > 2


def test_a_wait_that_nobody_ends_is_a_deadlock(lab):
    card, launch, _ = lab
    card, notify = aj.create_notify(card)
    card = launch(aj.wait_and_reset_notify(card, notify, 1), 1, 100)
    card = launch(card, 0, 100)
    stuck = aj.synchronize_device(card)
    assert aj.status(stuck).code == aj.Code.DEADLOCK
    assert aj.status(aj.synchronize_stream(card, 0)).code == 0
    assert aj.status(stuck).call == aj.status(card).calls and aj.status(stuck).calls == aj.status(card).calls + 1
    log = aj.insight.timeline(stuck)
    assert log.end_ns.tolist() == [-1, -1, log.issue_ns[2] + 100]


@pytest.mark.parametrize(
    "options", [{"cube": 1, "blocks": 25}, {"vector": 2, "blocks": 25}, {"cube": 2}, {"vector": 3}, {"blocks": 0}]
)
def test_blocks_that_can_never_run_are_refused(lab, options):
    card, launch, _ = lab
    refused = launch(card, 1, 100, all_at_once=True, **options)
    assert aj.last_code(refused) == aj.Code.RT_PARAM_INVALID
    if options.get("blocks") == 25:
        assert aj.last_code(launch(card, 1, 100, **options)) == 0  # in waves they can
