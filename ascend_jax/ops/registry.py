"""Operators: one entry each, and the first phase of a call that works for all of them."""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.ops.tensor import Tensor
from ascend_jax.runtime import kernels, layout
from ascend_jax.runtime.codes import Code, ParameterError
from ascend_jax.runtime.commands import operand_rows
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.kernels import Argument, Cost, Executor, KernelSpec
from ascend_jax.runtime.launch import load_kernel
from ascend_jax.runtime.ranges import Range, byte_range
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import note

Attributes = dict[str, Any]
ALL_CORES = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Plan:
    """What an operator's tiling decides for one call; leaves may be traced."""

    cost: Cost  # blocks, cores and times of the launch; ``kernel_cost`` makes one
    workspace_bytes: Number
    fits: bool | jax.Array  # whether some tile fits the chip's on-chip buffers


@dataclasses.dataclass(frozen=True)
class Operator:
    """One operator. Inputs and outputs of ``infer`` and ``plan`` are :class:`~ascend_jax.runtime.kernels.Argument`.

    Attributes:
      name: As CANN spells it, without the ``aclnn``.
      value: ``(*inputs, **attributes) -> outputs``: what it computes, on arrays.
      plan: ``(chip, inputs, outputs, core_limit, **attributes) -> Plan``: tiling and cost on at most ``core_limit``
        cube cores (int32, may exceed what the chip has); pure, traceable in the chip and the limit.
      infer: ``(inputs, **attributes) -> {name: Argument}``: shape and dtype of the outputs, in order; raises
        ParameterError for inputs and attributes that the operator refuses. None: whatever ``value`` returns.
      scalars: Names of float attributes that may change from launch to launch without a new kernel; at most 4.
        ``value`` gets them as float32 scalars, ``infer`` and ``plan`` do not get them.
    """

    name: str
    value: Callable[..., Sequence[jax.Array]]
    plan: Callable[..., Plan]
    infer: Callable[..., dict[str, Argument]] | None = None
    scalars: tuple[str, ...] = ()


_operators: dict[str, Operator] = {}


def add(operator: Operator) -> Operator:
    """Register an operator under its name and return it.

    Raises:
      ValueError: Another operator has this name, or there are too many scalars.
    """
    if isinstance(operator.scalars, str):
        raise ValueError(f"operator {operator.name}: scalars = {operator.scalars!r}: must be a tuple of names")
    if len(operator.scalars) > layout.SCALARS:
        raise ValueError(f"operator {operator.name}: {len(operator.scalars)} scalars, at most {layout.SCALARS}")
    if _operators.setdefault(operator.name, operator) != operator:
        raise ValueError(f"operator {operator.name!r} is already registered; choose another name")
    kernels.register(operator.name, operator.value)
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


def infer(operator: str, inputs: Sequence[Tensor | Argument], attributes: Attributes) -> dict[str, Argument]:
    """Check a call and return name, shape and dtype of its outputs.

    Raises:
      ParameterError: The operator refuses the inputs or attributes (161002), or there is no such operator.

    >>> q = Argument((1, 2, 8, 16), jnp.dtype("float16"))
    >>> infer("FlashAttentionScore", [q, q, q], {"sparse_mode": 0})["softmax_max"].shape
    (1, 2, 8, 8)
    """
    found = find(operator)
    arguments = tuple(each.argument if isinstance(each, Tensor) else each for each in inputs)
    static = {name: value for name, value in attributes.items() if name not in found.scalars}
    for name, value in static.items():
        if not isinstance(value, Hashable):
            raise ParameterError(Code.PARAM_INVALID, name, type(value).__name__, "static attributes must be hashable")
    if found.infer is not None:
        return found.infer(arguments, **static)
    arrays = [jax.ShapeDtypeStruct(arg.shape, arg.dtype) for arg in arguments]
    varying = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in found.scalars}
    results = jax.eval_shape(functools.partial(found.value, **static), *arrays, **varying)
    if not isinstance(results, tuple | list) or not results:
        raise ValueError(f"operator {operator}: its value function must return a tuple of at least one array")
    return {f"output {i}": Argument(each.shape, each.dtype) for i, each in enumerate(results)}


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
      attributes: By name; scalars of the operator may be traced, all others are static and hashable.
      core_limit: Most cube cores that the launch may use, at least 1 (``aclrtSetStreamResLimit``).
      site: Call site, filled in by the runtime.

    Returns:
      The card (which now knows the kernel), the workspace size in bytes (int32) and the executor for ``launch``. Status
      561002 if no tile fits the chip.

    Raises:
      ParameterError: What the operator refuses (161002), naming the parameter, the value and the rule.
    """
    found = find(operator)
    expected = infer(operator, inputs, attributes)
    _check_outputs(expected, inputs, outputs)
    spec = KernelSpec(
        operator,
        tuple(sorted((name, value) for name, value in attributes.items() if name not in found.scalars)),
        tuple(tensor.argument for tensor in inputs),
        tuple(tensor.argument for tensor in outputs),
        found.scalars,
    )
    missing = [name for name in found.scalars if name not in attributes]
    if missing:
        raise ParameterError(Code.PARAM_INVALID, missing[0], "missing", f"{operator} needs this attribute")
    scalars = tuple(_as_scalar(name, attributes[name]) for name in found.scalars)
    card, _ = load_kernel(card, spec)
    places = tuple(_range_of(each) for each in (*inputs, *outputs))
    card, executor = _prepare(card, places, scalars, core_limit, site, spec=spec)
    return card, executor.workspace_bytes, executor


def _range_of(tensor: Tensor) -> Range:
    return byte_range(tensor.pointer, tensor.offset_bytes, tensor.nbytes)._replace(skip=tensor.skip)


def _as_scalar(name: str, value: Any) -> Any:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.number) and value.dtype.kind != "c":
        return value
    try:
        return np.float32(float(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise ParameterError(Code.PARAM_INVALID, name, value, "must be a real number") from error


def _check_outputs(expected: dict[str, Argument], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    used = len(inputs) + len(outputs)
    if used > layout.WORKSPACE:
        raise ParameterError(Code.PARAM_INVALID, "operands", used, f"at most {layout.WORKSPACE} inputs and outputs")
    if len(outputs) != len(expected):
        raise ParameterError(Code.PARAM_INVALID, "outputs", len(outputs), f"must be {', '.join(expected)}")
    for (name, wanted), given in zip(expected.items(), outputs, strict=True):
        require_shape(name, given, wanted.shape, "follows from the inputs")
        if given.dtype != wanted.dtype:
            raise ParameterError(Code.PARAM_INVALID, f"{name}.dtype", given.dtype, f"must be {wanted.dtype}")


@stage(static=("spec",))
def _prepare(
    card: CardState, places: tuple, scalars: tuple, core_limit: Number, site: Number, *, spec: KernelSpec
) -> tuple:
    limit = jnp.maximum(jnp.asarray(core_limit, jnp.int32), 1)
    plan = find(spec.operator).plan(card.chip, spec.inputs, spec.outputs, limit, **dict(spec.attributes))
    reads = (1 << len(spec.inputs)) - 1
    writes = ((1 << len(places)) - 1) ^ reads
    code = jnp.where(jnp.asarray(plan.fits), Code.SUCCESS, Code.INNER_TILING).astype(jnp.int32)
    unused = [0.0] * (layout.SCALARS - len(scalars))
    executor = Executor(
        operands=operand_rows(*(place.as_int32() for place in places)),
        reads=jnp.int32(reads),
        writes=jnp.int32(writes),
        scalars=jnp.stack([jnp.asarray(each, jnp.float32) for each in (*scalars, *unused)]),
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
