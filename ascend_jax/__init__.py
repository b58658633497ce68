"""The Ascend CANN runtime as a pure JAX program.

Device state is an immutable pytree, every runtime call a pure function on it, and the clock is simulated.

>>> import numpy as np
>>> import ascend_jax as aj
>>> card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 20)
>>> card, ptr = aj.malloc(card, 16)
>>> card = aj.upload(card, ptr, np.arange(4, dtype=np.float32))
>>> card, back = aj.download(card, ptr, (4,), np.float32)
>>> back.tolist()
[0.0, 1.0, 2.0, 3.0]
"""

from ascend_jax import insight, ops
from ascend_jax.chip.spec import ChipSpec, chip, chips, load_chip_file, peak_flops
from ascend_jax.ops.tensor import Tensor, tensor
from ascend_jax.runtime.codes import AscendError, Code, ParameterError
from ascend_jax.runtime.copies import memcpy, memcpy_async, memset, memset_async
from ascend_jax.runtime.device import device_info
from ascend_jax.runtime.events import (
    create_event,
    destroy_event,
    event_elapsed_ms,
    record_event,
    stream_wait_event,
)
from ascend_jax.runtime.host import host_time_ns, host_work
from ascend_jax.runtime.launch import launch
from ascend_jax.runtime.layout import GRANULE_BYTES
from ascend_jax.runtime.memory import (
    MallocPolicy,
    free,
    free_host,
    hbm_peak_bytes,
    malloc,
    malloc_host,
    mem_get_info,
)
from ascend_jax.runtime.state import CardState, init
from ascend_jax.runtime.status import Status, clear_error, first_failure, last_code, raise_if_error, status
from ascend_jax.runtime.streams import create_stream, destroy_stream
from ascend_jax.runtime.synchronize import synchronize_device, synchronize_event, synchronize_stream
from ascend_jax.runtime.transfers import download, host_read, host_write, upload

__version__ = "0.1.0"

__all__ = [
    "GRANULE_BYTES",
    "AscendError",
    "CardState",
    "ChipSpec",
    "Code",
    "MallocPolicy",
    "ParameterError",
    "Status",
    "Tensor",
    "chip",
    "chips",
    "clear_error",
    "create_event",
    "create_stream",
    "destroy_event",
    "destroy_stream",
    "device_info",
    "download",
    "event_elapsed_ms",
    "first_failure",
    "free",
    "free_host",
    "hbm_peak_bytes",
    "host_read",
    "host_time_ns",
    "host_work",
    "host_write",
    "init",
    "insight",
    "last_code",
    "launch",
    "load_chip_file",
    "malloc",
    "malloc_host",
    "mem_get_info",
    "memcpy",
    "memcpy_async",
    "memset",
    "memset_async",
    "ops",
    "peak_flops",
    "raise_if_error",
    "record_event",
    "status",
    "stream_wait_event",
    "synchronize_device",
    "synchronize_event",
    "synchronize_stream",
    "tensor",
    "upload",
]
