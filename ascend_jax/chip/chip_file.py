"""Chip files: TOML, a table of value, source and certainty for each field, on top of a base; read whole or refused."""

import difflib
import importlib.resources
import tomllib
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np

from ascend_jax.chip.fields import CERTAINTIES, COUNT, EXACT_UNITS, FIELDS, MAY_BE_ZERO, RANGES

_FLOAT32 = np.finfo(np.float32)
_STEP_BYTES = 16 * 16 * 4  # one operand of the smallest cube step
_PAGE_BYTES = 2 << 20
_BLOCK_BYTES = 32  # unit of every on-chip buffer


def folder() -> Traversable:
    """Where the files of the catalogue are."""
    return importlib.resources.files("ascend_jax.chip").joinpath("data")


def read(path: Traversable) -> tuple[np.ndarray, dict[str, Any], dict[str, str]]:
    """Values in the order of FIELDS (float32, read-only), every entry by field, and family and calibration.

    Raises:
        ValueError: A field is missing, unknown or cannot be physical; names file, field, value and rule.
        OSError: The file cannot be read.
    """
    table = _read_with_base(path, ())
    meta = {"family": table.pop("family", None), "calibration": table.pop("calibration", "uncalibrated")}
    for key, value in meta.items():
        if not isinstance(value, str):
            raise ValueError(f"{path}: {key} is {value!r}; a chip file states it as a string")
    if meta["calibration"] not in ("calibrated", "uncalibrated"):
        raise ValueError(f"{path}: calibration is {meta['calibration']!r}; rule: calibrated or uncalibrated")
    for field in FIELDS:
        if field not in table:
            rule = f"a chip states every field ({FIELDS[field][1]}), itself or through its base"
            raise ValueError(f"{path}: field {field} is missing; rule: {rule}")
    values = np.array([_checked(path, field, table[field]) for field in FIELDS], np.float32)
    _check_together(path, table)
    values.flags.writeable = False
    return values, table, meta


def _check_together(path: Traversable, table: dict[str, Any]) -> None:
    """Refuse values that are possible one by one but not in one chip."""
    value = {field: table[field]["value"] for field in FIELDS}
    least = {"l0a_bytes": _STEP_BYTES, "l0b_bytes": _STEP_BYTES, "l0c_bytes": _STEP_BYTES, "l1_bytes": 4 * _STEP_BYTES}
    least |= {"ub_bytes": 4 * value["vector_bytes_per_cycle"], "l2_bytes": value["l2_line_bytes"]}
    least |= {"vector_cores": value["cube_cores"] * value["vector_per_cube"], "hbm_bytes": _PAGE_BYTES}
    if value["l2_bytes_per_s"] < value["hbm_bytes_per_s"]:
        rule = f"at least hbm_bytes_per_s, {value['hbm_bytes_per_s']:g}: what L2 holds comes no slower than from HBM"
        raise ValueError(f"{path}: field l2_bytes_per_s is {value['l2_bytes_per_s']!r}; rule: {rule}")
    for field, bound in least.items():
        if value[field] < bound:
            what = (
                "the vector cores beside all cube cores" if field == "vector_cores" else "what the smallest tile takes"
            )
            what = "one page" if field == "hbm_bytes" else "one line" if field == "l2_bytes" else what
            raise ValueError(f"{path}: field {field} is {value[field]!r}; rule: at least {bound}, {what}")
    for field in ("l1_bytes", "l0a_bytes", "l0b_bytes", "l0c_bytes", "ub_bytes"):
        if value[field] % _BLOCK_BYTES:
            raise ValueError(f"{path}: field {field} is {value[field]!r}; rule: whole blocks of {_BLOCK_BYTES} bytes")


def _read_with_base(path: Traversable, seen: tuple[str, ...]) -> dict[str, Any]:
    if str(path) in seen:
        raise ValueError(f"{path}: base files form a cycle: {' -> '.join((*seen, str(path)))}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a TOML file: {error}") from error
    for field, entry in table.items():
        if field not in ("base", "family", "calibration"):
            _checked(path, field, entry)
    if "base" not in table:
        return table
    base = f"{table.pop('base')}.toml"
    beside = path.parent / base if isinstance(path, Path) else folder().joinpath(base)
    known = folder().joinpath(base)
    is_same = str(beside) == str(path) and known.is_file()  # a file may bear the name of the chip that it changes
    chosen = beside if beside.is_file() and not is_same else known
    if not chosen.is_file():
        raise ValueError(f"{path}: base {base!r} is neither beside the file nor in the catalogue")
    inherited = _read_with_base(chosen, (*seen, str(path)))
    inherited.pop("calibration", None)  # what was measured on the base says nothing about this chip
    return inherited | table


def _checked(path: Traversable, field: str, entry: Any) -> float:
    """Value of one entry, or a ValueError that names file, field, value and rule."""
    where = f"{path}: field {field}"
    if field not in FIELDS:
        close = ", ".join(difflib.get_close_matches(field, FIELDS, n=3, cutoff=0.4)) or "none"
        raise ValueError(f"{where} is unknown (value {entry!r}); close names: {close}")
    if not isinstance(entry, dict) or set(entry) != {"value", "source", "certainty"}:
        raise ValueError(f"{where} is {entry!r}; rule: a table of value, source and certainty")
    value, unit = entry["value"], FIELDS[field][0]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float(_FLOAT32.max):
        raise ValueError(f"{where} is {str(value)[:40]}; rule: a finite number of {unit} that float32 holds")
    if unit == COUNT and value != int(value):
        raise ValueError(f"{where} is {value!r}; rule: a whole number")
    if 0 < value < float(_FLOAT32.tiny):
        raise ValueError(f"{where} is {value!r}; rule: {unit} above zero, in float32 too")
    if value < 0 or (value == 0 and field not in MAY_BE_ZERO):
        raise ValueError(f"{where} is {value!r}; rule: {unit} above zero")
    if unit == "ratio" and value > 1:
        raise ValueError(f"{where} is {value!r}; rule: a ratio of at most 1")
    if unit in EXACT_UNITS and float(np.float32(value)) != value:
        raise ValueError(f"{where} is {value!r}; rule: float32 holds {unit} exactly")
    if entry["certainty"] not in CERTAINTIES:
        raise ValueError(f"{where} has certainty {entry['certainty']!r}; rule: one of {', '.join(CERTAINTIES)}")
    if not isinstance(entry["source"], str) or not entry["source"].strip():
        raise ValueError(f"{where} has source {entry['source']!r}; rule: say where the value is from")
    lowest, highest = RANGES.get(field, RANGES.get(unit, (0.0, float(_FLOAT32.max))))
    if value != 0 and not lowest <= value <= highest:
        raise ValueError(f"{where} is {value!r}; rule: from {lowest:g} to {highest:g} {unit}")
    return float(value)
