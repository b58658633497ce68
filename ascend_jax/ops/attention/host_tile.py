"""The host tile: what runs fast in XLA, looked up by backend and shape. The Ascend tile is another knob (`tiling`)."""

from typing import Any

import jax

from ascend_jax.ops.attention.host_cores import device_cores
from ascend_jax.ops.attention.host_tile_table import HOST_TILES, NARROW_PRODUCTS

__all__ = ["host_tiles", "multiplies_narrow"]

_ALIGNMENT = 16


def host_tiles(
    q_len: int, kv_len: int, dim: int = 128, *, skips: bool = True, backend: str | None = None, cores: int | None = None
) -> tuple[int, int]:
    """Returns the (query, key) tile that suits XLA: equal tiles no larger than the table has, with little padding.

    Args:
        q_len: Number of query rows.
        kv_len: Number of key columns.
        dim: Head dimension, the larger of that of keys and values.
        skips: Whether some rows do not see some columns, so that smaller tiles leave out more.
        backend: "cpu", "gpu" or "tpu"; the default backend if not given.
        cores: Cores that a device of the CPU has; if not given see
            :func:`~ascend_jax.ops.attention.host_cores.device_cores`.

    >>> host_tiles(1024, 513, skips=False, backend="cpu", cores=2), host_tiles(1024, 513, backend="cpu", cores=1)
    ((1024, 272), (128, 112))
    """
    backend = backend or jax.default_backend()
    if backend == "cpu" and (device_cores() if cores is None else cores) == 1:
        backend = "cpu core"
    rows = HOST_TILES.get(backend, HOST_TILES["cpu"])
    longest = max(q_len, kv_len)
    whole, skipping = next(tiles for length, d, *tiles in rows if longest <= (length or longest) and dim <= (d or dim))
    largest = skipping if skips else whole
    return _split(q_len, largest[0]), _split(kv_len, largest[1])


def multiplies_narrow(dtype: Any, *, backend: str | None = None) -> bool:
    """Returns whether 16-bit operands are multiplied faster as they are than as float32, by the table.

    >>> multiplies_narrow("bfloat16", backend="cpu"), multiplies_narrow("float16", backend="cpu")
    (True, False)
    """
    backend = backend or jax.default_backend()
    return str(dtype) in NARROW_PRODUCTS.get(backend, NARROW_PRODUCTS["cpu"])


def _split(length: int, largest: int) -> int:
    even = -(-length // max(1, -(-length // largest)))
    return max(1, -(-even // _ALIGNMENT)) * _ALIGNMENT
