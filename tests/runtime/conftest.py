"""Shared pieces: the twins and the random programs, loaded by path so that tests run from any folder."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jax
import pytest


def load(name: str) -> ModuleType:
    """Import a module of this folder once under a name of its own."""
    unique = f"ascend_jax_runtime_tests_{name}"
    if unique not in sys.modules:
        spec = importlib.util.spec_from_file_location(unique, Path(__file__).with_name(f"{name}.py"))
        module = importlib.util.module_from_spec(spec)
        sys.modules[unique] = module
        spec.loader.exec_module(module)
    return sys.modules[unique]


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    return load("oracle")


@pytest.fixture(scope="session")
def programs() -> ModuleType:
    return load("programs")


@pytest.fixture(scope="session")
def kits(programs: ModuleType) -> dict:
    """One card per chip sheet, all of one static shape."""
    return {"ties": programs.kit(programs.TIES), "odd": programs.kit(programs.ODD)}


@pytest.fixture(scope="session")
def compiled(programs: ModuleType, kits: dict) -> Callable[..., tuple]:
    """The interpreter of programs, compiled once for all tests; chips differ in values only."""
    return jax.jit(programs.runner(kits["ties"]))
