"""Files that a command writes: complete, or not at all."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ascend_jax.cli.errors import UsageError


def check_writable(flag: str, path: str) -> None:
    """Refuse an output path before any work is done.

    Raises:
      UsageError: The folder does not exist or cannot be written, or the path is a folder.
    """
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"{flag} {path}: is a folder; name a file in it")
    if not target.parent.is_dir():
        raise UsageError(f"{flag} {path}: folder {target.parent} does not exist; create it or choose another")
    if not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise UsageError(f"{flag} {path}: no permission to write there; choose another path")


def write_atomically(path: str, write: Callable[[IO[bytes]], None]) -> None:
    """Let ``write`` fill a file beside ``path`` and move it there only when it is complete."""
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
