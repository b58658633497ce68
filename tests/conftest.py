"""Settings of every test: rank promotion raises, properties have no deadline, compilations are quick and kept."""

import gc
import os
from pathlib import Path

import hypothesis
import jax
import pytest

hypothesis.settings.register_profile("ascend_jax", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("ascend_jax")

# programs that tests start inherit it
CACHE = Path(__file__).resolve().parent.parent / ".jax_cache" / jax.__version__
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

# tracing leaves few cycles behind, and a full collection visits all of JAX
gc.freeze()
gc.set_threshold(20_000, 20, 20)

# most of the time goes into compiling; what asks for options of its own still gets them
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = f"{QUICK} {os.environ.get('XLA_FLAGS', '')}"
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
jax.config.update("jax_disable_most_optimizations", os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1")


@pytest.fixture(autouse=True, scope="session")
def strict_jax():
    jax.config.update("jax_numpy_rank_promotion", "raise")
    yield


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Tests may write files; they land in a folder of their own."""
    monkeypatch.chdir(tmp_path)
