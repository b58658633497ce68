"""How long each queue of a core pair is busy with attention: a cube core and one of the vector cores beside it.

| queue | forward, a block of `rows` queries over `columns` keys | backward, a round of `cols` queries on `rows` keys |
|---|---|---|
| cube | S = Q K^T, P V | S = Q K^T, dP = dO V^T, dV += P^T dO, dK += dS^T Q, dQ += dS K |
| mte1 | the operands of these, L1 to L0A and L0B | likewise |
| mte2, cube core | Q, K, V, P | Q, dO, P, dS; K, V once a block |
| fixpipe | S and P V, fp32 | S, dP and dQ, fp32; dK, dV once a block |
| mte2, vector core | S, P V | S, dP |
| vector | P = exp(S - max): 11 cycles a repeat; rescaling O: 4 | P, dS = P (dP - delta), casts: 13 cycles a repeat |
| mte3 | P, O | P, dS |

Cycles a repeat: muls 1; sub, max, exp, sum, mul, add, cast 2 each. Rates are those of `chip.memory` from and to L2,
where the two kinds of cores meet; what misses L2 adds its share of HBM's time to MTE2 of the cube core. On fused cores
(910A, 310P) nothing is handed over through memory: results turn inside the core, one vector width a cycle, and leave
through UB.

A block takes longer core + `attention_overlap_loss` * the other: each waits for what the other hands over.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ascend_jax.chip import cost, memory
from ascend_jax.chip.pipeline import QUEUES, stages, steady_ns
from ascend_jax.chip.spec import ChipSpec

VECTOR_ROWS = 8  # rows of scores that the vector core holds at once
STARTUP_CYCLES = 26.0  # head and tail of one vector instruction, typical for add, mul, exp


class CorePair(NamedTuple):
    """Busy times of the two kinds of cores, float32 ns `[..., 7]` by queue, and what they read of L2."""

    cube: jax.Array
    vector: jax.Array
    l2_read_bytes: Any  # of one cube core and its vector cores

    def times(self, rounds: Any) -> "CorePair":
        """As many rounds, one after another."""
        return CorePair(self.cube * rounds, self.vector * rounds, self.l2_read_bytes * rounds)

    def plus(self, other: "CorePair") -> "CorePair":
        """Both, one after another."""
        return CorePair(self.cube + other.cube, self.vector + other.vector, self.l2_read_bytes + other.l2_read_bytes)

    def busy_ns(self) -> jax.Array:
        """Busy time by queue; of a queue that both kinds of cores have, the longer, `[..., 7]` float32 ns."""
        return jnp.maximum(self.cube, self.vector)

    def waits_for_hbm(self, hbm_ns: Any) -> "CorePair":
        """With the time that HBM takes for what misses L2, which the cube core's MTE2 waits for."""
        return self._replace(cube=self.cube.at[..., QUEUES.index("mte2")].add(hbm_ns))


def overlapped_ns(spec: ChipSpec, pair: CorePair) -> jax.Array:
    """Time of a core pair: the longer core + `attention_overlap_loss` * the other, `[...]` float32 ns."""
    cores = jnp.stack([steady_ns(spec, pair.cube), steady_ns(spec, pair.vector)])
    return cores.max(0) + spec["attention_overlap_loss"] * cores.min(0)


def l2_ns(spec: ChipSpec, pair: CorePair, active: Any) -> jax.Array:
    """Time that L2 takes to serve `active` core pairs together, `[...]` float32 ns."""
    return cost.copy_ns(spec, pair.l2_read_bytes * active, spec["l2_bytes_per_s"])


def forward_block(
    spec: ChipSpec, rows: Any, columns: Any, rounds: Any, dims: tuple[int, int], size: int, active: Any
) -> CorePair:
    """Work of one block: `rows` queries of one head over `columns` keys in `rounds` rounds.

    Args:
        spec: The chip.
        rows: Query rows.
        columns: Key columns that the block walks over.
        rounds: Rounds in which it does; each rescales the output.
        dims: Columns of Q and K, and of V.
        size: Bytes of an element.
        active: Cube cores at work, which share L2.
    """
    rows, columns = jnp.asarray(rows, jnp.float32), jnp.asarray(columns, jnp.float32)
    dim, value_dim = dims
    share = jnp.ceil(rows / spec["vector_per_cube"])  # rows of one vector core
    startup = jnp.ceil(share / VECTOR_ROWS) * STARTUP_CYCLES
    vector = cost.vector_ns(spec, share * columns, 11.0, 4, startup_cycles=6 * startup * rounds)
    vector += cost.vector_ns(spec, share * value_dim * rounds, 4.0, 4, startup_cycles=2 * startup * rounds)
    vector += cost.vector_ns(spec, share * value_dim, 6.0, 4, startup_cycles=2 * startup)  # divide, cast
    work = _Work(
        products=((rows, columns, dim), (rows, value_dim, columns)),
        vector_ns=vector,
        operands=size * (rows * dim + columns * (dim + value_dim)),
        handed_up=4 * rows * (columns + rounds * value_dim),
        handed_down=size * rows * columns,
        stored=size * rows * value_dim,
        drained=0.0,
        own=share / rows,
    )
    return _pair(spec, work, size, active)


