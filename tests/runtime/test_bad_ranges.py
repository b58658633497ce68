"""Every call on memory refuses ranges, sizes and addresses that are none, and changes nothing else."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import WORKSPACE
from tests.runtime.refusals import DEVICE_BYTES, FAR, HOST_BYTES, refuse

WORD = np.zeros(40, np.uint8)
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
