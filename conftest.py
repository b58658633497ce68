"""Room for compiled code: each function takes memory maps, of which a process has few, and slows later ones; a name."""

import gc
import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads wait at full speed; set before it is imported

import jax
import pytest

MAPS = Path("/proc/self/maps")
MANY = 4_000


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Let go of compiled functions between files once there are many; long ones come back from the cache on disk."""
    if (nextitem is not None and nextitem.path == item.path) or not MAPS.exists():
        return
    with MAPS.open("rb") as maps:
        count = sum(1 for _ in maps)
    if count > MANY:
        jax.clear_caches()
        gc.collect()


def pytest_collection_finish() -> None:
    """Give ``ascend_jax.chip`` back to the function: pytest imports the folder of that name by its path."""
    import ascend_jax
    from ascend_jax.chip.spec import chip

    ascend_jax.chip = chip
