"""Programs of collectives on streams of four cards, and a plain twin of what they give. As a script: CARRIER CARRIER.

The twin knows the rules only: what a call costs the host, when it meets the others, which links it holds, and that data
is read when a command starts and seen when it ends.
"""

import math
import sys

import numpy as np

import ascend_jax as aj
from ascend_jax import hccl
from ascend_jax.hccl import Collective, Topology, collective_time
from tests.hccl import plan_twin

CHIP, TOPOLOGY, CARDS = aj.chip("Ascend910B2"), Topology(4, 2), 4
SIZES = {"hbm_backing_bytes": 1 << 14, "max_streams": 3, "max_events": 1, "max_commands": 64, "max_blocks": 8}
BASE = 32768  # first granule of device memory
ARENA = 4096  # bytes; every buffer below is 512 of them
PAIRS = [(0, 1), (1, 2), (2, 3), (3, 0)]
PIECES, STARTS = [5, 0, 11, 2], [20, 3, 1, 13]  # of the verbs whose name ends in v
COUNTS = [[(3 * i + 5 * j) % 4 for j in range(CARDS)] for i in range(CARDS)]
SUM, MAX, MIN, PROD = (hccl.ReduceOp[name] for name in ("SUM", "MAX", "MIN", "PROD"))
RANKS = {"world": (0, 1, 2, 3), "halves": ((0, 3), (1, 2))}


def buffer(number):
    return BASE + 8 * number  # 512 bytes are 8 granules


# (what, stream, buffer read, buffer written, count, type, more)
STEPS = [
    ("all_reduce", 0, 0, 1, 100, "float32", SUM),
    ("copy", 2, 2, 0, 512, "uint8", None),  # races with the first one
    ("all_gather", 1, 3, 4, 25, "float32", None),
    ("broadcast", 0, 1, 1, 77, "uint8", 2),
    ("reduce", 1, 4, 5, 50, "int32", (MAX, 1)),
    ("batch", 1, 2, 6, 30, "float16", None),
    ("all_gather_v", 0, 1, 7, 0, "uint16", None),
    ("scatter", 0, 3, 7, 20, "int16", 3),
    ("barrier", 1, 0, 0, 0, "uint8", None),
    ("reduce_scatter", 0, 7, 2, 10, "int64", SUM),
    ("all_to_all", 0, 2, 3, 16, "int32", None),
    ("pairs", 1, 6, 5, 64, "bfloat16", None),
    ("all_to_all_v", 0, 3, 4, 0, "int16", None),
    ("reduce_scatter_v", 1, 5, 5, 0, "int8", PROD),
    ("halves", 0, 4, 6, 33, "float32", SUM),
    ("copy", 2, 6, 0, 512, "uint8", None),
]


