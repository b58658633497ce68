"""Every verb refuses bad input with its code, and a refused call changes nothing else."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import WORKSPACE, Clock, Device, HeapWord, Stream

FAR = 2**31 - 1
BAD_STREAMS = (-1, -2, 2, 3, 4, 5, 99, FAR, -FAR)
BAD_EVENTS = (-1, 1, 2, 3, 99, FAR)
WORD = np.zeros(40, np.uint8)
DEVICE_BYTES, HOST_BYTES = 70_000, 512


def visible(card):
    """Everything but the status word, the host's clock, the latest shortage and how far the device is simulated."""
    device, streams = np.array(card.device), np.array(card.streams)
    device[Device.INSTANTS] = 0
    streams[streams[:, Stream.PENDING] == 0, Stream.KEY :] = 0  # how far the head has come, and there is none
    table = dataclasses.replace(card.table, times=card.table.times[:-1])  # the last row is nobody's
    rest = {"status": jnp.zeros(0), "clock": card.clock[Clock.ENQUEUED :], "device": device, "streams": streams}
    for name in ("hbm", "host"):
        heap = getattr(card, name)
        rest[name] = dataclasses.replace(heap, words=heap.words[: HeapWord.SHORT_WHOLE])
    tree = dataclasses.replace(card, table=table, **rest)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def refuse(card, call, code):
    """Make a call that must be refused; check code, counter and that nothing else has changed."""
    before, word = visible(card), aj.status(card)
    result = call(card)
    after = result[0] if isinstance(result, tuple) else result
    now = aj.status(after)
    assert now.last_code == code, aj.status(after)
    assert (now.calls, now.code, now.call) == (word.calls + 1, code, word.calls)
    for old, new in zip(before, visible(after), strict=True):
        np.testing.assert_array_equal(old, new)
    return result


@pytest.fixture
def kit(kits):
    return kits["ties"]


@pytest.mark.parametrize("stream", BAD_STREAMS)
def test_unknown_streams(kit, programs, stream):
    k = kit
    calls = {
        "launch": lambda card: programs.launch(k, card, stream, 10),
        "memcpy_async": lambda card: aj.memcpy_async(card, k.device, k.device + 1, 64, stream),
        "memset_async": lambda card: aj.memset_async(card, k.device, 0, 64, stream),
        "record_event": lambda card: aj.record_event(card, 0, stream),
        "stream_wait_event": lambda card: aj.stream_wait_event(card, stream, 0),
        "synchronize_stream": lambda card: aj.synchronize_stream(card, stream),
        "destroy_stream": lambda card: aj.destroy_stream(card, stream),
    }
    for call in calls.values():
        refuse(k.card, call, aj.Code.RT_STREAM_CONTEXT)


@pytest.mark.parametrize("event", BAD_EVENTS)
def test_unknown_events(kit, event):
    calls = {
        "record_event": lambda card: aj.record_event(card, event, 0),
        "stream_wait_event": lambda card: aj.stream_wait_event(card, 0, event),
        "synchronize_event": lambda card: aj.synchronize_event(card, event),
        "destroy_event": lambda card: aj.destroy_event(card, event),
    }
    for call in calls.values():
        refuse(kit.card, call, aj.Code.RT_PARAM_INVALID)
    with pytest.raises(aj.AscendError):
        aj.event_elapsed_ms(kit.card, event, event)


def test_an_event_has_no_time_before_it_is_recorded_and_done(kit, programs):
    with pytest.raises(aj.AscendError) as error:
        aj.event_elapsed_ms(kit.card, 0, 0)
    assert error.value.code == aj.Code.RT_INTERNAL_ERROR
    card = aj.record_event(programs.launch(kit, kit.card, 0, 1000), 0, 0)
    with pytest.raises(aj.AscendError) as error:
        aj.event_elapsed_ms(card, 0, 0)
    assert error.value.code == aj.Code.RT_EVENT_TIMESTAMP_INVALID


