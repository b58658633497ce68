"""Cycles of vector instructions, from the table `data/instructions.toml` (A2; other generations are not published)."""

import functools
import importlib.resources
import tomllib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ascend_jax.chip import cost
from ascend_jax.chip.spec import ChipSpec


class Instruction(NamedTuple):
    """Cycles: `head` (only into an empty pipe) + `slope` a repeat + `tail`."""

    head: float
    slope: float
    tail: float


@functools.cache
def instructions() -> dict[str, Instruction]:
    """All vector instructions by name.

    Example:
        >>> instructions()["add"]
        Instruction(head=10.0, slope=2.0, tail=14.0)
    """
    text = importlib.resources.files("ascend_jax.chip").joinpath("data/instructions.toml").read_text(encoding="utf-8")
    return {
        name: Instruction(*(float(row[key]) for key in Instruction._fields))
        for name, row in tomllib.loads(text).items()
    }


def sequence_ns(spec: ChipSpec, names: Sequence[str], elements: Any, element_bytes: int) -> jax.Array:
    """Time of instructions one after another over the same elements, each waiting for the one before.

    cycles = sum of head + slope * ceil(elements * element_bytes / vector_bytes_per_cycle) + tail, `[...]` float32 ns.

    Raises:
        ValueError: An instruction that the table lacks.

    Example:
        >>> from ascend_jax.chip import chip
        >>> spec = chip("Ascend910B3")
        >>> round(float(sequence_ns(spec, ["add"], 256, 2) * spec["clock_hz"] / 1e9))
        28
    """
    table = instructions()
    unknown = [name for name in names if name not in table]
    if unknown:
        raise ValueError(f"no cycles are known of instruction {unknown[0]!r}; known: {', '.join(table)}")
    rows = [table[name] for name in names]
    repeats = jnp.ceil(jnp.asarray(elements, jnp.float32) * element_bytes / spec["vector_bytes_per_cycle"])
    fixed = sum(row.head + row.tail for row in rows)
    return cost.cycles_ns(spec, fixed + sum(row.slope for row in rows) * repeats)