def program(comm, halves):
    """Return the program of a card: every step after a delay of its own; it does not wait."""

    def queue(card, delays):
        codes = []
        for number, (what, stream, read, written, count, dtype, more) in enumerate(STEPS):
            card = aj.host_work(card, delays[number])
            src, dst = buffer(read), buffer(written)
            match what:
                case "copy":
                    card = aj.memcpy_async(card, dst, src, count, stream)
                case "all_reduce":
                    card = hccl.HcclAllReduce(card, src, dst, count, dtype, more, comm, stream)
                case "halves":
                    card = hccl.HcclAllReduce(card, src, dst, count, dtype, more, halves, stream)
                case "all_gather":
                    card = hccl.HcclAllGather(card, src, dst, count, dtype, comm, stream)
                case "broadcast":
                    card = hccl.HcclBroadcast(card, dst, count, dtype, more, comm, stream)
                case "reduce":
                    card = hccl.HcclReduce(card, src, dst, count, dtype, *more, comm, stream)
                case "scatter":
                    card = hccl.HcclScatter(card, src, dst, count, dtype, more, comm, stream)
                case "reduce_scatter":
                    card = hccl.HcclReduceScatter(card, src, dst, count, dtype, more, comm, stream)
                case "all_to_all":
                    card = hccl.HcclAlltoAll(card, src, count, dtype, dst, count, dtype, comm, stream)
                case "all_to_all_v":
                    card = hccl.HcclAlltoAllVC(card, src, COUNTS, dtype, dst, dtype, comm, stream)
                case "all_gather_v":
                    card = hccl.HcclAllGatherV(card, src, PIECES, dst, PIECES, STARTS, dtype, comm, stream)
                case "reduce_scatter_v":
                    counts = PIECES, STARTS
                    card = hccl.HcclReduceScatterV(card, src, *counts, dst, PIECES, dtype, more, comm, stream)
                case "barrier":
                    card = hccl.HcclBarrier(card, comm, stream)
                case "batch":
                    items = [
                        hccl.SendRecvItem(True, src, count, dtype, [1, 2, 3, 0]),
                        hccl.SendRecvItem(False, dst, count, dtype, [3, 0, 1, 2]),
                    ]
                    card = hccl.HcclBatchSendRecv(card, items, comm, stream)
                case "pairs":
                    card = hccl.HcclSend(card, src, count, dtype, [1, -1, 3, -1], comm, stream)
                    card = hccl.HcclRecv(card, dst, count, dtype, [-1, 0, -1, 2], comm, stream)
            codes.append(aj.last_code(card))
        return card, jnp.stack(codes)

    import jax.numpy as jnp

    return queue


def made(carrier=None):
    """Return a cluster with two communicators and one block of memory, and the program."""
    cluster = aj.cluster(CHIP, CARDS, topology=TOPOLOGY, carrier=carrier, **SIZES)
    cluster, comm = hccl.comm_init_all(cluster)
    cluster, halves = hccl.comm_init(cluster, comm.sub([0, 1, 2, 3]).split([0, 1, 1, 0], name="halves"))
    cluster = aj.on_cards(cluster, start)[0]
    return cluster, program(comm, halves)


def start(card):
    card, pointer = aj.malloc(card, ARENA)
    for _ in range(2):
        card, _ = aj.create_stream(card)
    return card, pointer


def run(cluster, queue, memory, delays, *, together):
    """Return the cluster after the program, and the codes of all calls; ``memory`` uint8 [C, ARENA].

    Cards queue ``together`` in one compiled program, or one after another call by call, which takes less compiling.
    """
    import dataclasses

    held = cluster.cards.memory.at[:, :ARENA].set(memory)
    cluster = dataclasses.replace(cluster, cards=dataclasses.replace(cluster.cards, memory=held))
    if together:
        cluster, codes = aj.on_cards(cluster, queue, delays)
    else:
        codes = []
        for card in range(CARDS):
            cluster, own = hccl.on_card(cluster, card, queue, delays[card])
            codes.append(own)
    return hccl.synchronize_device(cluster), np.asarray(codes)


# ---- the twin


def parts(what, count, dtype):
    """Return (collective of the cost forms, bytes of the larger buffer, ranks of the groups)."""
    import ml_dtypes  # noqa: F401

    size = np.dtype(dtype).itemsize
    groups = RANKS["halves"] if what == "halves" else (RANKS["world"],)
    spread = 4 if what in ("all_gather", "reduce_scatter", "scatter", "all_to_all") else 1
    if what == "all_to_all_v":
        table = np.array(COUNTS)
        return Collective.ALL_TO_ALL, max(table.sum(0).max(), table.sum(1).max()) * size, groups
    if what.endswith("_v"):
        return Collective(what[:-2]), max(PIECES) * CARDS * size, groups
    name = {"halves": "all_reduce", "batch": "send_recv", "pairs": "send_recv"}.get(what, what)
    return Collective(name), 4 if what == "barrier" else count * size * spread, groups