# where the pointer points, offset, bytes, code
RANGES = [
    ("null", 0, 64, aj.Code.INVALID_PARAM),
    ("block", 0, -1, aj.Code.RT_PARAM_INVALID),
    ("block", -1, 64, aj.Code.RT_PARAM_INVALID),
    ("block", DEVICE_BYTES - 63, 64, aj.Code.RT_PARAM_INVALID),
    ("block", 0, DEVICE_BYTES + 1, aj.Code.RT_PARAM_INVALID),
    ("block", FAR - 63, 128, aj.Code.RT_PARAM_INVALID),
    ("block", FAR, FAR, aj.Code.RT_PARAM_INVALID),
    ("block", 64, FAR, aj.Code.RT_PARAM_INVALID),
    ("before", 0, 64, aj.Code.RT_PARAM_INVALID),
    ("past", 0, 64, aj.Code.RT_PARAM_INVALID),
    ("foreign", 0, 64, aj.Code.RT_PARAM_INVALID),
    ("foreign", 0, FAR, aj.Code.RT_PARAM_INVALID),
    ("host foreign", 0, 64, aj.Code.RT_PARAM_INVALID),
    ("host foreign", 0, FAR, aj.Code.RT_PARAM_INVALID),
    ("host", HOST_BYTES - 1, 64, aj.Code.RT_PARAM_INVALID),
]


@pytest.mark.parametrize("where, offset, nbytes, code", RANGES)
def test_bad_ranges(kit, where, offset, nbytes, code):
    place = {
        "null": 0,
        "block": kit.device,
        "before": kit.device - 1,
        "past": kit.device + DEVICE_BYTES // 64 + 1,
        "foreign": FAR,
        "host foreign": -1,
        "host": kit.host,
    }[where]
    good = kit.device
    calls = {
        "memcpy to": lambda card: aj.memcpy(card, place, good, nbytes, dst_offset=offset),
        "memcpy from": lambda card: aj.memcpy(card, good, place, nbytes, src_offset=offset),
        "memcpy_async to": lambda card: aj.memcpy_async(card, place, good, nbytes, 0, dst_offset=offset),
        "memcpy_async from": lambda card: aj.memcpy_async(card, good, place, nbytes, 0, src_offset=offset),
        "memset": lambda card: aj.memset(card, place, 1, nbytes, dst_offset=offset),
        "memset_async": lambda card: aj.memset_async(card, place, 1, nbytes, 0, dst_offset=offset),
    }
    for call in calls.values():
        refuse(kit.card, call, code)


def test_uploads_need_device_memory_and_host_access_needs_host_memory(kit):
    for call in (
        lambda card: aj.upload(card, kit.host, WORD),
        lambda card: aj.download(card, kit.host, WORD.shape, WORD.dtype),
        lambda card: aj.host_write(card, kit.device, WORD),
        lambda card: aj.host_read(card, kit.device, WORD.shape, WORD.dtype),
        lambda card: aj.upload(card, kit.device, WORD, offset=DEVICE_BYTES - 39),
        lambda card: aj.download(card, kit.device, WORD.shape, WORD.dtype, offset=-1),
        lambda card: aj.host_write(card, kit.host, WORD, offset=HOST_BYTES - 39),
        lambda card: aj.host_read(card, kit.host, WORD.shape, WORD.dtype, offset=-1),
    ):
        result = refuse(kit.card, call, aj.Code.RT_PARAM_INVALID)
        assert not isinstance(result, tuple) or not np.asarray(result[1]).any()
    for call in (
        lambda card: aj.upload(card, 0, WORD),
        lambda card: aj.download(card, 0, WORD.shape, WORD.dtype),
        lambda card: aj.host_write(card, 0, WORD),
        lambda card: aj.host_read(card, 0, WORD.shape, WORD.dtype),
    ):
        refuse(kit.card, call, aj.Code.INVALID_PARAM)


def test_arrays_larger_than_the_card_are_refused(kit):
    refuse(kit.card, lambda card: aj.upload(card, kit.device, np.zeros(200_000, np.uint8)), aj.Code.RT_PARAM_INVALID)
    card, back = aj.download(kit.card, kit.device, (50_000,), np.float32)
    assert aj.last_code(card) == aj.Code.RT_PARAM_INVALID and not np.asarray(back).any()


def test_no_asynchronous_copy_from_host_to_host(kit):
    call = lambda card: aj.memcpy_async(card, kit.host, kit.host + 1, 64, 0)  # noqa: E731
    refuse(kit.card, call, aj.Code.FEATURE_NOT_SUPPORT)


def test_addresses_without_bytes_behind_them(kit):
    card, beyond = aj.malloc(kit.card, 5000)  # the backing ends with the first block
    for call in (
        lambda card: aj.memset(card, beyond, 0, 64),
        lambda card: aj.memset_async(card, beyond, 0, 64, 0),
        lambda card: aj.memcpy(card, beyond, kit.device, 64),
        lambda card: aj.memcpy_async(card, kit.device, beyond, 64, 0),
        lambda card: aj.upload(card, beyond, WORD),
        lambda card: aj.download(card, beyond, WORD.shape, WORD.dtype),
    ):
        refuse(card, call, aj.Code.NO_BYTES_BEHIND)


