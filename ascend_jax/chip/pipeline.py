"""A core as seven in-order queues: time of a loop over tiles, and how busy each queue is.

A tile passes its queues one after another, ordered by flags; tiles in different queues overlap if buffers are doubled:

| buffers | time of `tiles` tiles |
|---|---|
| 1 | tiles * (sum of the queues + one flag wait at each hand-over) |
| 2 | one tile as above (fill) + (tiles - 1) * (longest queue + overlap_loss * the others) |

`overlap_loss` is the share of hidden time that shows: flag order, bank conflicts and shared ports keep queues from
overlapping perfectly (published models see 5-25 % on whole kernels).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ascend_jax.chip import cost
from ascend_jax.chip.spec import ChipSpec

QUEUES = ("cube", "vector", "scalar", "mte1", "mte2", "mte3", "fixpipe")
LIMITS = (*QUEUES, "l2", "hbm", "launch")  # what can bound the time of an operator


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class PipelineTime:
    """Time of a loop over tiles on one core; leading axes are those of the stages."""

    total_ns: jax.Array  # float32 [...]
    busy_ns: jax.Array  # float32 [..., 7], by queue
    limit: jax.Array  # int32 [...], index into QUEUES of the busiest queue

    def utilisation(self) -> jax.Array:
        """Share of the time that each queue is busy, `[..., 7]` float32."""
        return self.busy_ns / jnp.maximum(self.total_ns[..., None], 1e-9)


def bound(busy_ns: jax.Array, l2_ns: Any, hbm_ns: Any, launch_ns: Any) -> jax.Array:
    """What takes longest, `[...]` int32 index into LIMITS.

    MTE2 waits for HBM, so its time holds HBM's: whichever is the greater part gives the name.

    Example:
        >>> LIMITS[int(bound(stages(mte2=10.0, cube=9.0), 0.0, 6.0, 1.0))]
        'hbm'
    """
    at = QUEUES.index("mte2")
    mte2 = busy_ns[..., at]
    is_hbm = 2 * hbm_ns > mte2
    queues = busy_ns.at[..., at].set(jnp.where(is_hbm, 0.0, mte2))
    others = (l2_ns, jnp.where(is_hbm, jnp.maximum(mte2, hbm_ns), hbm_ns), launch_ns)
    rest = jnp.stack([jnp.broadcast_to(jnp.asarray(each, jnp.float32), mte2.shape) for each in others], -1)
    return jnp.argmax(jnp.concatenate([queues, rest], -1), -1).astype(jnp.int32)


def stages(**queue_ns: Any) -> jax.Array:
    """Time of one tile in each queue, `[..., 7]` float32 ns, from keywords; queues not named take 0.

    Raises:
        ValueError: There is no such queue.

    Example:
        >>> stages(mte2=10.0, cube=4.0).tolist()
        [4.0, 0.0, 0.0, 0.0, 10.0, 0.0, 0.0]
    """
    unknown = sorted(set(queue_ns) - set(QUEUES))
    if unknown:
        raise ValueError(f"no queue {unknown[0]!r}; a core has {', '.join(QUEUES)}")
    parts = [jnp.asarray(queue_ns.get(name, 0.0), jnp.float32) for name in QUEUES]
    shape = jnp.broadcast_shapes(*(part.shape for part in parts))
    return jnp.stack([jnp.broadcast_to(part, shape) for part in parts], axis=-1)


def steady_ns(spec: ChipSpec, tile_ns: jax.Array, loss: Any = None) -> jax.Array:
    """Time that a double-buffered loop adds per tile: longest queue + `overlap_loss` * the others, `[...]` float32 ns.

    `loss` replaces `overlap_loss` where cores hand over to each other through memory.
    """
    longest = tile_ns.max(-1)
    return longest + (spec["overlap_loss"] if loss is None else loss) * (tile_ns.sum(-1) - longest)


def serial_ns(spec: ChipSpec, tile_ns: jax.Array) -> jax.Array:
    """Time of one tile alone: every queue in turn, a flag wait at each hand-over and one back, `[...]` float32 ns."""
    return tile_ns.sum(-1) + cost.cycles_ns(spec, spec["flag_cycles"] * (tile_ns > 0).sum(-1))


def tile_pipeline(spec: ChipSpec, tile_ns: jax.Array, tiles: Any, *, buffers: Any = 2) -> PipelineTime:
    """Time of a loop over equal tiles on one core.

    Args:
        spec: The chip; `vmap` over it or over the tiles as you like.
        tile_ns: `[..., 7]` float32, time of one tile in each queue (`stages` makes it).
        tiles: Number of tiles, `[...]`.
        buffers: 1 or 2 buffers at each hand-over; may be traced.

    Example:
        >>> from ascend_jax.chip import chip
        >>> spec = chip("Ascend910B2").replace(overlap_loss=0.0, flag_cycles=0.0)
        >>> once = stages(mte2=10.0, vector=4.0, mte3=6.0)
        >>> float(tile_pipeline(spec, once, 100).total_ns), float(tile_pipeline(spec, once, 100, buffers=1).total_ns)
        (1010.0, 2000.0)
    """
    with jax.named_scope("tile_pipeline"):
        tiles = jnp.asarray(tiles, jnp.float32)
        serial = serial_ns(spec, tile_ns)
        overlapped = serial + jnp.maximum(tiles - 1, 0) * steady_ns(spec, tile_ns)
        total = jnp.where(jnp.asarray(buffers) > 1, jnp.where(tiles > 0, overlapped, 0.0), tiles * serial)
        limit = jnp.argmax(tile_ns, -1).astype(jnp.int32)
        return PipelineTime(total, tile_ns * tiles[..., None], limit)
