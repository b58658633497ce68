"""The second phase of an operator call: an executor becomes a command in a stream."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime import bytes as hbm
from ascend_jax.runtime import clock, layout, status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import Command, answer, at_least_1ns, enqueue, is_stream
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.kernels import Executor, KernelSpec
from ascend_jax.runtime.layout import GRANULE_BYTES, Field, Kind, Operand, Resource
from ascend_jax.runtime.memory import Range, byte_range, is_live
from ascend_jax.runtime.rows import Number, put_row
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.synchronize import make_room


def load_kernel(card: CardState, spec: KernelSpec) -> tuple[CardState, int]:
    """Make a kernel known to the card; return the card and the kernel's index. The same spec is loaded once."""
    if spec in card.kernels:
        return card, card.kernels.index(spec)
    return dataclasses.replace(card, kernels=(*card.kernels, spec)), len(card.kernels)


@stage
def _launch(
    card: CardState, executor: Executor, kernel: Number, workspace: Number, stream: Number, site: Number
) -> CardState:
    workspace = jnp.asarray(workspace, jnp.int32)
    scratch = byte_range(workspace, 0, executor.workspace_bytes).as_int32()
    operands = put_row(executor.operands, layout.WORKSPACE, jnp.stack(scratch[: len(Operand)]))
    uses_workspace = executor.workspace_bytes > 0
    code = status.first_code(
        (~is_stream(card, jnp.asarray(stream)), Code.RT_STREAM_CONTEXT),
        (uses_workspace & (workspace == layout.NULL), Code.PARAM_NULLPTR),
    )
    code = jnp.where(executor.code != Code.SUCCESS, executor.code, code)
    code = jnp.where(code == Code.SUCCESS, _check_operands(card, executor, operands), code)
    bit = uses_workspace.astype(jnp.int32) << layout.WORKSPACE
    cost = executor.cost
    card = spend(card, card.chip["host_launch_ns"])
    bits = lax.bitcast_convert_type(executor.scalars, jnp.int32)
    command = Command(
        Kind.KERNEL,
        stream,
        duration=at_least_1ns(clock.from_ns(cost.duration_ns)),
        need={Resource.CUBE: cost.cube_cores, Resource.VECTOR: cost.vector_cores},
        operands=operands,
        reads=executor.reads | bit,
        writes=executor.writes | bit,
        fields={
            Field.BLOCKS: cost.blocks,
            Field.KERNEL: kernel,
            Field.CUBE_NS: jnp.ceil(cost.cube_busy_ns),
            Field.VECTOR_NS: jnp.ceil(cost.vector_busy_ns),
            Field.MOVED: jnp.ceil(cost.hbm_bytes / GRANULE_BYTES),
            Field.LIMIT: cost.limit,
            Field.SITE: site,
        }
        | {Field.SCALARS + i: bits[i] for i in range(layout.SCALARS)},
    )
    card, code = enqueue(card, command, code)
    return answer(card, code, site, stream)[0]


def _check_operands(card: CardState, executor: Executor, operands: jax.Array) -> jax.Array:
    slot = jnp.arange(layout.OPERANDS)
    is_value = (((executor.reads | executor.writes) >> slot) & 1).astype(bool)
    is_workspace = (slot == layout.WORKSPACE) & (executor.workspace_bytes > 0)
    places = Range(*(operands[:, column] for column in Operand)).as_int32()
    live = jax.vmap(lambda place: is_live(card, place))(places)
    on_device = operands[:, Operand.POINTER] > layout.NULL
    backed = hbm.is_backed(card, places) if card.has_values else jnp.ones_like(live)
    used = is_value & ((operands[:, Operand.WHOLE] != 0) | (operands[:, Operand.REST] > 0))
    return status.first_code(
        ((used & (operands[:, Operand.POINTER] == layout.NULL)).any(), Code.PARAM_NULLPTR),
        (((used | is_workspace) & ~(live & on_device)).any(), Code.RT_PARAM_INVALID),
        ((used & ~backed).any(), Code.NO_BYTES_BEHIND),
    )


@verb
def launch(card: CardState, executor: Executor, workspace: Number, stream: Number, *, site: Site = None) -> CardState:
    """Queue an operator in ``stream``: the second phase of an ``aclnn`` call.

    Args:
      card: The card; it learns the executor's kernel if it does not know it yet.
      executor: What the first phase returned.
      workspace: Device pointer to at least the workspace size that the first phase returned; 0 if that is 0.
      stream: Stream handle.
      site: Call site, filled in by the runtime.

    Returns:
      The card. Status: the code of the first phase if that failed; 107003 for an unknown stream, 161001 for a missing
      workspace or operand, 107000 for an operand outside every live block.
    """
    assert executor.kernel is not None
    card = make_room(card, site)
    card, kernel = load_kernel(card, executor.kernel)
    # the stage does not depend on the kernel, so all kernels share its compilation
    return _launch(card, dataclasses.replace(executor, kernel=None), kernel, workspace, stream, site)
