"""Stages: what a compiled function sees of a card, and what tracing leaves behind."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.edge import compiled, packed, stage


@pytest.fixture(scope="module")
def card():
    return aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0, max_commands=2, max_blocks=4)


def test_a_stage_sees_and_changes_what_it_names(card):
    @stage(reads=("device",), changes=("clock",))
    def look(card, number):
        assert card.kernels == () and card.max_events == 64
        assert card.device.shape and card.streams is None and card.hbm is None and card.memory is None
        return aj.CardState(**{**card.__dict__, "clock": card.clock + number, "device": card.device + 1}), number * 2

    after, twice = look(card, 3)
    assert int(twice) == 6 and (np.asarray(after.clock) == np.asarray(card.clock) + 3).all()
    assert after.device is card.device and after.streams is card.streams and after.chip is card.chip


def test_constants_of_a_card_compile_anew_and_arrays_do_not(card):
    seen = []

    @stage(reads=(), changes=("clock",))
    def count(card, number):
        seen.append(card.has_values)
        return aj.CardState(**{**card.__dict__, "clock": card.clock + number})

    count(count(card, 1), 2)
    count(aj.init(aj.chip("Ascend910B4"), hbm_backing_bytes=0), 2)  # smaller tables that it never sees
    assert seen == [False]
    count(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 20), 2)
    assert seen == [False, True]


@pytest.mark.parametrize("is_wrong", [False, True])
def test_tracing_collects_no_garbage_and_leaves_the_collector_as_it_was(is_wrong):
    during = []

    def function(x):
        during.append(gc.isenabled())
        if is_wrong:
            raise ValueError("while it is traced")
        return x + 1

    for was_enabled in (True, False):
        quick = compiled(function, {})
        (gc.enable if was_enabled else gc.disable)()
        try:
            quick(jnp.ones(3))
        except ValueError:
            assert is_wrong
        assert gc.isenabled() == was_enabled
        gc.enable()
    assert during == [False, False]


def test_whole_numbers_are_packed_as_int32():
    for numbers in ((1, -2), (np.int32(1), -2), (np.int64(1), np.int32(-2)), (jnp.int32(1), -2)):
        array = packed(*numbers)
        assert array.dtype == np.int32 and array.tolist() == [1, -2]
    assert jax.jit(lambda x: packed(x, 2))(jnp.int32(1)).tolist() == [1, 2]
    with pytest.raises(ValueError, match="2147483648 does not fit int32"):
        packed(1, 2**31)
