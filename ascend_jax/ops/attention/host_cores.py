"""How many CPU cores the process has, and how many of them the device has that runs a call."""

import math
import os

import jax

__all__ = ["device_cores", "usable_cores"]


def usable_cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_cores() -> int:
    """Returns how many of them a CPU device has for the call that is being traced, at least 1.

    Under ``jax.shard_map`` or ``jax.pmap`` its devices share the cores. Elsewhere one device has them all, however many
    there are.
    """
    mesh = jax.sharding.get_abstract_mesh()
    devices = math.prod(mesh.shape[axis] for axis in mesh.manual_axes)
    return max(1, usable_cores() // min(devices, jax.local_device_count("cpu")))
