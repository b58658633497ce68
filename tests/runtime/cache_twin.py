"""The caching allocator in plain Python: device runs that are cut into pieces, written from the rules of torch_npu."""

from tests.runtime.cache_twin_parts import Books, Piece, Run
from tests.runtime.pages import GRANULE, HBM_FIRST, Pages
from tests.runtime.space_twin import Space

MIB = 1 << 20


class Full(Exception):
    """Nothing is left that could be given back."""


class CacheTwin:
    def __init__(self, end, max_blocks, queues, *, split=None, rounding=20 * MIB, threshold=0.0, divisions=0,
                 large=20 * MIB, fraction=None, expandable=False, throws=False, pad=32, max_ranges=8):  # fmt: skip
        self.device, self.queues = Pages(HBM_FIRST, end, max_blocks), queues
        self.max_ranges, self.hint = max_ranges, None
        self.split, self.rounding, self.divisions = split, rounding, divisions
        self.large, self.expandable, self.throws, self.pad = large, expandable, throws, pad
        self.limit = None if fraction is None else int(end * fraction)
        self.threshold = 0.0 if fraction is None else threshold  # torch_npu collects only where a fraction was set
        self.runs, self.books = [], Books()
        self.bump, self.counts = self.books.bump, self.books.counts

    def is_over(self, size):
        return self.split is not None and size >= self.split

    @property
    def reserved(self):
        return sum(run.size for run in self.runs)

    def stats(self):
        return self.books.stats() | {"max_split_size": -1 if self.split is None else self.split}

    def layout(self):
        """Return every piece as (address, size, asked, state, stream), and every run as (address, size)."""
        pieces = [
            (run.where(one), one.size, one.asked, one.state, run.stream)
            for run in self.runs
            for one in run.pieces
            if one.state != "hole"
        ]
        return sorted(pieces), sorted(span for run in self.runs for span in run.ranges())

    # -- sizes
    def rounded(self, nbytes):
        size = nbytes + self.pad
        divisions = self.divisions
        if isinstance(
            divisions, list
        ):  # (from so many MiB on, steps), in order; the first counts for smaller sizes too
            divisions = ([divisions[0][1]] + [steps for first, steps in divisions if size >= first * MIB])[-1]
        if divisions > 1 and size > 512 * divisions:
            floor = 1
            while floor * 2 <= size:
                floor *= 2
            value = floor
            while value < size:
                value += floor // divisions
            return value
        return max(512, (size + 511) // 512 * 512)

    def segment(self, size):
        if size <= MIB:
            return 2 * MIB
        return self.large if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)

    def chunk(self, small):
        return 2 * MIB if small else (self.large + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)

    # -- calls
    def alloc(self, nbytes, stream, hint=None):
        """Return a pointer; ``hint`` is where a segment of addresses begins, should one begin: any place will do."""
        self.hint = hint
        if nbytes == 0:
            return 0
        self.reclaim()
        size = self.rounded(nbytes)
        small = size <= MIB
        if self.threshold:
            for run in self.runs:
                for piece in run.pieces if run.small == small else ():
                    piece.age += piece.state == "idle"
        found = self.search(size, stream, small) or self.extend(size, stream, small)
        run, piece = found
        was_split = len(run.pieces) > 1
        rest = piece.size - size
        cuts = rest >= 512 if small or self.expandable else rest > MIB and not self.is_over(size)
        if cuts:
            run.pieces.insert(run.pieces.index(piece) + 1, Piece(rest))
            piece.size = size
        if not self.expandable:
            change = (-size if was_split else rest) if cuts else (-piece.size if was_split else 0)
            self.bump("inactive_split_bytes", small, change)
            self.bump("inactive_split", small, (0 if was_split else 1) if cuts else (-1 if was_split else 0))
        piece.asked, piece.state, piece.age = nbytes, "used", 0
        for name, by in (("allocation", 1), ("allocated_bytes", piece.size), ("active", 1),
                         ("active_bytes", piece.size), ("requested_bytes", nbytes)):  # fmt: skip
            self.bump(name, small, by)
        self.bump("oversize_allocations", small, int(self.is_over(piece.size)))
        return run.where(piece) // GRANULE

    def find(self, pointer):
        for run in self.runs:
            for piece in run.pieces:
                if piece.state == "used" and run.where(piece) == pointer * GRANULE:
                    return run, piece
        raise KeyError(pointer)

    def record(self, pointer, stream):
        run, piece = self.find(pointer)
        if stream != run.stream:
            piece.users.add(stream)

    def free(self, pointer):
        run, piece = self.find(pointer)
        self.bump("allocation", run.small, -1)
        self.bump("allocated_bytes", run.small, -piece.size)
        self.bump("oversize_allocations", run.small, -int(self.is_over(piece.size)))
        if piece.users:
            piece.marks, piece.users, piece.state = dict.fromkeys(piece.users, self.queues.count), set(), "waiting"
        else:
            self.idle(run, piece)

    def idle(self, run, piece):
        self.bump("active", run.small, -1)
        self.bump("active_bytes", run.small, -piece.size)
        self.bump("requested_bytes", run.small, -piece.asked)
        piece.asked, piece.state, piece.marks, piece.age = 0, "idle", {}, 0
        blocks, nbytes = 0, 0
        for step in (-1, 1):
            at = run.pieces.index(piece) + step
            if 0 <= at < len(run.pieces) and run.pieces[at].state == "idle":
                other = run.pieces.pop(at)
                piece.size += other.size
                blocks, nbytes = blocks - 1, nbytes - other.size
        if len(run.pieces) > 1:
            blocks, nbytes = blocks + 1, nbytes + piece.size
        if not self.expandable:
            self.bump("inactive_split", run.small, blocks)
            self.bump("inactive_split_bytes", run.small, nbytes)

    def reclaim(self, *, is_all=False):
        waiting = [(run.where(one), run, one) for run in self.runs for one in run.pieces if one.state == "waiting"]
        for _, run, piece in sorted(waiting, key=lambda entry: entry[0]):  # torch_npu leaves the order open
            if is_all or all(self.queues.is_past(stream, mark) for stream, mark in piece.marks.items()):
                self.idle(run, piece)

    def search(self, size, stream, small):
        ours = [run for run in self.runs if (run.stream, run.small) == (stream, small)]
        fit = [(run, one) for run in ours for one in run.pieces if one.state == "idle" and one.size >= size]
        fit.sort(key=lambda pair: (pair[1].size, pair[0].where(pair[1])))
        while self.expandable and len(fit) > 1 and fit[1][0].reach(fit[1][1]) < fit[0][0].reach(fit[0][1]):
            del fit[0]  # what can still grow counts as large as it can become
        if not fit:
            return None
        piece = fit[0][1]
        if self.is_over(piece.size) and not self.is_over(size):
            return None
        if self.is_over(size) and piece.size >= size + self.rounding:
            return None
        return fit[0]

    # -- the device
    def extend(self, size, stream, small):
        self.collect()
        found = self.take(size, stream, small)
        if found is None and self.split is not None and self.drop_oversize(size, stream, small):
            found = self.take(size, stream, small)
        if found is None:
            self.empty()
            self.counts["num_alloc_retries"] += 1
            found = self.take(size, stream, small)
        if found is None:
            self.counts["num_ooms"] += 1
            is_over = self.limit is not None and self.reserved + self.segment(size) > self.limit
            self.counts["num_oom_rejections"] += int(self.throws and is_over)
            raise Full
        return found

    def take(self, size, stream, small):
        length = self.segment(size)
        if self.limit is not None and self.reserved + length > self.limit:
            return None
        if self.expandable:
            return self.stretch(size, stream, small)
        return self.begin(length, stream, small)

    def whole(self, size, small):
        return -(-size // self.chunk(small)) * self.chunk(small)

    def begin(self, length, stream, small):
        code, pointer = self.device.malloc(length)
        if code:
            return None
        run = Run(pointer * GRANULE, stream, small, length)
        self.runs.append(run)
        self.gained(small, length)
        return run, run.pieces[0]

    def gained(self, small, length):
        self.counts["num_device_alloc"] += 1
        self.bump("reserved_bytes", small, length)
        if not self.expandable:
            self.bump("segment", small, 1)
            self.bump("oversize_segments", small, int(self.is_over(length)))

    def stretch(self, size, stream, small):
        ours = [run for run in self.runs if (run.stream, run.small) == (stream, small)]
        rooms = [(run, run.room(size)) for run in sorted(ours, key=lambda run: run.address)]
        rooms = [pair for pair in rooms if pair[1] is not None]
        if not rooms:
            space = Space((self.hint or 0) * GRANULE, stream, small, self.chunk(small))
            rooms = [(space, space.pieces[0])]
        run, piece = rooms[0]
        while piece.state == "hole" or piece.size < size:
            have = 0 if piece.state == "hole" else piece.size
            hole = piece if piece.state == "hole" else run.pieces[run.pieces.index(piece) + 1]
            length = min(self.whole(size - have, small), hole.size)
            spans = {span for one in {*self.runs, run} for span in one.ranges()}
            lo = run.where(hole)
            touches = sum(at + nbytes == lo or at == lo + length for at, nbytes in run.ranges())
            block = run.map(hole, length, self.device) if len(spans) + 1 - touches <= self.max_ranges else None
            if block is None:
                return None
            if run not in self.runs:
                self.runs.append(run)
            self.gained(small, length)
            piece = block
        return run, piece

    def drop(self, run):
        self.device.free(run.address // GRANULE)
        self.runs.remove(run)
        self.counts["num_device_free"] += 1
        for name, by in (
            ("segment", 1),
            ("reserved_bytes", run.size),
            ("oversize_segments", int(self.is_over(run.size))),
        ):
            self.bump(name, run.small, -by)

    def idle_runs(self):
        return [run for run in self.runs if len(run.pieces) == 1 and run.pieces[0].state == "idle"]

    def drop_oversize(self, size, stream, small):
        self.queues.wait(self.queues.ends)
        need = max(size, self.split)
        ours = [
            run for run in self.idle_runs() if (run.stream, run.small) == (stream, small) and self.is_over(run.size)
        ]
        ours.sort(key=lambda run: (run.size, run.address))
        for run in ours:
            if run.size >= need:
                self.drop(run)
                return True
        total = 0
        while ours and total < need:
            run = ours.pop()
            total += run.size
            self.drop(run)
        return total >= need

    def collect(self):
        line = int(self.threshold * (self.limit or 0))
        old = [run for run in self.idle_runs() if not run.small]
        if not self.threshold or self.reserved <= line or not old:
            return
        self.queues.wait(self.queues.ends)
        goal, freed = self.reserved - line, 0
        while freed < goal and old:
            mean = sum(run.pieces[0].age for run in old) / len(old)
            for run in [run for run in old if run.pieces[0].age >= mean]:
                freed += run.size
                old.remove(run)
                self.drop(run)

    def empty(self):
        self.queues.wait(self.queues.ends)
        self.counts["num_sync_all_streams"] += 1
        self.reclaim(is_all=True)
        if not self.expandable:
            for run in self.idle_runs():
                self.drop(run)
            return
        todo = [(run.where(one), run, one) for run in self.runs for one in run.pieces if one.state == "idle"]
        for _, run, piece in sorted(todo, key=lambda entry: entry[0]):
            self.shrink(run, piece)

    def shrink(self, run, piece):
        unit, at = run.unit, run.where(piece)
        low = run.address + -(-(at - run.address) // unit) * unit
        high = run.address + (at + piece.size - run.address) // unit * unit
        if low >= high:
            return
        frames, rows = dict(run.frames), dict(self.device.blocks)
        run.unmap(low, high, self.device)
        spans = [span for one in self.runs for span in one.ranges()]
        if len(self.device.blocks) > self.device.max_blocks or len(spans) > self.max_ranges:
            run.frames, self.device.blocks = frames, rows
            return
        run.punch(piece, low, high)
        if not run.frames:
            self.runs.remove(run)
        self.counts["num_device_free"] += 1
        self.bump("reserved_bytes", run.small, low - high)
