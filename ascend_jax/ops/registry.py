"""Operators: one entry each, and the first phase of a call that works for all of them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ascend_jax.ops.tensor import Tensor
from ascend_jax.runtime import kernels, layout
from ascend_jax.runtime.codes import Code, ParameterError
from ascend_jax.runtime.commands import Number, operand_rows
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.kernels import Argument, Cost, Executor, KernelSpec
from ascend_jax.runtime.launch import load_kernel
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import note

Attributes = dict[str, Any]
ALL_CORES = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Plan:
    """What an operator's tiling decides for one call; leaves may be traced."""

    cost: Cost
    workspace_bytes: Number
    fits: bool | jax.Array  # whether some tile fits the chip's on-chip buffers


@dataclasses.dataclass(frozen=True)
class Operator:
    """One operator.

    Attributes:
      name: As CANN spells it, without the ``aclnn``.
      check: ``(inputs, outputs, **attributes) -> None``; raises ParameterError on a wrong shape, dtype or value.
      value: ``(*inputs, **attributes) -> outputs``: what it computes, on arrays.
      plan: ``(chip, inputs, outputs, core_limit, **attributes) -> Plan``: tiling and cost on at most ``core_limit``
        cube cores (int32, may exceed what the chip has); pure, traceable in the chip and the limit.
    """

    name: str
    check: Callable[..., None]
    value: Callable[..., Sequence[jax.Array]]
    plan: Callable[..., Plan]


_operators: dict[str, Operator] = {}


def add(operator: Operator) -> Operator:
    """Register an operator under its name and return it.

    Raises:
      ValueError: The name is taken.
    """
    kernels.register(operator.name, operator.value)
    _operators[operator.name] = operator
    return operator


def names() -> tuple[str, ...]:
    """Return the names of all operators, sorted."""
    return tuple(sorted(_operators))


def find(name: str) -> Operator:
    """Return an operator by name.

    Raises:
      ParameterError: There is none; the message lists those there are.
    """
    if name not in _operators:
        raise ParameterError(Code.PARAM_INVALID, "operator", name, f"must be one of {', '.join(names())}")
    return _operators[name]


@verb
def get_workspace_size(
    card: CardState,
    operator: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    attributes: Attributes,
    *,
    core_limit: Number = ALL_CORES,
    site: Site = None,
) -> tuple[CardState, jax.Array, Executor]:
    """First phase of an operator call: check, tile, predict, and build the executor; nothing is queued.

    Args:
      card: The card.
      operator: Name of the operator.
      inputs: Tensors read.
      outputs: Tensors written.
      attributes: Static attributes; values must be hashable.
      core_limit: Most cube cores that the launch may use, at least 1 (``aclrtSetStreamResLimit``).
      site: Call site, filled in by the runtime.

    Returns:
      The card (which now knows the kernel), the workspace size in bytes (int32) and the executor for ``launch``. Status
      561002 if no tile fits the chip.

    Raises:
      ParameterError: What the operator refuses (161002), naming the parameter, the value and the rule.
    """
    found = find(operator)
    used = len(inputs) + len(outputs)
    if used > layout.WORKSPACE:
        raise ParameterError(Code.PARAM_INVALID, "operands", used, f"at most {layout.WORKSPACE} inputs and outputs")
    found.check(inputs, outputs, **attributes)
    spec = KernelSpec(
        operator,
        tuple(sorted(attributes.items())),
        tuple(tensor.argument for tensor in inputs),
        tuple(tensor.argument for tensor in outputs),
    )
    card, _ = load_kernel(card, spec)
    places = tuple((tensor.pointer, tensor.offset) for tensor in (*inputs, *outputs))
    card, executor = _prepare(card, places, core_limit, site, spec=spec)
    return card, executor.workspace_bytes, executor


@stage(static=("spec",))
def _prepare(card: CardState, places: tuple, core_limit: Number, site: Number, *, spec: KernelSpec) -> tuple:
    limit = jnp.maximum(jnp.asarray(core_limit, jnp.int32), 1)
    plan = find(spec.operator).plan(card.chip, spec.inputs, spec.outputs, limit, **dict(spec.attributes))
    arguments = (*spec.inputs, *spec.outputs)
    ranges = [
        (pointer, jnp.asarray(offset, jnp.int32) * arg.dtype.itemsize, arg.nbytes)
        for (pointer, offset), arg in zip(places, arguments, strict=True)
    ]
    reads = (1 << len(spec.inputs)) - 1
    writes = ((1 << len(arguments)) - 1) ^ reads
    code = jnp.where(jnp.asarray(plan.fits), Code.SUCCESS, Code.INNER_TILING).astype(jnp.int32)
    executor = Executor(
        operands=operand_rows(*ranges),
        reads=jnp.int32(reads),
        writes=jnp.int32(writes),
        workspace_bytes=jnp.asarray(plan.workspace_bytes, jnp.int32),
        cost=plan.cost,
        code=code,
        kernel=spec,
    )
    return note(spend(card, card.chip["host_op_prepare_ns"]), code, site), executor


def require_shape(parameter: str, given: Argument | Tensor, shape: tuple[int, ...], why: str) -> None:
    """Raise ParameterError unless a tensor has this shape."""
    if given.shape != shape:
        raise ParameterError(
            Code.PARAM_INVALID, f"{parameter}.shape", list(given.shape), f"must be {list(shape)}: {why}"
        )