def wanted(memory, delays, clocks):
    """Return (memory at the end, (start, end) of each collective of each card in order)."""
    cost = {name: float(CHIP[name]) for name in ("host_launch_ns", "host_copy_enqueue_ns")}
    cards, effects = [[] for _ in range(CARDS)], [[] for _ in range(CARDS)]
    number = {}
    for step, (what, stream, read, written, count, dtype, more) in enumerate(STEPS):
        for card in range(CARDS):
            clocks[card] += int(delays[card][step])
            clocks[card] += math.ceil(cost["host_copy_enqueue_ns" if what == "copy" else "host_launch_ns"])
            if what == "copy":
                piece = float(CHIP["copy_latency_ns"]) + count * np.float32(1e9) / np.float32(CHIP["d2d_bytes_per_s"])
                task = plan_twin.Task(stream, (), math.ceil(piece), issue=clocks[card])
            else:
                task = collective_task(what, stream, count, dtype, card, clocks[card], number)
            cards[card].append(task)
            effects[card].append((what, read, written, count, dtype, more))
    plan_twin.run(cards)
    return apply(memory.copy(), cards, effects), [
        [(task.start, task.through) for task in card if task.call is not None] for card in cards
    ]


def collective_task(what, stream, count, dtype, card, issue, number):
    collective, nbytes, groups = parts(what, count, dtype)
    pairs = {"pairs": ((0, 1), (2, 3))}.get(what, groups)
    group = next(one for one in pairs if card in one)
    if what == "batch":
        known = max(
            (collective_time(CHIP, TOPOLOGY, collective, nbytes, pair) for pair in PAIRS), key=lambda k: k.time_ns
        )
    else:
        known = collective_time(CHIP, TOPOLOGY, collective, nbytes, group)
    share = min(int(256 * (known.time_ns - known.latency_ns) / known.time_ns), 255)
    links = plan_twin.links_of(card, group, 2, pair=collective == Collective.SEND_RECV)
    name = what if what in ("pairs", "halves") else "world"
    key = name, card
    number[key] = number.get(key, 0) + 1
    return plan_twin.Task(stream, (), round(known.time_ns), (name, group), number[key], share, links, issue=issue)


def apply(memory, cards, effects):
    """Apply reads at starts and writes at ends, in order of time; at one instant what ended comes first."""
    moments = []
    for card, tasks in enumerate(cards):
        for index, task in enumerate(tasks):
            end = task.end if task.call is None else task.through
            moments += [(task.start, 1, card, index), (end, 0, card, index)]
    results = {}
    for _, is_start, card, index in sorted(moments):
        written = effects[card][index][2]
        if is_start:
            results[card, index] = result_of(memory, cards, card, index, effects[card][index])
        else:
            new = results[card, index]
            memory[card, 512 * written : 512 * written + len(new)] = new
    return memory


def result_of(memory, cards, card, index, effect):
    """Return the bytes that a command writes, given what all cards hold as it starts."""
    import ml_dtypes

    what, read, written, count, dtype, more = effect
    kind = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    place = slice(512 * read, 512 * read + 512)
    old = memory[card, 512 * written : 512 * written + 512].copy()
    if what == "copy":
        return memory[card, place].copy()
    group = cards[card][index].call[1]
    rank = group.index(card)
    held = [memory[other, place].copy().view(kind) for other in group]
    fold = {SUM: np.add, MAX: np.maximum, MIN: np.minimum, PROD: np.multiply}

    def reduced(op, size):
        total = held[0][:size]
        with np.errstate(all="ignore"):
            for one in held[1:]:
                total = fold[op](total, one[:size]).astype(kind)
        return total

    match what:
        case "all_reduce" | "halves":
            new = reduced(more, count)
        case "reduce":
            new = reduced(more[0], count) if rank == more[1] else old[:0]
        case "reduce_scatter":
            new = reduced(more, 4 * count)[rank * count : (rank + 1) * count]
        case "all_gather":
            new = np.concatenate([one[:count] for one in held])
        case "broadcast":
            new = memory[group[more], 512 * written : 512 * written + count].copy()
        case "scatter":
            new = held[more][rank * count : (rank + 1) * count]
        case "all_to_all":
            new = np.concatenate([one[rank * count : (rank + 1) * count] for one in held])
        case "all_to_all_v":
            starts = [sum(COUNTS[i][:rank]) for i in range(4)]
            new = np.concatenate([held[i][starts[i] : starts[i] + COUNTS[i][rank]] for i in range(4)])
        case "all_gather_v":
            new = old.copy().view(kind)[: max(at + n for at, n in zip(STARTS, PIECES, strict=True))]
            for one, at, n in zip(held, STARTS, PIECES, strict=True):
                new[at : at + n] = one[:n]
        case "reduce_scatter_v":
            new = reduced(more, 64)[STARTS[rank] : STARTS[rank] + PIECES[rank]]
        case "batch":
            new = held[rank - 1][:count]
        case "pairs":
            new = held[0][:count] if rank == 1 else old[:0]
        case "barrier":
            new = old[:0]
    return np.ascontiguousarray(new).view(np.uint8)


