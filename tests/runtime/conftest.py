"""Shared pieces: the random programs, and what is expensive to set up."""

from types import ModuleType

import pytest

from tests.runtime import programs as host_programs


@pytest.fixture(scope="session")
def programs() -> ModuleType:
    return host_programs


@pytest.fixture(scope="session")
def kits() -> dict[str, host_programs.Kit]:
    """One card per chip sheet, all of one static shape."""
    return {name: host_programs.kit(fields) for name, fields in host_programs.SHEETS.items()}
