"""`ChipSpec`: what a card is, as one float32 leaf, and the catalogue of chips it is loaded from."""

import dataclasses
import difflib
import functools
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip import chip_file
from ascend_jax.chip.fields import FIELDS, HZ, INDEX, RATE

_FIRST_910B = (
    "in CANN's platform files it is a 30-core, 900 MHz SKU of the first-generation 910, no Atlas A2 card; "
    "for Atlas A2 name the SKU that npu-smi shows: Ascend910B1, Ascend910B2, Ascend910B3 or Ascend910B4; "
    "if that first-generation SKU is meant, ask for Ascend910B_gen1"
)
_REFUSED = {
    "910b": _FIRST_910B,
    "910c": "a 910C package shows as two devices, one per die; ask for one die: Ascend910_9392",
    "910": "it names a generation, not a chip; the first-generation training chip is Ascend910A",
    "310p": "it names a generation, not a chip; ask for Ascend310P3",
    "310b": "it names a generation, not a chip; ask for Ascend310B1",
    "950": "it names a generation, not a chip; ask for Ascend950PR_9589",
    "950pr": "it names a product line, not a chip; ask for Ascend950PR_9589",
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ChipSpec:
    """One chip (one device, so one die of a 910C package).

    All numbers sit in one array, because each leaf costs dispatch time. A batch of chips has leading axes.

    Example:
        >>> spec = chip("Ascend910B2")
        >>> int(spec["cube_cores"]), float(spec["clock_hz"])
        (24, 1800000000.0)
        >>> float(spec.replace(clock_hz=1.5e9)["clock_hz"])
        1500000000.0
    """

    values: np.ndarray | jax.Array  # [..., len(FIELDS)] float32, in the units of `FIELDS`
    name: str = dataclasses.field(metadata={"static": True})
    family: str = dataclasses.field(metadata={"static": True})
    calibration: str = dataclasses.field(metadata={"static": True})  # "calibrated" or "uncalibrated"

    def __getitem__(self, field: str) -> Any:
        """Value of one field, `[...]` float32 with the batch axes of `values`.

        Raises:
            KeyError: The field does not exist; the message names close ones.
        """
        return self.values[..., _index(field)]

    def replace(self, **fields: Any) -> Self:
        """New spec with some fields changed; the values may be numbers, arrays or tracers and broadcast.

        Raises:
            KeyError: A field does not exist.
            ValueError: A concrete number that no chip can have: below zero, not a number, or a clock or rate of 0.
        """
        traced = any(isinstance(value, jax.Array) for value in (self.values, *fields.values()))
        for field, value in fields.items():
            _check_replaced(field, value)
        batch = np.broadcast_shapes(self.values.shape[:-1], *(np.shape(value) for value in fields.values()))
        shape = (*batch, self.values.shape[-1])
        if traced:
            values: Any = jnp.broadcast_to(jnp.asarray(self.values), shape)
            for field, value in fields.items():
                values = values.at[..., _index(field)].set(value)
        else:
            values = np.broadcast_to(self.values, shape).copy()
            for field, value in fields.items():
                values[..., _index(field)] = value
            values.flags.writeable = False
        return dataclasses.replace(self, values=values)


@functools.cache
def chips() -> tuple[str, ...]:
    """Sorted names of the catalogue.

    Example:
        >>> "Ascend910B3" in chips()
        True
    """
    stems = (entry.name.removesuffix(".toml") for entry in chip_file.folder().iterdir() if entry.name.endswith(".toml"))
    return tuple(sorted(stem for stem in stems if not stem.startswith(("family-", "instructions"))))


def chip(name: str) -> ChipSpec:
    """Chip of the catalogue, by full name or without "Ascend", in any case; or of a file, by a path that ends in .toml.

    Raises:
        ValueError: No such chip, or a name that would be misread (Ascend910B is not an Atlas A2 card); for a file, as
            `load_chip_file`.

    Example:
        >>> chip("910b2").name
        'Ascend910B2'
    """
    return _find(name)[0]


def chip_sheet(name: str) -> list[tuple[str, float, str, str, str]]:
    """Rows (field, value, unit, source, certainty) of one chip, in the order of `FIELDS`.

    Raises:
        ValueError: As `chip`.

    Example:
        >>> chip_sheet("910B4")[0][:3]
        ('cube_cores', 20, 'count')
    """
    table = _find(name)[1]
    return [
        (field, table[field]["value"], FIELDS[field][0], table[field]["source"], table[field]["certainty"])
        for field in FIELDS
    ]


def load_chip_file(path: str | Path) -> ChipSpec:
    """Chip from a TOML file of your own; `base` names a file beside it, else one of the catalogue.

    Its `calibration` is "uncalibrated" unless it says otherwise, whatever its base says.

    Raises:
        ValueError: A field is missing, unknown or cannot be physical; names file, field, value and rule.
        FileNotFoundError: No such file.
    """
    return _read_chip(Path(path))[0]


def peak_flops(spec: ChipSpec, dtype_bytes: int) -> Any:
    """Peak of all cube cores, `2 * macs * cores * clock`, `[...]` float32 FLOP/s.

    Operands of one byte run at twice the fp16 rate (16x32x16 int8), fp32 at `cube_fp32_share` of it.

    Raises:
        ValueError: Another operand size.

    Example:
        >>> round(float(peak_flops(chip("Ascend910B2"), 2)) / 1e12, 1)
        353.9
    """
    fp16 = 2.0 * spec["cube_macs_per_cycle"] * spec["cube_cores"] * spec["clock_hz"]
    return fp16 * operand_rate(spec, dtype_bytes)


def operand_rate(spec: ChipSpec, dtype_bytes: int) -> Any:
    """Cube throughput for operands of 1, 2 or 4 bytes, relative to fp16.

    Raises:
        ValueError: Another operand size.
    """
    if dtype_bytes not in (1, 2, 4):
        raise ValueError(f"dtype_bytes={dtype_bytes}: the cube multiplies operands of 1, 2 or 4 bytes")
    return spec["cube_fp32_share"] if dtype_bytes == 4 else np.float32(2 / dtype_bytes)


def _check_replaced(field: str, value: Any) -> None:
    _index(field)
    if isinstance(value, jax.Array):
        return  # may be traced
    least, unit = np.min(np.asarray(value)), FIELDS[field][0]
    if not least >= 0 or (least == 0 and unit in (HZ, RATE)):
        raise ValueError(f"field {field} is {least}; rule: {unit} {'above' if unit in (HZ, RATE) else 'at least'} zero")


def _index(field: str) -> int:
    if field not in INDEX:
        close = ", ".join(difflib.get_close_matches(field, FIELDS, n=3, cutoff=0.4)) or "none"
        raise KeyError(f"{field!r} is no field of a chip; close names: {close}")
    return INDEX[field]


def _short(name: str) -> str:
    return name.strip().lower().removeprefix("ascend")


@functools.cache
def _known() -> dict[str, str]:
    return {_short(full): full for full in chips()}


def _resolve(name: str) -> str:
    known, short = _known(), _short(name)
    if short in known:
        return known[short]
    if short in _REFUSED:
        raise ValueError(f"chip {name!r} is refused: {_REFUSED[short]}")
    raise ValueError(f"unknown chip {name!r}; known: {', '.join(known.values())} (ascend_jax.chips() lists them)")


def _find(name: str) -> tuple[ChipSpec, dict[str, Any]]:
    if not name.endswith(".toml"):
        return _load(_resolve(name))
    try:
        return _read_chip(Path(name))
    except OSError as error:
        raise ValueError(f"chip file {name}: {error.strerror or error}; give the path of a .toml file") from None


@functools.cache
def _load(name: str) -> tuple[ChipSpec, dict[str, Any]]:
    return _read_chip(chip_file.folder().joinpath(f"{name}.toml"))


def _read_chip(path: Traversable) -> tuple[ChipSpec, dict[str, Any]]:
    values, table, meta = chip_file.read(path)
    return ChipSpec(values, path.name.removesuffix(".toml"), **meta), table