def draw(seed):
    """Return memory of all cards, and delays before each step."""
    rng = np.random.default_rng(seed)
    memory = rng.integers(0, 256, (CARDS, ARENA), dtype=np.uint8)
    floats = rng.standard_normal((CARDS, 3 * 128)).astype(np.float32)
    memory[:, :512], memory[:, 1024:2048] = floats[:, :128].view(np.uint8), floats[:, 128:].view(np.uint8)
    return memory, rng.choice([0, 100, 3000, 40_000], (CARDS, len(STEPS)))


def check(carrier, seeds):
    """Compare a carrier with the twin."""
    from ascend_jax.runtime.clock import to_ns
    from ascend_jax.runtime.layout import Clock, Field, Kind, Time

    cluster, queue = made(carrier)
    for seed in seeds:
        memory, delays = draw(seed)
        clocks = to_ns(cluster.cards.clock[:, Clock.HOST_HI], cluster.cards.clock[:, Clock.HOST_LO]).tolist()
        after, codes = run(cluster, queue, memory, delays, together=carrier != "vmap")
        assert (codes == 0).all(), codes
        assert (np.asarray(aj.first_failure(after.cards)) == 0).all()
        bytes_wanted, spans = wanted(memory, delays, clocks)
        fields, times = np.asarray(after.cards.table.fields), np.asarray(after.cards.table.times)
        for card in range(CARDS):
            rows = np.flatnonzero(fields[card, :, Field.KIND] == Kind.COLLECTIVE)
            rows = rows[np.argsort(fields[card, rows, Field.SEQUENCE])]
            mine = times[card, rows]
            given = zip(
                to_ns(mine[:, Time.START_HI], mine[:, Time.START_LO]).tolist(),
                to_ns(mine[:, Time.END_HI], mine[:, Time.END_LO]).tolist(),
                strict=True,
            )
            assert list(given) == spans[card], f"seed {seed}, card {card}"
        different = np.argwhere(np.asarray(after.cards.memory)[:, :ARENA] != bytes_wanted)
        assert not len(different), f"seed {seed}: card, byte {different[:5].tolist()} of {len(different)}"


def check_ring(carriers):
    """Ring attention under some carriers and vmap: products are compiled for each, so equal to rounding only."""
    import functools

    from ascend_jax import ops

    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 32, 2, 8)).astype(np.float32)
    parts = [ops.shard_sequence(x, CARDS, causal=True) for x in (q, k, v)]
    ring = functools.partial(ops.ring_attention, causal=True)
    first, *others = (np.asarray(hccl.carry(ring, CARDS, one)(*parts)) for one in ("vmap", *carriers))
    assert max(np.abs(other - first).max() for other in others) <= 2e-6


if __name__ == "__main__":
    hccl.set_host_devices(CARDS)
    check_ring(sys.argv[1:])
    all_steps = list(STEPS)
    for carrier, numbers in zip(sys.argv[1:], ((0, 1, 2, 3, 6), (0, 1, 13)), strict=True):
        STEPS[:] = [all_steps[number] for number in numbers]  # few, as each device compiles for itself
        check(carrier, range(2))
    print("equal")
