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

from ascend_jax import hccl, insight, ops
from ascend_jax.chip.spec import ChipSpec, chip, chips, load_chip_file, peak_flops
from ascend_jax.chip.tensors import (
    CoreMemory,
    GlobalTensor,
    LocalBuffer,
    LocalTensor,
    alloc_local,
    core_memory,
    free_local,
)
from ascend_jax.hccl.cluster import Cluster, cluster, on_cards
from ascend_jax.hccl.topology import Topology
from ascend_jax.ops.attention.flash import flash_attention
from ascend_jax.ops.tensor import Tensor, tensor
from ascend_jax.runtime import static
from ascend_jax.runtime.callbacks import (
    launch_callback,
    process_report,
    subscribe_report,
    unsubscribe_report,
)
from ascend_jax.runtime.capture import capture_begin, capture_end, capture_info, capture_thread_exchange_mode
from ascend_jax.runtime.capture_rules import CaptureMode
from ascend_jax.runtime.cnt_notifies import (
    CntRecordMode,
    CntWaitMode,
    cnt_notify_id,
    create_cnt_notify,
    destroy_cnt_notify,
    record_cnt_notify,
    reset_cnt_notify,
    wait_cnt_notify,
)
from ascend_jax.runtime.codes import AscendError, Code, ParameterError
from ascend_jax.runtime.contexts import (
    create_context,
    current_default_stream,
    destroy_context,
    get_context,
    set_context,
)
from ascend_jax.runtime.device import (
    device_info,
    device_task_abort,
    primary_context_state,
    reset_device,
    reset_device_force,
    set_device,
    stream_priority_range,
)
from ascend_jax.runtime.early import EarlyAccess, early_accesses
from ascend_jax.runtime.edge import QUICK_TO_COMPILE, QUICK_TO_RUN
from ascend_jax.runtime.event_queries import (
    event_available_count,
    event_elapsed_ms,
    event_elapsed_time,
    event_id,
    event_timestamp_us,
    query_event,
    query_event_status,
    query_event_wait_status,
)
from ascend_jax.runtime.event_slots import EventFlag
from ascend_jax.runtime.events import (
    create_event,
    create_event_ex_with_flag,
    create_event_with_flag,
    destroy_event,
    record_event,
    reset_event,
    stream_wait_event,
)
from ascend_jax.runtime.execute import execute_program
from ascend_jax.runtime.faults import inject_fault
from ascend_jax.runtime.freed import FreedInUse, freed_in_use
from ascend_jax.runtime.host import host_time_ns, host_work
from ascend_jax.runtime.host_functions import launch_host_func
from ascend_jax.runtime.kernels import Cost, kernel_cost
from ascend_jax.runtime.launch import launch
from ascend_jax.runtime.layout import GRANULE_BYTES, Reach
from ascend_jax.runtime.memory.allocation import (
    MallocPolicy,
    PolicyFlag,
    free,
    free_host,
    malloc,
    malloc_align32,
    malloc_host,
    malloc_pageable,
)
from ascend_jax.runtime.memory.allocator_options import AllocatorOptions, parse_allocator_options
from ascend_jax.runtime.memory.caching_allocator import (
    cache_alloc,
    cache_free,
    caching_allocator,
    record_stream,
    set_per_process_memory_fraction,
)
from ascend_jax.runtime.memory.caching_reports import (
    CacheOutOfMemory,
    memory_snapshot,
    memory_stats,
    reset_peak_memory_stats,
)
from ascend_jax.runtime.memory.caching_segments import empty_cache
from ascend_jax.runtime.memory.caching_state import CachingAllocator
from ascend_jax.runtime.memory.caching_workspace import cache_workspace
from ascend_jax.runtime.memory.copies import memcpy, memcpy_async, memset, memset_async
from ascend_jax.runtime.memory.copies_2d import memcpy2d, memcpy2d_async
from ascend_jax.runtime.memory.host_registration import host_register, host_unregister
from ascend_jax.runtime.memory.ipc import IpcExports, ipc_allow, ipc_close, ipc_export, ipc_import
from ascend_jax.runtime.memory.paged_kv import (
    PagedCache,
    free_pages,
    kv_extend,
    kv_free,
    kv_is_consistent,
    kv_slots,
    paged_cache,
)
from ascend_jax.runtime.memory.peers import (
    can_access_peer,
    disable_peer_access,
    enable_peer_access,
    memcpy_peer,
    peer_access_status,
)
from ascend_jax.runtime.memory.physical_memory import free_physical, malloc_physical, mem_allocation_granularity
from ascend_jax.runtime.memory.pool_stats import PoolStats, mem_pool_stats
from ascend_jax.runtime.memory.pools import (
    PoolReuse,
    mem_pool_alloc,
    mem_pool_create,
    mem_pool_destroy,
    mem_pool_free,
    mem_pool_set_release_threshold,
    mem_pool_trim,
)
from ascend_jax.runtime.memory.synced_free import free_host_with_dev_sync, free_with_dev_sync
from ascend_jax.runtime.memory.transfers import download, host_read, host_write, upload
from ascend_jax.runtime.memory.virtual_memory import map_mem, release_mem_address, reserve_mem_address, unmap_mem
from ascend_jax.runtime.memory_info import (
    MemAttr,
    MemoryReport,
    OutOfMemory,
    hbm_peak_bytes,
    mem_get_info,
    memory_report,
    out_of_memory,
)
from ascend_jax.runtime.notifies import (
    create_notify,
    destroy_notify,
    notify_batch_reset,
    notify_id,
    record_notify,
    wait_and_reset_notify,
)
from ascend_jax.runtime.program import Program, program_from_rows
from ascend_jax.runtime.program_files import load_program, save_program
from ascend_jax.runtime.simulate import Schedule, simulate
from ascend_jax.runtime.state import CardState, init
from ascend_jax.runtime.status import Status, clear_error, first_failure, last_code, raise_if_error, status
from ascend_jax.runtime.streams import (
    create_stream,
    destroy_stream,
    destroy_stream_force,
    set_stream_failure_mode,
    stream_abort,
    stream_available_count,
    stream_flags,
    stream_id,
    stream_priority,
    stream_query,
)
from ascend_jax.runtime.synchronize import synchronize_device, synchronize_event, synchronize_stream
from ascend_jax.runtime.task_groups import capture_task_group_begin, capture_task_group_end, update_task_group
from ascend_jax.runtime.threads import (
    create_thread,
    earliest_thread,
    end_thread,
    join_thread,
    thread_time_ns,
    use_thread,
)
from ascend_jax.runtime.timeouts import set_op_execute_timeout, set_op_wait_timeout
from ascend_jax.runtime.value_marks import value_wait, value_write

