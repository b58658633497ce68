"""Status codes: CANN's numbers and names, with cause and remedy in this project's words.

Numbers and names are those of the CANN headers (``acl/acl_base.h``, ``acl/error_codes/rt_error_codes.h``,
``aclnn/acl_meta.h``). Codes from 900000 on belong to the simulator itself: CANN has nothing to say there.
"""

import dataclasses
import enum
from collections.abc import Mapping


class Code(enum.IntEnum):
    """Codes the runtime answers with."""

    SUCCESS = 0
    INVALID_PARAM = 100000
    RT_PARAM_INVALID = 107000
    RT_INVALID_DEVICEID = 107001
    RT_CONTEXT_NULL = 107002
    RT_STREAM_CONTEXT = 107003
    RT_EVENT_TIMESTAMP_INVALID = 107006
    RT_ADDR_UNALIGNED = 107008
    RT_STREAM_SUBSCRIBE = 107011
    RT_THREAD_SUBSCRIBE = 107012
    RT_STREAM_NO_CB_REG = 107015
    RT_WAIT_TIMEOUT = 107019
    RT_DEVICE_TASK_ABORT = 107022
    RT_STREAM_ABORT = 107023
    RT_CAPTURE_DEPENDENCY = 107024
    RT_STREAM_UNJOINED = 107025
    RT_STREAM_CAPTURED = 107027
    RT_EVENT_CAPTURED = 107028
    RT_STREAM_NOT_CAPTURED = 107029
    RT_CAPTURE_MODE_NOT_SUPPORT = 107030
    RT_STREAM_CAPTURE_IMPLICIT = 107031
    RT_STREAM_CAPTURE_CONFLICT = 107032
    STREAM_TASK_GROUP_STATUS = 107033
    STREAM_TASK_GROUP_INTR = 107034
    RT_STREAM_CAPTURE_UNMATCHED = 107036
    RT_STREAM_CAPTURE_WRONG_THREAD = 107038
    RT_CAPTURE_MODE_BLOCK_ASYNC = 107041
    PARAM_NULLPTR = 161001
    PARAM_INVALID = 161002
    FEATURE_NOT_SUPPORT = 207000
    MEMORY_ALLOCATION = 207001
    RESOURCE_ALLOC_FAIL = 207005
    NO_PERMISSION = 207006
    NO_EVENT_RESOURCE = 207007
    NO_NOTIFY_RESOURCE = 207009
    RT_FEATURE_NOT_SUPPORT_UPDATE_OP = 207019
    RT_INTERNAL_ERROR = 507000
    RT_TS_ERROR = 507001
    RT_REPORT_TIMEOUT = 507012
    RT_SYS_DMA = 507013
    RT_AICORE_TIMEOUT = 507014
    RT_AICORE_EXCEPTION = 507015
    RT_AICPU_EXCEPTION = 507018
    RT_VECTOR_CORE_TIMEOUT = 507034
    RT_VECTOR_CORE_EXCEPTION = 507035
    RT_STREAM_SYNC_TIMEOUT = 507046
    RT_EVENT_SYNC_TIMEOUT = 507047
    RT_DEVICE_MEM_ERROR = 507053
    RT_HBM_MULTI_BIT_ECC_ERROR = 507054
    RT_STREAM_CAPTURE_INVALIDATED = 507903
    HOST_MEMORY_ALREADY_REGISTERED = 507910
    HOST_MEMORY_NOT_REGISTERED = 507911
    INNER_TILING = 561002
    TABLE_FULL = 900001
    NO_BYTES_BEHIND = 900002
    DEADLOCK = 900003
    HEAP_TABLE_FULL = 900004
    OBJECT_TABLE_FULL = 900005


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a code means: its CANN name, what usually causes it, what to do."""

    name: str
    cause: str
    remedy: str


EXPLANATIONS: dict[int, Explanation] = {
    Code.SUCCESS: Explanation("ACL_SUCCESS", "the call was accepted", "nothing to do"),
    Code.INVALID_PARAM: Explanation(
        "ACL_ERROR_INVALID_PARAM",
        "an argument was refused: null pointer, zero size or a value outside its enum",
        "check the arguments of the call named above",
    ),
    Code.RT_PARAM_INVALID: Explanation(
        "ACL_ERROR_RT_PARAM_INVALID",
        "a handle, range or value does not exist: unknown or freed pointer, bytes past the end of an allocation, "
        "a copy onto part of itself, a destroyed event or context, a priority above 7",
        "pass a live handle and a documented value; keep offset + bytes inside the allocation",
    ),
    Code.RT_INVALID_DEVICEID: Explanation(
        "ACL_ERROR_RT_INVALID_DEVICEID",
        "there is no device of that number",
        "use a number from 0 to the number of devices less one",
    ),
    Code.RT_CONTEXT_NULL: Explanation(
        "ACL_ERROR_RT_CONTEXT_NULL",
        "the calling thread has no current context: none was set, it was destroyed, or the device was reset; or the "
        "context to destroy is the primary one or already destroyed",
        "call set_device, create_context or set_context in this thread; only reset_device ends the primary context",
    ),
    Code.RT_STREAM_CONTEXT: Explanation(
        "ACL_ERROR_RT_STREAM_CONTEXT",
        "the stream is unknown, destroyed or of another context, or it is a default stream that only its context ends",
        "make the stream's context current, use the handle that create_stream returned, and destroy it last",
    ),
    Code.RT_EVENT_TIMESTAMP_INVALID: Explanation(
        "ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID",
        "the event is recorded but has no time stamp yet",
        "synchronize the event, or the stream it was recorded in, before reading its time",
    ),
    Code.RT_ADDR_UNALIGNED: Explanation(
        "ACL_ERROR_RT_ADDR_UNALIGNED",
        "the address is not a multiple of what the call needs, such as 8 bytes for a value wait",
        "start at the allocation itself, or keep the offset a multiple of the size of the value",
    ),
    Code.RT_STREAM_SUBSCRIBE: Explanation(
        "ACL_ERROR_RT_STREAM_SUBSCRIBE",
        "the stream is already served by another callback thread, or not by this one",
        "unsubscribe it from the first thread, and name the thread that serves it",
    ),
    Code.RT_THREAD_SUBSCRIBE: Explanation(
        "ACL_ERROR_RT_THREAD_SUBSCRIBE",
        "the thread serves no stream, so it has no callbacks to process",
        "subscribe the thread to a stream before it processes reports",
    ),
    Code.RT_STREAM_NO_CB_REG: Explanation(
        "ACL_ERROR_RT_STREAM_NO_CB_REG",
        "no thread serves the callbacks of the stream",
        "subscribe a thread to the stream before launching a callback in it",
    ),
    Code.RT_WAIT_TIMEOUT: Explanation(
        "ACL_ERROR_RT_WAIT_TIMEOUT",
        "a wait in the stream was not fulfilled within its time-out",
        "look for the record or write that should fulfil it, and whether it is queued behind the wait itself",
    ),
    Code.RT_DEVICE_TASK_ABORT: Explanation(
        "ACL_ERROR_RT_DEVICE_TASK_ABORT",
        "the work on the device was dropped by device_task_abort",
        "call reset_device, then set_device, and submit the work again",
    ),
    Code.RT_STREAM_ABORT: Explanation(
        "ACL_ERROR_RT_STREAM_ABORT",
        "the work in the stream was dropped by stream_abort",
        "submit again what is still wanted; abort also the streams that waited for this one",
    ),
    Code.RT_CAPTURE_DEPENDENCY: Explanation(
        "ACL_ERROR_RT_CAPTURE_DEPENDENCY",
        "a captured stream waits for something outside the capture, or the other way round",
        "record the event inside the capture that waits for it",
    ),
    Code.RT_STREAM_UNJOINED: Explanation(
        "ACL_ERROR_RT_STREAM_UNJOINED",
        "the capture ended while a stream that had joined it was not waited for",
        "record an event at the end of that stream and let the first stream wait for it before ending the capture",
    ),
    Code.RT_STREAM_CAPTURED: Explanation(
        "ACL_ERROR_RT_STREAM_CAPTURED",
        "the stream is being captured: what is put in it does not run, so it cannot be waited for, asked or destroyed",
        "end the capture first",
    ),
    Code.RT_EVENT_CAPTURED: Explanation(
        "ACL_ERROR_RT_EVENT_CAPTURED",
        "the latest record of the event belongs to a capture and never happens by itself",
        "use another event outside the capture, or wait for it inside",
    ),
    Code.RT_STREAM_NOT_CAPTURED: Explanation(
        "ACL_ERROR_RT_STREAM_NOT_CAPTURED",
        "the stream is not being captured",
        "begin a capture on this stream first",
    ),
    Code.RT_CAPTURE_MODE_NOT_SUPPORT: Explanation(
        "ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT",
        "the call would block or run at once while a capture is active whose mode forbids that",
        "make the call before or after the capture, or capture in a more relaxed mode",
    ),
    Code.RT_STREAM_CAPTURE_IMPLICIT: Explanation(
        "ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT",
        "a default stream cannot take part in a capture",
        "capture streams made with create_stream",
    ),
    Code.STREAM_TASK_GROUP_STATUS: Explanation(
        "ACL_ERROR_STREAM_TASK_GROUP_STATUS",
        "a task group was begun in a stream where one is open, or ended where none is",
        "end each group in the stream where it was begun before the next one begins there",
    ),
    Code.STREAM_TASK_GROUP_INTR: Explanation(
        "ACL_ERROR_STREAM_TASK_GROUP_INTR",
        "the capture ended while a task group was open",
        "end the task group before the capture",
    ),
    Code.RT_FEATURE_NOT_SUPPORT_UPDATE_OP: Explanation(
        "ACL_ERROR_RT_FEATURE_NOT_SUPPORT_UPDATE_OP",
        "a task group cannot be updated with these tasks",
        "capture the same calls in the same order, with other arguments only",
    ),
    Code.RT_STREAM_CAPTURE_CONFLICT: Explanation(
        "ACL_ERROR_STREAM_CAPTURE_CONFLICT",
        "the stream is already part of a capture",
        "end that capture before beginning another one",
    ),
    Code.RT_STREAM_CAPTURE_UNMATCHED: Explanation(
        "ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED",
        "the capture was ended on a stream that only joined it",
        "end it on the stream on which it began",
    ),
    Code.RT_STREAM_CAPTURE_WRONG_THREAD: Explanation(
        "ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD",
        "the capture was ended by another thread than the one that began it",
        "end it in the thread that began it, or begin it in relaxed mode",
    ),
    Code.RT_CAPTURE_MODE_BLOCK_ASYNC: Explanation(
        "ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC",
        "an asynchronous copy in a captured stream touches pageable host memory, for which the host would have to wait",
        "use memory of malloc_host, or pin it with host_register before the capture",
    ),
    Code.RT_INTERNAL_ERROR: Explanation(
        "ACL_ERROR_RT_INTERNAL_ERROR",
        "the runtime met a state that it has no better code for, such as an event without any record",
        "record the event before asking for its time",
    ),
    Code.RT_TS_ERROR: Explanation(
        "ACL_ERROR_RT_TS_ERROR",
        "the task scheduler of the device failed",
        "call reset_device, then set_device; if it comes again, look for a fault that was planned on purpose",
    ),
    Code.RT_REPORT_TIMEOUT: Explanation(
        "ACL_ERROR_RT_REPORT_TIMEOUT",
        "no callback came within the time-out",
        "nothing is wrong if none was due: process reports again, or allow more time",
    ),
    Code.RT_SYS_DMA: Explanation(
        "ACL_ERROR_RT_SYS_DMA",
        "a copy engine failed",
        "check the addresses of the copies under way, then reset the device",
    ),
    Code.RT_AICORE_TIMEOUT: Explanation(
        "ACL_ERROR_RT_AICORE_TIMEOUT",
        "a kernel ran longer than the operator time-out; the device is lost",
        "allow more time or make the kernel smaller, then reset the device",
    ),
    Code.RT_AICORE_EXCEPTION: Explanation(
        "ACL_ERROR_RT_AICORE_EXCEPTION",
        "a kernel failed on a cube core, often by an address outside its buffers",
        "the timeline names the kernel: check its arguments and its workspace; after a lost device, reset it",
    ),
    Code.RT_AICPU_EXCEPTION: Explanation(
        "ACL_ERROR_RT_AICPU_EXCEPTION",
        "a kernel failed on the device's own CPU",
        "check the arguments of that operator",
    ),
    Code.RT_VECTOR_CORE_TIMEOUT: Explanation(
        "ACL_ERROR_RT_VECTOR_CORE_TIMEOUT",
        "a kernel on vector cores ran longer than the operator time-out; the device is lost",
        "allow more time or make the kernel smaller, then reset the device",
    ),
    Code.RT_VECTOR_CORE_EXCEPTION: Explanation(
        "ACL_ERROR_RT_VECTOR_CORE_EXCEPTION",
        "a kernel failed on a vector core, often by an address outside its buffers",
        "the timeline names the kernel: check its arguments and its workspace; after a lost device, reset it",
    ),
    Code.RT_STREAM_SYNC_TIMEOUT: Explanation(
        "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT",
        "the stream, or the device, was not finished within the time-out of the call",
        "allow more time, or look in the timeline for the command that holds it up; the work goes on",
    ),
    Code.RT_EVENT_SYNC_TIMEOUT: Explanation(
        "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT",
        "the event did not happen within the time-out of the call",
        "allow more time, or look in the timeline for what precedes the record; the work goes on",
    ),
    Code.RT_DEVICE_MEM_ERROR: Explanation(
        "ACL_ERROR_RT_DEVICE_MEM_ERROR",
        "a memory error of the device that it cannot correct",
        "reset the device and compute again what lay in its memory",
    ),
    Code.RT_HBM_MULTI_BIT_ECC_ERROR: Explanation(
        "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR",
        "several bits of one word of device memory were wrong",
        "reset the device and compute again what lay in its memory; replace the card if it comes again",
    ),
    Code.RT_STREAM_CAPTURE_INVALIDATED: Explanation(
        "ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED",
        "the captured stream takes no more commands: it or the device has failed during the capture",
        "see what failed first, and capture again",
    ),
    Code.HOST_MEMORY_ALREADY_REGISTERED: Explanation(
        "ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        "the host memory is pinned already: it was registered before, or comes from malloc_host",
        "register memory once, or unregister it first",
    ),
    Code.HOST_MEMORY_NOT_REGISTERED: Explanation(
        "ACL_ERROR_HOST_MEMORY_NOT_REGISTERED",
        "the host memory was never registered, or was unregistered before",
        "register it first; memory of malloc_host is only freed, with free_host",
    ),
    Code.PARAM_NULLPTR: Explanation(
        "ACLNN_ERR_PARAM_NULLPTR",
        "a required operator buffer is the null pointer",
        "allocate it first; the workspace must have the size that the first phase returned",
    ),
    Code.PARAM_INVALID: Explanation(
        "ACLNN_ERR_PARAM_INVALID",
        "an operator argument has a shape, type or value that the operator refuses",
        "read the rule in the message and change that argument",
    ),
    Code.FEATURE_NOT_SUPPORT: Explanation(
        "ACL_ERROR_RT_FEATURE_NOT_SUPPORT",
        "the runtime has no such operation, for example an asynchronous copy from host to host",
        "use the synchronous call or other addresses",
    ),
    Code.MEMORY_ALLOCATION: Explanation(
        "ACL_ERROR_RT_MEMORY_ALLOCATION",
        "no free range of the memory is large enough",
        "free something, ask for less, or choose a card with more memory; mem_get_info shows what is left",
    ),
    Code.RESOURCE_ALLOC_FAIL: Explanation(
        "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL",
        "all stream slots are in use",
        "destroy a stream, or give init a larger max_streams (the product's limit is in aj.chip(...)['max_streams'])",
    ),
    Code.NO_PERMISSION: Explanation(
        "ACL_ERROR_RT_NO_PERMISSION",
        "the process may not do this, for example import memory that was exported to others only",
        "let the exporting process allow its pid first, or export without the check",
    ),
    Code.NO_EVENT_RESOURCE: Explanation(
        "ACL_ERROR_RT_NO_EVENT_RESOURCE",
        "all event slots are in use",
        "destroy an event, or give init a larger max_events",
    ),
    Code.NO_NOTIFY_RESOURCE: Explanation(
        "ACL_ERROR_RT_NO_NOTIFY_RESOURCE",
        "all notify slots are in use",
        "destroy a notify, or give init a larger max_notifies",
    ),
    Code.INNER_TILING: Explanation(
        "ACLNN_ERR_INNER_TILING_ERROR",
        "no tile of the operator fits the on-chip buffers of this chip",
        "use a smaller head dimension or a chip with larger L1, L0 and UB",
    ),
    Code.TABLE_FULL: Explanation(
        "SIM_ERROR_COMMAND_TABLE_FULL",
        "more commands are queued and unfinished than the card's command table has rows",
        "synchronize earlier, or give init a larger max_commands",
    ),
    Code.NO_BYTES_BEHIND: Explanation(
        "SIM_ERROR_NO_BYTES_BEHIND",
        "the address lies beyond the part of the memory that holds real bytes",
        "give init a larger hbm_backing_bytes or host_backing_bytes, or 0 for times without values",
    ),
    Code.DEADLOCK: Explanation(
        "SIM_ERROR_DEADLOCK",
        "commands are queued, nothing runs and nothing can ever start",
        "print aj.insight.deadlock_report(card): it says which stream waits for what, and why that cannot come",
    ),
    Code.HEAP_TABLE_FULL: Explanation(
        "SIM_ERROR_HEAP_TABLE_FULL",
        "more blocks are allocated than the card's heap table has rows",
        "give init a larger max_blocks",
    ),
    Code.OBJECT_TABLE_FULL: Explanation(
        "SIM_ERROR_OBJECT_TABLE_FULL",
        "a table of the card (contexts, threads, value addresses, faults, mappings) is full",
        "give init a larger max_contexts, max_threads, max_values, max_faults or max_mappings, or give up what is no "
        "longer used",
    ),
}


def register_explanations(explanations: Mapping[int, Explanation]) -> None:
    """Let another library's codes be explained like those of the runtime.

    Raises:
      ValueError: A code has another explanation already.
    """
    for code, explanation in explanations.items():
        if EXPLANATIONS.setdefault(code, explanation) != explanation:
            raise ValueError(f"code = {code}: is {EXPLANATIONS[code].name} already")


class AscendError(Exception):
    """A failure with a status code.

    Attributes:
      code: The number CANN would answer.
      cause: What usually causes it.
      remedy: What to do.
    """

    def __init__(self, code: int, detail: str = "") -> None:
        known = EXPLANATIONS.get(code, Explanation("unknown", "this code is not in the table", "look it up"))
        self.code, self.name, self.cause, self.remedy = int(code), known.name, known.cause, known.remedy
        where = f"{detail}: " if detail else ""
        super().__init__(f"{where}{self.code} {self.name}: {self.cause}. Remedy: {self.remedy}.")


class ParameterError(AscendError, ValueError):
    """A mistake that is visible before anything runs: shape, dtype, enum, capacity.

    >>> ParameterError(Code.PARAM_INVALID, "head_num", 3, "must divide 8").code
    161002
    """

    def __init__(self, code: int, parameter: str, given: object, rule: str) -> None:
        AscendError.__init__(self, code)
        self.parameter, self.given, self.rule = parameter, given, rule
        self.args = (f"{self.code} {self.name}: {parameter} = {given}: {rule}",)
