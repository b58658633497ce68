"""Device memory shared between the simulated processes of one card: export, allow, import, close.

What a driver keeps for all processes is an immutable value of its own, :class:`IpcExports`. All processes work on one
card, so an imported block has the address that it has in the process that exported it.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from ascend_jax.runtime.codes import AscendError, Code
from ascend_jax.runtime.handles import has_context
from ascend_jax.runtime.layout import HeapEntry, HeapWord
from ascend_jax.runtime.ranges import address, byte_range
from ascend_jax.runtime.state import CardState, require_single
from ascend_jax.runtime.translation import translate
from ascend_jax.runtime.usable import is_live

KEY_CHARACTERS = 65  # length of a key with its final zero (CANN, aclrtIpcMemGetExportKey)


@dataclasses.dataclass(frozen=True)
class Export:
    """One shared range."""

    pointer: int
    nbytes: int
    checks_pid: bool
    block: tuple[int, ...]  # its facts, the number of its allocation among them: no later one has the same
    pids: frozenset[int] = frozenset()  # that may import it
    importers: frozenset[int] = frozenset()  # that have


@dataclasses.dataclass(frozen=True)
class IpcExports:
    """Everything that processes share on one card, by key."""

    exports: Mapping[str, Export] = dataclasses.field(default_factory=lambda: MappingProxyType({}))
    made: int = 0  # exports so far


def _with(shared: IpcExports, key: str, export: Export | None) -> IpcExports:
    exports = {name: one for name, one in shared.exports.items() if name != key}
    if export is not None:
        exports[key] = export
    return dataclasses.replace(shared, exports=MappingProxyType(exports))


def _find(shared: IpcExports, key: str) -> Export:
    if key not in shared.exports:
        raise AscendError(Code.RT_PARAM_INVALID, f"key {key[:16]}... is exported by nobody, or closed")
    return shared.exports[key]


def _require_context(card: CardState) -> None:
    require_single(card)
    if not bool(has_context(card)):
        raise AscendError(Code.RT_CONTEXT_NULL, "the calling thread has no current context")


def _block_of(card: CardState, pointer: int, nbytes: int) -> tuple[int, ...] | None:
    """Return the facts of the live block that begins at ``pointer`` and holds the bytes, or None."""
    start = int(address(pointer))
    blocks = np.asarray(card.hbm.blocks)[:, : int(card.hbm.words[HeapWord.COUNT])]
    (columns,) = np.nonzero(blocks[HeapEntry.START] == start)
    if not len(columns) or not bool(is_live(card, translate(card, byte_range(start, 0, nbytes)))):
        return None
    return tuple(blocks[:, columns[0]].tolist())


def ipc_export(
    shared: IpcExports, card: CardState, pointer: int, nbytes: int, *, checks_pid: bool = True
) -> tuple[IpcExports, str]:
    """Share bytes of a device block and return their key, 64 characters (``aclrtIpcMemGetExportKey``).

    Args:
      shared: What is shared so far.
      card: The card.
      pointer: Start of a live device block.
      nbytes: How much of it.
      checks_pid: Whether only processes named to :func:`ipc_allow` may import it (flag 0), or all (flag 1).

    Raises:
      AscendError: 100000 for the null pointer or no bytes; 107002 without a current context; 107000 for what is no
        start of a device block or too long.
    """
    if pointer == 0 or nbytes <= 0:
        raise AscendError(Code.INVALID_PARAM, f"pointer {pointer}, {nbytes} bytes")
    _require_context(card)
    block = _block_of(card, pointer, nbytes)
    if block is None:
        raise AscendError(Code.RT_PARAM_INVALID, f"{nbytes} bytes at pointer {pointer} are no part of a device block")
    key = f"{shared.made:08x}{int(pointer):08x}{nbytes:016x}".ljust(KEY_CHARACTERS - 1, "0")
    shared = dataclasses.replace(shared, made=shared.made + 1)
    return _with(shared, key, Export(int(pointer), nbytes, checks_pid, block)), key


def ipc_allow(shared: IpcExports, key: str, pids: Iterable[int]) -> IpcExports:
    """Let some processes import a range (``aclrtIpcMemSetImportPid``); AscendError 107000 for an unknown key."""
    export = _find(shared, key)
    return _with(shared, key, dataclasses.replace(export, pids=export.pids | frozenset(pids)))


def ipc_import(shared: IpcExports, card: CardState, key: str, pid: int) -> tuple[IpcExports, int]:
    """Import a range in process ``pid`` and return its pointer (``aclrtIpcMemImportByKey``).

    Raises:
      AscendError: 107002 without a current context, 107000 for an unknown key, a second import or memory that was freed
        since it was exported, 207006 for a process that was not allowed.
    """
    _require_context(card)
    export = _find(shared, key)
    if _block_of(card, export.pointer, export.nbytes) != export.block:
        raise AscendError(Code.RT_PARAM_INVALID, f"pointer {export.pointer} was freed after it was exported")
    if export.checks_pid and pid not in export.pids:
        raise AscendError(Code.NO_PERMISSION, f"process {pid} is not among {sorted(export.pids)}")
    if pid in export.importers:
        raise AscendError(Code.RT_PARAM_INVALID, f"process {pid} has imported this key already")
    return _with(shared, key, dataclasses.replace(export, importers=export.importers | {pid})), export.pointer


def ipc_close(shared: IpcExports, key: str, pid: int | None = None) -> IpcExports:
    """End an import of process ``pid``, or the export itself (``aclrtIpcMemClose``); importers come first.

    Raises:
      AscendError: 107000 for an unknown key, a process that has not imported it, or an export that is still imported.
    """
    export = _find(shared, key)
    if pid is None:
        if export.importers:
            raise AscendError(Code.RT_PARAM_INVALID, f"processes {sorted(export.importers)} have not closed it yet")
        return _with(shared, key, None)
    if pid not in export.importers:
        raise AscendError(Code.RT_PARAM_INVALID, f"process {pid} has not imported this key")
    return _with(shared, key, dataclasses.replace(export, importers=export.importers - {pid}))
