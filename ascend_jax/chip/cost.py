"""Time of the parts of a core: copies, matrix multiply, vector work. Pure float32 formulas, in nanoseconds.

| equation | hardware fact |
|---|---|
| `copy_ns` = bytes / rate | one in-order queue per path: MTE1, MTE2, MTE3, FixPipe |
| `shared_bytes_per_s` = min(single, aggregate / active) | cores share HBM and L2 |
| `cube_ns`: 6 + ceil(M/16) ceil(K/k0) ceil(N/16) cycles a base tile | one 16 x k0 x 16 step a cycle |
| ... / `cube_fp32_share` | the cube is built for fp16; fp32 takes several passes |
| `cube_feed_ns` = left / rate A + right / rate B | MTE1 loads L0A and L0B in one queue |
| `vector_ns`: startup + cycles * repeats | one repeat = one vector width |
"""

from typing import Any

import jax
import jax.numpy as jnp

from ascend_jax.chip.spec import ChipSpec, operand_rate

BASE = 128  # edge of a cube base tile: two fp16 operands of 128 x 128 fill half of L0A and L0B each
CUBE_STARTUP_CYCLES = 6.0


def copy_ns(spec: ChipSpec, nbytes: Any, bytes_per_s: Any) -> jax.Array:
    """Transfer time `1e9 * nbytes / bytes_per_s`, `[...]` float32 ns.

    `spec` is taken so that all formulas read alike; the rate is the caller's choice of path.

    Example:
        >>> from ascend_jax.chip import chip
        >>> spec = chip("Ascend910B2")
        >>> round(float(copy_ns(spec, 1 << 20, spec["gm_l1_bytes_per_s"])))
        7431
    """
    del spec
    return jnp.float32(1e9) * jnp.asarray(nbytes, jnp.float32) / bytes_per_s


def cycles_ns(spec: ChipSpec, cycles: Any) -> jax.Array:
    """Time of core cycles, `1e9 * cycles / clock_hz`, `[...]` float32 ns.

    Example:
        >>> from ascend_jax.chip import chip
        >>> float(cycles_ns(chip("Ascend910B4"), 3))
        2.0
    """
    return jnp.float32(1e9) * jnp.asarray(cycles, jnp.float32) / spec["clock_hz"]


def shared_bytes_per_s(spec: ChipSpec, single_core_rate: Any, aggregate: Any, active_cores: Any) -> jax.Array:
    """Rate one core gets, `min(single_core_rate, aggregate / active_cores)`, `[...]` float32 bytes/s.

    Example:
        >>> from ascend_jax.chip import chip
        >>> spec = chip("Ascend910B2")
        >>> rate = shared_bytes_per_s(spec, spec["gm_ub_bytes_per_s"], spec["hbm_bytes_per_s"], 48)
        >>> round(float(rate) / 1e9, 1)
        33.3
    """
    del spec
    return jnp.minimum(jnp.asarray(single_core_rate, jnp.float32), aggregate / jnp.maximum(active_cores, 1))


def cube_ns(spec: ChipSpec, m: Any, n: Any, k: Any, dtype_bytes: int) -> jax.Array:
    """Time of `[m, k] x [k, n]` on one cube core with operands in L0, `[...]` float32 ns.

    cycles = 6 * base tiles + ceil(m/16) * ceil(n/16) * ceil(k/k0) * 4096 / macs, with k0 = 32 / dtype_bytes
    (16 for fp32, whose product is divided by `cube_fp32_share`). Base tiles have edge 128.

    Raises:
        ValueError: dtype_bytes is none of 1, 2, 4.

    Example:
        >>> from ascend_jax.chip import chip
        >>> round(float(cube_ns(chip("Ascend910B2"), 128, 128, 128, 2)), 1)
        287.8
    """
    rate = operand_rate(spec, dtype_bytes)
    share = rate if dtype_bytes == 4 else 1.0
    tiles = _ceil_div(m, BASE) * _ceil_div(n, BASE) * _ceil_div(k, BASE)
    steps = _ceil_div(m, 16) * _ceil_div(n, 16) * _ceil_div(k, 32 // min(dtype_bytes, 2))
    step_cycles = 4096.0 / spec["cube_macs_per_cycle"] / share
    return cycles_ns(spec, CUBE_STARTUP_CYCLES * tiles + step_cycles * steps)


def cube_feed_ns(spec: ChipSpec, m: Any, n: Any, k: Any, dtype_bytes: int) -> jax.Array:
    """Time MTE1 needs to bring `[m, k] x [k, n]` from L1 into L0A and L0B, base tile by base tile.

    One queue serves both sides: left bytes * ceil(n/128) / rate A + right bytes * ceil(m/128) / rate B,
    `[...]` float32 ns.
    """
    left = _float(m) * _float(k) * _ceil_div(n, BASE) * dtype_bytes
    right = _float(k) * _float(n) * _ceil_div(m, BASE) * dtype_bytes
    return copy_ns(spec, left, spec["l1_l0a_bytes_per_s"]) + copy_ns(spec, right, spec["l1_l0b_bytes_per_s"])


def matmul_ns(spec: ChipSpec, m: Any, n: Any, k: Any, dtype_bytes: int) -> jax.Array:
    """Time of `[m, k] x [k, n]` on one cube core with operands in L1, double-buffered into L0.

    max(`cube_ns`, `cube_feed_ns`), `[...]` float32 ns.

    Example:
        >>> from ascend_jax.chip import chip
        >>> spec = chip("Ascend910B2")
        >>> bool(matmul_ns(spec, 16, 128, 128, 2) > cube_ns(spec, 16, 128, 128, 2))
        True
    """
    return jnp.maximum(cube_ns(spec, m, n, k, dtype_bytes), cube_feed_ns(spec, m, n, k, dtype_bytes))


def vector_ns(
    spec: ChipSpec, elements: Any, cycles_per_repeat: Any, element_bytes: int, *, startup_cycles: Any = 0.0
) -> jax.Array:
    """Time of element-wise work on one vector core with operands in UB, `[...]` float32 ns.

    cycles = startup_cycles + cycles_per_repeat * ceil(elements * element_bytes / vector_bytes_per_cycle).

    Example:
        >>> from ascend_jax.chip import chip
        >>> round(float(vector_ns(chip("Ascend910B2"), 1024, 2, 4, startup_cycles=28)), 1)
        33.3
    """
    repeats = jnp.ceil(_float(elements) * element_bytes / spec["vector_bytes_per_cycle"])
    return cycles_ns(spec, startup_cycles + cycles_per_repeat * repeats)


def _float(value: Any) -> jax.Array:
    return jnp.asarray(value, jnp.float32)


def _ceil_div(value: Any, step: int) -> jax.Array:
    return jnp.ceil(_float(value) / step)
