"""``Program``: a recorded command table that any stream of any card can run, any number of times.

A capture returns one, compilers make them, both time engines read them and a sweep batches them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ascend_jax.runtime import clock, layout
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.edge import concrete
from ascend_jax.runtime.kernels import KernelSpec
from ascend_jax.runtime.layout import (
    CHUNK_NS,
    LIMB,
    LONGEST_BLOCK_HI,
    NONE,
    SHARES,
    TASKS,
    Field,
    Kind,
    Operand,
    Reach,
    Resource,
)
from ascend_jax.runtime.rows import Number, get_row, put_row, with_entries

LONGEST_BLOCK_NS = (LONGEST_BLOCK_HI + 1) * LIMB - CHUNK_NS  # with the longest head it is what the engine can count
RANGES: dict[Any, tuple[int, int]] = {  # of columns; least and most
    Field.KIND: (Kind.NOTHING + 1, max(Kind)),
    Field.STREAM: (0, (1 << 15) - 1),
    Field.NEED + Resource.CUBE: (0, 1),
    Field.NEED + Resource.VECTOR: (0, 2),
    Field.NEED + Resource.H2D: (0, 1),
    Field.NEED + Resource.D2H: (0, 1),
    Field.NEED + Resource.D2D: (0, 1),
    Field.BLOCKS: (1, (1 << 16) - 1),
    Field.MODE: (0, 1),
    Field.PRIORITY: (0, 7),
    Field.HEAD_NS: (0, CHUNK_NS - 1),
    Field.HBM_SHARE: (0, SHARES - 1),
    Field.L2_SHARE: (0, SHARES - 1),
}


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

    >>> kernel = {Field.KIND: Kind.KERNEL, Field.STREAM: 0, Field.BLOCK_LO: 500}
    >>> program_from_rows([kernel, kernel]).fields[:, Field.NEXT].tolist()
    [1, 2]
    """
    table = np.array(nothing(len(rows), len(rows)))
    table[:, Field.BLOCKS] = 1
    for number, row in enumerate(rows):
        table[number, list(row)] = list(row.values())
    _check_rows(table, len(kernels))
    if operands is None:
        operands = np.zeros((len(rows), layout.OPERANDS, len(Operand)), np.int32)
    bucket = 1 << max(len(rows) - 1, 0).bit_length()  # few lengths, so few compilations
    fields = numbered(np.concatenate([table, nothing(bucket - len(rows), bucket)]))
    _refuse(~np.asarray(is_joined(fields)), "the last command of stream 0 does not come after it; let stream 0 wait")
    streams = int(table[:, Field.STREAM].max(initial=0)) + 1
    own = jnp.array(trimmed(np.asarray(fields), len(rows)))
    return Program(own, jnp.asarray(operands, jnp.int32), streams, tuple(kernels))


def nothing(rows: int, end: int) -> np.ndarray:
    """Return int32 [rows, FIELDS] that stand for no command, in a table of ``end`` rows."""
    fields = np.zeros((rows, layout.FIELDS), np.int32)
    fields[:, [Field.SEQUENCE, Field.DEPENDS, Field.OBJECT, Field.KERNEL]] = NONE
    fields[:, Field.NEXT] = end
    return fields


def trimmed(fields: np.ndarray, rows: int) -> np.ndarray:
    """Return the table without its padding, as one of ``rows`` rows."""
    own = fields[:rows].copy()
    own[:, Field.NEXT] = np.minimum(own[:, Field.NEXT], rows)
    return own


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


def _check_rows(table: np.ndarray, kernels: int) -> None:
    for column, (least, most) in {**RANGES, Field.KERNEL: (NONE, kernels - 1)}.items():
        values = table[:, column]
        name = column.name if isinstance(column, Field) else f"NEED + {Resource(column - Field.NEED).name}"
        _refuse((values < least) | (values > most), f"{name} must be from {least} to {most}")
    kind, depends, stream = table[:, Field.KIND], table[:, Field.DEPENDS], table[:, Field.STREAM]
    is_task = np.isin(kind, TASKS)
    _refuse((depends < NONE) | (depends >= np.arange(len(table))), "DEPENDS must be an earlier row or NONE")
    _refuse(is_task & (depends != NONE), "DEPENDS must be NONE, as only marks wait")
    _refuse(is_task & (_block_ns(table) < 1), "a block of a task takes at least 1 ns")
    _refuse(_block_ns(table) > LONGEST_BLOCK_NS, f"a block takes at most {LONGEST_BLOCK_NS} ns")
    is_held = kind == Kind.CALLBACK_WAIT
    has_callback = np.append(False, (kind[:-1] == Kind.CALLBACK) & (stream[:-1] == stream[1:]))[: len(table)]
    _refuse(is_held & ~has_callback, "a wait for a callback comes right after the callback, in its stream")
    begins = np.zeros(len(table), bool)
    begins[np.unique(stream, return_index=True)[1]] = True
    _refuse(begins & (stream != 0) & (depends == NONE), "a stream other than 0 begins with a wait for an earlier row")


def _block_ns(table: np.ndarray) -> np.ndarray:
    return clock.to_ns(table[:, Field.BLOCK_HI], table[:, Field.BLOCK_LO])


def _refuse(is_wrong: np.ndarray, rule: str) -> None:
    if is_wrong.any():
        raise ValueError(f"row {int(np.argmax(is_wrong))}: {rule}")


def _limbs(duration_ns: Any) -> Instant:
    known = concrete(duration_ns) if isinstance(duration_ns, jax.Array) else np.asarray(duration_ns, np.int64)
    if known is not None and not ((known >= 1) & (known <= LONGEST_BLOCK_NS)).all():
        raise ValueError(f"block_ns from {known.min()} to {known.max()}: a block takes 1 to {LONGEST_BLOCK_NS} ns")
    whole = duration_ns if known is None else known
    return Instant(jnp.asarray(whole >> 30, jnp.int32), jnp.asarray(whole & (LIMB - 1), jnp.int32))
