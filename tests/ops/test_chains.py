"""Operators of two streams on one card: who competes takes longer, who does not stays as fast."""

import numpy as np
import pytest

import ascend_jax as aj
from tests.runtime.cards import SIZES, card_of, code

LENGTH = 8  # matmuls of a chain


@pytest.fixture(scope="module")
def prepared():
    """A card of published speed with streams 1 and 2, and a matmul that takes all its cube cores."""
    card = card_of({}, SIZES)
    blocks = []
    for _ in range(3):
        card, pointer = aj.malloc(card, 4096 * 4096 * 2)
        blocks.append(aj.tensor(pointer, (4096, 4096), "float16"))
    card, _, matmul = aj.ops.matmul_get_workspace_size(card, blocks[0], blocks[1], out=blocks[2])
    for _ in range(2):
        card, _ = aj.create_stream(card)
    assert code(card) == 0
    return card, matmul


def spans(card, matmul, streams):
    """Queue a chain in each stream, in turns; return how long each took from the first launch, in ns."""
    for _ in range(LENGTH):
        for stream in streams:
            card = aj.launch(card, matmul, 0, stream)
    card = aj.synchronize_device(card)
    assert code(card) == 0
    log = aj.insight.timeline(card)
    return [int(log.end_ns[log.stream == stream].max() - log.start_ns.min()) for stream in streams]


def test_two_chains_of_full_chip_matmuls_take_twice_as_long(prepared):
    card, matmul = prepared
    assert int(np.asarray(matmul.cost.blocks)) == int(card.chip["cube_cores"])
    (alone,) = spans(card, matmul, [1])
    assert all(1.8 * alone < both < 2.1 * alone for both in spans(card, matmul, [1, 2]))