def test_bad_sizes_and_policies(kit):
    for nbytes in (0, -1, -(2**40)):
        for verb in (aj.malloc, aj.malloc_host):
            _, pointer = refuse(kit.card, lambda card, verb=verb, n=nbytes: verb(card, n), aj.Code.INVALID_PARAM)
            assert int(pointer) == 0
    refuse(kit.card, lambda card: aj.malloc(card, 1 << 40), aj.Code.MEMORY_ALLOCATION)
    refuse(kit.card, lambda card: aj.malloc_host(card, 64), aj.Code.MEMORY_ALLOCATION)  # all of it is taken


def test_bad_frees(kit):
    refuse(kit.card, lambda card: aj.free(card, 0), aj.Code.INVALID_PARAM)
    refuse(kit.card, lambda card: aj.free_host(card, 0), aj.Code.INVALID_PARAM)
    for pointer in (kit.device + 1, kit.device - 1, kit.host, FAR, -1):
        refuse(kit.card, lambda card, p=pointer: aj.free(card, p), aj.Code.RT_PARAM_INVALID)
    for pointer in (kit.host + 1, kit.device, FAR, -1):
        refuse(kit.card, lambda card, p=pointer: aj.free_host(card, p), aj.Code.RT_PARAM_INVALID)
    refuse(aj.free(kit.card, kit.device), lambda card: aj.free(card, kit.device), aj.Code.RT_PARAM_INVALID)
    for call in (lambda card: aj.memset(card, kit.device, 0, 64), lambda card: aj.upload(card, kit.device, WORD)):
        refuse(aj.free(kit.card, kit.device), call, aj.Code.RT_PARAM_INVALID)


def test_heap_table_full(kit):
    card = kit.card
    for _ in range(3):
        card, _ = aj.malloc(card, 64)
    refuse(card, lambda card: aj.malloc(card, 64), aj.Code.HEAP_TABLE_FULL)


def test_streams_run_out_and_come_back(kit):
    card = kit.card
    for handle in (2, 3):
        card, stream = aj.create_stream(card)
        assert int(stream) == handle
    _, none = refuse(card, aj.create_stream, aj.Code.RESOURCE_ALLOC_FAIL)
    assert int(none) == -1
    card = aj.destroy_stream(card, 2)
    refuse(card, lambda card: aj.synchronize_stream(card, 2), aj.Code.RT_STREAM_CONTEXT)
    refuse(card, lambda card: aj.destroy_stream(card, 2), aj.Code.RT_STREAM_CONTEXT)
    card, stream = aj.create_stream(card)
    assert int(stream) not in (0, 1, 2, 3)  # the slot is used again, the handle is not
    refuse(card, lambda card: aj.synchronize_stream(card, 2), aj.Code.RT_STREAM_CONTEXT)


def test_the_product_limits_streams_and_events(kit):
    few = dataclasses.replace(kit.card, chip=kit.card.chip.replace(max_streams=2, max_events=1))
    refuse(few, aj.create_stream, aj.Code.RESOURCE_ALLOC_FAIL)
    refuse(few, aj.create_event, aj.Code.NO_EVENT_RESOURCE)


def test_events_run_out_and_come_back_unrecorded(kit):
    card = aj.record_event(kit.card, 0, 0)
    for handle in (1, 2):
        card, event = aj.create_event(card)
        assert int(event) == handle
    refuse(card, aj.create_event, aj.Code.NO_EVENT_RESOURCE)
    card, event = aj.create_event(aj.destroy_event(card, 0))
    assert int(event) not in (0, 1, 2)
    with pytest.raises(aj.AscendError, match="never recorded"):
        aj.event_elapsed_ms(card, event, event)
    with pytest.raises(aj.AscendError, match="does not exist"):
        aj.event_elapsed_ms(card, 0, 0)


def test_a_refused_call_does_not_wait(kit, programs):
    card = programs.launch(kit, kit.card, 0, 1_000_000)
    before = aj.host_time_ns(card)
    for stream in (0, -1, -2, 2, 4, 99):
        assert aj.host_time_ns(aj.destroy_stream(card, stream)) == before
    for stream in (-1, -2, 2, 4, 99):
        assert aj.host_time_ns(aj.synchronize_stream(card, stream)) == before + 10
    assert aj.host_time_ns(aj.synchronize_event(card, 9)) == before + 10
    assert aj.host_time_ns(aj.memset(card, 0, 0, 64)) == before + 20


