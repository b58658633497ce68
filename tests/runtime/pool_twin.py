"""Memory pools in plain Python: pieces in address order, best fit, what a stream gave back waits for that stream."""

from tests.runtime.pages import GRANULE, INVALID_PARAM, MEMORY_ALLOCATION, RT_PARAM_INVALID, SUCCESS

HUGE = 2 << 20
NOBODY = -1  # the stream of a piece that anybody may have
FOLLOW, OPPORTUNISTIC, INTERNAL = 1, 2, 4


def in_pages(nbytes: int) -> int:
    return -(-nbytes // HUGE) * HUGE


class Piece:
    """Bytes of a pool, in use or idle."""

    def __init__(self, start: int, size: int, *, asked: int = 0, stream: int = NOBODY, mark: int = 0) -> None:
        self.start, self.size, self.asked, self.stream, self.mark = start, size, asked, stream, mark


class PoolTwin:
    """One pool on an otherwise empty card; ``queued`` lists (number, stream, number of the record it waits for)."""

    def __init__(self, first: int, end: int, reserved: int, most: int, threshold: int, reuse: int) -> None:
        self.first, self.end, self.most, self.threshold, self.reuse = first, end, most, in_pages(threshold), reuse
        self.pieces = [Piece(first, in_pages(reserved))] if reserved else []
        self.enqueued, self.queued, self.records = 0, [], {}
        self.reserved_high = self.reserved
        self.used_high = 0

    @property
    def reserved(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def used(self) -> int:
        return sum(piece.size for piece in self.pieces if piece.asked)

    def enqueue(self, stream: int, waits_for: int = -1) -> int:
        self.queued.append((self.enqueued, stream, waits_for))
        self.records[self.enqueued] = stream
        self.enqueued += 1
        return self.enqueued - 1

    def _is_done(self, piece: Piece) -> bool:
        return all(number >= piece.mark or stream != piece.stream for number, stream, _ in self.queued)

    def _settle(self) -> None:
        for piece in self.pieces:
            if not piece.asked and self._is_done(piece):
                piece.stream = NOBODY
        self._join()

    def _join(self) -> None:
        joined: list[Piece] = []
        for piece in sorted(self.pieces, key=lambda piece: piece.start):
            last = joined[-1] if joined else None
            touches = last is not None and last.start + last.size == piece.start
            if touches and not (last.asked or piece.asked) and last.stream == piece.stream:
                last.size += piece.size
                last.mark = max(last.mark, piece.mark)
            else:
                joined.append(piece)
        self.pieces = joined

    def _is_usable(self, piece: Piece, stream: int, waits: dict[int, int]) -> bool:
        follows = self.reuse & FOLLOW and waits.get(piece.stream, -1) >= piece.mark
        return piece.stream in (stream, NOBODY) or bool(follows)

    def alloc(self, nbytes: int, stream: int, waited: list[tuple[int, int]]) -> tuple[int, int]:
        """``waited``: (waiting stream, record) of every wait so far."""
        if nbytes <= 0:
            return INVALID_PARAM, 0
        if self.reuse & OPPORTUNISTIC:
            self._settle()
        size, waits = in_pages(nbytes), {}
        for waiter, record in waited:
            if waiter == stream:
                waits[self.records[record]] = max(record, waits.get(self.records[record], -1))
        idle = [piece for piece in self.pieces if not piece.asked and piece.size >= size]
        usable = [piece for piece in idle if self._is_usable(piece, stream, waits)]
        idle = usable or (idle if self.reuse & INTERNAL else [])
        if idle:
            piece = min(idle, key=lambda piece: (piece.size, piece.start))
            ahead = [number for number, other, _ in self.queued if other == piece.stream and number < piece.mark]
            if not usable and ahead:
                waited.append((stream, max(ahead)))
                self.enqueue(stream, max(ahead))
            if piece.size > size:
                rest = Piece(piece.start + size, piece.size - size, stream=piece.stream, mark=piece.mark)
                self.pieces.append(rest)
                piece.size = size
            piece.asked = nbytes
        else:
            start = self._gap(size)
            if self.reserved + size > self.most or start is None:
                return MEMORY_ALLOCATION, 0
            piece = Piece(start, size, asked=nbytes)
            self.pieces.append(piece)
        self.reserved_high, self.used_high = max(self.reserved_high, self.reserved), max(self.used_high, self.used)
        return SUCCESS, piece.start // GRANULE

    def _gap(self, size: int) -> int | None:
        opening = self.first
        for piece in [*sorted(self.pieces, key=lambda piece: piece.start), Piece(self.end, 0)]:
            if opening + size <= piece.start:
                return opening
            opening = piece.start + piece.size
        return None

    def free(self, pointer: int, stream: int) -> int:
        if pointer == 0:
            return INVALID_PARAM
        for piece in self.pieces:
            if piece.start == pointer * GRANULE and piece.asked:
                piece.asked, piece.stream, piece.mark = 0, stream, self.enqueued
                self._join()
                return SUCCESS
        return RT_PARAM_INVALID

    def trim(self, keep: int) -> None:
        """Idle pages that no queued work can use go, the highest first, one at a time, while ``keep`` bytes stay."""
        self._settle()
        free = [piece for piece in self.pieces if not piece.asked and self._is_done(piece)]
        pages = [page for piece in free for page in range(piece.start, piece.start + piece.size, HUGE)]
        for page in sorted(pages, reverse=True):
            if self.reserved - HUGE < keep:
                break
            piece = next(piece for piece in self.pieces if piece.start <= page < piece.start + piece.size)
            piece.size = page - piece.start
            self.pieces = [piece for piece in self.pieces if piece.size]

    def destroy(self) -> None:
        """Everything idle goes except what queued work of its stream can still use."""
        self.pieces = [piece for piece in self.pieces if piece.asked or not self._is_done(piece)]

    def synchronize(self) -> None:
        self.queued.clear()
        self.trim(self.threshold)
