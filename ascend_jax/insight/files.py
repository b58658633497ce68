"""Files that appear complete or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any


def write_together(writers: Mapping[Any, Callable[[IO[bytes]], object]]) -> None:
    """Let each writer fill a temporary file beside its path (the key); move all of them in place when all are complete.

    A link is followed, so that its target changes and the link stays.

    Raises:
      OSError: A file cannot be written; then none of the paths has changed, unless a move itself failed.
    """
    done: list[tuple[str, Path]] = []
    try:
        for path, write in writers.items():
            target = Path(path).resolve()
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=".part.")
            done.append((name, target))
            with os.fdopen(handle, "wb") as file:
                write(file)
            os.chmod(name, 0o666 & ~_umask())
        for name, target in done:
            os.replace(name, target)
    finally:
        for name, _ in done:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
