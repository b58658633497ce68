"""A handle is a whole number: a float or a bool in its place is a TypeError in every call, whatever it rounds to."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj

HANDLES = (
    "stream", "event", "start", "end", "notify", "context", "thread", "pool", "handle", "pointer", "dst", "src",
    "device", "callback", "function",
)  # fmt: skip
NO_NUMBERS = (1.0, 1.5, float("nan"), True, np.float32(1), np.True_, jnp.float32(1), jnp.bool_(True))


def calls():
    """Yield (name, call, parameters) of everything that is called on a card."""
    for name in aj.__all__:
        call = getattr(aj, name)
        if inspect.isfunction(call):
            parameters = inspect.signature(call).parameters
            if "card" in parameters and "site" in parameters:
                yield name, call, parameters


CALLS = {name: (call, parameters) for name, call, parameters in calls()}
WITH_HANDLES = [(name, handle) for name, (_, parameters) in CALLS.items() for handle in HANDLES if handle in parameters]


@pytest.fixture(scope="module")
def card():
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0, max_commands=32)
    return aj.create_stream(card)[0]


def test_the_list_is_long():
    """At least the verbs of streams, events, notifies, contexts, threads, pools and memory."""
    names = {name for name, _ in WITH_HANDLES}
    assert len(WITH_HANDLES) > 80
    assert names >= {
        "synchronize_stream", "stream_wait_event", "destroy_event", "record_notify", "wait_cnt_notify", "set_context",
        "use_thread", "mem_pool_destroy", "map_mem", "free_physical", "launch_callback", "execute_program",
        "capture_end", "event_elapsed_time", "enable_peer_access", "memcpy_async", "capture_task_group_end",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "handle"), WITH_HANDLES)
def test_what_is_no_whole_number_names_nothing(card, name, handle):
    call, parameters = CALLS[name]
    required = [one.name for one in parameters.values() if one.default is inspect.Parameter.empty]
    given = dict.fromkeys(required, 1) | {"card": card}
    for value in NO_NUMBERS:
        with pytest.raises(TypeError, match=f"{handle} .*must be a whole number"):
            call(**given | {handle: value})


def test_lists_of_handles_and_calls_under_jit(card):
    with pytest.raises(TypeError, match=r"notify = 0\.5: must be a whole number"):
        aj.notify_batch_reset(card, [0, 0.5])
    with pytest.raises(TypeError, match="stream of type float32: must be a whole number"):
        jax.jit(lambda stream: aj.last_code(aj.synchronize_stream(card, stream)))(1.0)
    with pytest.raises(TypeError, match=r"thread = 0\.5: must be a whole number"):
        aj.thread_time_ns(card, 0.5)


@pytest.mark.parametrize("value", [1, np.int64(1), np.uint8(1), jnp.int32(1), jnp.uint8(1), np.array(1)])
def test_whole_numbers_of_any_type_are_handles(card, value):
    after, status = aj.stream_query(card, value)
    assert (int(aj.last_code(after)), int(status)) == (0, 0)


def test_times_flags_and_modes_are_whole_too(card):
    for call in (
        lambda: aj.synchronize_stream(card, 1, timeout_ms=0.5),
        lambda: aj.create_stream(card, priority=0.5),
        lambda: aj.create_event_with_flag(card, 1.0),
        lambda: aj.capture_begin(card, 1, 1.5),
        lambda: aj.wait_and_reset_notify(card, 0, 1, 0.5),
        lambda: aj.set_op_wait_timeout(card, 0.5),
        lambda: aj.inject_fault(card, 507015.0),
    ):
        with pytest.raises(TypeError, match="must be a whole number"):
            call()
