"""Cards for tests that work out times by hand: round costs, and few shapes, so that files share what is compiled."""

import ascend_jax as aj

QUICK_CALLS = {
    "host_copy_enqueue_ns": 10, "host_malloc_ns": 10, "host_stream_create_ns": 10, "host_event_ns": 10,
}  # fmt: skip

# a call takes 10 ns and a synchronization 20; a fill takes 100 ns and 1 ns a byte
MARK_COSTS = QUICK_CALLS | {
    "has_counting_notifies": 1, "host_sync_ns": 20, "copy_latency_ns": 100, "d2d_bytes_per_s": 1e9,
}  # fmt: skip
# a call takes 10 ns; a copy takes 20 ns and 1 ns a byte, a fill 20 ns and 1 ns for 4 bytes
HOST_COSTS = QUICK_CALLS | {
    "has_priorities": 1,
    "host_sync_ns": 10, "copy_latency_ns": 20, "h2d_bytes_per_s": 1e9, "d2h_bytes_per_s": 1e9, "d2d_bytes_per_s": 4e9,
}  # fmt: skip
# one shape for all of them: what is compiled for one file serves the others
SIZES = {
    "max_streams": 5, "max_events": 3, "max_notifies": 2, "max_values": 2, "max_contexts": 3, "max_threads": 3,
    "max_commands": 32, "max_blocks": 4, "hbm_backing_bytes": 0, "host_backing_bytes": 4096,
}  # fmt: skip
HBM = (2 << 20) // 64  # where the first block of device memory lies


def card_of(costs: dict, sizes: dict, **changed: int) -> aj.CardState:
    """Return a fresh card with these costs and sizes."""
    return aj.init(aj.chip("Ascend910B2").replace(**costs), **sizes | changed)


def code(card: aj.CardState) -> int:
    """Return the code of the latest call."""
    return int(aj.last_code(card))


def answer(result: tuple) -> tuple[int, int]:
    """Return (code, value) of a call that returns a card and a value."""
    return code(result[0]), int(result[1])


def fill(card: aj.CardState, stream: int, ns: int) -> aj.CardState:
    """Queue a task of ``ns`` at MARK_COSTS: 100 ns and a byte per ns on the one engine for fills. It takes 10 ns."""
    return aj.memset_async(card, HBM, 0, ns - 100, stream)


def asked(result: tuple) -> tuple[int, int]:
    """Return (value, code) of a query."""
    return int(result[1]), code(result[0])
