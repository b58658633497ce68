"""Expandable segments in plain Python: addresses without end, and chunks of device memory behind some of them.

A space is a row of pieces of which some are holes, where no memory is mapped. Every chunk of the others lies at the
lowest place of the device where it fits; chunks that follow each other in both orders share one row of its table.
"""

from tests.runtime.cache_twin_parts import Piece, Run

ENDLESS = 1 << 50
PAGE = 2 << 20


class Space(Run):
    def __init__(self, address, stream, small, unit):
        super().__init__(address, stream, small, ENDLESS)
        self.pieces[0].state = "hole"
        self.unit, self.frames = unit, {}  # number of the chunk -> device address

    @property
    def size(self):
        return len(self.frames) * self.unit

    def ranges(self):
        firsts = [number for number in sorted(self.frames) if number - 1 not in self.frames]
        lasts = [number for number in sorted(self.frames) if number + 1 not in self.frames]
        return [
            (self.address + low * self.unit, (high + 1 - low) * self.unit)
            for low, high in zip(firsts, lasts, strict=True)
        ]

    def reach(self, piece):
        """Return how large a block is with the hole behind it."""
        behind = self.pieces[self.pieces.index(piece) + 1 :][:1]
        return piece.size + sum(one.size for one in behind if one.state == "hole")

    def room(self, size):
        """Return the first of some pieces without users that are ``size`` together and have a hole, or None."""
        for index, piece in enumerate(self.pieces):
            if piece.state != "hole":
                continue
            first = index - 1 if index and self.pieces[index - 1].state == "idle" else index
            total = 0
            for one in self.pieces[first:]:
                if one.state not in ("idle", "hole"):
                    break
                total += one.size
            if total >= size:
                return self.pieces[first]
        return None

    def settle(self, piece):
        """Join a piece to neighbours in the same state; return what it became."""
        at = self.pieces.index(piece)
        for other in (at + 1, at - 1):
            if 0 <= other < len(self.pieces) and self.pieces[other].state == piece.state:
                piece.size += self.pieces[other].size
                piece.age = 0
        self.pieces = [one for index, one in enumerate(self.pieces) if abs(index - at) != 1 or one.state != piece.state]
        return piece

    def map(self, hole, nbytes, device):
        """Put memory behind the front of a hole; return the block that this becomes, or None: then nothing changes."""
        first, kept, rows = (self.where(hole) - self.address) // self.unit, dict(self.frames), dict(device.blocks)
        for number in range(first, first + nbytes // self.unit):
            place = device._gap(self.unit, PAGE)
            before = self.frames.get(number - 1)
            if place is not None and before is not None and before + self.unit == place:
                row = max(start for start in device.blocks if start <= before)
                device.blocks[row] = (device.blocks[row][0] + self.unit,) * 2
            elif place is None or len(device.blocks) == device.max_blocks:
                self.frames, device.blocks = kept, rows
                return None
            else:
                device.blocks[place] = (self.unit, self.unit)
            self.frames[number] = place
        block = Piece(nbytes)
        at = self.pieces.index(hole)
        hole.size -= nbytes
        self.pieces[at : at + 1] = [block, hole] if hole.size else [block]
        return self.settle(block)

    def unmap(self, low, high, device):
        """Take the memory behind some addresses away."""
        for number in range((low - self.address) // self.unit, (high - self.address) // self.unit):
            place = self.frames.pop(number)
            row = max(start for start in device.blocks if start <= place)
            end = row + device.blocks.pop(row)[0]
            for start, stop in ((row, place), (place + self.unit, end)):
                if start < stop:
                    device.blocks[start] = (stop - start,) * 2

    def punch(self, piece, low, high):
        """Make a hole of a part of a block."""
        at, start = self.pieces.index(piece), self.where(piece)
        hole, behind = Piece(high - low), Piece(start + piece.size - high)
        hole.state = "hole"
        piece.size = low - start
        self.pieces[at : at + 1] = [one for one in (piece, hole, behind) if one.size]
        self.settle(hole)