__version__ = "0.1.0"

__all__ = [
    "GRANULE_BYTES",
    "QUICK_TO_COMPILE",
    "QUICK_TO_RUN",
    "AllocatorOptions",
    "AscendError",
    "CacheOutOfMemory",
    "CachingAllocator",
    "CaptureMode",
    "CardState",
    "ChipSpec",
    "Cluster",
    "CntRecordMode",
    "CntWaitMode",
    "Code",
    "CoreMemory",
    "Cost",
    "EarlyAccess",
    "EventFlag",
    "FreedInUse",
    "GlobalTensor",
    "IpcExports",
    "LocalBuffer",
    "LocalTensor",
    "MallocPolicy",
    "MemAttr",
    "MemoryReport",
    "OutOfMemory",
    "PagedCache",
    "ParameterError",
    "PolicyFlag",
    "PoolReuse",
    "PoolStats",
    "Program",
    "Reach",
    "Schedule",
    "Status",
    "Tensor",
    "Topology",
    "alloc_local",
    "cache_alloc",
    "cache_free",
    "cache_workspace",
    "caching_allocator",
    "can_access_peer",
    "capture_begin",
    "capture_end",
    "capture_info",
    "capture_task_group_begin",
    "capture_task_group_end",
    "capture_thread_exchange_mode",
    "chip",
    "chips",
    "clear_error",
    "cluster",
    "cnt_notify_id",
    "core_memory",
    "create_cnt_notify",
    "create_context",
    "create_event",
    "create_event_ex_with_flag",
    "create_event_with_flag",
    "create_notify",
    "create_stream",
    "create_thread",
    "current_default_stream",
    "destroy_cnt_notify",
    "destroy_context",
    "destroy_event",
    "destroy_notify",
    "destroy_stream",
    "destroy_stream_force",
    "device_info",
    "device_task_abort",
    "disable_peer_access",
    "download",
    "earliest_thread",
    "early_accesses",
    "empty_cache",
    "enable_peer_access",
    "end_thread",
    "event_available_count",
    "event_elapsed_ms",
    "event_elapsed_time",
    "event_id",
    "event_timestamp_us",
    "execute_program",
    "first_failure",
    "flash_attention",
    "free",
    "free_host",
    "free_host_with_dev_sync",
    "free_local",
    "free_pages",
    "free_physical",
    "free_with_dev_sync",
    "freed_in_use",
    "get_context",
    "hbm_peak_bytes",
    "hccl",
    "host_read",
    "host_register",
    "host_time_ns",
    "host_unregister",
    "host_work",
    "host_write",
    "init",
    "inject_fault",
    "insight",
    "ipc_allow",
    "ipc_close",
    "ipc_export",
    "ipc_import",
    "join_thread",
    "kernel_cost",
    "kv_extend",
    "kv_free",
    "kv_is_consistent",
    "kv_slots",
    "last_code",
    "launch",
    "launch_callback",
    "launch_host_func",
    "load_chip_file",
    "load_program",
    "malloc",
    "malloc_align32",
    "malloc_host",
    "malloc_pageable",
    "malloc_physical",
    "map_mem",
    "mem_allocation_granularity",
    "mem_get_info",
    "mem_pool_alloc",
    "mem_pool_create",
    "mem_pool_destroy",
    "mem_pool_free",
    "mem_pool_set_release_threshold",
    "mem_pool_stats",
    "mem_pool_trim",
    "memcpy",
    "memcpy2d",
    "memcpy2d_async",
    "memcpy_async",
    "memcpy_peer",
    "memory_report",
    "memory_snapshot",
    "memory_stats",
    "memset",
    "memset_async",
    "notify_batch_reset",
    "notify_id",
    "on_cards",
    "ops",
    "out_of_memory",
    "paged_cache",
    "parse_allocator_options",
    "peak_flops",
    "peer_access_status",
    "primary_context_state",
    "process_report",
    "program_from_rows",
    "query_event",
    "query_event_status",
    "query_event_wait_status",
    "raise_if_error",
    "record_cnt_notify",
    "record_event",
    "record_notify",
    "record_stream",
    "release_mem_address",
    "reserve_mem_address",
    "reset_cnt_notify",
    "reset_device",
    "reset_device_force",
    "reset_event",
    "reset_peak_memory_stats",
    "save_program",
    "set_context",
    "set_device",
    "set_op_execute_timeout",
    "set_op_wait_timeout",
    "set_per_process_memory_fraction",
    "set_stream_failure_mode",
    "simulate",
    "static",
    "status",
    "stream_abort",
    "stream_available_count",
    "stream_flags",
    "stream_id",
    "stream_priority",
    "stream_priority_range",
    "stream_query",
    "stream_wait_event",
    "subscribe_report",
    "synchronize_device",
    "synchronize_event",
    "synchronize_stream",
    "tensor",
    "thread_time_ns",
    "unmap_mem",
    "unsubscribe_report",
    "update_task_group",
    "upload",
    "use_thread",
    "value_wait",
    "value_write",
    "wait_and_reset_notify",
    "wait_cnt_notify",
]
