"""Refused sizes, pointers and ranges: the message says what was given and what lies there, and nothing has changed."""

import jax
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import Clock

MIB = 1 << 20
HUGE = 2 * MIB // 64


@pytest.fixture(scope="module")
def kit():
    """A card with blocks of 1000 bytes at granules 32768, 32832 and, of the host, -2147483647; and what is mapped."""
    chip = aj.chip("Ascend910B2").replace(hbm_bytes=16 * MIB)
    card = aj.init(chip, hbm_backing_bytes=4 * MIB, host_backing_bytes=1 << 14, max_commands=16, max_streams=3,
                   max_events=1, max_blocks=8, max_mappings=4)  # fmt: skip
    card, a = aj.malloc(card, 1000)
    card, b = aj.malloc(card, 1000)
    card, h = aj.malloc_host(card, 1000)
    card, address = aj.reserve_mem_address(card, 4 * MIB)
    card, handle = aj.malloc_physical(card, 2 * MIB)
    card = aj.map_mem(card, address, 2 * MIB, handle)
    aj.raise_if_error(card)
    assert [int(one) for one in (a, b, h, address)] == [32768, 32832, -2147483647, 8 * HUGE]
    return card


A, B, H, V = 32768, 32832, -2147483647, 8 * HUGE
AT_A, AT_B = "pointer 32768 (block of 1000 bytes at 32768)", "pointer 32832 (block of 1000 bytes at 32832)"
CASES = {
    "no size": (lambda c: aj.malloc(c, 0), 100000, "0 bytes asked for"),
    "negative size": (lambda c: aj.malloc_align32(c, -12345), 100000, "-12345 bytes asked for"),
    "no host size": (lambda c: aj.malloc_host(c, -1), 100000, "-1 bytes asked for"),
    "no physical size": (lambda c: aj.malloc_physical(c, -64), 100000, "-64 bytes asked for"),
    "odd physical size": (lambda c: aj.malloc_physical(c, 3 * MIB), 107000, f"{3 * MIB} bytes asked for"),
    "tiny physical size": (lambda c: aj.malloc_physical(c, 3), 107000, "3 bytes asked for"),
    "no addresses": (lambda c: aj.reserve_mem_address(c, -2), 100000, "-2 bytes asked for"),
    "negative pool": (lambda c: aj.mem_pool_create(c, -9), 100000, "-9 bytes asked for"),
    "negative limit": (lambda c: aj.mem_pool_create(c, 9, max_bytes=-8), 100000, "-8 bytes asked for"),
    "negative threshold": (lambda c: aj.mem_pool_create(c, release_threshold_bytes=-7), 100000, "-7 bytes asked for"),
    "more than the limit": (lambda c: aj.mem_pool_create(c, 3 * MIB, max_bytes=MIB), 100000, f"{3 * MIB} bytes asked"),
    "too much": (lambda c: aj.malloc(c, 15 * MIB), 207001, f"{15 * MIB} bytes of device memory requested"),
    "inside a block": (lambda c: aj.free(c, A + 1), 107000, "pointer 32769 (block of 1000 bytes at 32768)"),
    "unknown": (lambda c: aj.free(c, 77), 107000, "pointer 77 (no live block)"),
    "far": (lambda c: aj.free(c, 1 << 40), 107000, "a pointer past the last one (no live block)"),
    "null": (lambda c: aj.free(c, 0), 100000, "pointer 0 (null)"),
    "of the host": (lambda c: aj.free(c, H), 107000, f"pointer {H} (block of 1000 bytes at {H})"),
    "of the device": (lambda c: aj.free_host(c, A), 107000, AT_A),
    "to a pool": (lambda c: aj.mem_pool_free(c, B + 2, 0), 107000, "pointer 32834 (block of 1000 bytes at 32832)"),
    "to register": (lambda c: aj.host_register(c, 5), 107000, "pointer 5 (no live block)"),
    "to unmap": (lambda c: aj.unmap_mem(c, V + 1), 107000, f"pointer {V + 1} (mapping of 2097152 bytes at {V})"),
    "to release": (lambda c: aj.release_mem_address(c, V + HUGE), 107000,
                   f"pointer {V + HUGE} (reservation of 4194304 bytes at {V})"),
    "to map": (lambda c: aj.map_mem(c, V + HUGE, MIB, 40000), 107000, f"1048576 bytes at pointer {V + HUGE} (reserv"),
    "past both ends": (lambda c: aj.memcpy(c, A, B, 1001), 107000, f"1001 bytes to {AT_A} from {AT_B}"),
    "past one end": (lambda c: aj.memcpy(c, A, B, 500, dst_offset=501), 107000,
                     f"500 bytes to pointer 32768 + 501 bytes (block of 1000 bytes at 32768) from {AT_B}"),
    "before the start": (lambda c: aj.memcpy(c, A, B, 5, src_offset=-65), 107000,
                         f"5 bytes to {AT_A} from pointer 32832 + -65 bytes (block of 1000 bytes at 32832)"),
    "onto itself": (lambda c: aj.memcpy(c, A, A, 500, src_offset=3), 107000,
                    f"500 bytes to {AT_A} from pointer 32768 + 3 bytes (block of 1000 bytes at 32768)"),
    "negative count": (lambda c: aj.memcpy(c, A, B, -7), 107000, f"-7 bytes to {AT_A} from {AT_B}"),
    "from nowhere": (lambda c: aj.memcpy_async(c, A, 0, 1, 0), 100000, f"stream 0 (1 bytes to {AT_A} from pointer 0"),
    "unknown stream": (lambda c: aj.memset_async(c, A, 0, 1, 9), 107003, f"stream 9 (1 bytes at {AT_A})"),
    "rows past one end": (lambda c: aj.memcpy2d(c, A, 100, B, 90, 90, 11), 107000,
                          f"rows over 1090 bytes to {AT_A} from rows over 990 bytes at {AT_B}"),
    "rows too wide": (lambda c: aj.memcpy2d(c, A, 100, B, 90, 91, 11), 100000, "11 rows of 91 bytes, pitches 100 and"),
    "negative rows": (lambda c: aj.memcpy2d(c, A, 9, B, 9, 9, -2), 100000, "-2 rows of 9 bytes, pitches 9 and 9"),
    "far behind": (lambda c: aj.memset(c, A, 0, 5, dst_offset=2**37 - 64), 107000, "5 bytes at a pointer past the"),
    "farther": (lambda c: aj.memcpy(c, A, B, 5, src_offset=2**60), 107000, f"5 bytes to {AT_A} from a pointer past"),
    "far before": (lambda c: aj.memset(c, A, 0, 5, dst_offset=-(2**40)), 107000, "-2147483648 bytes or less"),
    "a fill": (lambda c: aj.memset(c, A, 0, 1 << 40), 107000, f"bytes or more at {AT_A}"),
    "past a mapping": (lambda c: aj.memset(c, V + HUGE - 1, 0, 65), 107000,
                       f"65 bytes at pointer {V + HUGE - 1} (mapping of 2097152 bytes at {V})"),
    "an array": (lambda c: aj.upload(c, A, np.zeros(1001, np.uint8)), 107000, f"1001 bytes at {AT_A}"),
    "no real bytes": (lambda c: aj.memset(aj.malloc(c, 6 * MIB)[0], 3 * HUGE, 0, 4 * MIB), 900002,
                      f"4194304 bytes at pointer {3 * HUGE} (block of 6291456 bytes at {3 * HUGE})"),
    "the host's own": (lambda c: aj.host_read(c, H, (1001,), "uint8"), 107000, f"1001 bytes at pointer {H} (block"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_message_has_the_numbers_and_nothing_has_changed(kit, name):
    call, code, words = CASES[name]
    after = call(kit)
    after = after[0] if isinstance(after, tuple) else after
    assert int(aj.last_code(after)) == code
    with pytest.raises(aj.AscendError) as caught:
        aj.raise_if_error(after)
    assert words in str(caught.value)
    if name != "no real bytes":
        np.testing.assert_array_equal(after.hbm.blocks, kit.hbm.blocks)
    for mine, his in ((after.host.blocks, kit.host.blocks), (after.virtual, kit.virtual), (after.memory, kit.memory)):
        np.testing.assert_array_equal(mine, his)
    assert int(after.clock[Clock.ENQUEUED]) == int(kit.clock[Clock.ENQUEUED])


def test_what_lies_there_is_told_only_right_after_the_call(kit):
    card = aj.free(aj.memset(kit, A, 0, 1001), A)
    with pytest.raises(aj.AscendError, match=r"\(1001 bytes at pointer 32768\)"):
        aj.raise_if_error(card)
    card = aj.memset(aj.clear_error(card), B, 0, 2000)
    with pytest.raises(aj.AscendError, match=r"2000 bytes at pointer 32832 \(block of 1000"):
        aj.raise_if_error(card)
    with pytest.raises(aj.AscendError, match=r"call \d+ at [^(]*: 107003"):
        aj.raise_if_error(aj.synchronize_stream(aj.clear_error(card), 9))


def test_an_operand_is_named_by_its_number(kit):
    x, past = aj.tensor(A, (16, 16), "float16"), aj.tensor(B, (16, 16), "float16", offset=300)
    for places, words in (
        ((x, past, x), "operand 1: 512 bytes at pointer 32841 + 24 bytes (block of 1000 bytes at 32832)"),
        ((x, x, aj.tensor(77, (16, 16), "float16")), "operand 2: 512 bytes at pointer 77 (no live block)"),
    ):
        card, _, executor = aj.ops.matmul_get_workspace_size(kit, *places[:2], out=places[2])
        card = aj.launch(card, executor, 0, 0)
        with pytest.raises(aj.AscendError) as caught:
            aj.raise_if_error(card)
        assert words in str(caught.value) and caught.value.code == aj.Code.RT_PARAM_INVALID


def test_the_first_failure_under_jit_keeps_its_numbers(kit):
    @jax.jit
    def run(card, nbytes):
        card, _ = aj.malloc(card, nbytes)
        return aj.free(aj.memset_async(card, A, 0, nbytes + 5, 0), 3)

    with pytest.raises(aj.AscendError, match=r"\(-4 bytes asked for\): 100000"):
        aj.raise_if_error(run(kit, -4))
    with pytest.raises(aj.AscendError, match=r"stream 0 \(1005 bytes at pointer 32768\): 107000"):
        aj.raise_if_error(run(kit, 1000))
