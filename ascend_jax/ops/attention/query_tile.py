"""One query tile of a head: where its rows and its key tiles are, what makes its scores, which key tiles are live.

Forward and backward walk the same tiles: a loop over the key heads, in it one over the query tiles
of the heads that share it, in it one over the live key tiles.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.dropout import PHILOX_COLUMNS
from ascend_jax.ops.attention.movement import moved
from ascend_jax.ops.attention.products import dot_keys, narrowed
from ascend_jax.ops.attention.scoring import (
    Lines,
    Options,
    Scoring,
    Spot,
    TileRuns,
    lines_of,
    tile_mask,
    tile_runs,
    tile_scores,
)

__all__ = ["Call", "QueryTile", "make_call", "mask_scores"]


class Call(NamedTuple):
    """What makes the scores of one call, and its loops. Arrays that are cut in tiles are padded to whole ones."""

    scoring: Scoring
    options: Options
    bias: jax.Array | None
    sink: jax.Array | None
    scale: jax.Array
    runs: TileRuns
    batch: int  # static, as those below
    kv_heads: int
    group: int  # query heads that share a key head
    q_tiles: int
    kv_tiles: int

    @property
    def key_heads(self) -> int:
        """How many there are, of all batch rows."""
        return self.batch * self.kv_heads

    def for_query_tiles(self, key_head: jax.Array, body: Callable[["QueryTile", Any], Any], state: Any) -> Any:
        """Runs ``body`` for the query tiles of the heads that share a key head, by its number among all."""
        batch, first = key_head // self.kv_heads, key_head % self.kv_heads * self.group

        def one(n: jax.Array, state: Any) -> Any:
            return body(QueryTile(self, batch, first + n // self.q_tiles, n % self.q_tiles), state)

        return lax.fori_loop(0, self.group * self.q_tiles, one, state)


def make_call(
    q: jax.Array, k: jax.Array, scoring: Scoring, options: Options, bias: Any, sink: Any, scale: jax.Array
) -> Call:
    """Returns the call of queries ``[B, N, Sq, D]`` and keys ``[B, Nkv, Skv, D]``."""
    batch, kv_heads, kv_len, _ = k.shape
    q_tiles, kv_tiles = (max(1, -(-n // size)) for n, size in zip((q.shape[2], kv_len), options.tile, strict=True))
    runs = tile_runs(scoring, options)
    return Call(scoring, options, bias, sink, scale, runs, batch, kv_heads, q.shape[1] // kv_heads, q_tiles, kv_tiles)


class QueryTile(NamedTuple):
    """One query tile of one head of one batch row: int32 scalars."""

    call: Call
    batch: jax.Array
    head: jax.Array
    tile: jax.Array  # its number in the head

    @property
    def kv_head(self) -> jax.Array:
        """Number of the key head that its head uses."""
        return self.head // self.call.group

    @property
    def row0(self) -> jax.Array:
        """Number of its first row."""
        return self.tile * self.call.options.tile[0]

    def rows_of(self, x: jax.Array) -> jax.Array:
        """Returns its rows ``[rows, D]`` of ``[B, Sq, N, D]``."""
        size = (1, self.call.options.tile[0], 1, x.shape[3])
        return moved(lambda y, *at: lax.dynamic_slice(y, (*at, 0), size)[0, :, 0], x, self.batch, self.row0, self.head)

    def put_rows(self, x: jax.Array, rows: jax.Array) -> jax.Array:
        """Returns ``[B, Sq, N, D]`` with its rows replaced."""

        def put(y: jax.Array, new: jax.Array, *at: jax.Array) -> jax.Array:
            return lax.dynamic_update_slice(y, new[None, :, None], (*at, 0))

        return moved(put, x, narrowed(rows, x.dtype), self.batch, self.row0, self.head)

    def line_of(self, x: jax.Array) -> jax.Array:
        """Returns its numbers ``[rows]`` of ``[B, N, Sq]``."""
        return lax.dynamic_slice(x, (self.batch, self.head, self.row0), (1, 1, self.call.options.tile[0]))[0, 0]

    def put_line(self, x: jax.Array, line: jax.Array) -> jax.Array:
        """Returns ``[B, N, Sq]`` with its numbers replaced."""
        return lax.dynamic_update_slice(x, line[None, None], (self.batch, self.head, self.row0))

    def queries_of(self, x: jax.Array) -> jax.Array:
        """Returns its rows ``[rows, D]`` of ``[B, N, Sq, D]``."""
        size = (1, 1, self.call.options.tile[0], x.shape[3])
        return moved(lambda y, *at: lax.dynamic_slice(y, (*at, 0), size)[0, 0], x, self.batch, self.head, self.row0)

    def keys_of(self, x: jax.Array, kv_index: Any) -> jax.Array:
        """Returns a key tile of ``[B, Nkv, tiles, ...]``."""
        return moved(lambda y, *at: y[*at], x, self.batch, self.kv_head, jnp.asarray(kv_index))

    def lines(self) -> Lines:
        """Returns what the scoring says of the rows."""
        return lines_of(self.call.scoring, self.batch, self.row0, self.call.options.tile[0])

    def spot(self, kv_index: Any, lines: Lines) -> Spot:
        """Returns the tile of scores with a key tile."""
        rows, cols = self.call.options.tile
        is_aligned = cols % PHILOX_COLUMNS == 0
        return Spot(self.batch, self.head, self.row0, kv_index * cols, rows, cols, lines, is_aligned)

    def scores(self, q: jax.Array, k: jax.Array, spot: Spot) -> jax.Array:
        """Returns the scores of queries ``[rows, D]``, scaled already, and a tile of ``key_tiles``."""
        call = self.call
        return tile_scores(dot_keys(q, k, call.options), spot, call.scoring, call.options, call.bias, call.scale)

    def walk(self, step: Callable[[Any, Any, bool], Any], state: Any) -> Any:
        """Runs ``step(kv tile, state, is_masked)`` over the live key tiles."""
        runs = self.call.runs
        if self.call.kv_tiles == 1:
            return step(0, state, True)  # no loops: a small call compiles in a fraction of the time
        if runs.live is not None:
            order, counts = runs.live
            of = tuple(index if n > 1 else 0 for n, index in zip(order.shape, (self.batch, self.head), strict=False))
            count = counts[*of, self.tile]
            order = order.astype(jnp.result_type(self.tile))  # a slice takes indices of one type, int64 in x64 mode
            return lax.fori_loop(0, count, lambda n, x: step(order[*of, self.tile, n], x, True), state)
        at = self.batch if runs.start.shape[0] > 1 else 0
        start, full, part, end = (x[at, self.tile] for x in runs[:4])
        state = lax.fori_loop(full, part, lambda j, x: step(j, x, False), state)
        before = full - start  # masked tiles lie on both sides of the full ones
        return lax.fori_loop(
            0,
            before + end - part,
            lambda n, x: step(jnp.where(n < before, start + n, part + n - before), x, True),
            state,
        )


def mask_scores(scores: jax.Array, spot: Spot, call: Call) -> tuple[jax.Array, jax.Array]:
    """Returns the scores with hidden ones replaced, and which of them may have weight at all."""
    seen, visited = tile_mask(spot, call.scoring, call.options)
    if call.options.mask_value is None:
        return jnp.where(seen, scores, -jnp.inf), seen
    return jnp.where(visited, jnp.where(seen, scores, call.options.mask_value), -jnp.inf), visited
