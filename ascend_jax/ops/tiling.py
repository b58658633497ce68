"""The choice of a tile: all candidates of an operator on a chip at once, the fastest legal one, and why it wins.

>>> from ascend_jax.ops import tiling
>>> best = tiling.choose("matmul", (4096, 4096, 4096), "float16", "Ascend910B2")
>>> best.limit, best.confidence.label
('cube', 'calibrated')
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ascend_jax.chip.onchip import LEVELS, OnChipPlan, require
from ascend_jax.chip.pipeline import LIMITS
from ascend_jax.chip.spec import ChipSpec, chip
from ascend_jax.ops.attention import tiling as forward
from ascend_jax.ops.attention.tiling import AttentionShape
from ascend_jax.ops.tile_problems import (
    compulsory_bytes,
    dtype_bytes,
    input_shapes,
    operations,
    operators,
    problem,
    spelled,
    whole_numbers,
)
from ascend_jax.ops.timing import attention, matmul, vector
from ascend_jax.ops.timing.confidence import Confidence, confidence
from ascend_jax.ops.timing.matmul import Tile
from ascend_jax.ops.timing.measured import Measurements
from ascend_jax.ops.timing.vector import OPERATORS

__all__ = ["Candidate", "Choice", "check", "choose", "compulsory_bytes", "input_shapes", "operators"]

_ROOM = 64  # times the on-chip memory: shows what a tile would take if it fitted


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One tile."""

    tile: dict[str, int]  # by the names of its sides
    time_us: float  # as if it fitted
    limit: str  # unit that bounds it
    refused: str  # "" if legal, else "LEVEL: asked, available" of each level that is too small


@dataclasses.dataclass(frozen=True)
class Choice:
    """The fastest legal tile."""

    operator: str
    chip: str
    tile: dict[str, int]
    time_us: float
    limit: str  # one of chip.pipeline.LIMITS: a queue, l2, hbm or launch
    why: str  # one or two sentences
    flop: float
    hbm_bytes: float
    confidence: Confidence
    candidates: tuple[Candidate, ...]  # all tiles, fastest legal first, then the refused ones


@dataclasses.dataclass(frozen=True)
class _Family:
    """What `choose` needs of an operator family."""

    group: str  # of `confidence`
    sides: tuple[str, ...]  # names of a tile's sides
    tiles: Sequence[Any]


def choose(
    operator: str,
    shape: Any,
    dtype: str,
    chip_or_name: ChipSpec | str,
    *,
    measurements: Measurements | None = None,
) -> Choice:
    """Evaluate all tiles of an operator in one vmapped call and choose the fastest that fits.

    Args:
        operator: "matmul", "flash_attention", "flash_attention_backward", or a vector operator
            (`ops.timing.vector.OPERATORS`: add, softmax, layer_norm, transpose, copy, ...).
        shape: matmul (m, n, k) or (m, n, k, batch); attention an `AttentionShape` or (batch, heads, q_len, kv_len,
            dim); vector operators (rows, columns).
        dtype: "float16", "bfloat16", "float32", "int8" (or fp16, bf16, fp32).
        chip_or_name: A chip or its name.
        measurements: Your own times; one of this operator, shape and dtype replaces the predicted time.

    Raises:
        ValueError: Unknown operator, dtype or chip, a shape of the wrong length, or no tile fits (names the level).
    """
    spec = chip(chip_or_name) if isinstance(chip_or_name, str) else chip_or_name
    full, size = problem(operator, shape, dtype), dtype_bytes(dtype)
    family = _family(operator, size)
    found = _evaluate(operator, full)(spec)
    roomy = _evaluate(operator, full)(_with_room(spec))
    fits = np.isfinite(np.asarray(found.duration_ns))
    times_ns = np.where(fits, found.duration_ns, roomy.duration_ns)
    limits = np.where(fits, found.limit, roomy.limit)
    order = np.lexsort((np.arange(len(fits)), times_ns, ~fits))
    candidates = tuple(
        Candidate(
            _named(family, i),
            round(float(times_ns[i]) / 1e3, 3),
            LIMITS[int(limits[i])],
            "" if fits[i] else _refusal(_place(operator, spec, full, family.tiles[i])),
        )
        for i in order
    )
    if candidates[0].refused:
        plans = [_place(operator, spec, full, tile) for tile in family.tiles]
        least = min(plans, key=lambda plan: int(np.asarray(plan.used_bytes, np.int64).sum()))
        raise ValueError(f"{operator} {spelled(full)} on {spec.name}: no tile fits; smallest: {_refusal(least)}")
    best = int(order[0])
    flop, hbm_bytes = operations(operator, full), float(np.asarray(found.hbm_bytes)[best])
    time_us, limit = float(times_ns[best]) / 1e3, LIMITS[int(limits[best])]
    why = _explain(candidates, limit)
    trust = _trust(operator, spec, full, dtype, flop or hbm_bytes)
    if measurements:
        asked = (operator, input_shapes(operator, full), dtype, int(getattr(full, "mode", 0)))
        time_us, trust = measurements.look_up(*asked, trust) or (time_us, trust)
    return Choice(operator, spec.name, _named(family, best), time_us, limit, why, flop, hbm_bytes, trust, candidates)


