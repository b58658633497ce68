"""Verbs of every kind in one program: compiled for several lanes it does what it does call by call.

One program, because each call that lets time pass brings an engine of its own into what is compiled; kernels, values,
aborts, failures and real bytes are in the random programs that are compiled.
"""

import jax
import numpy as np
import pytest

import ascend_jax as aj
from tests.runtime.cards import MARK_COSTS, SIZES, card_of

LATE = aj.Code.RT_WAIT_TIMEOUT
LANES = {"ns": (500, 4000, 4000), "priority": (0, 7, 8), "users": (1, 1, 2)}  # there is no priority 8

# is its stream busy, streams left, earliest thread, context made, none afterwards, the primary one, callback that was
# run, users left
ANSWERS = [[1, 2, 0, 1, -1, 0, 7, 0], [1, 2, 0, 1, -1, 0, 7, 0], [-1, 2, 0, 1, -1, 0, 7, 1]]


@pytest.fixture(scope="module")
def kit():
    """A card with streams 1 and 2, which thread 0 serves, device memory and pinned memory."""
    card = card_of(MARK_COSTS, SIZES)
    card, device = aj.malloc(card, 8192)
    card, host = aj.malloc_host(card, 512)
    for stream in (1, 2):
        card = aj.subscribe_report(aj.create_stream(card)[0], 0, stream)
    return card, int(device), int(host)


def counts(card, ns):
    """A count that is waited for before it is reached, and a function of the host."""
    card, count = aj.create_cnt_notify(card, site=1)
    card = aj.wait_cnt_notify(card, count, 3, 2, mode=aj.CntWaitMode.EQUAL, clears=True, timeout_s=1, site=1)
    card = aj.record_cnt_notify(card, count, 2, 0, mode=aj.CntRecordMode.SET_VALUE, site=1)
    card = aj.record_cnt_notify(card, count, 1, 0, mode=aj.CntRecordMode.ADD, site=1)
    card = aj.launch_host_func(card, 0, 5, duration_ns=ns // 100, site=1)
    return aj.destroy_cnt_notify(card, count, site=1)


def events(card, device, ns):
    """Every kind of event; the task that others wait for takes ``ns``."""
    card, plain = aj.create_event(card, site=1)
    card, ex = aj.create_event_ex_with_flag(card, aj.EventFlag.SYNC | aj.EventFlag.TIME_LINE, site=1)
    card, flag = aj.create_event_with_flag(card, aj.EventFlag.SYNC, site=1)
    card = aj.stream_wait_event(card, 2, flag, site=1)
    card = aj.memset_async(card, device, 0, ns - 100, 1, site=1)
    card = aj.record_event(aj.record_event(card, flag, 1, site=1), ex, 1, site=1)
    card = aj.reset_event(card, flag, 2, site=1)
    card = aj.stream_wait_event(aj.host_work(card, 2500), 2, flag, timeout_s=3, site=1)
    card = aj.record_event(aj.stream_wait_event(card, 0, ex, site=1), flag, 0, site=1)
    return aj.destroy_event(card, plain, site=1)


def notifies(card, ns):
    """One record and two waits, one of which lasts too long."""
    card, first = aj.create_notify(card, site=1)
    card, other = aj.create_notify(card, site=1)
    card = aj.wait_and_reset_notify(card, first, 2, 1, site=1)
    card = aj.record_notify(aj.host_work(card, ns), first, 1, site=1)
    card = aj.record_notify(aj.wait_and_reset_notify(card, first, 0, 1, site=1), other, 0, site=1)
    return aj.destroy_notify(card, other, site=1)


def callbacks(card, ns):
    """One that blocks its stream and one that does not; the one that comes first is run."""
    card = aj.launch_callback(card, 1, 7, site=1)
    card = aj.launch_callback(card, 2, 8, is_blocking=False, site=1)
    return aj.process_report(card, -1, callback_ns=ns, site=1)


def streams(card, device, priority):
    """A stream is made, used, asked and destroyed by a thread of its own."""
    card, primary = aj.get_context(card, site=1)
    card, worker = aj.create_thread(card, site=1)
    card = aj.set_context(aj.use_thread(card, worker, site=1), primary, site=1)
    card, stream = aj.create_stream(aj.host_work(card, 300), priority=priority, site=1)
    card = aj.memset_async(card, device, 0, 3920, stream, site=1)
    card, is_busy = aj.stream_query(card, stream, site=1)
    card, left = aj.stream_available_count(aj.destroy_stream(card, stream, site=1), site=1)
    earliest = aj.earliest_thread(card)
    card = aj.join_thread(aj.use_thread(card, 0, site=1), worker, site=1)
    return aj.end_thread(card, worker, site=1), (is_busy, left, earliest)


def contexts(card, device, host):
    """A second context with work in it is made and destroyed."""
    card, primary = aj.get_context(card, site=1)
    card, context = aj.create_context(card, site=1)
    card, stream = aj.create_stream(card, site=1)
    card = aj.memcpy_async(card, device, host, 480, stream, site=1)
    card = aj.destroy_context(card, context, site=1)
    card, none = aj.get_context(card, site=1)
    return aj.set_context(card, primary, site=1), (context, none, primary)


def reset(card, device, users):
    """The device is set a second time or not, and reset once."""
    twice = aj.set_device(card, site=1)
    card = jax.tree.map(lambda one, two: jax.numpy.where(users == 2, two, one), card, twice)
    card = aj.reset_device(aj.memset_async(card, device, 1, 40, 0, site=1), site=1)
    return card, aj.primary_context_state(card)


def flow(kit, ns, priority, users):
    card, device, host = kit
    card, asked = streams(counts(card, ns), device, priority)
    card, handles = contexts(card, device, host)
    card = events(card, device, ns)
    card, number = callbacks(card, ns)
    queued = notifies(card, ns)
    card, state = reset(queued, device, users)
    return queued, card, (*asked, *handles, number, state)


def test_a_compiled_program_of_lanes_does_what_its_calls_do(kit):
    lanes = {name: np.array(values, np.int32) for name, values in LANES.items()}
    compiled = jax.jit(jax.vmap(lambda lanes: flow(kit, **lanes)), compiler_options=aj.QUICK_TO_COMPILE)
    many = compiled(lanes)
    for lane in range(3):
        queued, card, answers = flow(kit, **{name: values[lane] for name, values in lanes.items()})
        got = jax.tree.map(lambda leaf, lane=lane: np.asarray(leaf)[lane], many)
        jax.tree.map(np.testing.assert_array_equal, (queued, card, answers), got)
        assert [int(x) for x in answers] == ANSWERS[lane]
        log = aj.insight.timeline(aj.synchronize_device(queued))
        codes = [log.code[log.kind == kind].tolist() for kind in ("event wait", "notify wait")]
        assert codes[1].pop(0) == 0  # the count
        # with the long task the flag is reset after stream 0 has set it, and stream 2 waits in vain for both
        assert codes == ([[0, 0, 0], [0, LATE]] if lane == 0 else [[0, LATE, 0], [LATE, 0]])
