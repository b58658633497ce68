"""Published measurements as rows of a CSV file: read whole, or refused with the line that is wrong."""

import csv
import dataclasses
import io
import math
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path

REQUIRED = ("soc", "kind", "value", "unit")
COUNTS = ("m", "n", "k", "batch", "heads", "sq", "sk", "d", "ranks", "cores", "bytes")
COLUMNS = ("target_id", "soc", "kind", "dtype", *COUNTS, "causal", "value", "unit", "trust", "note")
DTYPE_BYTES = {"fp16": 2, "float16": 2, "bf16": 2, "bfloat16": 2, "fp32": 4, "float32": 4, "int8": 1, "fp8": 1}


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
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: not CSV ({error})") from None
    if not lines:
        raise ValueError(f"{path}: empty; the first line names the columns {', '.join(COLUMNS)}")
    header = [cell.strip() for cell in lines[0][1]]
    missing = [column for column in REQUIRED if column not in header]
    if missing:
        raise ValueError(f"{path}, line {lines[0][0]}: column {missing[0]!r} is missing; found {', '.join(header)[:120]}")
    if len(set(header)) != len(header):
        raise ValueError(f"{path}, line {lines[0][0]}: a column is named twice")
    return [_target(f"{path}, line {number}", number, header, cells) for number, cells in lines[1:]]


def _target(where: str, number: int, header: list[str], cells: list[str]) -> Target:
    if len(cells) != len(header):
        raise ValueError(f"{where}: {len(cells)} cells, the header has {len(header)}")
    row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    for name in ("soc", "kind", "unit"):
        if not row[name]:
            raise ValueError(f"{where}: column {name} is empty; every row states it")
    return Target(
        line=number,
        name=row.get("target_id") or f"line {number}",
        soc=row["soc"],
        kind=row["kind"],
        dtype=row.get("dtype", ""),
        counts={name: _count(where, name, row[name]) for name in COUNTS if row.get(name)},
        is_causal=_flag(where, row.get("causal", "")),
        value=_value(where, row["value"]),
        unit=row["unit"],
        note=row.get("note", ""),
    )


def _count(where: str, name: str, text: str) -> int:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (1 <= number < 2**63 and number == int(number)):
        raise ValueError(f"{where}: column {name} is {text[:40]!r}; a whole number of at least 1")
    return int(number)


def _flag(where: str, text: str) -> bool:
    if text.lower() not in ("", "0", "1", "true", "false"):
        raise ValueError(f"{where}: column causal is {text[:40]!r}; 0 or 1")
    return text.lower() in ("1", "true")


def _value(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{where}: column value is {text[:40]!r}; a number above zero")
    return value
