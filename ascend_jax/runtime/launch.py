"""The second phase of an operator call: an executor becomes a command in a stream."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime import bytes as hbm
from ascend_jax.runtime import clock, layout, status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import Command, answer, at_least_1ns, enqueue
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.handles import find_stream
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.kernels import Cost, Executor, KernelSpec
from ascend_jax.runtime.layout import GRANULE_BYTES, Field, Kind, Operand, Resource
from ascend_jax.runtime.ranges import Range, byte_range, is_device
from ascend_jax.runtime.refusals import operand_given
from ascend_jax.runtime.rows import Number, put_row
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_failing
from ascend_jax.runtime.synchronize import make_room
from ascend_jax.runtime.translation import translate
from ascend_jax.runtime.usable import is_live


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
    asked, places = operands, translate(card, Range(*(operands[:, column] for column in Operand)))
    operands = jnp.stack(places[: len(Operand)], axis=-1)
    uses_workspace = executor.workspace_bytes > 0
    code, slot = find_stream(card, stream)
    code = first_failing(code, status.first_code((uses_workspace & (workspace == layout.NULL), Code.PARAM_NULLPTR)))
    code = jnp.where(executor.code != Code.SUCCESS, executor.code, code)
    wrong, is_wrong = _check_operands(card, executor, operands)
    given = operand_given(asked, is_wrong & (code == Code.SUCCESS))
    code = first_failing(code, wrong, _check_blocks(card, executor.cost))
    bit = uses_workspace.astype(jnp.int32) << layout.WORKSPACE
    card = spend(card, card.chip["host_launch_ns"])
    bits = lax.bitcast_convert_type(executor.scalars, jnp.int32)
    fields = {Field.KERNEL: kernel, Field.SITE: site, **{Field.SCALARS + i: bits[i] for i in range(layout.SCALARS)}}
    command = kernel_command(card, executor.cost, slot)
    command = dataclasses.replace(
        command,
        operands=operands,
        reads=executor.reads | bit,
        writes=executor.writes | bit,
        fields=command.fields | fields,
    )
    card, code = enqueue(card, command, code)
    return answer(card, code, site, stream, given=given)[0]


def kernel_command(card: CardState, cost: Cost, slot: Number) -> Command:
    """Return the command of a kernel with this cost, without operands.

    A block's share of HBM and L2 is what it draws at full speed of what the whole card has, rounded down so that a
    kernel alone is never slowed by rounding.
    """
    seconds = cost.block_ns * jnp.maximum(cost.blocks, 1) * 1e-9
    shares = [
        jnp.clip(jnp.floor(layout.SHARES * nbytes / (seconds * card.chip[rate])), 0, layout.SHARES - 1)
        for nbytes, rate in ((cost.hbm_bytes, "hbm_bytes_per_s"), (cost.l2_bytes, "l2_bytes_per_s"))
    ]
    return Command(
        Kind.KERNEL,
        slot,
        block=at_least_1ns(clock.from_ns(cost.block_ns)),
        head_ns=jnp.minimum(jnp.ceil(cost.head_ns), layout.CHUNK_NS - 1),
        blocks=cost.blocks,
        need={Resource.CUBE: cost.cube_cores, Resource.VECTOR: cost.vector_cores},
        fields={
            Field.MODE: cost.all_at_once,
            Field.HBM_SHARE: shares[0],
            Field.L2_SHARE: shares[1],
            Field.CUBE_NS: jnp.ceil(cost.cube_busy_ns),
            Field.VECTOR_NS: jnp.ceil(cost.vector_busy_ns),
            Field.MOVED: jnp.ceil(cost.hbm_bytes / GRANULE_BYTES),
            Field.LIMIT: cost.limit,
        },
    )


def _check_blocks(card: CardState, cost: Cost) -> jax.Array:
    """A block must fit the chip, and blocks that wait for each other must all fit at once, or none would ever end."""
    cube, vector = cost.cube_cores, cost.vector_cores
    at_once = jnp.where(cost.all_at_once == 1, cost.blocks, 1)
    fits = (cube * at_once <= card.chip["cube_cores"]) & (vector * at_once <= card.chip["vector_cores"])
    is_block = (cost.blocks >= 1) & (cost.blocks < 1 << 16) & (cube >= 0) & (cube <= 1) & (vector >= 0) & (vector <= 2)
    return status.first_code((~(fits & is_block), Code.RT_PARAM_INVALID))


def _check_operands(card: CardState, executor: Executor, operands: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (code, which operands cannot be used, bool [P])."""
    slot = jnp.arange(layout.OPERANDS)
    is_value = (((executor.reads | executor.writes) >> slot) & 1).astype(bool)
    is_workspace = (slot == layout.WORKSPACE) & (executor.workspace_bytes > 0)
    places = Range(*(operands[:, column] for column in Operand)).as_int32()
    live = jax.vmap(lambda place: is_live(card, place))(places)
    on_device = is_device(operands[:, Operand.POINTER])
    backed = hbm.is_backed(card, places) if card.has_values else jnp.ones_like(live)
    used = is_value & ((operands[:, Operand.WHOLE] != 0) | (operands[:, Operand.REST] > 0))
    checks = (
        (used & (operands[:, Operand.POINTER] == layout.NULL), Code.PARAM_NULLPTR),
        ((used | is_workspace) & ~(live & on_device), Code.RT_PARAM_INVALID),
        (used & ~backed, Code.NO_BYTES_BEHIND),
    )
    code, is_wrong = jnp.int32(Code.SUCCESS), jnp.zeros_like(used)
    for is_it, wrong in reversed(checks):
        code = jnp.where(is_it.any(), int(wrong), code)
        is_wrong = jnp.where(is_it.any(), is_it, is_wrong)
    return code, is_wrong


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
      workspace or operand, 107000 for an operand outside every live block or blocks that can never all be placed.
    """
    assert executor.kernel is not None
    card = make_room(card, site, stream)
    card, kernel = load_kernel(card, executor.kernel)
    # the stage does not depend on the kernel, so all kernels share its compilation
    return _launch(card, dataclasses.replace(executor, kernel=None), kernel, workspace, stream, site)
