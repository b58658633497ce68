"""Calls that must be refused: the code is told, and nothing else has changed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import ascend_jax as aj
from ascend_jax.runtime.layout import Clock, Device, HeapWord, Stream

FAR = 2**31 - 1
DEVICE_BYTES, HOST_BYTES = 70_000, 512


def visible(card):
    """Everything but the status word, the host's clock, the latest shortage and how far the device is simulated."""
    device, streams = np.array(card.device), np.array(card.streams)
    device[Device.INSTANTS] = 0
    streams[streams[:, Stream.PENDING] == 0, Stream.KEY :] = 0  # how far the head has come, and there is none
    table = dataclasses.replace(card.table, times=card.table.times[:-1])  # the last row is nobody's
    rest = {"status": jnp.zeros(0), "clock": card.clock[Clock.ENQUEUED :], "device": device, "streams": streams}
    for name in ("hbm", "host"):
        heap = getattr(card, name)
        rest[name] = dataclasses.replace(heap, words=heap.words[: HeapWord.SHORT_WHOLE])
    tree = dataclasses.replace(card, table=table, **rest)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def refuse(card, call, code):
    """Make a call that must be refused; check code, counter and that nothing else has changed."""
    before, word = visible(card), aj.status(card)
    result = call(card)
    after = result[0] if isinstance(result, tuple) else result
    now = aj.status(after)
    assert now.last_code == code, aj.status(after)
    assert (now.calls, now.code, now.call) == (word.calls + 1, code, word.calls)
    for old, new in zip(before, visible(after), strict=True):
        np.testing.assert_array_equal(old, new)
    return result
