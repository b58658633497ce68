"""What `bench_attention.py` times: attention in JAX and in torch, shared out over CPU devices, and its bare steps."""

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ascend_jax.ops.page_chunks import chunks_of
from ascend_jax.runtime.edge import QUICK_TO_RUN
from ascend_jax.runtime.loop import varying_together

Run = Callable[[], object]
K = TypeVar("K")
HEADS = P(None, None, "core")  # [B, T, N, D] by heads; [.., .., N D] too, a head's columns lie side by side
SETTLE_S = 0.02  # torch's threads spin for some milliseconds, on the cores that the next in turn needs
LONG_ROUND_MS = 400.0  # a round of all implementations that takes longer is run 3 times at most


def make_mesh(devices: int) -> Mesh | None:
    """Return so many devices side by side; None for a single one, which needs no `shard_map`."""
    found = jax.devices()
    if devices > len(found):
        raise ValueError(f"devices = {devices}: JAX has {len(found)}; set jax_num_cpu_devices before its first use")
    return Mesh(np.array(found[:devices]), ("core",)) if devices > 1 else None


def place(x: Any, mesh: Mesh | None, spec: P) -> jax.Array:
    """Put an array where its shards are needed."""
    return jax.device_put(x, jax.devices()[0] if mesh is None else NamedSharding(mesh, spec))


def compiled_run(
    function: Callable[..., Any],
    given: tuple[Any, ...],
    mesh: Mesh | None,
    specs: Any,
    out_specs: Any,
    options: dict[str, Any] | None = None,
) -> tuple[Run, int]:
    """Compile a function of each device's shards; return what runs it once, and its temporary bytes on all devices.

    ``options`` are XLA's, for several devices; a single one has XLA's own.
    """
    devices = 1 if mesh is None else mesh.size
    if mesh is not None:
        function = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out_specs)
    else:
        options = None
    placed = [place(x, mesh, spec) for x, spec in zip(given, specs, strict=True)]
    compiled = jax.jit(function).lower(*placed).compile(compiler_options=options)
    temp_bytes = compiled.memory_analysis().temp_size_in_bytes * devices
    return lambda: jax.block_until_ready(compiled(*placed)), temp_bytes


def jax_run(
    function: Callable[..., jax.Array],
    operands: list[jax.Array],
    backward: bool,
    mesh: Mesh | None,
    options: dict[str, Any] | None = None,
) -> tuple[Run, int]:
    """Compile a case, by heads; return what runs it once, and its temporary bytes."""

    def train(q: jax.Array, k: jax.Array, v: jax.Array, d_out: jax.Array) -> object:
        out, pull = jax.vjp(function, q, k, v)
        return out, pull(d_out)

    given = tuple(operands if backward else operands[:3])
    return compiled_run(train if backward else function, given, mesh, (HEADS,) * len(given), HEADS, options)


def torch_run(arrays: list[np.ndarray], dtype: str, causal: bool, backward: bool, threads: int | None) -> Run | None:
    """Return what runs torch's fused CPU attention once, or None without torch; None threads: as many as it likes."""
    try:
        import torch
    except ImportError:
        return None
    if threads is not None:
        torch.set_num_threads(threads)
    q, k, v, d_out = (torch.tensor(x).swapaxes(1, 2).contiguous().to(getattr(torch, dtype)) for x in arrays)
    attention = torch.nn.functional.scaled_dot_product_attention

    def forward() -> object:
        with torch.no_grad():
            return attention(q, k, v, is_causal=causal)

    def train() -> object:
        return torch.autograd.grad(attention(q, k, v, is_causal=causal), (q, k, v), d_out)

    if backward:
        for x in (q, k, v):
            x.requires_grad_(True)
    return train if backward else forward


def bare_products(
    tile: tuple[int, int], dim: int, kind: str, tiles: int, backward: bool, mesh: Mesh | None = None
) -> Run:
    """Return what runs the two products of a tile forward, and the five backward, so many times."""
    rng = np.random.default_rng(0)
    rows, cols = tile
    shapes = {
        "rows": (1 + 2 * backward, rows, dim), "keys": (dim, cols), "weights": (rows, cols),
        "values": (1 + backward, cols, dim), "columns": (2 * backward, dim, rows),
    }  # fmt: skip
    given = {name: list(jnp.asarray(rng.normal(size=shape), kind)) for name, shape in shapes.items() if len(shape) == 3}
    given |= {name: jnp.asarray(rng.normal(size=shapes[name]), kind) for name in ("keys", "weights")}

    dot = functools.partial(jnp.dot, precision="highest", preferred_element_type=jnp.float32)
    scores = [lambda x, n=n: dot(x["rows"][n], x["keys"]) for n in range(1 + 2 * backward)]  # forward, again, d_out v^T
    sums = [lambda x, n=n: dot(x["weights"], x["values"][n]) for n in range(1 + backward)]  # out, dq
    columns = [lambda x, n=n: dot(x["columns"][n], x["weights"]) for n in range(2 * backward)]  # dk, dv
    return repeated([*scores, *sums, *columns], given, tiles, mesh)


