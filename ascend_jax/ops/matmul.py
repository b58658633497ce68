"""Matmul: matrix product on the cube cores, as ``aclnnMatmul`` defines it.

Inputs self [m, k] or [B, m, k] and mat2 [k, n] or [B, k, n]; output [m, n] or [B, m, n] of the same dtype. Products are
added up in float32.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops import registry
from ascend_jax.ops.registry import ALL_CORES, Operator, Plan, require_shape
from ascend_jax.ops.tensor import Tensor
from ascend_jax.ops.timing import matmul as timing
from ascend_jax.ops.timing.limits import launched_limit
from ascend_jax.ops.timing.matmul import MatmulShape
from ascend_jax.runtime.codes import Code, ParameterError
from ascend_jax.runtime.edge import Site, verb
from ascend_jax.runtime.kernels import Argument, Cost, Executor
from ascend_jax.runtime.state import CardState

NAME = "Matmul"
DTYPES = tuple(jnp.dtype(name) for name in ("float16", "bfloat16", "float32"))


def infer(inputs: Sequence[Argument]) -> dict[str, Argument]:
    """Refuse what the operator's first phase refuses (161002); return the output."""
    left, right = inputs
    if left.dtype not in DTYPES or right.dtype != left.dtype:
        rule = "self and mat2 share float16, bfloat16 or float32"
        raise ParameterError(Code.PARAM_INVALID, "mat2.dtype", f"{left.dtype}, {right.dtype}", rule)
    if len(left.shape) not in (2, 3) or len(right.shape) != len(left.shape):
        rule = "must both have rank 2, [m, k] and [k, n], or both rank 3 with one batch in front"
        raise ParameterError(
            Code.PARAM_INVALID, "self.shape, mat2.shape", f"{list(left.shape)}, {list(right.shape)}", rule
        )
    if min(*left.shape, *right.shape) < 1:
        given = f"{list(left.shape)}, {list(right.shape)}"
        raise ParameterError(Code.PARAM_INVALID, "self.shape, mat2.shape", given, "every dimension must be at least 1")
    *batch, m, k = left.shape
    require_shape("mat2", right, (*batch, k, right.shape[-1]), "batch and inner dimension of self")
    return {"out": Argument((*batch, m, right.shape[-1]), left.dtype)}


def value(left: jax.Array, right: jax.Array) -> tuple[jax.Array]:
    """Compute the product; float32 sums, rounded once to the dtype of the inputs."""
    full = jnp.matmul(left, right, preferred_element_type=jnp.float32, precision=jax.lax.Precision.HIGHEST)
    return (full.astype(left.dtype),)


def shape_of(left: Argument, right: Argument) -> MatmulShape:
    """Return what the timing model needs to know of a call."""
    *batch, m, k = left.shape
    return MatmulShape(m, right.shape[-1], k, left.dtype.itemsize, batch[0] if batch else 1)


def plan(chip: ChipSpec, inputs: Sequence[Argument], outputs: Sequence[Argument], core_limit: jax.Array) -> Plan:
    """Choose the fastest tile that fits the chip and predict the launch of the library kernel; no workspace."""
    shape = shape_of(*inputs)
    best, tile = timing.choose_tile(chip, shape, cores=core_limit, fixed_ns=timing.vendor_fixed_ns(chip))
    cores = jnp.minimum(jnp.minimum(chip["cube_cores"], core_limit), best.blocks).astype(jnp.int32)
    cost = Cost(
        head_ns=jnp.asarray(chip["kernel_head_ns"], jnp.float32),
        block_ns=best.duration_ns - chip["kernel_head_ns"],
        blocks=cores,  # one per core: each works through its share of the tiles
        cube_cores=jnp.ones_like(cores),
        vector_cores=jnp.zeros_like(cores),
        all_at_once=jnp.zeros_like(cores),
        cube_busy_ns=best.busy_ns[0],
        vector_busy_ns=jnp.zeros_like(best.duration_ns),
        hbm_bytes=best.hbm_bytes,
        l2_bytes=best.l2_bytes,
        limit=launched_limit(best.limit),
        tile=tile,
    )
    return Plan(cost, 0, best.fits)


registry.add(Operator(NAME, value, plan, infer))


@verb
def matmul_get_workspace_size(
    card: CardState,
    self: Tensor,
    mat2: Tensor,
    *,
    out: Tensor,
    core_limit: int | jax.Array = ALL_CORES,
    site: Site = None,
) -> tuple[CardState, jax.Array, Executor]:
    """First phase of ``aclnnMatmul``: check, tile, predict; nothing is queued.

    Args:
      card: The card.
      self: [m, k] or [B, m, k], float16, bfloat16 or float32.
      mat2: [k, n] or [B, k, n], same dtype.
      out: [m, n] or [B, m, n], same dtype.
      core_limit: Most cube cores that the launch may use (``aclrtSetStreamResLimit``).
      site: Call site, filled in by the runtime.

    Returns:
      The card, the workspace size in bytes (0) and the executor for ``launch``. Status 561002 if no tile fits.

    Raises:
      ParameterError: 161001 for a missing tensor, 161002 for shapes or dtypes that do not go together.
    """
    for name, tensor in {"self": self, "mat2": mat2, "out": out}.items():
        if not isinstance(tensor, Tensor):
            raise ParameterError(Code.PARAM_NULLPTR, name, tensor, "must be a tensor; see ascend_jax.tensor")
    return registry.get_workspace_size(card, NAME, [self, mat2], [out], {}, core_limit=core_limit, site=site)
