"""The allocator in plain Python: address order, first fit, whole pages."""

SUCCESS, INVALID_PARAM, RT_PARAM_INVALID, MEMORY_ALLOCATION, HEAP_FULL = 0, 100000, 107000, 207001, 900004
GRANULE = 64
HBM_FIRST = 2 << 20  # byte address of the first allocatable byte
HOST_FIRST = (-(2**31) + 1) * GRANULE


class Pages:
    """First-fit allocator over byte addresses; one instance per memory."""

    def __init__(self, first: int, end: int, max_blocks: int, *, pad: int = 0, paged: bool = True) -> None:
        self.first, self.end, self.max_blocks, self.pad, self.paged = first, end, max_blocks, pad, paged
        self.blocks: dict[int, tuple[int, int]] = {}  # address -> (bytes taken, bytes asked)
        self.peak = 0

    @property
    def used(self) -> int:
        return sum(taken for taken, _ in self.blocks.values())

    def malloc(self, nbytes: int, policy: int = 0) -> tuple[int, int]:
        """Return (status, granule pointer); three bits of a policy are wishes that change nothing."""
        policy -= sum(policy & bit for bit in (0x100, 0x1000, 0x100000))
        if not 0 <= policy <= 7:
            policy = 1 if nbytes >= 2 << 20 else 2
        if nbytes <= 0:
            return INVALID_PARAM, 0
        if len(self.blocks) == self.max_blocks:
            return HEAP_FULL, 0
        for taken, page in self._tries(nbytes, policy):
            address = self._gap(taken, page)
            if address is not None:
                self.blocks[address] = (taken, nbytes)
                self.peak = max(self.peak, self.used)
                return SUCCESS, address // GRANULE
        return MEMORY_ALLOCATION, 0

    def _tries(self, nbytes: int, policy: int) -> list[tuple[int, int]]:
        if not self.paged:
            return [(_up(nbytes, GRANULE), GRANULE)]
        small, huge, giant = 4 << 10, 2 << 20, 1 << 30
        if policy in (6, 7):
            return [(_up(nbytes, giant), giant)]
        size, kind = _up(nbytes, 32) + self.pad, policy % 3
        if kind == 1:
            pages = [huge]
        elif kind == 2:
            pages = [small]
        else:
            pages = [small] if nbytes <= 1 << 20 else [huge, small]
        return [(_up(size, page), page) for page in pages]

    def _gap(self, size: int, align: int) -> int | None:
        opening = self.first
        for start in [*sorted(self.blocks), self.end]:
            address = _up(opening, align)
            if address + size <= start:
                return address
            opening = start + self.blocks[start][0] if start in self.blocks else start
        return None

    def free(self, pointer: int) -> int:
        if pointer == 0:
            return INVALID_PARAM
        if pointer * GRANULE not in self.blocks:
            return RT_PARAM_INVALID
        del self.blocks[pointer * GRANULE]
        return SUCCESS

    def holds(self, address: int, nbytes: int) -> bool:
        return any(s <= address and address + nbytes <= s + asked for s, (_, asked) in self.blocks.items())


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
