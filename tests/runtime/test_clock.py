"""Simulated time is exact to 1 ns, however late."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime import clock

HOUR_NS = 3600 * 10**9


def test_host_work_is_exact_up_to_an_hour(kits):
    card = kits["ties"].card
    expected = aj.host_time_ns(card)
    for duration in (2**30 + 1, 2**24 + 1, 1, 2**31 - 1, 999_999_999, 16_777_217, 2**30 - 1):
        card, expected = aj.host_work(card, duration), expected + duration
        assert aj.host_time_ns(card) == expected
    while expected < HOUR_NS:
        card, expected = aj.host_work(card, 2_000_000_001), expected + 2_000_000_001
    assert aj.host_time_ns(card) == expected


def test_host_work_takes_any_whole_number(kits):
    card = kits["ties"].card
    assert aj.host_time_ns(aj.host_work(card, HOUR_NS + 1)) == aj.host_time_ns(card) + HOUR_NS + 1


@pytest.mark.parametrize("duration", [-1, -0.5 - 1, -(2**40)])
def test_host_work_never_turns_time_back(kits, duration):
    card = kits["ties"].card
    with pytest.raises(ValueError, match="duration_ns"):
        aj.host_work(card, duration)
    assert aj.host_time_ns(aj.host_work(card, jnp.int32(-5))) == aj.host_time_ns(card)
    assert aj.host_time_ns(aj.host_work(card, 0)) == aj.host_time_ns(card)


def test_commands_are_exact_late_in_the_day(kits, programs):
    kit = kits["ties"]
    card, clock_ns = kit.card, aj.host_time_ns(kit.card)
    while clock_ns < HOUR_NS:
        card, clock_ns = aj.host_work(card, 2_000_000_000), clock_ns + 2_000_000_000
    durations = [1, 3_000_000_000, 2**31, 2**30, 7, 10_000_000_000, 2**30 - 64]
    for duration in durations:
        card = programs.launch(kit, card, 0, duration, cube=1, blocks=24)
    card = aj.synchronize_device(card)
    log = aj.insight.timeline(card)
    issues = [clock_ns + 10 * (i + 1) for i in range(len(durations))]
    assert log.issue_ns.tolist() == issues
    end = 0
    for row, duration in enumerate(durations):
        start = max(issues[row], end)
        end = start + duration
        assert (log.ready_ns[row], log.start_ns[row], log.end_ns[row]) == (start, start, end)
    assert aj.host_time_ns(card) == end


def test_sums_of_limbs_equal_python_ints():
    rng = np.random.default_rng(0)
    limb = 1 << 30
    for _ in range(200):
        a, b = (int(x) for x in rng.integers(0, 2**44, 2))
        left, right = (clock.Instant(np.int32(x // limb), np.int32(x % limb)) for x in (a, b))
        assert int(clock.to_ns(*clock.plus(left, right))) == a + b
        assert bool(clock.is_before(left, right)) == (a < b)
        assert int(clock.to_ns(*clock.later(left, right))) == max(a, b)
        assert int(clock.until(left, right)) == min(max(b - a, 0), limb)
        delta = int(rng.integers(0, limb + 1))
        assert int(clock.to_ns(*clock.add(left, np.int32(delta)))) == a + delta
        if delta <= a:
            assert int(clock.to_ns(*clock.minus(left, np.int32(delta)))) == a - delta


@pytest.mark.parametrize("direction, rate", [("d2h", 25_000_000_000), ("h2d", 24_926_000_000)])
def test_copies_on_a_catalogue_chip_last_latency_plus_bytes_over_rate(kits, direction, rate):
    kit = kits["ties"]
    card = dataclasses.replace(kit.card, chip=jax.tree.map(jnp.asarray, aj.chip("Ascend910B2")))
    dst, src = (kit.host, kit.device) if direction == "d2h" else (kit.device, kit.host)
    sizes = [1, 24, 25, 26, 50, 64, 100, 250, 333, 350, 425, 500, 512]
    for nbytes in sizes:
        card = aj.memcpy(card, dst, src, nbytes)
    log = aj.insight.timeline(card)
    assert (log.end_ns - log.start_ns).tolist() == [5000 + -(-nbytes * 10**9 // rate) for nbytes in sizes]


def test_years_of_idle_time_are_one_jump(kits, programs):
    card = aj.host_work(kits["ties"].card, 2**59)
    card = aj.synchronize_device(programs.launch(kits["ties"], card, 1, 100))
    log = aj.insight.timeline(card)
    assert log.start_ns[-1] == log.issue_ns[-1] > 2**59
    assert log.end_ns[-1] - log.start_ns[-1] == 100


@pytest.mark.parametrize("duration_ns", [-1, -0.5, float("nan"), float("inf"), 2**60 + 1, 1e300])
def test_durations_that_are_none(kits, duration_ns):
    with pytest.raises(ValueError, match="must be from 0 to"):
        aj.host_work(kits["ties"].card, duration_ns)
