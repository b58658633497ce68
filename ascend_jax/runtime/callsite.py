"""Call sites: which line of the user's program made a call.

A site is a 31-bit hash of ``file:line``, so it is the same in every process and passes through ``jit`` as a number.
The table that turns it back into text only ever grows and never changes a result.
"""

import os
import sys
import zlib

import numpy as np

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_text: dict[int, str] = {0: ""}


def here() -> np.int32:
    """Return the site of the innermost caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return intern(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")


def intern(text: str) -> np.int32:
    """Return the number of a site and remember its text."""
    number = zlib.crc32(text.encode()) & 0x7FFFFFFF
    _text[number] = text
    return np.int32(number)


def text(site: int) -> str:
    """Return the text of a site, or its number in hexadecimal if this process never saw it."""
    return _text.get(int(site), f"site {int(site):#x}")
