"""A memory pool against plain malloc and free: simulated time and fragmentation, side by side.

A loop needs buffers of changing size in two streams, each for three steps, and keeps one of eight for good. With malloc
and free the host has to wait before it may free; a pool takes a buffer back in stream order, so the host runs ahead.
"""

import random

import ascend_jax as aj

MIB = 1 << 20
STEPS = 24
KEPT = 3  # steps for which a buffer is used


def sizes() -> list[int]:
    """Return the bytes of every step's buffer."""
    rng = random.Random(0)
    return [rng.choice([1, 3, 5, 9]) * MIB for _ in range(STEPS)]


def start() -> tuple[aj.CardState, list]:
    """Return a card with two streams; it keeps times only."""
    chip = aj.chip("Ascend910B2").replace(hbm_bytes=512 * MIB)
    card, one = aj.create_stream(aj.init(chip, hbm_backing_bytes=0))
    card, other = aj.create_stream(card)
    return card, [one, other]


def with_malloc() -> aj.CardState:
    """Allocate, fill; three steps later wait and free."""
    card, streams = start()
    live = []
    for step, nbytes in enumerate(sizes()):
        stream = streams[step % 2]
        card, buffer = aj.malloc(card, nbytes)
        live.append((step, buffer, stream))
        card = aj.memset_async(card, buffer, step, nbytes, stream)
        if step >= KEPT:
            born, old, its_stream = live[step - KEPT]
            if born % 8:
                card = aj.free(aj.synchronize_stream(card, its_stream), old)
    return aj.synchronize_device(card)


def with_pool() -> tuple[aj.CardState, aj.PoolStats]:
    """Allocate from a pool, fill; three steps later give back in the order of the stream."""
    card, streams = start()
    card, pool = aj.mem_pool_create(card, 48 * MIB, release_threshold_bytes=48 * MIB)
    live = []
    for step, nbytes in enumerate(sizes()):
        stream = streams[step % 2]
        card, buffer = aj.mem_pool_alloc(card, pool, nbytes, stream)
        live.append((step, buffer, stream))
        card = aj.memset_async(card, buffer, step, nbytes, stream)
        if step >= KEPT:
            born, old, its_stream = live[step - KEPT]
            if born % 8:
                card = aj.mem_pool_free(card, old, its_stream)
    return aj.synchronize_device(card), aj.mem_pool_stats(card, pool)


def main() -> None:
    """Run both and print what they took."""
    plain = with_malloc()
    pooled, stats = with_pool()
    print(f"{'':24}{'malloc and free':>18}{'pool':>12}")
    reports = [aj.memory_report(card) for card in (plain, pooled)]
    rows = [
        ("simulated time, us", [aj.host_time_ns(card) / 1e3 for card in (plain, pooled)]),
        ("most memory taken, MiB", [report.peak_bytes / MIB for report in reports]),
        ("idle in the pool, MiB", [report.idle_bytes / MIB for report in reports]),
        ("fragmentation, %", [100 * report.fragmentation for report in reports]),
    ]
    for name, (one, other) in rows:
        print(f"{name:24}{one:>18.1f}{other:>12.1f}")
    print(
        f"the pool reserved {stats.reserved_high_bytes // MIB} MiB and used at most {stats.used_high_bytes // MIB} MiB"
    )
    for card in (plain, pooled):
        aj.raise_if_error(card)


if __name__ == "__main__":
    main()