def test_destroying_a_stream_waits_for_its_commands(kit, programs):
    card = programs.launch(kit, kit.card, 1, 1_000_000)
    card = aj.destroy_stream(card, 1)
    assert aj.host_time_ns(card) == aj.insight.timeline(card).end_ns[0]


def test_launch_refuses_bad_operands_and_workspaces(kit):
    good, card = kit.mix, kit.card
    operands = np.array(good.operands)

    def launch(*, pointer=None, offset=None, workspace=0, workspace_bytes=0, code=0):
        mine = operands.copy()
        mine[0, 0] = mine[0, 0] if pointer is None else pointer
        mine[1, 1] = 0 if offset is None else offset
        changed = dataclasses.replace(
            good, operands=mine, workspace_bytes=np.int32(workspace_bytes), code=np.int32(code)
        )
        return lambda card: aj.launch(card, changed, workspace, 0)

    refuse(card, launch(pointer=0), aj.Code.PARAM_NULLPTR)
    refuse(card, launch(workspace_bytes=64), aj.Code.PARAM_NULLPTR)
    refuse(card, launch(code=aj.Code.INNER_TILING), aj.Code.INNER_TILING)
    beyond, pointer = aj.malloc(card, 5000)
    refuse(beyond, launch(pointer=pointer), aj.Code.NO_BYTES_BEHIND)
    for bad in (
        launch(pointer=kit.host),
        launch(pointer=FAR),
        launch(offset=-1),
        launch(offset=DEVICE_BYTES - 47),
        launch(offset=FAR - 20),
        launch(workspace=kit.device + 1, workspace_bytes=DEVICE_BYTES),
        launch(workspace=kit.host, workspace_bytes=64),
        launch(workspace=FAR, workspace_bytes=FAR),
    ):
        refuse(card, bad, aj.Code.RT_PARAM_INVALID)
    accepted = launch(workspace=kit.device, workspace_bytes=64, pointer=kit.device)(card)
    aj.raise_if_error(accepted)
    assert int(accepted.table.operands[0, WORKSPACE, 0]) == kit.device


def test_the_first_failure_stays_and_can_be_cleared(kit):
    card = aj.free(kit.card, 0)
    card = aj.synchronize_stream(card, 99)
    now = aj.status(card)
    assert (now.code, now.last_code) == (aj.Code.INVALID_PARAM, aj.Code.RT_STREAM_CONTEXT)
    assert now.site.startswith("runtime/test_status.py:") and now.stream == -1
    with pytest.raises(aj.AscendError, match="100000 ACL_ERROR_INVALID_PARAM"):
        aj.raise_if_error(card)
    card = aj.synchronize_stream(aj.clear_error(card), 1)
    aj.raise_if_error(card)
    assert aj.status(card).calls == now.calls + 1
    card = aj.synchronize_stream(card, 99)
    assert (aj.status(card).stream, aj.status(card).call) == (99, now.calls + 1)


@pytest.mark.parametrize("nbytes", [2**31, 2**36, 2**40])
def test_byte_counts_beyond_int32_are_ranges_like_others(kit, nbytes):
    for call in (
        lambda card: aj.memcpy(card, kit.device, kit.host, nbytes),
        lambda card: aj.memcpy_async(card, kit.device, kit.host, nbytes, 0),
        lambda card: aj.memset(card, kit.device, 0, nbytes),
        lambda card: aj.memset_async(card, kit.device, 0, nbytes, 0),
    ):
        refuse(kit.card, call, aj.Code.RT_PARAM_INVALID)


@pytest.mark.parametrize("offset", [128, 2**31 - 1, 2**37, 2**40, 2**70, -(2**31) - 1, -(2**70)])
@pytest.mark.parametrize("kind", [int, np.int32, jnp.int32])
def test_no_offset_leads_to_another_memory(kit, offset, kind):
    def wild(pointer):
        return lambda card: aj.memset(card, kind(pointer), 9, 64, dst_offset=offset)

    refuse(kit.card, wild(FAR), aj.Code.RT_PARAM_INVALID)
    if offset != 128:  # that is inside the block
        refuse(kit.card, wild(kit.device), aj.Code.RT_PARAM_INVALID)


def test_no_offset_from_device_memory_reaches_host_memory(kit):
    offset = (2**32 - 2**31 + 1 - int(kit.device)) * 64  # where a sum of int32 would wrap to the first host granule
    for pointer in (kit.device, jnp.int32(kit.device), np.int32(kit.device)):
        call = lambda card, pointer=pointer: aj.memset(card, pointer, 9, 64, dst_offset=offset)  # noqa: E731
        refuse(kit.card, call, aj.Code.RT_PARAM_INVALID)


