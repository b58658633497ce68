"""How many CPU cores the process has, and how many of them the device has that runs a call."""

import os

import jax

__all__ = ["device_cores", "usable_cores"]


def usable_cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_cores() -> int:
    """Returns how many cores a CPU device has for the call that is being traced, at least 1.

    All devices of the mesh of ``jax.shard_map``, ``jax.pmap`` or ``jax.set_mesh`` run it, along the axes that are not
    manual too, and share the cores. Elsewhere one device is taken to have them all: where operands lie is not known
    while they are traced.
    """
    devices = jax.sharding.get_abstract_mesh().size or 1
    return max(1, usable_cores() // -(-devices // jax.process_count()))
