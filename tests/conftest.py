"""Settings of every test: rank promotion raises, and one process-wide seed policy."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="session")
def strict_jax():
    jax.config.update("jax_numpy_rank_promotion", "raise")
    yield


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Tests may write files; they land in a folder of their own."""
    monkeypatch.chdir(tmp_path)
