"""Random programs of the caching allocator under random options, run on a card and on its twin side by side."""

import random

import ascend_jax as aj
from ascend_jax.runtime.layout import HeapEntry, HeapWord
from tests.runtime.cache_twin import MIB, CacheTwin, Full
from tests.runtime.cache_twin_parts import Queues

LENGTH = 40
HBM_BYTES, MAX_BLOCKS = 162 * MIB, 24
TASKS = {1: 64, 2: 50}  # bytes that a task of a side stream moves, at 1 byte/s: far longer than all calls together


def fresh_card():
    """Return a card with two side streams, and two pointers that their tasks use."""
    chip = aj.chip("Ascend910B2").replace(hbm_bytes=HBM_BYTES, d2d_bytes_per_s=1.0, h2d_bytes_per_s=1.0)
    card = aj.init(chip, hbm_backing_bytes=0, host_backing_bytes=4096, max_commands=64, max_streams=3, max_events=1,
                   max_blocks=MAX_BLOCKS)  # fmt: skip
    card, one = aj.create_stream(card)
    card, two = aj.create_stream(card)
    card, here = aj.malloc(card, 64)
    card, host = aj.malloc_host(card, 64)
    assert (int(one), int(two)) == (1, 2)
    return card, int(here), int(host)


def draw_options(rng):
    """Return an option string and the same options for the twin."""
    text, given = [], {}

    def add(name, value, key, meant):
        text.append(f"{name}:{value}")
        given[key] = meant

    if rng.random() < 0.3:
        add("expandable_segments", True, "expandable", True)
    else:
        if rng.random() < 0.5:
            size = rng.choice([20, 21, 30, 45])
            add("max_split_size_mb", size, "split", size * MIB)
        if rng.random() < 0.4:
            share = rng.choice([0.15, 0.4, 0.7])
            add("garbage_collection_threshold", share, "threshold", share)
    if rng.random() < 0.3:
        size = rng.choice([20, 24, 40])
        add("max_non_split_rounding_mb", size, "rounding", size * MIB)
    if rng.random() < 0.3:
        few = [("[1:4,2:8,4:0,8:2,16:1,32:4,>:2]", [(1, 4), (2, 8), (4, 0), (8, 2), (16, 1), (32, 4), (64, 2)])]
        spelled, meant = rng.choice([*few, *((count, count) for count in (1, 2, 4, 16))])
        add("roundup_power2_divisions", spelled, "divisions", meant)
    if rng.random() < 0.3:
        size = rng.choice([21, 24, 40])
        add("large_segment_size_mb", size, "large", size * MIB)
    if rng.random() < 0.3:
        share = rng.choice([0.35, 0.6, 1.0])
        add("per_process_memory_fraction", share, "fraction", share)
        if rng.random() < 0.5:
            add("throw_on_npumalloc_oom", True, "throws", True)
    rng.shuffle(text)
    return ",".join(text), given


