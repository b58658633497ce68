"""Shared pieces: the random programs, and what is expensive to set up."""

from types import ModuleType

import pytest

import ascend_jax as aj
from tests.runtime import programs as host_programs
from tests.runtime.cards import HBM, MARK_COSTS, SIZES, card_of


@pytest.fixture(scope="session")
def programs() -> ModuleType:
    return host_programs


@pytest.fixture(scope="session")
def kits() -> dict[str, host_programs.Kit]:
    """One card per chip sheet, all of one static shape."""
    return {name: host_programs.kit(fields) for name, fields in host_programs.SHEETS.items()}


@pytest.fixture(scope="session")
def two_streams() -> aj.CardState:
    """Streams 1 and 2 beside the default one, and memory to fill; calls cost MARK_COSTS, the host stands at 30."""
    card, pointer = aj.malloc(card_of(MARK_COSTS, SIZES), 1 << 20)
    for stream in (1, 2):
        card, handle = aj.create_stream(card)
        assert int(handle) == stream
    assert (int(pointer), aj.host_time_ns(card)) == (HBM, 30)
    return card


@pytest.fixture
def kit(kits: dict[str, host_programs.Kit]) -> host_programs.Kit:
    """The card on which times are round."""
    return kits["ties"]
