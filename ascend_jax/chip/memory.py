"""How fast a core reads and writes device memory: sharing, L2 hits, short runs, alignment.

| equation | hardware fact |
|---|---|
| rate of a core = min(alone, group / cores of the group, aggregate / cores) | cores share a port, then HBM or L2 |
| `run_share` = run / (run + overhead) | a short contiguous run leaves parts of a 512 B line and of a burst unused |
| `aligned_share`, `nd2nz_share` | runs that start off a 512 B line, or off a 32 B block, take more requests |
| `miss_share` m = 1 - exp(-m W / C) | a working set W walked in turn through an L2 that keeps C, at random |
| time of a copy >= `copy_issue_cycles` | its queue starts one instruction at a time |
| MTE2 of a cube core = bytes / L2 rate + HBM time of what misses | a line comes into L2 before it goes to a core |

Every operator takes its rates and its share of misses from here.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ascend_jax.chip import cost
from ascend_jax.chip.spec import ChipSpec

_NEWTON_STEPS = 12
_BLOCK_BYTES = 32  # what a core asks memory for, at least


def kept_bytes(spec: ChipSpec) -> Any:
    """Bytes of L2 that still hold data when the next pass asks for them, `[...]` float32.

    A fitted share of it on A2; 302 MB read four times never hit the 201 MB L2 (vendor data-copy sample).
    """
    return spec["l2_bytes"] * spec["l2_effective_share"]


def miss_share(spec: ChipSpec, working_set_bytes: Any) -> jax.Array:
    """Share of a repeated walk over `working_set_bytes` that misses L2, `[...]` float32 in [0, 1].

    Random replacement: a line survives the `m * W` replacements between two uses with probability
    exp(-m W / C), so m = 1 - exp(-m W / C), and 0 if W <= C. Solved by Newton's method from m = 1.

    Example:
        >>> from ascend_jax.chip import chip
        >>> spec = chip("Ascend910B2")
        >>> [round(float(miss_share(spec, mb * 1e6)), 2) for mb in (90, 150, 300)]
        [0.0, 0.43, 0.91]
    """
    ratio = jnp.asarray(working_set_bytes, jnp.float32) / kept_bytes(spec)
    x = jnp.maximum(ratio, 1.0 + 1e-3)
    m = jnp.ones_like(x)
    for _ in range(_NEWTON_STEPS):
        kept = jnp.exp(-m * x)
        m = m - (m - 1 + kept) / (1 - x * kept)
    return jnp.where(ratio > 1.0, jnp.clip(m, 0.0, 1.0), 0.0)


def run_share(spec: ChipSpec, run_bytes: Any) -> jax.Array:
    """Share of the rate that contiguous runs of `run_bytes` reach, `[...]` float32 in (0, 1)."""
    run = jnp.asarray(run_bytes, jnp.float32)
    return run / (run + spec["burst_overhead_bytes"])


def aligned_share(spec: ChipSpec, pitch_bytes: Any) -> jax.Array:
    """Share of the rate of a copy whose rows start `pitch_bytes` apart: 1 on L2 lines, else `unaligned_share`."""
    return jnp.where(jnp.asarray(pitch_bytes) % spec["l2_line_bytes"] == 0, 1.0, spec["unaligned_share"])


def nd2nz_share(spec: ChipSpec, pitch_bytes: Any) -> jax.Array:
    """As `aligned_share`, for copies to L1 that turn rows into blocks: `unaligned_nd2nz_share` off a block of 32 B."""
    is_block = jnp.asarray(pitch_bytes) % _BLOCK_BYTES == 0
    return jnp.where(is_block, aligned_share(spec, pitch_bytes), spec["unaligned_nd2nz_share"])


def hbm_rate(spec: ChipSpec) -> Any:
    """Rate that long copies of all cores together reach, `[...]` float32 bytes/s."""
    return spec["hbm_bytes_per_s"] * spec["hbm_efficiency"]


def cube_read_rate(spec: ChipSpec, active_cores: Any, *, from_l2: bool = False) -> jax.Array:
    """Rate of GM to L1 for one of `active_cores` cube cores, `[...]` float32 bytes/s."""
    if from_l2:
        return cost.shared_bytes_per_s(spec, spec["l2_l1_bytes_per_s"], spec["l2_bytes_per_s"], active_cores)
    return cost.shared_bytes_per_s(spec, spec["gm_l1_bytes_per_s"], hbm_rate(spec), active_cores)


def vector_read_rate(spec: ChipSpec, active_cores: Any, *, from_l2: bool = False, both_ways: bool = False) -> jax.Array:
    """Rate of GM to UB for one of `active_cores` vector cores, `[...]` float32 bytes/s.

    Cores fill group by group, so two or more active cores share the port of their group. `both_ways`: stores of the
    same core run at the same time and take half of its port.

    Example:
        >>> from ascend_jax.chip import chip
        >>> [round(float(vector_read_rate(chip("Ascend910B1"), n)) / 1e9, 1) for n in (1, 4, 48)]
        [100.9, 78.0, 32.0]
    """
    if from_l2:
        return cost.shared_bytes_per_s(spec, spec["l2_ub_bytes_per_s"], spec["l2_bytes_per_s"], active_cores)
    total = hbm_rate(spec)
    return _vector_rate(spec, "gm_ub_bytes_per_s", "gm_group_read_bytes_per_s", active_cores, both_ways, total)


def vector_write_rate(spec: ChipSpec, active_cores: Any, *, to_l2: bool = False, both_ways: bool = False) -> jax.Array:
    """Rate of UB to GM for one of `active_cores` vector cores, `[...]` float32 bytes/s; as `vector_read_rate`.

    `to_l2`: what is written is read and overwritten again before it leaves L2, so HBM does not bound it.
    """
    total = spec["l2_bytes_per_s"] if to_l2 else hbm_rate(spec)
    return _vector_rate(spec, "ub_gm_bytes_per_s", "gm_group_write_bytes_per_s", active_cores, both_ways, total)


def _vector_rate(spec: ChipSpec, alone: str, group: str, active: Any, both_ways: bool, total: Any) -> jax.Array:
    single = jnp.minimum(spec[alone], spec["ub_port_bytes_per_s"] / 2) if both_ways else spec[alone]
    beside = jnp.minimum(active, spec["vector_per_cube"])
    shared = jnp.where(beside > 1, spec[group] / jnp.maximum(beside, 1), jnp.inf)
    return cost.shared_bytes_per_s(spec, jnp.minimum(single, shared), total, active)


def copies_ns(spec: ChipSpec, nbytes: Any, rate: Any, *, instruction_bytes: Any, run_bytes: Any) -> jax.Array:
    """Time of one queue that moves `nbytes` in copies of `instruction_bytes` with runs of `run_bytes`, float32 ns.

    max(bytes / (rate * run_share), copies * copy_issue_cycles).
    """
    moving = cost.copy_ns(spec, nbytes, rate * run_share(spec, run_bytes))
    issued = jnp.ceil(jnp.asarray(nbytes, jnp.float32) / instruction_bytes)
    return jnp.maximum(moving, cost.cycles_ns(spec, issued * spec["copy_issue_cycles"]))