def test_the_kind_of_integer_does_not_matter(kit):
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0, max_streams=1, max_events=1, max_commands=2)
    taken = {
        aj.mem_get_info(aj.malloc(card, kind(100))[0])
        for kind in (int, np.int8, np.int64, np.uint8, jnp.int8, jnp.uint8, jnp.int16, jnp.int32, jnp.uint32)
    }
    assert len(taken) == 1
    for wrong in (100.0, np.float32(100), True, np.True_):
        with pytest.raises(TypeError, match="whole number"):
            aj.malloc(card, wrong)


def test_the_names_are_those_of_the_headers():
    names = {
        100000: "ACL_ERROR_INVALID_PARAM",
        107000: "ACL_ERROR_RT_PARAM_INVALID",
        107001: "ACL_ERROR_RT_INVALID_DEVICEID",
        107002: "ACL_ERROR_RT_CONTEXT_NULL",
        107003: "ACL_ERROR_RT_STREAM_CONTEXT",
        107006: "ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID",
        107008: "ACL_ERROR_RT_ADDR_UNALIGNED",
        107011: "ACL_ERROR_RT_STREAM_SUBSCRIBE",
        107012: "ACL_ERROR_RT_THREAD_SUBSCRIBE",
        107015: "ACL_ERROR_RT_STREAM_NO_CB_REG",
        107019: "ACL_ERROR_RT_WAIT_TIMEOUT",
        107022: "ACL_ERROR_RT_DEVICE_TASK_ABORT",
        107023: "ACL_ERROR_RT_STREAM_ABORT",
        107024: "ACL_ERROR_RT_CAPTURE_DEPENDENCY",
        107025: "ACL_ERROR_RT_STREAM_UNJOINED",
        107027: "ACL_ERROR_RT_STREAM_CAPTURED",
        107028: "ACL_ERROR_RT_EVENT_CAPTURED",
        107029: "ACL_ERROR_RT_STREAM_NOT_CAPTURED",
        107030: "ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT",
        107031: "ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT",
        107032: "ACL_ERROR_STREAM_CAPTURE_CONFLICT",
        107033: "ACL_ERROR_STREAM_TASK_GROUP_STATUS",
        107034: "ACL_ERROR_STREAM_TASK_GROUP_INTR",
        107036: "ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED",
        107038: "ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD",
        107041: "ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC",
        161001: "ACLNN_ERR_PARAM_NULLPTR",
        161002: "ACLNN_ERR_PARAM_INVALID",
        207000: "ACL_ERROR_RT_FEATURE_NOT_SUPPORT",
        207001: "ACL_ERROR_RT_MEMORY_ALLOCATION",
        207005: "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL",
        207006: "ACL_ERROR_RT_NO_PERMISSION",
        207007: "ACL_ERROR_RT_NO_EVENT_RESOURCE",
        207009: "ACL_ERROR_RT_NO_NOTIFY_RESOURCE",
        207019: "ACL_ERROR_RT_FEATURE_NOT_SUPPORT_UPDATE_OP",
        507000: "ACL_ERROR_RT_INTERNAL_ERROR",
        507001: "ACL_ERROR_RT_TS_ERROR",
        507012: "ACL_ERROR_RT_REPORT_TIMEOUT",
        507013: "ACL_ERROR_RT_SYS_DMA",
        507014: "ACL_ERROR_RT_AICORE_TIMEOUT",
        507015: "ACL_ERROR_RT_AICORE_EXCEPTION",
        507018: "ACL_ERROR_RT_AICPU_EXCEPTION",
        507034: "ACL_ERROR_RT_VECTOR_CORE_TIMEOUT",
        507035: "ACL_ERROR_RT_VECTOR_CORE_EXCEPTION",
        507046: "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT",
        507047: "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT",
        507053: "ACL_ERROR_RT_DEVICE_MEM_ERROR",
        507054: "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR",
        507903: "ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED",
        507910: "ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        507911: "ACL_ERROR_HOST_MEMORY_NOT_REGISTERED",
        561002: "ACLNN_ERR_INNER_TILING_ERROR",
    }
    assert {code: aj.AscendError(code).name for code in names} == names
    assert {int(code) for code in aj.Code if 0 < code < 900000} == set(names)


def test_every_code_has_an_explanation():
    for code in aj.Code:
        error = aj.AscendError(code)
        assert error.name != "unknown" and error.cause and error.remedy
