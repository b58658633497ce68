"""Kernels: what the runtime knows of an operator once its first phase is done.

The runtime sits below the operators, so they hand it two things: a value function under a name (:func:`register`), and
an :class:`Executor` per call, which is data only.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from ascend_jax.chip.spec import ChipSpec

Shape = tuple[int, ...]
ValueFunction = Callable[..., Sequence[jax.Array]]

_values: dict[str, ValueFunction] = {}


def register(operator: str, value: ValueFunction) -> None:
    """Make ``value(*inputs, **attributes) -> outputs`` the meaning of ``operator`` on memory contents.

    Raises:
      ValueError: Another function already has this name.
    """
    if _values.setdefault(operator, value) is not value:
        raise ValueError(f"operator = {operator!r}: already registered; choose another name")


@dataclasses.dataclass(frozen=True)
class Argument:
    """Shape and dtype of one operand, and its length in bytes."""

    shape: Shape
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class KernelSpec:
    """The static side of an executor: operator, attributes, shapes. Hashable, comparable, plain data."""

    operator: str
    attributes: tuple[tuple[str, object], ...]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    scalars: tuple[str, ...] = ()  # names of float attributes that vary from launch to launch
    meets: bool = False  # a collective: its value function runs on all cards at once, under their axis
    spelling: str = dataclasses.field(init=False, default="")  # tells 0.0, -0.0, 0 and False apart

    def __post_init__(self) -> None:
        object.__setattr__(self, "spelling", repr(self.attributes))

    @property
    def output_bytes(self) -> int:
        """Bytes of all outputs together."""
        return sum(out.nbytes for out in self.outputs)

    def run(self, memory: jax.Array, first_byte: jax.Array, scalars: jax.Array) -> jax.Array:
        """Read the inputs from ``memory``, compute, and return the outputs as one run of bytes.

        Args:
          memory: uint8 [bytes].
          first_byte: int32 [P], index of each operand's first byte.
          scalars: float32 [SCALARS], values of the float attributes.

        Returns:
          uint8 [output_bytes].
        """
        read = load_part if self.meets else load
        arrays = [read(memory, first_byte[i], arg) for i, arg in enumerate(self.inputs)]
        varying = {name: scalars[i] for i, name in enumerate(self.scalars)}
        results = _values[self.operator](*arrays, **dict(self.attributes), **varying)
        for result, arg in zip(results, self.outputs, strict=True):
            if result.shape != arg.shape or result.dtype != arg.dtype:
                raise ValueError(
                    f"operator {self.operator} returned {result.dtype}{list(result.shape)}, "
                    f"its signature says {arg.dtype}{list(arg.shape)}"
                )
        return jnp.concatenate([jnp.zeros(0, jnp.uint8), *(to_bytes(result) for result in results)])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cost:
    """What a kernel asks of the card; all leaves are scalars, so tiles and chips can be vmapped.

    A kernel is a number of equal blocks. Each takes ``cube_cores`` and ``vector_cores`` for ``block_ns``; more blocks
    than fit run in waves. HBM and L2 bytes are those of the whole launch, and all blocks draw them evenly.
    """

    head_ns: jax.Array  # float32, launch head, before the first blocks compute
    block_ns: jax.Array  # float32, time of one block on an otherwise idle card
    blocks: jax.Array  # int32, blockDim of the launch
    cube_cores: jax.Array  # int32, 0 or 1, cube cores of one block
    vector_cores: jax.Array  # int32, 0..2, vector cores of one block
    all_at_once: jax.Array  # int32, 1: blocks wait for each other, so all start together (schedule mode 1)
    cube_busy_ns: jax.Array  # float32, busy time of one cube core
    vector_busy_ns: jax.Array  # float32, busy time of one vector core
    hbm_bytes: jax.Array  # float32, bytes read from and written to HBM
    l2_bytes: jax.Array  # float32, bytes moved between L2 and the cores
    limit: jax.Array  # int32, which unit bounds the time (index into LIMITS)
    tile: jax.Array  # int32, the operator's own number for the tiling it chose

    def duration_ns(self, chip: ChipSpec) -> jax.Array:
        """Return the time from first block started to last block done on an otherwise idle card, float32."""
        return self.head_ns + self.waves(chip) * self.block_ns

    def waves(self, chip: ChipSpec) -> jax.Array:
        """Return in how many waves the blocks run on an otherwise idle card, float32."""
        cube = chip["cube_cores"] / jnp.maximum(self.cube_cores, 1)
        vector = chip["vector_cores"] // jnp.maximum(self.vector_cores, 1)
        at_once = jnp.minimum(
            jnp.where(self.cube_cores > 0, cube, jnp.inf), jnp.where(self.vector_cores > 0, vector, jnp.inf)
        )
        return jnp.ceil(self.blocks / at_once)


def kernel_cost(
    block_ns: ArrayLike,
    *,
    blocks: ArrayLike = 1,
    cube_cores: ArrayLike = 0,
    vector_cores: ArrayLike = 0,
    head_ns: ArrayLike = 0.0,
    all_at_once: ArrayLike = False,
    cube_busy_ns: ArrayLike = 0.0,
    vector_busy_ns: ArrayLike = 0.0,
    hbm_bytes: ArrayLike = 0.0,
    l2_bytes: ArrayLike = 0.0,
    limit: str = "fixed",
) -> Cost:
    """Return the cost of a kernel of equal blocks; see :class:`Cost` for the fields.

    Raises:
      ValueError: ``limit`` is none of :data:`LIMITS`.

    >>> int(kernel_cost(1000.0, blocks=48, vector_cores=1).blocks)
    48
    """
    if limit not in LIMITS:
        raise ValueError(f"limit = {limit!r}: must be one of {', '.join(LIMITS)}")
    whole = {"blocks": blocks, "cube_cores": cube_cores, "vector_cores": vector_cores, "all_at_once": all_at_once}
    real = {
        "head_ns": head_ns,
        "block_ns": block_ns,
        "cube_busy_ns": cube_busy_ns,
        "vector_busy_ns": vector_busy_ns,
        "hbm_bytes": hbm_bytes,
        "l2_bytes": l2_bytes,
    }
    return Cost(
        **{name: jnp.asarray(value, jnp.int32) for name, value in whole.items()},
        **{name: jnp.asarray(value, jnp.float32) for name, value in real.items()},
        limit=jnp.int32(LIMITS.index(limit)),
        tile=jnp.int32(0),
    )


LIMITS = ("cube", "vector", "memory", "fixed")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Executor:
    """What the first phase of an operator call returns and the second phase launches. Data only, of no card."""

    operands: jax.Array  # int32 [P, len(Operand)], inputs first, then outputs
    reads: jax.Array  # int32, bit p: operand p is read
    writes: jax.Array  # int32, bit p: operand p is written
    scalars: jax.Array  # float32 [SCALARS]
    workspace_bytes: jax.Array  # int32
    cost: Cost
    code: jax.Array  # int32, 0 or why this call cannot be launched
    kernel: KernelSpec | None = dataclasses.field(metadata={"static": True})


def require_plain(dtype: np.dtype) -> None:
    """Refuse a dtype whose elements are not whole bytes that JAX can hold.

    Raises:
      ValueError: Complex or sub-byte elements, or 64-bit ones while ``jax_enable_x64`` is off.
    """
    fix = "move np.uint8 bytes and reinterpret them with .view() on the host"
    if not dtype.isnative or dtype.hasobject:
        raise ValueError(f"dtype = {dtype}: must be numbers in native byte order; {fix}")
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(f"dtype = {dtype}: JAX holds no 64-bit elements unless jax_enable_x64 is set; {fix}")
    if dtype != np.bool_:
        is_number = jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)
        if not is_number or (jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo)(dtype).bits % 8:
            raise ValueError(f"dtype = {dtype}: elements must be whole bytes: bool, integer or real; {fix}")


def load(memory: jax.Array, first_byte: jax.Array, arg: Argument) -> jax.Array:
    """Return the array that lies in ``memory`` (uint8) from ``first_byte`` on."""
    raw = lax.dynamic_slice(memory, (first_byte,), (arg.nbytes,))
    return from_bytes(raw, arg)


def load_part(memory: jax.Array, first_byte: jax.Array, arg: Argument) -> jax.Array:
    """As :func:`load` for an operand of which this card may have a part only, so that the rest may lie past the end."""
    start = jnp.clip(first_byte, 0, memory.shape[0] - arg.nbytes)
    raw = lax.dynamic_slice(memory, (start,), (arg.nbytes,))
    return from_bytes(jnp.roll(raw, start - first_byte), arg)


def from_bytes(raw: jax.Array, arg: Argument) -> jax.Array:
    """Reinterpret uint8 [nbytes] as an array."""
    if arg.dtype == np.bool_:
        return (raw != 0).reshape(arg.shape)
    size = arg.dtype.itemsize
    words = raw if size == 1 else raw.reshape(-1, size)
    return lax.bitcast_convert_type(words, arg.dtype).reshape(arg.shape)


def to_bytes(array: jax.Array) -> jax.Array:
    """Reinterpret an array as uint8 [nbytes]."""
    if array.dtype == np.bool_:
        return array.astype(jnp.uint8).reshape(-1)
    return lax.bitcast_convert_type(array, jnp.uint8).reshape(-1)
