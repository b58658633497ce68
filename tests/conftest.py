"""Settings of every test: rank promotion raises, and no example of a property has a deadline."""

import hypothesis
import jax
import pytest

hypothesis.settings.register_profile("ascend_jax", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("ascend_jax")


@pytest.fixture(autouse=True, scope="session")
def strict_jax():
    jax.config.update("jax_numpy_rank_promotion", "raise")
    yield


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Tests may write files; they land in a folder of their own."""
    monkeypatch.chdir(tmp_path)
