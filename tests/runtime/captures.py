"""Streams to capture from: a card whose calls cost nothing, and a fork with its join."""

import ascend_jax as aj

CALLS = ("host_launch_ns", "host_copy_enqueue_ns", "host_event_ns", "host_stream_create_ns", "host_sync_ns")
FREE_CALLS = dict.fromkeys(CALLS, 0.0)
CHIP = aj.chip("Ascend910B2").replace(**FREE_CALLS, copy_latency_ns=10.0, d2d_bytes_per_s=1e9, h2d_bytes_per_s=1e9)


def ex_event(card: aj.CardState) -> tuple:
    """Return the card with an event that a capture takes, and its handle."""
    return aj.create_event_ex_with_flag(card, aj.EventFlag.SYNC | aj.EventFlag.TIME_LINE)


def make(chip=CHIP, **sizes: int):
    """A card with two streams (handles 1 and 2), two events (0 and 1) and a block of 4096 bytes."""
    sizes = {"max_commands": 64, "max_streams": 6, "max_events": 4, "max_blocks": 4} | sizes
    card = aj.init(chip, hbm_backing_bytes=1 << 16, host_backing_bytes=4096, **sizes)
    card, pointer = aj.malloc(card, 4096)
    for verb in (aj.create_stream, aj.create_stream, ex_event, ex_event):
        card, _ = verb(card)
    assert aj.status(card).code == 0
    return card, int(pointer)


def fork(card, pointer):
    """Fill in stream 1, copy on in stream 2, join back: 6 commands."""
    card = aj.memset_async(card, pointer, 7, 100, 1)
    card = aj.record_event(card, 0, 1)
    card = aj.stream_wait_event(card, 2, 0)
    card = aj.memcpy_async(card, pointer, pointer, 100, 2, dst_offset=1000)
    card = aj.record_event(card, 1, 2)
    return aj.stream_wait_event(card, 1, 1)
