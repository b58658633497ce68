"""Device and pinned memory against the allocator twin: random sequences, eagerly, jitted, in lanes."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import HeapEntry, HeapWord
from tests.runtime import heap_programs as programs
from tests.runtime.heap_programs import (
    FREE,
    HBM_BYTES,
    MALLOC,
    MALLOC_HOST,
    MAX_BLOCKS,
    MIB,
    PINNED_BYTES,
    SLOTS,
    card_answers,
    draw,
    run,
    twin_run,
)

SEQUENCES = 400  # of tools/fuzz_memory.py, which runs any number


@pytest.fixture(scope="module")
def small_card():
    return programs.small_card()


@pytest.fixture(scope="module")
def jitted():
    return jax.jit(run)


@pytest.fixture(scope="module")
def lanes():
    return jax.jit(jax.vmap(run, in_axes=(None, 0)))


def test_random_sequences_equal_the_twin(small_card, lanes):
    drawn = np.stack([draw(seed) for seed in range(SEQUENCES)])
    answers = card_answers(jax.device_get(lanes(small_card, drawn)[1]))
    expected = np.stack([twin_run(program) for program in drawn])
    wrong = np.argwhere((answers != expected).any(-1))
    assert not len(wrong), (drawn[tuple(wrong[0])], answers[tuple(wrong[0])], expected[tuple(wrong[0])])


@pytest.mark.parametrize("seed", range(5))
def test_live_blocks_stay_apart_and_bytes_are_conserved(small_card, jitted, seed):
    _, (_, _, words, blocks) = jax.device_get(jitted(small_card, draw(1000 + seed)))
    for word, block in zip(words, blocks.astype(np.int64), strict=True):
        live = block[:, : word[HeapWord.COUNT]]
        ends = live[HeapEntry.START] + live[HeapEntry.SIZE]
        assert (ends[:-1] <= live[HeapEntry.START, 1:]).all()
        assert (live[HeapEntry.START] >= word[HeapWord.BASE]).all() and (ends <= word[HeapWord.END]).all()
        assert live[HeapEntry.SIZE].sum() == word[HeapWord.USED] <= word[HeapWord.PEAK]


def test_lanes_equal_a_loop_and_eager_equals_jit(small_card, jitted, lanes):
    drawn = np.stack([draw(seed) for seed in range(SEQUENCES)])
    together = jax.tree.map(lambda leaf: leaf[:8], lanes(small_card, drawn))
    apart = [jitted(small_card, lane) for lane in drawn[:8]]
    chex.assert_trees_all_equal(together, jax.tree.map(lambda *leaves: np.stack(leaves), *apart))
    card, pointers = small_card, [0] * SLOTS
    for call, slot, nbytes, policy in drawn[0].tolist():
        if call == MALLOC:
            card, pointers[slot] = aj.malloc(card, nbytes, policy, site=1)
        elif call == MALLOC_HOST:
            card, pointers[slot] = aj.malloc_host(card, nbytes, site=3)
        else:
            card = (aj.free if call == FREE else aj.free_host)(card, pointers[slot], site=2 if call == FREE else 4)
    chex.assert_trees_all_equal(card, apart[0][0])


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 4, 1, 3)])
def test_when_all_is_freed_one_gap_is_left(small_card, order):
    card, pointers = small_card, []
    for nbytes in (100, 3 * MIB, 5000, 9 * MIB, MIB):
        card, pointer = aj.malloc(card, nbytes)
        pointers.append(pointer)
    peak = aj.hbm_peak_bytes(card)
    for index in order:
        card = aj.free(card, pointers[index])
    free, total = aj.mem_get_info(card)
    assert (free, total) == (HBM_BYTES - 2 * MIB, HBM_BYTES)
    card, everything = aj.malloc(card, free - 32)
    aj.raise_if_error(card)
    assert int(everything) * 64 == 2 * MIB and aj.mem_get_info(card)[0] == 0
    assert aj.hbm_peak_bytes(card) == free > peak
    assert aj.status(aj.malloc(card, 1)[0]).code == aj.Code.MEMORY_ALLOCATION


def test_documented_sizes():
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0, host_backing_bytes=PINNED_BYTES, max_streams=1,
                   max_events=1, max_commands=2, max_blocks=MAX_BLOCKS)  # fmt: skip
    total = aj.mem_get_info(card)[0]

    def taken(nbytes, policy=aj.MallocPolicy.HUGE_FIRST):
        return total - aj.mem_get_info(aj.malloc(card, nbytes, policy)[0])[0]

    policy = aj.MallocPolicy
    assert taken(1) == 4096 and taken(4064) == 4096 and taken(4065) == 8192
    assert taken(MIB) == MIB + 4096 and taken(MIB + 1) == 2 * MIB and taken(8 * MIB) == 10 * MIB
    assert taken(1, policy.HUGE_ONLY) == 2 * MIB and taken(5 * MIB, policy.NORMAL_ONLY) == 5 * MIB + 4096
    assert taken(1 << 30, policy.HUGE1G_ONLY) == 1 << 30 and taken(1, policy.HUGE1G_ONLY_P2P) == 1 << 30
    assert taken(40 << 30) == (40 << 30) + 2 * MIB
    assert int(aj.malloc(card, 1, policy.HUGE1G_ONLY)[1]) * 64 == 1 << 30


def test_huge_first_falls_back_to_small_pages(small_card):
    card, _ = aj.malloc(small_card, 61 * MIB, aj.MallocPolicy.NORMAL_ONLY)  # leaves less than one huge page
    card, pointer = aj.malloc(card, MIB - 8192 + 1 - MIB % 4096)
    aj.raise_if_error(card)
    card = aj.free(card, pointer)
    refused, _ = aj.malloc(card, 100, aj.MallocPolicy.HUGE_ONLY)
    assert aj.status(refused).code == aj.Code.MEMORY_ALLOCATION


@pytest.mark.parametrize("nbytes", [2**31, 2**37, 2**40, 2**63, 2**100])
def test_sizes_beyond_int32_are_refused_or_served_but_never_wrapped(small_card, nbytes):
    card, pointer = aj.malloc(small_card, nbytes)
    assert aj.status(card).code == aj.Code.MEMORY_ALLOCATION and int(pointer) == 0
    card, pointer = aj.malloc_host(small_card, nbytes)
    assert aj.status(card).code == aj.Code.MEMORY_ALLOCATION and int(pointer) == 0


@pytest.mark.parametrize("nbytes", [1.0, 4096.5, True, np.float64(8)])
def test_a_size_is_a_whole_number(small_card, nbytes):
    with pytest.raises(TypeError, match="nbytes"):
        aj.malloc(small_card, nbytes)


@pytest.mark.parametrize("number", [0.0, 32768.5, True, np.float32(1), jnp.float32(1)])
def test_pointers_offsets_and_policies_are_whole_numbers(small_card, number):
    calls = {
        "pointer": [lambda: aj.free(small_card, number), lambda: aj.unmap_mem(small_card, number)],
        "dst": [lambda: aj.memset(small_card, number, 1, 64)],
        "src": [lambda: aj.memcpy2d(small_card, 1, 8, number, 8, 8, 2)],
        "offset": [lambda: aj.memset(small_card, 1, 1, 64, dst_offset=number)],
        "policy": [lambda: aj.malloc(small_card, 64, number)],
    }  # fmt: skip
    for name, wrong in calls.items():
        for call in wrong:
            with pytest.raises(TypeError, match=f"{name} = .*: must be a whole number"):
                call()


@pytest.mark.parametrize("pointer", [2**31, 2**40, -(2**31) - 1, 2**100])
def test_pointers_beyond_int32_are_unknown(small_card, pointer):
    card, good = aj.malloc(small_card, 4096)
    calls = [aj.free(card, pointer), aj.free_host(card, pointer), aj.memset(card, pointer, 1, 64),
             aj.memcpy(card, good, pointer, 64), aj.memcpy2d(card, pointer, 64, good, 64, 64, 2),
             aj.mem_pool_free(card, pointer, 0), aj.host_register(card, pointer)[0], aj.unmap_mem(card, pointer),
             aj.release_mem_address(card, pointer), aj.free_physical(card, pointer),
             aj.upload(card, pointer, np.ones(4, np.uint8))]  # fmt: skip
    assert [int(aj.last_code(each)) for each in calls] == [aj.Code.RT_PARAM_INVALID] * len(calls)
    assert int(aj.last_code(aj.malloc(card, 64, pointer)[0])) == 0, "a policy outside the enum"


def test_equal_calls_share_one_trace(small_card):
    @chex.assert_max_traces(n=1)
    def traced(card, nbytes, policy, pointer):
        card, new = aj.malloc(card, nbytes, policy, site=1)
        return aj.free(card, pointer, site=1), new

    traced = jax.jit(traced)
    for nbytes, policy, pointer in [(5, 0, 3), (5000, 2, 32768), (-1, 99, 0)]:
        traced(small_card, jnp.int32(nbytes), jnp.int32(policy), jnp.int32(pointer))


def test_a_thread_without_a_context_cannot_allocate_but_can_free(small_card):
    card, pointer = aj.malloc(small_card, 100)
    card = aj.reset_device(card)
    refused, none = aj.malloc(card, 100)
    assert int(aj.last_code(refused)) == aj.Code.RT_CONTEXT_NULL and int(none) == 0
    card, pointer = aj.malloc(aj.set_device(card), 100)
    card, thread = aj.create_thread(card)
    card = aj.use_thread(card, thread)
    assert int(aj.last_code(aj.malloc(card, 100)[0])) == aj.Code.RT_CONTEXT_NULL
    assert int(aj.last_code(aj.free(card, pointer))) == 0


def test_align32_and_products_without_extra_bytes(small_card):
    def taken(card, call, nbytes):
        return aj.mem_get_info(card)[0] - aj.mem_get_info(call(card, nbytes)[0])[0]

    newer = aj.init(aj.chip("Ascend910B2").replace(malloc_pad_bytes=0, hbm_bytes=HBM_BYTES), hbm_backing_bytes=0)
    for nbytes in (4096, 4 * MIB):
        assert taken(small_card, aj.malloc_align32, nbytes) == taken(newer, aj.malloc, nbytes) == nbytes
        assert taken(small_card, aj.malloc, nbytes) > nbytes


def test_what_is_free_by_page_size(small_card):
    attr = aj.MemAttr
    card, _ = aj.malloc(small_card, 3 * MIB, aj.MallocPolicy.NORMAL_ONLY)
    free, total = aj.mem_get_info(card)
    assert (free, total) == (HBM_BYTES - 2 * MIB - 3 * MIB - 4096, HBM_BYTES)
    for asked, expected in [(attr.HBM_NORMAL, free), (attr.HBM_HUGE, 58 * MIB), (attr.HBM_HUGE1G, 0)]:
        assert aj.mem_get_info(card, asked) == (expected, total)
    assert aj.mem_get_info(card, attr.DDR) == aj.mem_get_info(card, attr.DDR_P2P_HUGE) == (0, 0)
    for asked in ("NORMAL", "HUGE", "HUGE1G", "P2P_NORMAL", "P2P_HUGE", "P2P_HUGE1G"):
        assert aj.mem_get_info(card, attr[asked]) == aj.mem_get_info(card, attr[f"HBM_{asked}"])
    assert [int(attr[name]) for name in ("NORMAL", "P2P_HUGE1G")] == [12, 17]
    without_hbm = aj.init(aj.chip("Ascend310P3"), hbm_backing_bytes=0, host_backing_bytes=0)
    total = aj.mem_get_info(without_hbm)[1]
    assert aj.mem_get_info(without_hbm, attr.DDR)[1] == aj.mem_get_info(without_hbm, attr.HBM_HUGE)[1] == total > 0
    with pytest.raises(ValueError, match="attr = 99"):
        aj.mem_get_info(card, 99)


def test_fragmentation_and_owners(small_card):
    card, pointers = small_card, []
    for _ in range(4):
        card, pointer = aj.malloc(card, 10 * MIB, aj.MallocPolicy.HUGE_ONLY)
        pointers.append(pointer)
    card, _ = aj.malloc(card, 100)
    card = aj.free(aj.free(card, pointers[0]), pointers[2])
    report = aj.memory_report(card)
    tail = HBM_BYTES - 2 * MIB - 48 * MIB - 4096  # behind four blocks of 12 MiB and a page
    free = 24 * MIB + tail
    assert (report.free_bytes, report.largest_free_bytes, report.blocks) == (free, tail, 3)
    assert report.fragmentation == 1 - tail / free
    assert [(one.nbytes, one.blocks) for one in report.owners] == [(24 * MIB, 2), (4096, 1)]
    assert all("test_heap.py" in one.site for one in report.owners)
    assert json.loads(report.to_json())["fragmentation"] == report.fragmentation


def test_running_out_tells_the_truth(small_card):
    assert aj.out_of_memory(small_card) is None
    card, _ = aj.malloc(small_card, 30 * MIB)
    free = aj.mem_get_info(card)[0]
    card, none = aj.malloc(card, 40 * MIB + 3)
    report = aj.out_of_memory(card)
    assert int(none) == 0 and (report.requested_bytes, report.memory, report.shortages) == (40 * MIB + 3, "device", 1)
    assert (report.free_bytes, report.largest_free_bytes, report.reserved_unused_bytes) == (free, free, 0)
    assert report.owners[0].nbytes == 32 * MIB and report.owners[0].site != report.site
    assert json.loads(report.to_json())["owners"][0]["nbytes"] == 32 * MIB
    with pytest.raises(aj.AscendError) as caught:
        aj.raise_if_error(card)
    text = str(caught.value)
    for word in ("207001", f"{40 * MIB + 3} bytes", f"{free} free", report.site, report.owners[0].site):
        assert word in text
    host, _ = aj.malloc_host(small_card, PINNED_BYTES + 1)
    assert aj.out_of_memory(host).memory == "host" and aj.out_of_memory(host, memory="device") is None
    with pytest.raises(ValueError, match="'device' or 'host'"):
        aj.out_of_memory(card, memory="hbm")


@pytest.mark.parametrize("nbytes", [2**37, 2**40 + 7, 2**63 + 1])
def test_the_report_says_what_was_asked_for_however_much(small_card, nbytes):
    for call, memory in [(aj.malloc, "device"), (aj.malloc_align32, "device"), (aj.malloc_host, "host"),
                         (aj.malloc_pageable, "host")]:  # fmt: skip
        card, _ = call(small_card, nbytes)
        report = aj.out_of_memory(card)
        assert (report.requested_bytes, report.memory, report.limit_bytes) == (nbytes, memory, None)
    card, _ = aj.malloc(card, HBM_BYTES)
    assert aj.out_of_memory(card).requested_bytes == HBM_BYTES, "nothing is left of the call before"


def test_the_latest_shortage_is_reported_whichever_memory_it_was_in(small_card):
    card = aj.clear_error(aj.malloc(small_card, HBM_BYTES + 5)[0])
    card, _ = aj.malloc_host(card, PINNED_BYTES + 7)
    with pytest.raises(aj.AscendError, match=f"{PINNED_BYTES + 7} bytes of host memory"):
        aj.raise_if_error(card)
    card, _ = aj.malloc(aj.clear_error(card), HBM_BYTES + 9)
    with pytest.raises(aj.AscendError, match=f"{HBM_BYTES + 9} bytes of device memory"):
        aj.raise_if_error(card)


@pytest.mark.parametrize("policy", [8, 99, 0x50, -1, -7, 0x2000])
def test_a_policy_outside_the_enum_goes_by_the_size(small_card, policy):
    free = aj.mem_get_info(small_card)[0]
    for nbytes, taken in [(100, 4096), (2 * MIB - 1, 2 * MIB + 4096), (2 * MIB, 4 * MIB), (3 * MIB, 4 * MIB)]:
        card, pointer = aj.malloc(small_card, nbytes, policy)
        aj.raise_if_error(card)
        assert free - aj.mem_get_info(card)[0] == taken and int(pointer) > 0


def test_the_report_passes_through_jit(small_card):
    @jax.jit
    def ask(card, nbytes):
        return aj.malloc(card, nbytes, site=7)[0]

    report = aj.out_of_memory(ask(small_card, jnp.int32(2**31 - 1)))
    assert (report.requested_bytes, report.free_bytes) == (2**31 - 1, HBM_BYTES - 2 * MIB)
