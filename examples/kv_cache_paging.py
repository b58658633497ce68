"""A paged key-value cache for decoding: sequences grow page by page, end, and leave their pages to others.

The same step runs eagerly and, here, under one jit; the pages live in device memory of a simulated card.
"""

import jax
import jax.numpy as jnp
import numpy as np

import ascend_jax as aj

PAGES, PAGE_SIZE, SEQUENCES = 24, 128, 4
KV_BYTES = 2 * 128 * 2  # key and value of one position: head dimension 128, float16


@jax.jit
def decode(cache: aj.PagedCache, grows: jax.Array) -> tuple[aj.PagedCache, jax.Array]:
    """Make every sequence longer by its number of positions; return the first code that is not 0."""

    def one(state: tuple, row: jax.Array) -> tuple:
        cache, failed = state
        cache, code = aj.kv_extend(cache, row[0], row[1])
        return (cache, jnp.where(failed == 0, code, failed)), None

    rows = jnp.stack([jnp.arange(grows.shape[0]), grows], axis=1)
    return jax.lax.scan(one, (cache, jnp.int32(0)), rows)[0]


def main() -> None:
    """Fill the cache until it is full, end a sequence, go on, and read positions back through the table."""
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=PAGES * PAGE_SIZE * KV_BYTES + (4 << 20))
    card, base = aj.malloc(card, PAGES * PAGE_SIZE * KV_BYTES)
    cache = aj.paged_cache(PAGES, PAGE_SIZE, SEQUENCES)
    cache, _ = decode(cache, jnp.array([300, 500, 700, 900]))
    print(f"after the prompts: {int(aj.free_pages(cache))} of {PAGES} pages free")

    steps, code = 0, 0
    while not code:
        cache, code = decode(cache, jnp.full(SEQUENCES, 1))
        steps += 1
    print(f"step {steps}: code {int(code)}, {int(aj.free_pages(cache))} pages free, lengths {cache.lengths.tolist()}")

    cache, _ = aj.kv_free(cache, 3)
    print(f"sequence 3 has ended: {int(aj.free_pages(cache))} pages free")
    cache, code = decode(cache, jnp.array([200, 1, 1, 0]))
    print(f"sequence 0 grows into them: code {int(code)}, its pages {cache.tables[0].tolist()[:6]}")

    positions = jnp.arange(0, int(cache.lengths[0]), 100)
    slots, _ = aj.kv_slots(cache, 0, positions)
    for position, slot in zip(positions.tolist(), slots.tolist(), strict=True):
        row = np.full(KV_BYTES, position % 251, np.uint8)
        card = aj.upload(card, base, row, offset=slot * KV_BYTES)
    card, last = aj.download(card, base, (KV_BYTES,), np.uint8, offset=slots[-1].item() * KV_BYTES)
    aj.raise_if_error(card)
    print(f"position {positions[-1]} lies in slot {slots[-1]} and holds {int(last[0])}")


if __name__ == "__main__":
    main()
