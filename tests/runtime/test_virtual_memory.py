"""Reserved addresses, physical memory and mappings: life, values, and every refusal."""

import numpy as np
import pytest

import ascend_jax as aj

MIB = 1 << 20
HUGE = 2 * MIB // 64  # granules
HBM_BYTES = 16 * MIB


@pytest.fixture(scope="module")
def fresh():
    chip = aj.chip("Ascend910B2").replace(hbm_bytes=HBM_BYTES)
    return aj.init(chip, hbm_backing_bytes=8 * MIB, host_backing_bytes=0, max_commands=16, max_streams=1, max_events=1,
                   max_blocks=8, max_mappings=4)  # fmt: skip


def test_values_written_under_one_address_are_read_under_another(fresh):
    card, address = aj.reserve_mem_address(fresh, 3 * MIB)
    card, handle = aj.malloc_physical(card, 2 * MIB)
    assert int(address) * 64 == HBM_BYTES and aj.mem_get_info(card)[0] == 12 * MIB
    card = aj.map_mem(aj.map_mem(card, address, 2 * MIB, handle), address + HUGE, 2 * MIB, handle)
    data = np.random.default_rng(0).integers(0, 255, 1000).astype(np.uint8)
    card = aj.upload(card, address, data, offset=5000)
    card, out = aj.download(card, address + HUGE, (1000,), np.uint8, offset=5000)
    aj.raise_if_error(card)
    np.testing.assert_array_equal(out, data)
    card = aj.memcpy_async(card, address, address + HUGE, 500, 0, src_offset=5000)
    card, out = aj.download(aj.synchronize_device(card), address, (500,), np.uint8)
    np.testing.assert_array_equal(out, data[:500])
    aj.raise_if_error(aj.value_write(card, address, 1, 0))


def test_physical_memory_freed_while_mapped_goes_when_it_is_unmapped(fresh):
    card, address = aj.reserve_mem_address(fresh, 2 * MIB)
    card, handle = aj.malloc_physical(card, 2 * MIB)
    card = aj.free_physical(aj.map_mem(card, address, 2 * MIB, handle), handle)
    assert aj.mem_get_info(card)[0] == 12 * MIB
    card = aj.memset(card, address, 1, 64)
    card = aj.unmap_mem(card, address)
    aj.raise_if_error(card)
    assert aj.mem_get_info(card)[0] == 14 * MIB
    assert int(aj.last_code(aj.memset(card, address, 1, 64))) == aj.Code.RT_PARAM_INVALID
    aj.raise_if_error(aj.release_mem_address(card, address))


def test_a_handle_is_no_address(fresh):
    card, handle = aj.malloc_physical(fresh, 2 * MIB)
    card, pointer = aj.malloc(card, 2 * MIB - 64)
    code = aj.Code.RT_PARAM_INVALID
    for after in (
        aj.memset(card, handle, 1, 64),
        aj.memset(card, handle, 1, 64, dst_offset=64),
        aj.memset_async(card, handle + 1, 1, 64, 0),
        aj.memcpy(card, pointer, handle, 64),
        aj.memcpy(card, handle, pointer, 64),
        aj.memcpy2d(card, pointer, 64, handle, 64, 64, 2),
        aj.upload(card, handle, np.ones(4, np.uint8)),
        aj.download(card, handle, (4,), np.uint8)[0],
        aj.value_write(card, handle, 1, 0),
    ):
        assert int(aj.last_code(after)) == code
        np.testing.assert_array_equal(after.memory, card.memory)
    with pytest.raises(aj.AscendError, match="107000"):
        aj.ipc_export(aj.IpcExports(), card, int(handle), 64)


def test_memory_unmapped_under_running_work_is_reported(fresh):
    card, address = aj.reserve_mem_address(fresh, 2 * MIB)
    card, handle = aj.malloc_physical(card, 2 * MIB)
    card = aj.map_mem(card, address, 2 * MIB, handle)
    condemned = aj.free_physical(card, handle)
    card, condemned = (aj.memset_async(each, address, 1, 2 * MIB, 0) for each in (card, condemned))
    done = aj.free_physical(aj.unmap_mem(aj.synchronize_device(card), address), handle)
    assert aj.freed_in_use(aj.synchronize_device(done)) == []
    for early in (aj.free_physical(aj.unmap_mem(card, address), handle), aj.unmap_mem(condemned, address)):
        (found,) = aj.freed_in_use(aj.synchronize_device(early))
        assert (found.pointer, found.command) == (int(handle), 0)
        assert "test_virtual_memory.py" in found.malloc_site and "test_virtual_memory.py" in found.free_site


