"""What only some products have, by CANN's manual: elsewhere its calls answer 207000 whatever else is wrong."""

import dataclasses

import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import Clock
from tests.runtime.cards import HBM, code

A2, A3, LATEST = "Ascend910B2", "Ascend910_9392", "Ascend950PR_9599"
INFERENCE, FIRST, SMALL = "Ascend310P3", "Ascend910A", "Ascend310B1"
FEATURES = {  # docs/zh/api_ref of hicann/runtime: 11-09 (values), 15 (captures), 09 (counting notifies)
    "has_value_marks": {A2: 1, A3: 1, LATEST: 1, INFERENCE: 0, FIRST: 0, SMALL: 0},
    "has_captures": {A2: 1, A3: 1, LATEST: 1, INFERENCE: 1, FIRST: 0, SMALL: 0},
    "has_counting_notifies": {A2: 0, A3: 0, LATEST: 1, INFERENCE: 0, FIRST: 0, SMALL: 0},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_the_chips_say_what_the_manual_says(feature):
    for product, wanted in FEATURES[feature].items():
        assert int(aj.chip(product)[feature]) == wanted, product


def without(card, feature):
    return dataclasses.replace(card, chip=card.chip.replace(**{feature: 0}))


def refused(card, calls):
    """Every call answers 207000 and leaves queues, captures and cells as they were."""
    for call in calls:
        result = call(card)
        after = result[0] if isinstance(result, tuple) else result
        assert code(after) == aj.Code.FEATURE_NOT_SUPPORT
        assert int(after.clock[Clock.ENQUEUED]) == int(card.clock[Clock.ENQUEUED])
        np.testing.assert_array_equal(after.streams[:, :12], card.streams[:, :12])
        np.testing.assert_array_equal(after.cells, card.cells)


def test_values(two_streams):
    has = two_streams
    assert code(aj.value_write(has, HBM, 1, 1)) == code(aj.value_wait(has, HBM, 1, 1)) == 0
    calls = [
        lambda card: aj.value_write(card, HBM, 1, 1),
        lambda card: aj.value_write(card, 0, 1, 9),
        lambda card: aj.value_wait(card, HBM, 1, 1),
        lambda card: aj.value_wait(card, HBM, 1, 1, flag=9, offset=3),
    ]
    refused(without(has, "has_value_marks"), calls)


def test_captures(two_streams):
    has = two_streams
    assert code(aj.capture_begin(has, 1)) == code(aj.capture_thread_exchange_mode(has, 1)[0]) == 0
    calls = [
        lambda card: aj.capture_begin(card, 1),
        lambda card: aj.capture_begin(card, 9, 9),
        lambda card: aj.capture_end(card, 1),
        lambda card: aj.capture_info(card, 1),
        lambda card: aj.capture_thread_exchange_mode(card, 2),
        lambda card: aj.capture_task_group_begin(card, 1),
        lambda card: aj.capture_task_group_end(card, 1),
    ]
    refused(without(has, "has_captures"), calls)
