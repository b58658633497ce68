"""Attention across cards: ring in zig-zag, Ulysses, heads; forward and backward against float64 and one card."""

import functools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ascend_jax import ops

ROOT = pathlib.Path(__file__).parents[2]


def arrays(length, heads=4, kv_heads=2, dim=8, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(2, length, heads, dim), (2, length, kv_heads, dim), (2, length, kv_heads, dim + 4)]
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def textbook(q, k, v, causal, scale=None):
    """Attention in float64 from whole score matrices."""
    q, k, v = (np.asarray(x, np.float64).swapaxes(1, 2) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores = np.where(np.tri(*scores.shape[2:]) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(3, keepdims=True))
    return (weights / weights.sum(3, keepdims=True) @ v).swapaxes(1, 2)


def ring(q, k, v, cards, causal, **options):
    parts = [ops.shard_sequence(x, cards, causal=causal) for x in (q, k, v)]
    every = jax.vmap(functools.partial(ops.ring_attention, causal=causal, **options), axis_name="card")
    return ops.join_sequence(every(*parts), causal=causal)


def ulysses(q, k, v, cards, causal, **options):
    parts = [ops.shard_sequence(x, cards, causal=False) for x in (q, k, v)]
    every = jax.vmap(functools.partial(ops.ulysses_attention, causal=causal, **options), axis_name="card")
    return ops.join_sequence(every(*parts), causal=False)


def by_heads(q, k, v, cards, causal):
    parts = [ops.shard_axis(x, cards, 2, "heads") for x in (q, k, v)]
    return ops.join_axis(jax.vmap(functools.partial(ops.flash_attention, causal=causal))(*parts), 2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("function", "cards"), [(ring, 1), (ring, 3), (ring, 4), (ulysses, 4), (ulysses, 2), (by_heads, 2)]
)
def test_forward_equals_float64(function, cards, causal):
    q, k, v = arrays(24)
    out = jax.jit(functools.partial(function, cards=cards, causal=causal))(q, k, v)
    assert np.abs(np.asarray(out) - textbook(q, k, v, causal)).max() < 2e-6


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("function", [ring, ulysses])
def test_gradients_equal_those_of_whole_matrices(function, causal):
    q, k, v = arrays(16)
    weight = np.random.default_rng(1).standard_normal((2, 16, 4, 12), dtype=np.float32)

    def loss(attention):
        return jax.jit(jax.grad(lambda x: (attention(*x) * weight).sum()))

    given = loss(lambda *x: function(*x, cards=4, causal=causal))((q, k, v))
    want = loss(lambda *x: ops.plain_attention(*x, causal=causal))((q, k, v))
    assert max(np.abs(a - b).max() for a, b in zip(given, want, strict=True)) < 1e-5


def test_half_precision_and_scale():
    q, k, v = (x.astype(np.float16) for x in arrays(24, dim=4))
    out = ring(q, k, v, 3, True, scale=2.0, tile=2)
    assert out.dtype == jnp.float16
    assert np.abs(np.asarray(out, np.float64) - textbook(q, k, v, True, 2.0)).max() < 2e-3


def test_long_sequence_on_eight_cards():
    """S = 8,192, causal: what one card gives, within fp32 noise, and its gradients."""
    rng = np.random.default_rng(3)
    q, k, v, weight = (rng.standard_normal((1, 8192, 1, 16), dtype=np.float32) for _ in range(4))

    def out_and_grads(attention):
        def loss(x):
            out = attention(*x)
            return (out * weight).sum(), out

        return jax.jit(jax.value_and_grad(loss, has_aux=True))

    (_, whole), grads = out_and_grads(lambda *x: ops.flash_attention(*x, causal=True))((q, k, v))
    (_, out), ring_grads = out_and_grads(lambda *x: ring(*x, cards=8, causal=True))((q, k, v))
    assert np.abs(out - whole).max() <= 2e-6
    assert max(np.abs(a - b).max() for a, b in zip(ring_grads, grads, strict=True)) <= 1e-5


def live_pairs(cards, length):
    """Pairs of visible rows and columns that each card works on, by step, from a list of positions."""
    positions = np.asarray(ops.shard_sequence(jnp.arange(length)[None], cards, causal=True))[:, 0]
    return np.array(
        [
            [(positions[card][:, None] >= positions[(card - step) % cards][None]).sum() for step in range(cards)]
            for card in range(cards)
        ]
    )


@pytest.mark.parametrize("cards", [2, 5, 8])
def test_zigzag_gives_every_card_the_same_work(cards):
    pairs = live_pairs(cards, 64 * cards)
    assert len(np.unique(pairs.sum(1))) == 1
    assert (np.ptp(pairs, axis=0) == 0).all()
    # a step after the first is two products of one piece with another
    assert (pairs[:, 1:] == 2 * 32 * 32).all()


def test_refusals():
    q, k, v = arrays(20)
    with pytest.raises(ValueError, match=r"sequence length = 20: .* 3 cards .* multiple of 6"):
        ring(q, k, v, 3, True)
    with pytest.raises(ValueError, match="sequence length = 20: does not divide by 3"):
        ring(q, k, v, 3, False)
    with pytest.raises(ValueError, match="heads = 4: does not divide by 3"):
        by_heads(q, k, v, 3, False)
    q, k, v = arrays(30, heads=6, kv_heads=2)
    with pytest.raises(ValueError, match="heads = 6: does not divide by 5"):
        ulysses(q, k, v, 5, False)
    with pytest.raises(ValueError, match="key heads = 2: neither divides 3"):
        ulysses(q, k, v, 3, False)
    with pytest.raises(ValueError, match="same T / C"):
        ops.ring_attention(q, k[:, :2], v)
    with pytest.raises(ValueError, match="T / C = 3"):
        ops.ring_attention(q[:, :3], k[:, :3], v[:, :3], causal=True)


CARRIERS = """
import functools, sys
import numpy as np
from ascend_jax import hccl, ops
hccl.set_host_devices(4)
rng = np.random.default_rng(0)
parts = [ops.shard_sequence(rng.standard_normal((1, 16, 4, 8), dtype=np.float32), 4, causal=True) for _ in range(3)]
for name in ("ring_attention", "ulysses_attention"):
    function = functools.partial(getattr(ops, name), causal=True)
    outs = [np.asarray(hccl.carry(function, 4, carrier)(*parts)) for carrier in hccl.CARRIERS]
    print(name, max(float(np.abs(out - outs[0]).max()) for out in outs) < 1e-6)
"""


def test_carriers_agree():
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", CARRIERS], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.stdout.splitlines() == ["ring_attention True", "ulysses_attention True"], done.stderr
