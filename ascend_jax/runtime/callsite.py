"""Call sites: which line of the user's program made a call.

A site is a 31-bit hash of ``folder/file:line``, so it is the same in every process and passes through ``jit`` as a
number. The table that turns it back into text only ever grows and never changes a result.
"""

import functools
import os
import sys
import zlib
from types import FrameType

import numpy as np

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_COMMANDS = _PACKAGE + "cli" + os.sep  # the command line is a user of the package like any other
_text: dict[int, str] = {0: ""}


def here() -> np.int32:
    """Return the site of the innermost caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (_is_inside(frame.f_code.co_filename) or _is_generated(frame)):
        frame = frame.f_back
    return _site(frame.f_code.co_filename, frame.f_lineno)


@functools.cache
def _site(filename: str, line: int) -> np.int32:
    folder, name = os.path.split(filename)
    return intern(f"{os.path.basename(folder)}/{name}:{line}")


def _is_inside(filename: str) -> bool:
    return filename.startswith(_PACKAGE) and not filename.startswith(_COMMANDS)


def _is_generated(frame: FrameType) -> bool:
    """Whether it is the constructor that ``dataclasses`` wrote for a class of this package."""
    return frame.f_code.co_filename == "<string>" and frame.f_globals.get("__name__", "").startswith("ascend_jax.")


def intern(text: str) -> np.int32:
    """Return the number of a site and remember its text."""
    number = zlib.crc32(text.encode()) & 0x7FFFFFFF
    while _text.setdefault(number, text) != text:  # two sites with one hash
        number = (number + 1) & 0x7FFFFFFF
    return np.int32(number)


def text(site: int) -> str:
    """Return the text of a site, or its number in hexadecimal if this process never saw it."""
    return _text.get(int(site), f"site {int(site):#x}")
