"""The 64-bit variables that marks look at and change, as Python ints."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ascend_jax.runtime.layout import Change, Condition, Field


def signed(words: Iterable[NDArray[np.int32]]) -> list[int]:
    """Return numbers from high and low words.

    >>> signed(np.array([[-1, -2], [1, 3]], np.int32))
    [-2, 4294967299]
    """
    return [(int(high) << 32) | (int(low) & 0xFFFFFFFF) for high, low in words]


def is_met(condition: int, cell: int, value: int) -> bool:
    """Return whether a cell satisfies a condition (CANN, ``aclrtValueWait``).

    >>> is_met(Condition.GE, 4, 5), is_met(Condition.AND, 6, 2), is_met(Condition.NOR, -1, 0)
    (False, True, False)
    """
    if condition == Condition.GE:
        return (cell - value) & (1 << 63) == 0
    if condition == Condition.EQ:
        return cell == value
    return cell & value != 0 if condition == Condition.AND else ~(cell | value) != 0


def would_release(change: NDArray[np.int32], wait: NDArray[np.int32]) -> bool:
    """Return whether a command would let a wait for its cell go, both rows [FIELDS]; an addition always may."""
    if change[Field.CHANGE] == Change.ADD:
        return True
    new, wanted = signed(row[[Field.VALUE_HI, Field.VALUE_LO]] for row in (change, wait))
    return is_met(wait[Field.CONDITION], new if change[Field.CHANGE] == Change.SET else 0, wanted)
