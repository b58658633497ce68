"""Attention written out densely from the operator's definition: what every fast path is compared with.

Nothing here comes from the package. Masks are filled in entry by entry from the table of sparse modes, softmax is
taken over whole rows in float64. With ``xp=jax.numpy`` (and 64-bit types) the same lines are differentiable.
"""

import numpy as np

FLT_MAX = float(np.finfo(np.float32).max)
INT_MAX = 2147483647


def allow(mode, q_len, kv_len, pre=INT_MAX, nxt=INT_MAX, prefix=0):
    """The table of sparse modes, one entry at a time: may row i see column j? User masks come on top."""
    d = kv_len - q_len
    seen = np.zeros((q_len, kv_len), bool)
    for i in range(q_len):
        for j in range(kv_len):
            if mode == 0:
                seen[i, j] = i - pre <= j <= i + nxt
            elif mode == 1:
                seen[i, j] = True
            elif mode == 2:
                seen[i, j] = j <= i
            elif mode == 3:
                seen[i, j] = j <= i + d
            elif mode in (4, 7, 8):
                seen[i, j] = i + d - pre <= j <= i + d + nxt
            elif mode in (5, 6):
                seen[i, j] = j <= i + d or j < prefix
            else:
                raise ValueError(mode)
    return seen


def varlen_allow(mode, q_lens, kv_lens, pre=INT_MAX, nxt=INT_MAX, prefixes=None):
    """One matrix per sequence: modes 7 and 8 put their band on the last, or the first, that is not empty."""
    live = [n for n, (a, b) in enumerate(zip(q_lens, kv_lens, strict=True)) if a and b]
    band = {7: live[-1:], 8: live[:1]}.get(mode, [])
    inner = {7: 3, 8: 2}.get(mode, mode)
    result = []
    for n, (a, b) in enumerate(zip(q_lens, kv_lens, strict=True)):
        result.append(allow(4 if n in band else inner, a, b, pre, nxt, prefixes[n] if prefixes else 0))
    return result


def alibi(kind, q_len, kv_len, slope, q_start=0, kv_start=0):
    """Position bias of pse types 2 and 3."""
    bias = np.zeros((q_len, kv_len))
    for i in range(q_len):
        for j in range(kv_len):
            far = abs(j + kv_start - i - q_start)
            bias[i, j] = -slope * (far if kind == 2 else far**0.5)
    return bias


def attend(q, k, v, seen, *, scale=1.0, bias=None, bias_first=False, keep=None, sink=None, softcap=None,
           hidden="zero", visited=None, xp=np):  # fmt: skip
    """One head. q [Sq, D], k [Skv, D], v [Skv, Dv], seen [Sq, Skv]; ``keep`` is bit / keep_prob.

    Rows that see nothing: "zero" is (0, -FLT_MAX, FLT_MAX); "mean" averages v over the visited columns.
    Returns out [Sq, Dv], max [Sq], sum [Sq], lse [Sq].
    """
    scores = q @ k.T
    if bias is not None and bias_first:
        scores = (scores + bias) * scale
    else:
        scores = scores * scale + (0 if bias is None else bias)
    if softcap is not None:
        scores = softcap * xp.tanh(scores / softcap)
    visited = xp.ones_like(seen) if visited is None else visited
    dead = ~seen.any(axis=1)
    take = xp.where(dead[:, None], visited if hidden == "mean" else False, seen)
    scores = xp.where(dead[:, None], 0.0, scores)
    peak = xp.max(xp.where(take, scores, -np.inf), axis=1, initial=-np.inf)
    if sink is not None:
        peak = xp.maximum(peak, sink)
    empty = ~take.any(axis=1) & (sink is None)
    peak = xp.where(empty, 0.0, peak)
    weights = xp.where(take, xp.exp(xp.where(take, scores - peak[:, None], 0.0)), 0.0)
    total = weights.sum(axis=1) + (0.0 if sink is None else xp.exp(sink - peak))
    total = xp.where(empty, 1.0, total)
    dropped = weights if keep is None else weights * keep
    out = (dropped @ v) / total[:, None]
    lse = peak + xp.log(total)
    plain = dead & ~empty & (sink is None)
    peak = xp.where(empty | plain, -FLT_MAX, peak)
    total = xp.where(empty, FLT_MAX, total)
    return out, peak, total, xp.where(empty, np.inf, lse)


def attend_batch(q, k, v, seen, *, bias=None, keep=None, sink=None, xp=np, **options):
    """BNSD. ``seen``, ``bias`` and ``keep`` broadcast to [B, N, Sq, Skv]; head n uses key head n // G."""
    batch, heads, q_len = q.shape[:3]
    group = heads // k.shape[1]
    full = (batch, heads, q_len, k.shape[2])
    seen = xp.broadcast_to(seen, full)
    bias = None if bias is None else xp.broadcast_to(bias, full)
    keep = None if keep is None else xp.broadcast_to(keep, full)
    parts = [
        attend(
            q[b, n], k[b, n // group], v[b, n // group], seen[b, n], xp=xp,
            bias=None if bias is None else bias[b, n], keep=None if keep is None else keep[b, n],
            sink=None if sink is None else sink[n], **options,
        )
        for b in range(batch) for n in range(heads)
    ]  # fmt: skip
    return tuple(xp.stack(x).reshape(batch, heads, *x[0].shape) for x in zip(*parts, strict=True))


def packed_keep(bits, shape, keep_prob):
    """[B, N, Sq, Skv] factors from packed keep-bits: bit k of byte b is element 8 b + k."""
    count = int(np.prod(shape))
    flat = [(int(bits[e // 8]) >> (e % 8)) & 1 for e in range(count)]
    return np.array(flat, float).reshape(shape) / keep_prob


def philox4x32_7(counter, key):
    """Seven rounds on Python integers."""
    c, k = list(counter), list(key)
    for _ in range(7):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def philox_keep(shape, keep_prob, seed, offset=0, first_byte=0):
    """[B, N, Sq, Skv] factors: one byte an element, low byte of a word first, rows padded to 16 columns."""
    kv_len = shape[-1]
    padded = -(-kv_len // 16) * 16
    rows = int(np.prod(shape[:-1]))
    start = -(-offset // 16)
    keep = np.zeros((rows, kv_len))
    for r in range(rows):
        for j in range(kv_len):
            at = first_byte + r * padded + j
            count = start + at // 16
            words = philox4x32_7((count & 0xFFFFFFFF, count >> 32, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))
            byte = words[at % 16 // 4] >> (8 * (at % 4)) & 255
            keep[r, j] = byte <= 255 * keep_prob
    return keep.reshape(shape) / keep_prob
