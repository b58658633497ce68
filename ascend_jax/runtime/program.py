"""``Program``: a recorded command table that any stream of any card can run, any number of times.

A capture returns one, compilers make them, both time engines read them and a sweep batches them.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ascend_jax.runtime import layout
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.edge import concrete
from ascend_jax.runtime.kernels import Argument, KernelSpec
from ascend_jax.runtime.layout import LIMB, LONGEST_BLOCK_HI, NONE, TASKS, Field, Kind, Operand, Reach
from ascend_jax.runtime.rows import Number, get_row, put_row, with_entries

FORMAT = 1  # of saved files


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Program:
    """N commands in the order in which they were enqueued; batch axes of the arrays come first.

    Columns are those of the card's command table, with local numbers: SEQUENCE is the row, DEPENDS an earlier row or
    NONE, NEXT a later row or N, POSITION counts within the stream, KERNEL indexes ``kernels``, issue times are 0.
    Stream 0 is the one that the program is run on: other streams begin with a wait for an earlier row, and the last
    command of stream 0 comes after all others. Rows at the end with ``Kind.NOTHING`` are padding and change no result.
    """

    fields: jax.Array  # int32 [..., N, FIELDS]
    operands: jax.Array  # int32 [..., N, P, len(Operand)], byte ranges
    streams: int = dataclasses.field(metadata={"static": True})
    kernels: tuple[KernelSpec, ...] = dataclasses.field(metadata={"static": True})

    @property
    def rows(self) -> int:
        """N, padding included."""
        return int(self.fields.shape[-2])

    def padded(self, rows: int) -> "Program":
        """Return the same program in ``rows`` rows, so that programs of many lengths share one compilation.

        Raises:
          ValueError: It has more rows than that.
        """
        if rows < self.rows:
            raise ValueError(f"rows = {rows}: the program has {self.rows} commands")
        batch = self.fields.shape[:-2]
        following = self.fields[..., Field.NEXT]
        fields = with_entries(self.fields, {Field.NEXT: jnp.where(following == self.rows, rows, following)})
        padding = jnp.broadcast_to(nothing(rows - self.rows, rows), (*batch, rows - self.rows, layout.FIELDS))
        empty = jnp.zeros((*batch, rows - self.rows, *self.operands.shape[-2:]), jnp.int32)
        return dataclasses.replace(
            self,
            fields=jnp.concatenate([fields, padding], -2),
            operands=jnp.concatenate([self.operands, empty], -3),
        )

    def with_block_ns(self, block_ns: Any) -> "Program":
        """Return the program with other times of one block, in ns; marks keep none.

        Args:
          block_ns: Integers that broadcast to [..., N], or an :class:`Instant` of such; leading axes become batch axes.

        Raises:
          ValueError: A time is below 1 ns or longer than a block can be.
        """
        block = block_ns if isinstance(block_ns, Instant) else _limbs(block_ns)
        is_task = jnp.isin(self.fields[..., Field.KIND], jnp.array(TASKS))
        return self._with({Field.BLOCK_HI: block.hi, Field.BLOCK_LO: block.lo}, is_task)

    def with_fault(self, row: Any, code: Any, reach: Any = Reach.STREAM) -> "Program":
        """Return the program with one command failing at its end with ``code``; arrays [...] add batch axes in front.

        Raises:
          ValueError: There is no such row.
        """
        known = concrete(jnp.asarray(row))
        if known is not None and not ((known >= 0) & (known < self.rows)).all():
            raise ValueError(f"row = {known}: the program has rows 0 to {self.rows - 1}")
        is_it = jax.nn.one_hot(row, self.rows, dtype=jnp.bool_)
        columns = {Field.FAULT: jnp.asarray(code)[..., None], Field.REACH: jnp.asarray(reach)[..., None]}
        return self._with(columns, is_it)

    def _with(self, columns: Mapping[Any, jax.Array], where: jax.Array) -> "Program":
        shapes = [np.shape(value) for value in columns.values()]
        *batch, rows = np.broadcast_shapes(self.fields.shape[:-1], where.shape, *shapes)
        fields = jnp.broadcast_to(self.fields, (*batch, *self.fields.shape[-2:]))
        operands = jnp.broadcast_to(self.operands, (*batch, *self.operands.shape[-3:]))
        changed = with_entries(fields, columns)
        where = jnp.broadcast_to(where, (*batch, rows))[..., None]
        return dataclasses.replace(self, fields=jnp.where(where, changed, fields), operands=operands)

    def save(self, path: str | Path) -> None:
        """Write the program as plain arrays (npz); kernels are kept as descriptions, not as code."""
        about = {
            "format": FORMAT,
            "columns": [field.name for field in Field],
            "streams": self.streams,
            "kernels": [_described(spec) for spec in self.kernels],
        }
        with Path(path).open("wb") as file:
            np.savez(file, fields=self.fields, operands=self.operands, about=np.array(json.dumps(about)))


def load_program(path: str | Path) -> Program:
    """Return the program that :meth:`Program.save` wrote.

    Raises:
      ValueError: The file is no program, or was written by a version whose command table has other columns.
    """
    with np.load(path, allow_pickle=False) as file:
        if set(file.files) != {"fields", "operands", "about"}:
            raise ValueError(f"path = {path}: no saved program")
        about = json.loads(str(file["about"]))
        if about["format"] != FORMAT or about["columns"] != [field.name for field in Field]:
            raise ValueError(f"path = {path}: saved by another version; capture or compile the program again")
        arrays = jnp.array(file["fields"]), jnp.array(file["operands"])
    return Program(*arrays, about["streams"], tuple(_spec(one) for one in about["kernels"]))


def program_from_rows(
    rows: Sequence[Mapping[Any, int]], operands: Any = None, kernels: tuple[KernelSpec, ...] = ()
) -> Program:
    """Return a program of commands that are given in the order in which a host would enqueue them.

    Args:
      rows: One mapping from :class:`Field` to a number per command. KIND and STREAM (local) are required; DEPENDS, of
        marks only, is an earlier row. Columns that follow from the order are filled in.
      operands: int32 [N, P, len(Operand)]; None: the commands touch no memory.
      kernels: What column KERNEL indexes; NONE there: the command takes time and computes nothing.

    Raises:
      ValueError: A row has no such kind, stream, dependency or kernel, begins a stream without waiting, or the last
        command of stream 0 does not come after it; the message names the row.
    """
    table = np.array(nothing(len(rows), len(rows)))
    table[:, Field.BLOCKS] = 1
    begun = {0}
    for number, row in enumerate(rows):
        for column, value in row.items():
            table[number, column] = value
        _check_row(number, table[number], len(kernels))
        if row[Field.STREAM] not in begun and table[number, Field.DEPENDS] == NONE:
            raise ValueError(f"row {number}: a stream other than 0 begins with a wait for an earlier row")
        begun.add(row[Field.STREAM])
    if operands is None:
        operands = np.zeros((len(rows), layout.OPERANDS, len(Operand)), np.int32)
    fields = numbered(jnp.array(table))
    behind = np.flatnonzero(~np.asarray(is_joined(fields)))
    if behind.size:
        raise ValueError(f"row {behind[0]}: the last command of stream 0 does not come after it; let stream 0 wait")
    streams = int(table[:, Field.STREAM].max(initial=0)) + 1
    return Program(fields, jnp.asarray(operands, jnp.int32), streams, tuple(kernels))


def nothing(rows: int, end: int) -> np.ndarray:
    """Return int32 [rows, FIELDS] that stand for no command, in a table of ``end`` rows."""
    fields = np.zeros((rows, layout.FIELDS), np.int32)
    fields[:, [Field.SEQUENCE, Field.DEPENDS, Field.OBJECT, Field.KERNEL]] = NONE
    fields[:, Field.NEXT] = end
    return fields


@jax.jit
def numbered(fields: jax.Array) -> jax.Array:
    """Return int32 [N, FIELDS] with the columns that follow from KIND, STREAM and the order of the rows."""
    rows = fields.shape[0]
    number = jnp.arange(rows)
    is_command = fields[:, Field.KIND] != Kind.NOTHING
    key = jnp.where(is_command, fields[:, Field.STREAM], jnp.iinfo(jnp.int32).max)
    order = jnp.argsort(key, stable=True)
    key = key[order]
    position = number - jnp.searchsorted(key, key)
    has_next = jnp.append(key[1:] == key[:-1], False)[:rows] & is_command[order]
    following = jnp.where(has_next, jnp.roll(order, -1), rows)
    columns: dict[Any, Number] = {
        Field.SEQUENCE: jnp.where(is_command, number, NONE),
        Field.NEXT: jnp.zeros_like(number).at[order].set(following),
        Field.POSITION: jnp.where(is_command, jnp.zeros_like(number).at[order].set(position), 0),
        Field.ISSUE_HI: 0,
        Field.ISSUE_LO: 0,
    }
    return with_entries(fields, columns)


def predecessors(fields: jax.Array) -> jax.Array:
    """Return int32 [N, 2]: the row before each one in its stream and the one that it depends on, N for none."""
    rows = fields.shape[0]
    before = jnp.full(rows + 1, rows, jnp.int32).at[fields[:, Field.NEXT]].set(jnp.arange(rows, dtype=jnp.int32))
    depends = fields[:, Field.DEPENDS]
    return jnp.stack([before[:rows], jnp.where(depends == NONE, rows, depends)], -1)


@jax.jit
def is_joined(fields: jax.Array) -> jax.Array:
    """Return bool [N]: the last command of stream 0 comes after this one; true for padding."""
    rows = fields.shape[0]
    before = predecessors(fields)
    is_command = fields[:, Field.KIND] != Kind.NOTHING
    is_last = is_command & (fields[:, Field.STREAM] == 0) & (fields[:, Field.NEXT] == rows)

    def body(step: jax.Array, reached: jax.Array) -> jax.Array:
        row = rows - 1 - step
        for one in get_row(before, row):
            reached = put_row(reached, one, get_row(reached, one) | get_row(reached, row))
        return reached

    reached = lax.fori_loop(0, rows, body, jnp.append(is_last, False)) if rows else is_last
    return reached[:rows] | ~is_command


def _check_row(number: int, row: np.ndarray, kernels: int) -> None:
    depends, kernel = row[Field.DEPENDS], row[Field.KERNEL]
    is_kind = row[Field.KIND] in set(Kind) - {Kind.NOTHING}
    rules = (
        (is_kind, Field.KIND, "must be a kind of command"),
        (0 <= row[Field.STREAM] < 1 << 15, Field.STREAM, "must be a stream number from 0"),
        (NONE <= depends < number, Field.DEPENDS, "must be an earlier row or NONE"),
        (depends == NONE or row[Field.KIND] not in TASKS, Field.DEPENDS, "must be NONE, as only marks wait"),
        (NONE <= kernel < kernels, Field.KERNEL, f"must index the {kernels} kernels or be NONE"),
        (row[Field.BLOCKS] >= 1, Field.BLOCKS, "must be at least 1"),
    )
    for is_good, column, rule in rules:
        if not is_good:
            raise ValueError(f"row {number}: {column.name} = {row[column]}: {rule}")


def _limbs(duration_ns: Any) -> Instant:
    known = concrete(duration_ns) if isinstance(duration_ns, jax.Array) else np.asarray(duration_ns, np.int64)
    if known is not None and not ((known >= 1) & (known < (LONGEST_BLOCK_HI + 1) * LIMB)).all():
        raise ValueError(
            f"block_ns from {known.min()} to {known.max()}: a block takes 1 ns to {LONGEST_BLOCK_HI + 1} * 2**30"
        )
    whole = duration_ns if known is None else known
    return Instant(jnp.asarray(whole >> 30, jnp.int32), jnp.asarray(whole & (LIMB - 1), jnp.int32))


def _described(spec: KernelSpec) -> dict[str, Any]:
    return {
        "operator": spec.operator,
        "attributes": [[name, _plain(value)] for name, value in spec.attributes],
        "inputs": [[list(arg.shape), arg.dtype.name] for arg in spec.inputs],
        "outputs": [[list(arg.shape), arg.dtype.name] for arg in spec.outputs],
        "scalars": list(spec.scalars),
    }


def _spec(about: Mapping[str, Any]) -> KernelSpec:
    arguments = {
        side: tuple(Argument(tuple(shape), jnp.dtype(dtype)) for shape, dtype in about[side])
        for side in ("inputs", "outputs")
    }
    attributes = tuple((name, _value(one)) for name, one in about["attributes"])
    return KernelSpec(about["operator"], attributes, **arguments, scalars=tuple(about["scalars"]))


def _plain(value: Any) -> Any:
    """An attribute as JSON; tuples are the only containers that an attribute can have."""
    if isinstance(value, tuple):
        return {"tuple": [_plain(one) for one in value]}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"attribute = {value!r}: a kernel can be saved if its attributes are numbers, strings and tuples")


def _value(plain: Any) -> Any:
    return tuple(_value(one) for one in plain["tuple"]) if isinstance(plain, dict) else plain
