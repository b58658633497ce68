"""Data types and reductions of HCCL, with HCCL's own numbers (they differ from those of ``aclDataType``)."""

import enum
from typing import Any

import jax.numpy as jnp
import numpy as np

from ascend_jax.hccl.results import HcclError, HcclResult


class DataType(enum.IntEnum):
    """``HcclDataType``."""

    INT8 = 0
    INT16 = 1
    INT32 = 2
    FP16 = 3
    FP32 = 4
    INT64 = 5
    UINT64 = 6
    UINT8 = 7
    UINT16 = 8
    UINT32 = 9
    FP64 = 10
    BFP16 = 11
    INT128 = 12
    HIF8 = 14
    FP8E4M3 = 15
    FP8E5M2 = 16
    FP8E8M0 = 17


class ReduceOp(enum.IntEnum):
    """``HcclReduceOp``."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3


_BYTES = {
    DataType.INT8: 1,
    DataType.INT16: 2,
    DataType.INT32: 4,
    DataType.FP16: 2,
    DataType.FP32: 4,
    DataType.INT64: 8,
    DataType.UINT64: 8,
    DataType.UINT8: 1,
    DataType.UINT16: 2,
    DataType.UINT32: 4,
    DataType.FP64: 8,
    DataType.BFP16: 2,
    DataType.INT128: 16,
    DataType.HIF8: 1,
    DataType.FP8E4M3: 1,
    DataType.FP8E5M2: 1,
    DataType.FP8E8M0: 1,
}
_NAMES = {
    "int8": DataType.INT8,
    "int16": DataType.INT16,
    "int32": DataType.INT32,
    "float16": DataType.FP16,
    "float32": DataType.FP32,
    "int64": DataType.INT64,
    "uint64": DataType.UINT64,
    "uint8": DataType.UINT8,
    "uint16": DataType.UINT16,
    "uint32": DataType.UINT32,
    "float64": DataType.FP64,
    "bfloat16": DataType.BFP16,
    "float8_e4m3fn": DataType.FP8E4M3,
    "float8_e5m2": DataType.FP8E5M2,
    "float8_e8m0fnu": DataType.FP8E8M0,
}
# AllReduce, Reduce and ReduceScatter of Atlas A2 (HCCL documents)
REDUCIBLE = (
    DataType.INT8,
    DataType.INT16,
    DataType.INT32,
    DataType.INT64,
    DataType.FP16,
    DataType.FP32,
    DataType.BFP16,
)
NO_PRODUCT = (DataType.INT16, DataType.BFP16)


def item_bytes(dtype: DataType) -> int:
    """Return the bytes of one element.

    >>> item_bytes(DataType.BFP16)
    2
    """
    return _BYTES[DataType(dtype)]


def data_type(dtype: Any) -> DataType:
    """Return HCCL's type of a NumPy or JAX dtype, or of HCCL's own number.

    Raises:
      HcclError: NOT_SUPPORT: HCCL has no such type; PARA: it is none at all.

    >>> data_type("float16")
    <DataType.FP16: 3>
    """
    if dtype is None or isinstance(dtype, bool):
        raise HcclError(HcclResult.PARA, f"dtype = {dtype}: must be a data type, or a number of HcclDataType")
    if isinstance(dtype, int | np.integer):
        if dtype not in set(DataType):
            raise HcclError(
                HcclResult.NOT_SUPPORT, f"dtype = {dtype}: HcclDataType has {[int(one) for one in DataType]}"
            )
        return DataType(int(dtype))
    try:
        name = jnp.dtype(dtype).name
    except TypeError as error:
        raise HcclError(HcclResult.NOT_SUPPORT, f"dtype = {dtype!r}: HCCL moves {', '.join(_NAMES)}") from error
    if name not in _NAMES:
        raise HcclError(HcclResult.NOT_SUPPORT, f"dtype = {name}: HCCL moves {', '.join(_NAMES)}")
    return _NAMES[name]


def check_reduction(dtype: DataType, op: object) -> None:
    """Refuse what HCCL does not reduce on Atlas A2.

    Raises:
      HcclError: NOT_SUPPORT for the type, or for PROD of int16 and bfloat16; PARA for an unknown operation.
    """
    if isinstance(op, bool) or not isinstance(op, int | np.integer) or op not in set(ReduceOp):
        raise HcclError(HcclResult.PARA, f"op = {op!r}: HcclReduceOp has SUM 0, PROD 1, MAX 2, MIN 3")
    if dtype not in REDUCIBLE:
        names = ", ".join(one.name for one in REDUCIBLE)
        raise HcclError(
            HcclResult.NOT_SUPPORT, f"dtype = {dtype.name}: reductions take {names}; moving takes every type"
        )
    if op == ReduceOp.PROD and dtype in NO_PRODUCT:
        raise HcclError(HcclResult.NOT_SUPPORT, f"op = PROD, dtype = {dtype.name}: no product of INT16 and BFP16")