def backward_round(spec: ChipSpec, rows: Any, cols: Any, dims: tuple[int, int], size: int, active: Any) -> CorePair:
    """Work of one round of the backward pass: `cols` queries on a block of `rows` keys; rest as `forward_block`."""
    dim, value_dim = dims
    share = jnp.ceil(cols / spec["vector_per_cube"])
    startup = 7 * STARTUP_CYCLES * jnp.ceil(share / VECTOR_ROWS)
    work = _Work(
        products=(
            *((cols, rows, dim), (cols, rows, value_dim)),
            *((rows, value_dim, cols), (rows, dim, cols), (cols, dim, rows)),
        ),
        vector_ns=cost.vector_ns(spec, share * rows, 13.0, 4, startup_cycles=startup),
        operands=size * cols * (dim + value_dim),
        handed_up=4 * 2.0 * cols * rows,  # S and dP
        handed_down=size * 2.0 * cols * rows,  # P and dS
        stored=0.0,
        drained=4.0 * cols * dim,  # added to dQ
        own=share / cols,
    )
    return _pair(spec, work, size, active)


def backward_edge(spec: ChipSpec, rows: Any, dims: tuple[int, int], size: int, active: Any) -> CorePair:
    """What a block of the backward pass does once: K and V in, dK and dV out."""
    width = 1.0 * rows * sum(dims)
    return _pair(spec, _Work((), 0.0, size * width, 0.0, 0.0, 0.0, 4 * width, 1.0), size, active)


class _Work(NamedTuple):
    products: tuple[tuple[Any, Any, Any], ...]  # (m, n, k) of each product of the cube
    vector_ns: Any  # instructions of one vector core
    operands: Any  # bytes of inputs that the cube core loads
    handed_up: Any  # fp32 bytes from the cube core to its vector cores
    handed_down: Any  # bytes from the vector cores to the cube core
    stored: Any  # bytes of results that the vector cores store
    drained: Any  # bytes of results that the cube core stores
    own: Any  # share of one vector core in what vector cores move


def _pair(spec: ChipSpec, work: _Work, size: int, active: Any) -> CorePair:
    split, beside = spec["vector_per_cube"] > 1, active * spec["vector_per_cube"]
    to_l1 = memory.cube_read_rate(spec, active, from_l2=True)
    to_ub = memory.vector_read_rate(spec, beside, from_l2=True)
    to_gm = memory.vector_write_rate(spec, beside, to_l2=True, both_ways=True)

    def turned(nbytes: Any) -> jax.Array:
        return cost.cycles_ns(spec, nbytes / spec["vector_bytes_per_cycle"])

    loaded = work.operands + jnp.where(split, work.handed_down, 0.0)
    cube = stages(
        cube=sum(cost.cube_ns(spec, *sides, size) for sides in work.products),
        mte1=sum(cost.cube_feed_ns(spec, *sides, size) for sides in work.products),
        mte2=cost.copy_ns(spec, loaded, to_l1),
        fixpipe=jnp.where(split, cost.copy_ns(spec, work.handed_up + work.drained, spec["l0c_gm_bytes_per_s"]), 0.0),
    )
    out = jnp.where(split, work.handed_down + work.stored, work.stored + work.drained)
    vector = stages(
        mte2=jnp.where(split, cost.copy_ns(spec, work.own * work.handed_up, to_ub), 0.0),
        vector=work.vector_ns + jnp.where(split, 0.0, turned(work.handed_up)),
        mte3=cost.copy_ns(spec, work.own * out, to_gm) + jnp.where(split, 0.0, turned(work.handed_down)),
    )
    return CorePair(cube, vector, loaded + jnp.where(split, work.handed_up, 0.0))