def bare_softmax(tile: tuple[int, int], tiles: int, backward: bool, mesh: Mesh | None = None) -> Run:
    """Return what the softmax of a tile takes forward, and backward, so many times."""
    rng = np.random.default_rng(0)
    scores, more = (jnp.asarray(rng.normal(size=tile).astype(np.float32)) for _ in range(2))
    given = scores, more, jnp.zeros(tile[0])

    def forward(x: tuple[jax.Array, ...]) -> Any:
        highest = x[0].max(axis=1)
        weights = jnp.exp(x[0] - highest[:, None])
        return weights, weights.sum(axis=1)

    def again(x: tuple[jax.Array, ...]) -> jax.Array:
        return jnp.exp(x[0] - x[2][:, None]) * x[1]

    return repeated([forward, again] if backward else [forward], given, tiles, mesh)


def bare_copies(pools: list[np.ndarray], table: np.ndarray, block: int, heads: int, mesh: Mesh | None = None) -> Run:
    """Return what copies the pages of a table ``[B, pages]`` in its order, chunk by chunk."""
    heads, dim = heads // (1 if mesh is None else mesh.size), pools[0].shape[2] // heads
    chunks = chunks_of(block, table.shape[1], heads, dim)

    def run(table: jax.Array, *pools: jax.Array) -> jax.Array:
        pieces = chunks.pieces_of(table).reshape(-1, chunks.pieces)
        parts = heads // chunks.heads

        def step(n: Any, rooms: list[jax.Array]) -> list[jax.Array]:
            here, *there = jax.lax.optimization_barrier((pieces[n // parts], *pools))  # or copied before the loop
            first = n % parts * chunks.heads
            return [chunks.take(pool, here, first, room) for pool, room in zip(there, rooms, strict=True)]

        rooms = varying_together(pools, [chunks.room(pool, dim) for pool in pools])[1]
        rooms = jax.lax.fori_loop(0, len(pieces) * parts, step, rooms)
        return jnp.stack([room.sum() for room in rooms])

    return compiled_run(run, (table, *pools), mesh, (P(), *[HEADS] * len(pools)), P("core"), QUICK_TO_RUN)[0]


def bare_decode_products(heads: int, rows: int, width: int, group: int, times: int, mesh: Mesh | None = None) -> Run:
    """Return what multiplies queries with a chunk of keys of some heads, and weights with values, so many times."""
    rng = np.random.default_rng(0)
    shapes = {
        "keys": (heads, rows, width), "values": (heads, rows, width), "queries": (heads, group, width),
        "weights": (heads, group, rows),
    }  # fmt: skip
    given = {name: jnp.asarray(rng.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()}

    dot = functools.partial(jnp.einsum, precision="highest")
    steps = [
        lambda x: dot("hrd,hgd->hrg", x["keys"], x["queries"]),
        lambda x: dot("hgr,hrd->hgd", x["weights"], x["values"]),
    ]
    return repeated(steps, given, times, mesh)


def repeated(steps: list[Callable[[Any], Any]], given: Any, times: int, mesh: Mesh | None) -> Run:
    """Compile steps of what is given, one after another, so many times in all, of which each device does its share."""
    devices = 1 if mesh is None else mesh.size
    leaves, tree = jax.tree.flatten((given, jnp.int32(times)))
    of_each = tuple(jnp.broadcast_to(x, (devices, *x.shape)) for x in leaves)

    def run(*leaves: jax.Array) -> jax.Array:
        given, limit = jax.tree.unflatten(tree, [x[0] for x in leaves])

        def done(kept: jax.Array) -> jax.Array:
            # in turn, so that a result may take the place of the one before; each wholly, though little of it is kept
            for step in steps:
                here, kept = jax.lax.optimization_barrier((given, kept))
                results = jax.lax.optimization_barrier(jax.tree.leaves(step(here)))
                kept = kept + sum(x.ravel()[0] for x in results)
            return kept

        def one(n: Any, kept: jax.Array) -> jax.Array:
            return jax.lax.cond(n < limit, done, lambda x: x, kept)  # or one step would do for all

        return jax.lax.fori_loop(0, -(-times // devices), one, varying_together(given, jnp.zeros(1))[1])

    return compiled_run(run, of_each, mesh, (P("core"),) * len(of_each), P("core"), QUICK_TO_RUN)[0]


def interleaved(runs: dict[K, Run], rounds: int) -> dict[K, list[float]]:
    """Return the milliseconds of each run in each round, all taking turns."""
    for run in runs.values():
        run()
    times = [one_round(runs)]
    while len(times) < (min(rounds, 3) if sum(times[0].values()) > LONG_ROUND_MS else rounds):
        times.append(one_round(runs))
    return {name: [each[name] for each in times] for name in runs}


def one_round(runs: dict[K, Run]) -> dict[K, float]:
    """Return the milliseconds of each run."""
    times = {}
    for name, run in runs.items():
        run()  # untimed: a core that slept needs milliseconds to wake up, whatever it is to run
        start = time.perf_counter()
        run()
        times[name] = (time.perf_counter() - start) * 1e3
        if name == "torch":
            time.sleep(SETTLE_S)
    return times
