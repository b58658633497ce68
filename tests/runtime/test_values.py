"""What memory holds, and when: effects follow simulated time, not the order of calls."""

import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj

COUNT = 48


def ramp(seed, count=COUNT):
    return (np.arange(count) * 7 + seed).astype(np.uint8)


def fetch(card, pointer, count=COUNT, **options):
    return np.asarray(aj.download(card, pointer, (count,), np.uint8, **options)[1])


@pytest.fixture
def lab(kits, programs):
    """A card whose device block starts with a ramp; kernels compute ``3 x + 7``."""
    kit = kits["ties"]
    card = aj.upload(kit.card, kit.device, ramp(1))

    def launch(card, stream, duration, **options):
        return programs.launch(kit, card, stream, duration, **options)

    return card, launch, kit


def test_a_missing_wait_reads_stale_bytes(lab):
    card, launch, kit = lab
    card = launch(card, 0, 10_000, source=0, target=64)
    card = launch(card, 1, 10, source=64, target=128)  # does not wait for the one above
    card = aj.synchronize_device(card)
    np.testing.assert_array_equal(fetch(card, kit.device, offset=64), ramp(1) * 3 + 7)
    np.testing.assert_array_equal(fetch(card, kit.device, offset=128), np.full(COUNT, 7))


def test_with_a_wait_it_reads_new_bytes(lab):
    card, launch, kit = lab
    card = launch(card, 0, 10_000, source=0, target=64)
    card = aj.record_event(card, 0, 0)
    card = aj.stream_wait_event(card, 1, 0)
    card = launch(card, 1, 10, source=64, target=128)
    card = aj.synchronize_device(card)
    np.testing.assert_array_equal(fetch(card, kit.device, offset=128), (ramp(1) * 3 + 7) * 3 + 7)


def test_the_host_sees_pinned_memory_change_when_the_copy_has_ended(lab):
    card, _, kit = lab
    card = aj.host_write(card, kit.host, ramp(9))
    card = aj.memcpy_async(card, kit.host, kit.device, COUNT, 0)
    card, early = aj.host_read(card, kit.host, (COUNT,), np.uint8)
    np.testing.assert_array_equal(early, ramp(9))
    ends_in = 20 + COUNT // 2
    card, late = aj.host_read(aj.host_work(card, ends_in - 1), kit.host, (COUNT,), np.uint8)
    np.testing.assert_array_equal(late, ramp(9))
    card, ended = aj.host_read(aj.host_work(card, 1), kit.host, (COUNT,), np.uint8)
    np.testing.assert_array_equal(ended, ramp(1))


def test_pinned_memory_is_read_when_the_copy_starts(lab):
    card, launch, kit = lab
    card = aj.host_write(card, kit.host, ramp(9))
    card = launch(card, 0, 1000)
    card = aj.memcpy_async(card, kit.device, kit.host, COUNT, 0)
    card = aj.host_write(card, kit.host, ramp(33))  # too early: the copy is still behind the kernel
    card = aj.synchronize_device(card)
    np.testing.assert_array_equal(fetch(card, kit.device), ramp(33))


def test_inputs_are_read_at_the_start_and_outputs_appear_at_the_end(lab):
    card, launch, kit = lab
    card = launch(card, 0, 10_000, source=0, target=0)
    card = aj.host_work(card, 100)  # the kernel runs by now
    card = aj.upload(card, kit.device, ramp(77))  # neither seen by the kernel nor kept
    np.testing.assert_array_equal(fetch(card, kit.device), ramp(77))
    np.testing.assert_array_equal(fetch(aj.synchronize_device(card), kit.device), ramp(1) * 3 + 7)


def test_two_writers_of_the_same_bytes(lab):
    card, _, kit = lab
    card = aj.memset_async(card, kit.device, 5, 30_000, 0)
    card = aj.memcpy_async(card, kit.device, kit.host, COUNT, 1)  # starts later, ends earlier
    card = aj.synchronize_device(card)
    # the fill publishes what lies in the shadow at its end: what the later start left there
    np.testing.assert_array_equal(fetch(card, kit.device), np.zeros(COUNT))
    np.testing.assert_array_equal(fetch(card, kit.device, offset=COUNT), np.full(COUNT, 5))


@pytest.mark.parametrize("to, start", [(0, 13), (13, 0), (1, 0), (40, 0)])
@pytest.mark.parametrize("nbytes", [100, 65_536, 65_537, 69_001])
def test_a_copy_onto_part_of_itself_is_refused(lab, to, start, nbytes):
    card, _, kit = lab
    data = np.random.default_rng(nbytes).integers(0, 256, 69_900, dtype=np.uint8)
    card = aj.upload(card, kit.device, data)
    card = aj.memcpy(card, kit.device, kit.device, nbytes, dst_offset=to, src_offset=start)
    assert int(aj.last_code(card)) == aj.Code.RT_PARAM_INVALID
    np.testing.assert_array_equal(fetch(card, kit.device, 69_900), data)


@pytest.mark.parametrize("offset, nbytes", [(0, 1), (3, 65_536), (4463, 65_537), (69_999, 1), (1, 69_999)])
def test_fills_touch_exactly_their_bytes(lab, offset, nbytes):
    card, _, kit = lab
    data = np.random.default_rng(0).integers(0, 256, 70_000, dtype=np.uint8)
    card = aj.upload(card, kit.device, data)
    card = aj.memset(card, kit.device, 300, nbytes, dst_offset=offset)
    data[offset : offset + nbytes] = 300 % 256
    np.testing.assert_array_equal(fetch(card, kit.device, 70_000), data)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16", "uint8", "int8", "bool", "bfloat16"])
def test_arrays_come_back_as_they_went(lab, shape, dtype):
    card, _, kit = lab
    array = np.asarray(jnp.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype))
    card = aj.upload(card, kit.device, array, offset=12)
    card, back = aj.download(card, kit.device, shape, dtype, offset=12)
    aj.raise_if_error(card)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("dtype", ["int64", "float64", "uint64", "complex64"])
def test_wide_arrays_are_never_narrowed_in_silence(lab, dtype):
    card, _, kit = lab
    array = (np.arange(6) * 1.5).astype(dtype)
    try:
        card = aj.upload(card, kit.device, array)
    except ValueError as refusal:
        assert dtype in str(refusal)
    else:
        np.testing.assert_array_equal(fetch(card, kit.device, array.nbytes), array.view(np.uint8))
    with pytest.raises(ValueError, match=dtype):
        aj.download(card, kit.device, (6,), dtype)


def test_a_copy_onto_itself_and_a_copy_of_nothing_queue_no_command(lab):
    card, _, kit = lab
    before = len(aj.insight.timeline(card))
    for dst, src, nbytes in [(kit.device, kit.device, 64), (kit.device, kit.device + 1, 0)]:
        card = aj.memcpy(card, dst, src, nbytes)
        card = aj.memcpy_async(card, dst, src, nbytes, 1)
    card = aj.memset(card, kit.device, 1, 0)
    aj.raise_if_error(card)
    assert len(aj.insight.timeline(card)) == before
