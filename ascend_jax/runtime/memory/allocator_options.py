"""Options of the caching allocator, read from the string that ``PYTORCH_NPU_ALLOC_CONF`` would hold."""

import dataclasses
import difflib
import re
from collections.abc import Callable

MIB = 1 << 20
UNLIMITED = 2**63
INTERVALS = (
    16  # of sizes that are rounded alike: from below 2 MiB to 32 GiB and more (torch, AcceleratorAllocatorConfig)
)


@dataclasses.dataclass(frozen=True)
class AllocatorOptions:
    """What the caching allocator may do. Sizes are bytes."""

    max_split_bytes: int = UNLIMITED  # larger cached blocks are not cut
    max_non_split_rounding_bytes: int = 20 * MIB  # what may be wasted when such a block is taken whole
    garbage_collection_threshold: float = 0.0  # share of the allowed memory above which old segments go; 0: off
    expandable_segments: bool = False  # segments are addresses, to which memory is mapped as it is needed
    roundup_power2_divisions: tuple[int, ...] = (0,) * 16  # [i]: steps of a power of two from 2**i MiB on; 0: 512 bytes
    large_segment_bytes: int = 20 * MIB  # segment of blocks from 1 to 10 MiB
    per_process_memory_fraction: float | None = None  # share of the device's memory that it may reserve
    page_size_1g: bool = False  # segments of whole 1 GiB pages
    throw_on_npumalloc_oom: bool = False  # what the fraction refuses is counted as rejected

    def divisions_for(self, size: int) -> int:
        """Return into how many steps the powers of two around a size in bytes are divided."""
        return self.roundup_power2_divisions[min(max(size.bit_length() - MIB.bit_length(), 0), INTERVALS - 1)]


def _megabytes(least: int, most: int = 1 << 20) -> Callable[[str, str], int]:
    def read(key: str, text: str) -> int:
        return _whole(key, text, least, most) * MIB

    return read


def _whole(key: str, text: str, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ValueError(f"{key}:{text}: must be a whole number from {least} to {most}")
    return int(text)


def _count(key: str, text: str) -> int:
    return _whole(key, text, 0, 2**31 - 1)


def _alignment(key: str, text: str) -> int:
    return _whole(key, text, 0, 16)


def _fraction(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{key}:{text}: must be a number from 0.0 to 1.0")
    return value


def _threshold(key: str, text: str) -> float:
    value = _fraction(key, text)
    if value in (0.0, 1.0):
        raise ValueError(f"{key}:{text}: must lie between 0.0 and 1.0")
    return value


def _switch(key: str, text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError(f"{key}:{text}: must be True or False")
    return text == "True"


def _steps(key: str, text: str) -> int:
    value = _whole(key, text, 0, 64)
    if value & (value - 1):
        raise ValueError(f"{key}:{text}: must be a power of two")
    return value


def _divisions(key: str, text: str) -> tuple[int, ...]:
    """Read one number for all sizes, or a list such as ``[256:1,512:2,>:4]``: from 256 MiB on 1, from 512 on 2, ..."""
    if not text.startswith("["):
        return (_steps(key, text),) * INTERVALS
    divisions, last = [0] * INTERVALS, -1
    for item in text.removeprefix("[").removesuffix("]").split(","):
        limit, colon, value = (part.strip() for part in item.partition(":"))
        if not colon or not text.endswith("]"):
            raise ValueError(f"{key}:{text}: must be a number, or [MiB:number,...,>:number]")
        if limit == ">":
            divisions[last + 1 :] = [_steps(key, value)] * (INTERVALS - 1 - last)
            continue
        at = min(_steps_limit(key, limit), INTERVALS - 1)
        if last < 0:
            divisions[:at] = [_steps(key, value)] * at
        divisions[at], last = _steps(key, value), at
    return tuple(divisions)


def _steps_limit(key: str, text: str) -> int:
    size = _whole(key, text, 1, 1 << 20)
    if size & (size - 1):
        raise ValueError(f"{key}:{text}: the size in MiB must be a power of two")
    return size.bit_length() - 1


def _page_size(key: str, text: str) -> bool:
    if text != "1g":
        raise ValueError(f"{key}:{text}: must be 1g")
    return True


_KEYS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "max_split_size_mb": ("max_split_bytes", _megabytes(20)),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _megabytes(20)),
    "garbage_collection_threshold": ("garbage_collection_threshold", _threshold),
    "expandable_segments": ("expandable_segments", _switch),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "large_segment_size_mb": ("large_segment_bytes", _megabytes(20, 512)),
    "segment_size_mb": ("large_segment_bytes", _megabytes(20, 512)),  # its old name
    "per_process_memory_fraction": ("per_process_memory_fraction", _fraction),
    "page_size": ("page_size_1g", _page_size),
    "throw_on_npumalloc_oom": ("throw_on_npumalloc_oom", _switch),
}
# of alignment, the pinned host cache and locks: read, but no result here shows them
_UNMODELLED: dict[str, Callable[[str, str], object]] = {
    "base_addr_aligned_kb": _alignment,
    "pinned_use_background_threads": _switch,
    "pinned_max_round_threshold_mb": _count,
    "pinned_max_cached_size_mb": _count,
    "pin_memory_expandable_segments": _switch,
    "pinned_mem_register": _switch,
    "pinned_reserve_segment_size_mb": _count,
    "multi_stream_lazy_reclaim": _switch,
    "release_lock_on_npumalloc": _switch,
}


_COMMAS = r",(?![^\[]*\])"  # outside brackets


def parse_allocator_options(text: str) -> AllocatorOptions:
    """Return the options that a string such as ``"max_split_size_mb:64,garbage_collection_threshold:0.8"`` sets.

    The keys are those of torch_npu. Keys of alignment, of its pinned host cache and of its locking are
    accepted and change nothing.

    Raises:
      TypeError: It is no text.
      ValueError: A key is unknown or given twice, a value is outside its range, or keys exclude each other:
        ``expandable_segments:True`` goes with neither ``max_split_size_mb`` nor ``garbage_collection_threshold``.

    >>> parse_allocator_options("max_split_size_mb:64").max_split_bytes >> 20
    64
    """
    if not isinstance(text, str):
        raise TypeError(f"options = {text!r}: must be a text such as 'max_split_size_mb:64'")
    seen: dict[str, object] = {}
    given: set[str] = set()
    for item in filter(None, (part.strip() for part in re.split(_COMMAS, text))):
        key, colon, value = (part.strip() for part in item.partition(":"))
        if not colon or not value:
            raise ValueError(f"{item!r}: must be key:value, separated by commas")
        if key in given:
            raise ValueError(f"{key} is given twice in {text!r}")
        given.add(key)
        if key in _UNMODELLED:
            _UNMODELLED[key](key, value)
            continue
        if key not in _KEYS:
            close = ", ".join(difflib.get_close_matches(key, [*_KEYS, *_UNMODELLED], n=3)) or ", ".join(_KEYS)
            raise ValueError(f"{key} is no option of the allocator; close names: {close}")
        field, read = _KEYS[key]
        if field in seen:
            raise ValueError(f"{key}:{value}: the same option is given under its other name; leave one of them out")
        seen[field] = read(key, value)
    options = AllocatorOptions(**seen)  # type: ignore[arg-type]
    if options.expandable_segments:
        for key in ("max_split_size_mb", "garbage_collection_threshold"):
            if key in given:
                raise ValueError(f"expandable_segments:True and {key} exclude each other; leave one of them out")
    return options
