"""Files that commands name: output paths, checked before any work is done, and times of your own."""

import os
from collections.abc import Mapping
from pathlib import Path

from ascend_jax.cli.errors import UsageError
from ascend_jax.ops.timing.measured import Measurements, read_measurements


def own_measurements(path: str) -> Measurements:
    """Read the file of `--measurements`.

    Raises:
      UsageError: No such file, or it is malformed.
    """
    try:
        return read_measurements(path)
    except FileNotFoundError:
        raise UsageError(f"--measurements {path}: no such file") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"--measurements: {error}") from None


def check_writable(paths: Mapping[str, str]) -> None:
    """Refuse output paths, given by flag, that cannot be written.

    Raises:
      UsageError: A folder does not exist or cannot be written, a path is no regular file, or two paths are one file.
    """
    seen: dict[Path, str] = {}
    for flag, path in paths.items():
        try:
            target = Path(path).resolve()
            if not path or len(target.name.encode()) > 255:
                raise ValueError("the name is empty or too long")
            is_there = target.exists()
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(f"{flag} {path[:80]}: cannot be a file ({error}); choose another path") from None
        if target.is_dir():
            raise UsageError(f"{flag} {path}: is a folder; name a file in it")
        if is_there and not target.is_file():
            raise UsageError(f"{flag} {path}: is not a regular file; name a file")
        if not target.parent.is_dir():
            raise UsageError(f"{flag} {path}: folder {target.parent} does not exist; create it or choose another")
        if not os.access(target.parent, os.W_OK) or (is_there and not os.access(target, os.W_OK)):
            raise UsageError(f"{flag} {path}: no permission to write there; choose another path")
        if target in seen:
            raise UsageError(f"{seen[target]} and {flag} {path}: are one file; name two different files")
        seen[target] = flag
