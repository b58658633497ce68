"""Tensors: shape, dtype and place in device memory (``aclTensor``)."""

import dataclasses
import math
import operator

import jax
import numpy as np

from ascend_jax.runtime.codes import Code, ParameterError
from ascend_jax.runtime.kernels import Argument, require_plain
from ascend_jax.runtime.ranges import byte_range


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tensor:
    """A contiguous view of device memory.

    Attributes:
      pointer: int32, device pointer in granules of 64 bytes.
      offset_bytes: int32, bytes from there to the first element ...
      skip: int32, ... and granules, where that is too far for int32.
      shape: Static.
      dtype: Static NumPy dtype.
    """

    pointer: jax.Array
    offset_bytes: jax.Array
    skip: jax.Array
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    dtype: np.dtype = dataclasses.field(metadata={"static": True})

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def argument(self) -> Argument:
        """The static side: shape and dtype."""
        return Argument(self.shape, self.dtype)


def tensor(pointer: int | jax.Array, shape: tuple[int, ...], dtype: object, *, offset: int | jax.Array = 0) -> Tensor:
    """Describe a tensor in device memory.

    Args:
      pointer: Device pointer.
      shape: Dimensions, all at least 0.
      dtype: Anything NumPy or JAX takes for a dtype.
      offset: Elements from ``pointer`` to the first one, as ``aclCreateTensor`` counts; traced ones stay below 2 GiB.

    Raises:
      ParameterError: A negative dimension or a dtype that does not exist.

    >>> tensor(1 << 15, (2, 3), "float16").nbytes
    12
    """
    if any(int(n) != n or n < 0 for n in shape):
        raise ParameterError(Code.PARAM_INVALID, "shape", list(shape), "every dimension is a whole number >= 0")
    try:
        kind = jax.numpy.dtype(dtype)  # type: ignore[call-overload]
        require_plain(kind)
    except (TypeError, ValueError) as error:
        raise ParameterError(
            Code.PARAM_INVALID, "dtype", dtype, f"must name a dtype of whole bytes ({error})"
        ) from error
    if not isinstance(offset, jax.Array):
        try:
            offset = operator.index(offset) * kind.itemsize
        except TypeError as error:
            raise ParameterError(Code.PARAM_INVALID, "offset", offset, "must be a whole number of elements") from error
        start = byte_range(pointer, offset, 0)
        return Tensor(pointer, start.offset, start.skip, tuple(int(n) for n in shape), kind)  # type: ignore[arg-type]
    return Tensor(pointer, offset * kind.itemsize, 0, tuple(int(n) for n in shape), kind)  # type: ignore[arg-type]