def draw_size(rng, is_expandable):
    if is_expandable and rng.random() < 0.7:  # blocks of about a chunk, so that holes arise between them
        return rng.choice([rng.randrange(3 * MIB // 4, MIB), rng.randrange(12 * MIB, 22 * MIB)])
    edges = [0, 1, 480, 481, 512, MIB - 32, MIB - 31, 10 * MIB - 33, 10 * MIB, 20 * MIB - 32, 45 * MIB]
    ranges = [5000, MIB, 9 * MIB, 30 * MIB, 70 * MIB]
    return rng.choice(edges) if rng.random() < 0.15 else rng.randrange(1, rng.choice(ranges))


def run(seed, card, here, host):
    """Run one program; return how many calls were equal, and the first difference or None."""
    rng = random.Random(seed)
    text, given = draw_options(rng)
    pad = rng.choice([0, 32])
    cache = aj.caching_allocator(card, text, pad_bytes=pad)
    twin = CacheTwin(HBM_BYTES, MAX_BLOCKS, Queues({1: 64.0, 2: 50.0}), pad=pad, **given)
    twin.device.blocks[here * 64] = (4096, 64)
    live, calls, plain = [], [], []

    def alloc(nbytes, stream):
        nonlocal cache, card
        try:
            cache, card, pointer = aj.cache_alloc(cache, card, nbytes, stream)
        except aj.CacheOutOfMemory as full:
            cache, card, pointer = full.cache, full.card, None
        try:
            expected = twin.alloc(nbytes, stream, pointer)
        except Full:
            expected = None
        if pointer:
            live.append(pointer)
        return pointer, expected

    for step in range(LENGTH):
        call = rng.choices(["alloc", "free", "record", "task", "wait", "empty", "plain"], [12, 7, 2, 2, 2, 2, 2])[0]
        pointer = expected = 0
        if call in ("free", "record") and live:
            chosen, stream = rng.choice(live), rng.choice([0, 1, 2])
            calls.append((call, chosen, stream))
            if call == "free":
                live.remove(chosen)
                cache, card = aj.cache_free(cache, card, chosen)
                twin.free(chosen)
            else:
                cache = aj.record_stream(cache, card, chosen, stream)
                twin.record(chosen, stream)
        elif call == "task":
            stream = rng.choice([1, 2])
            calls.append((call, stream))
            if stream == 1:
                card = aj.memset_async(card, here, 0, TASKS[1], 1)
            else:
                card = aj.memcpy_async(card, here, host, TASKS[2], 2)
            twin.queues.enqueue(stream)
        elif call == "wait":
            stream = rng.choice([1, 2])
            calls.append((call, stream))
            card = aj.synchronize_stream(card, stream)
            twin.queues.wait([stream])
        elif call == "plain":  # the program's own memory, between the segments
            calls.append((call,))
            if plain:
                at = plain.pop()
                card = aj.free(card, at)
                twin.device.free(at)
            else:
                code, at = twin.device.malloc(6 * MIB, 1)
                if not code:
                    card, at = aj.malloc_align32(card, 6 * MIB, 1)
                    plain.append(int(at))
        elif call == "empty":
            calls.append((call,))
            cache, card = aj.empty_cache(cache, card)
            twin.empty()
        else:
            nbytes, stream = draw_size(rng, "expandable" in given), rng.choice([0, 0, 0, 0, 0, 1, 2])
            calls.append(("alloc", nbytes, stream))
            pointer, expected = alloc(nbytes, stream)
        wrong = difference(cache, card, twin, pointer, expected)
        if wrong:
            return step, {
                "sequence": seed,
                "options": text,
                "pad": pad,
                "calls": calls,
                "card": wrong[0],
                "twin": wrong[1],
            }
    return LENGTH, None


def difference(cache, card, twin, pointer, expected):
    """Return what the card and the twin say where they first differ, or None."""
    states = {True: "used", False: "waiting"}
    pieces = sorted(
        (one.address, one.size, one.requested, "idle" if one.is_cached else states[one.is_used], one.stream)
        for one in cache.blocks.values()
    )
    runs = [(at, one.size) for at, one in cache.segments.items()]
    count = int(card.hbm.words[HeapWord.COUNT])
    starts, sizes = (card.hbm.blocks[row, :count].tolist() for row in (HeapEntry.START, HeapEntry.SIZE))
    blocks = {start * 64: size * 64 for start, size in zip(starts, sizes, strict=True)}
    pairs = [
        (("pointer", pointer), ("pointer", expected)),
        ((pieces, runs), twin.layout()),
        (blocks, {start: taken for start, (taken, _) in sorted(twin.device.blocks.items())}),
    ]
    stats, meant = aj.memory_stats(cache), twin.stats()
    pairs += [((name, stats.get(name)), (name, meant.get(name))) for name in sorted(stats.keys() | meant.keys())]
    rows, ends = aj.memory_snapshot(cache), {"total": "reserved", "allocated": "allocated", "active": "active"}
    pairs += [((name, sum(row[f"{name}_size"] for row in rows)), (name, meant[f"{end}_bytes.all.current"]))
              for name, end in ends.items()]  # fmt: skip
    pairs.append((("code", int(aj.status(card).code)), ("code", 0)))
    return next(((repr(one), repr(other)) for one, other in pairs if one != other), None)
