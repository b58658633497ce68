"""A CSV file as a header and rows that know where they stand; read whole, or refused with the line that is wrong."""

import csv
import dataclasses
import io
import math
from importlib.resources.abc import Traversable
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Line:
    """One row."""

    where: str  # "FILE, line N", for messages
    number: int  # counted from 1
    cells: dict[str, str]  # by column, stripped

    def positive(self, column: str, unit: str) -> float:
        """Number above zero in a column.

        Raises:
            ValueError: Anything else; names file, line, column and text.
        """
        try:
            value = float(self.cells[column])
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{self.where}: column {column} is {self.cells[column][:40]!r}; {unit} above zero")
        return value


def read_lines(path: Path | Traversable) -> tuple[list[str], list[Line]]:
    """Column names and rows of a CSV file.

    Raises:
        ValueError: No UTF-8, no CSV, empty, a column named twice, or a row of another length; names the line.
        OSError: The file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: not CSV ({error})") from None
    if not rows:
        raise ValueError(f"{path}: empty; the first line names the columns")
    (first, names), *body = rows
    header = [name.strip() for name in names]
    if len(set(header)) != len(header):
        raise ValueError(f"{path}, line {first}: a column is named twice")
    return header, [_line(f"{path}, line {number}", number, header, cells) for number, cells in body]


def _line(where: str, number: int, header: list[str], cells: list[str]) -> Line:
    if len(cells) != len(header):
        raise ValueError(f"{where}: {len(cells)} cells, the header has {len(header)}")
    return Line(where, number, {name: cell.strip() for name, cell in zip(header, cells, strict=True)})
