"""What the twin of the caching allocator is made of: runs of pieces, streams as queues, and the books.

A run is what one device allocation gave. Its pieces lie one behind the other without gaps, so a piece knows nothing of
addresses: they are sums. Streams are queues of numbered commands that end at known moments.
"""

GAUGES = ("allocation", "allocated_bytes", "segment", "reserved_bytes", "active", "active_bytes", "inactive_split",
          "inactive_split_bytes", "requested_bytes")  # fmt: skip
COUNTERS = (
    "num_alloc_retries",
    "num_ooms",
    "num_oom_rejections",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
)


class Piece:
    def __init__(self, size):
        self.size, self.asked, self.state, self.users, self.marks, self.age = size, 0, "idle", set(), {}, 0


class Run:
    def __init__(self, address, stream, small, size):
        self.address, self.stream, self.small, self.pieces = address, stream, small, [Piece(size)]

    @property
    def size(self):
        return sum(piece.size for piece in self.pieces)

    def ranges(self):
        return [(self.address, self.size)]

    def where(self, piece):
        return self.address + sum(one.size for one in self.pieces[: self.pieces.index(piece)])


class Queues:
    """Streams of tasks of fixed length, each on an engine of its own; time passes when the host waits."""

    def __init__(self, task_s):
        self.task_s, self.now, self.count, self.ends = task_s, 0.0, 0, {stream: [] for stream in task_s}

    def enqueue(self, stream):
        queue = self.ends[stream]
        begin = max(self.now, queue[-1][1] if queue else 0.0)
        queue.append((self.count, begin + self.task_s[stream]))
        self.count += 1

    def wait(self, streams):
        self.now = max([self.now, *(end for stream in streams for _, end in self.ends[stream])])

    def is_past(self, stream, mark):
        return all(end <= self.now for number, end in self.ends.get(stream, []) if number < mark)


class Books:
    """Counters, and gauges as [current, peak, allocated, freed]."""

    def __init__(self):
        pools = ("all", "small_pool", "large_pool")
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.gauges = {f"{name}.{pool}": [0, 0, 0, 0] for name in GAUGES for pool in pools}
        self.gauges |= {"oversize_allocations": [0, 0, 0, 0], "oversize_segments": [0, 0, 0, 0]}

    def bump(self, name, small, by):
        pools = ("all", "small_pool" if small else "large_pool")
        for key in (name,) if name in self.gauges else [f"{name}.{pool}" for pool in pools]:
            gauge = self.gauges[key]
            gauge[0] += by
            gauge[1] = max(gauge[1], gauge[0])
            gauge[2] += max(by, 0)
            gauge[3] += max(-by, 0)

    def stats(self):
        ends = ("current", "peak", "allocated", "freed")
        numbers = {f"{key}.{end}": gauge[i] for key, gauge in self.gauges.items() for i, end in enumerate(ends)}
        return numbers | self.counts