def test_addresses_are_reserved_lowest_first_and_take_no_memory(fresh):
    card, one = aj.reserve_mem_address(fresh, 2 * MIB)
    card, two = aj.reserve_mem_address(card, 4 * MIB)
    card, three = aj.reserve_mem_address(card, 1)
    assert (int(two) - int(one), int(three) - int(two)) == (HUGE, 2 * HUGE)
    card, again = aj.reserve_mem_address(aj.release_mem_address(card, two), 3 * MIB)
    assert int(again) == int(two) and aj.mem_get_info(card)[0] == 14 * MIB
    aj.raise_if_error(card)


def test_refusals(fresh):
    card, address = aj.reserve_mem_address(fresh, 4 * MIB)
    card, handle = aj.malloc_physical(card, 2 * MIB)
    card, block = aj.malloc(card, 100)
    card = aj.map_mem(card, address, 2 * MIB, handle)
    aj.raise_if_error(card)
    code = aj.Code
    calls = {
        "free with the wrong call": (aj.free(card, handle), code.RT_PARAM_INVALID),
        "a block is no physical memory": (aj.free_physical(card, block), code.RT_PARAM_INVALID),
        "freed twice": (aj.free_physical(aj.free_physical(card, handle), handle), code.RT_PARAM_INVALID),
        "odd size": (aj.malloc_physical(card, 3 * MIB)[0], code.RT_PARAM_INVALID),
        "no size": (aj.malloc_physical(card, 0)[0], code.INVALID_PARAM),
        "too much": (aj.malloc_physical(card, 14 * MIB)[0], code.MEMORY_ALLOCATION),
        "1 GiB pages": (aj.malloc_physical(card, 2 * MIB, giant=True)[0], code.RT_PARAM_INVALID),
        "mapped already": (aj.map_mem(card, address, 2 * MIB, handle), code.RT_PARAM_INVALID),
        "not reserved": (aj.map_mem(card, address + 2 * HUGE, 2 * MIB, handle), code.RT_PARAM_INVALID),
        "partly reserved": (aj.map_mem(card, address + HUGE + 1, 2 * MIB, handle), code.RT_PARAM_INVALID),
        "another size": (aj.map_mem(card, address + HUGE, MIB, handle), code.RT_PARAM_INVALID),
        "unknown handle": (aj.map_mem(card, address + HUGE, 2 * MIB, 77), code.RT_PARAM_INVALID),
        "null": (aj.map_mem(card, 0, 2 * MIB, handle), code.INVALID_PARAM),
        "release while mapped": (aj.release_mem_address(card, address), code.RT_PARAM_INVALID),
        "release the unknown": (aj.release_mem_address(card, address + HUGE), code.RT_PARAM_INVALID),
        "unmap the unknown": (aj.unmap_mem(card, address + HUGE), code.RT_PARAM_INVALID),
        "reserve nothing": (aj.reserve_mem_address(card, 0)[0], code.INVALID_PARAM),
        "reserve too much": (aj.reserve_mem_address(card, 1 << 37)[0], code.MEMORY_ALLOCATION),
        "past the mapping": (aj.memset(card, address, 0, 2 * MIB + 1), code.RT_PARAM_INVALID),
        "reserved only": (aj.memset(card, address + HUGE, 0, 1), code.RT_PARAM_INVALID),
    }
    for name, (after, expected) in calls.items():
        assert (name, int(aj.last_code(after))) == (name, expected)
        if name != "freed twice":
            np.testing.assert_array_equal(after.virtual, card.virtual)
            np.testing.assert_array_equal(after.hbm.blocks, card.hbm.blocks)
    full = card
    for _ in range(2):
        full, _ = aj.reserve_mem_address(full, 1)
    assert int(aj.last_code(aj.reserve_mem_address(full, 1)[0])) == code.OBJECT_TABLE_FULL
    assert aj.mem_allocation_granularity() == 2 * MIB and aj.mem_allocation_granularity(giant=True) == 1 << 30