def check(operator: str, shape: Any, dtype: str, chip_or_name: ChipSpec | str, tile: Sequence[int]) -> OnChipPlan:
    """Where the buffers of a tile of your own lie, by level.

    Raises:
        OnChipError: The tile does not fit; names each level, the bytes asked for and the bytes available.
        ValueError: As `choose`, or a tile of the wrong length.

    Example:
        >>> check("matmul", (4096, 4096, 4096), "float16", "910B2", (256, 256, 64, 1))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ascend_jax.chip.onchip.OnChipError: buffers do not fit: L0C: 262144 bytes asked for, 131072 available; ...
    """
    spec = chip(chip_or_name) if isinstance(chip_or_name, str) else chip_or_name
    family = _family(operator, dtype_bytes(dtype))
    if len(tile) != len(family.sides):
        raise ValueError(f"tile {tuple(tile)}: {operator} takes {len(family.sides)} sides: {', '.join(family.sides)}")
    sides = whole_numbers(f"tile {tuple(tile)}", tile)
    if min(sides) < 1:
        raise ValueError(f"tile {sides}: each side is at least 1")
    stepped = sides[:3] if family.group == "gemm" else sides if len(sides) > 1 else ()
    if any(side % 16 for side in stepped):
        named = ", ".join(family.sides[: len(stepped)])
        raise ValueError(f"tile {sides}: {named} are multiples of 16, the edge of a cube step")
    given: Any = Tile(*sides) if family.group == "gemm" else sides if len(sides) > 1 else sides[0]
    return require(_place(operator, spec, problem(operator, shape, dtype), given))


def _trust(operator: str, spec: ChipSpec, full: Any, dtype: str, size: float) -> Confidence:
    if operator == "flash_attention":
        return attention.forward_confidence(spec, full)
    return confidence(spec, _family(operator, dtype_bytes(dtype)).group, dtype, size)


def _family(operator: str, size: int) -> _Family:
    if operator == "matmul":
        return _Family("gemm", Tile._fields, matmul.TILES[size])
    if operator == "flash_attention":
        return _Family("attention", ("q_rows", "kv_cols"), forward.TILES)
    if operator == "flash_attention_backward":
        return _Family("attention_backward", ("kv_rows", "q_cols"), attention.BACKWARD_TILES)
    return _Family("vector", ("elements",), vector.TILES)


def _evaluate(operator: str, full: Any) -> Callable[[ChipSpec], Any]:
    """Costs of all tiles under one jit; sizes of matmul and vector operators are arguments, so shapes share it."""
    if operator == "matmul":
        return lambda spec: _matmul_costs(spec, full)
    if operator in OPERATORS:
        return lambda spec: _vector_costs(spec, full)
    return lambda spec: _attention_costs(spec, full, operator)


_matmul_costs = jax.jit(lambda spec, full: matmul.tile_costs(spec, full, fixed_ns=matmul.vendor_fixed_ns(spec)))
_vector_costs = jax.jit(vector.tile_costs)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _attention_costs(spec: ChipSpec, full: AttentionShape, operator: str) -> Any:
    costs = forward.tile_costs if operator == "flash_attention" else attention.backward_costs
    return costs(spec, full)


def _place(operator: str, spec: ChipSpec, full: Any, tile: Any) -> OnChipPlan:
    if operator == "matmul":
        return matmul.place_tile(spec, full, tile)
    if operator == "flash_attention":
        return forward.place_tile(spec, full, tile)
    if operator == "flash_attention_backward":
        return attention.place_backward(spec, full, tile)
    return vector.place_tile(spec, full, tile)


def _with_room(spec: ChipSpec) -> ChipSpec:
    levels = [f"{level.lower()}_bytes" for level in LEVELS if level not in ("L2", "L0C")]
    roomy = {name: spec[name] * _ROOM for name in levels}
    return spec.replace(**roomy, l0c_bytes=spec["l0c_bytes"] * 2)


def _refusal(plan: OnChipPlan) -> str:
    used, there = np.asarray(plan.used_bytes).tolist(), np.asarray(plan.capacity_bytes).tolist()
    rows = zip(LEVELS, used, there, strict=True)
    return "; ".join(f"{level}: {asked} bytes asked for, {has} available" for level, asked, has in rows if asked > has)


def _explain(candidates: tuple[Candidate, ...], limit: str) -> str:
    best = candidates[0]
    text = f"bound by {limit}"
    faster = [each for each in candidates if each.refused and each.time_us < 0.995 * best.time_us]
    if faster:
        other = min(faster, key=lambda each: each.time_us)
        saved = 100 * (1 - other.time_us / best.time_us)
        level = other.refused.split(":")[0]
        text += (
            f"; {level} size is the next limit: {_sides(other.tile)} would save {saved:.0f} % but needs {other.refused}"
        )
    second = next((each for each in candidates[1:] if not each.refused and each.time_us > best.time_us), None)
    if second:
        more = 100 * (second.time_us / best.time_us - 1)
        text += f"; the next distinct tile, {_sides(second.tile)}, takes {more:.1f} % more"
    return text


def _sides(tile: dict[str, int]) -> str:
    return "x".join(str(side) for side in tile.values())


def _named(family: _Family, index: int) -> dict[str, int]:
    tile = family.tiles[index]
    sides = tile if isinstance(tile, tuple) else (tile,)
    return dict(zip(family.sides, (int(side) for side in sides), strict=True))
