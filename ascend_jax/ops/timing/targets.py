"""Published measurements as rows of a CSV file: read whole, or refused with the line that is wrong."""

import dataclasses
import math
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path

from ascend_jax.ops.timing.table_file import Line, read_lines

REQUIRED = ("soc", "kind", "value", "unit")
COUNTS = ("m", "n", "k", "batch", "heads", "sq", "sk", "d", "ranks", "cores", "bytes")
COLUMNS = ("target_id", "soc", "kind", "dtype", *COUNTS, "causal", "value", "unit", "trust", "note")
_MOST = 2**62  # so that twice as much is an int64
INT32_MAX = 2**31 - 1  # greatest size of an axis
DTYPE_BYTES = {"fp16": 2, "float16": 2, "bf16": 2, "bfloat16": 2, "fp32": 4, "float32": 4, "int8": 1}


@dataclasses.dataclass(frozen=True)
class Target:
    """One measurement."""

    line: int  # in its file, counted from 1
    name: str  # target_id, or "line N"
    soc: str
    kind: str
    dtype: str  # "" if not stated
    counts: Mapping[str, int]  # the columns of COUNTS that the row fills
    is_causal: bool
    value: float
    unit: str
    note: str

    def count(self, column: str) -> int:
        """Value of a column.

        Raises:
            ValueError: The row leaves it empty.
        """
        if column not in self.counts:
            raise ValueError(f"column {column} is empty; kind {self.kind} needs it")
        return self.counts[column]

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one element.

        Raises:
            ValueError: No dtype, or one that is not known.
        """
        if self.dtype.lower() not in DTYPE_BYTES:
            raise ValueError(f"dtype {self.dtype!r}: known are {', '.join(DTYPE_BYTES)}")
        return DTYPE_BYTES[self.dtype.lower()]


def read_targets(path: Path | Traversable) -> list[Target]:
    """All rows of a file, or none.

    Raises:
        ValueError: The file is no such CSV; names the line, the column, the value and the rule.
        OSError: The file cannot be read.
    """
    header, lines = read_lines(path)
    missing = [column for column in REQUIRED if column not in header]
    if missing:
        raise ValueError(f"{path}, line 1: column {missing[0]!r} is missing; found {', '.join(header)[:120]}")
    return [_target(line) for line in lines]


def _target(line: Line) -> Target:
    row = line.cells
    for name in ("kind", "unit"):
        if not row[name]:
            raise ValueError(f"{line.where}: column {name} is empty; every row states it")
    return Target(
        line=line.number,
        name=row.get("target_id") or f"line {line.number}",
        soc=row["soc"],  # "" is listed as a row that names no chip
        kind=row["kind"],
        dtype=row.get("dtype", ""),
        counts={name: _count(line.where, name, row[name]) for name in COUNTS if row.get(name, "") not in ("", "0")},
        is_causal=_flag(line.where, row.get("causal", "")),
        value=line.positive("value", "a number"),
        unit=row["unit"],
        note=row.get("note", ""),
    )


def _count(where: str, name: str, text: str) -> int:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (1 <= number <= _MOST and number == int(number)):
        raise ValueError(f"{where}: column {name} is {text[:40]!r}; a whole number of at least 1 and at most 2**62")
    return int(number)


def _flag(where: str, text: str) -> bool:
    if text.lower() not in ("", "0", "1", "true", "false"):
        raise ValueError(f"{where}: column causal is {text[:40]!r}; 0 or 1")
    return text.lower() in ("1", "true")
