"""Attention with a CPU device for each core: every core runs its own heads alone, instead of all cores every step.

The result is that of one device; how much time it saves depends on the machine, and is printed as measured.
"""

import statistics
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import ascend_jax as aj
from ascend_jax.ops.attention.host_cores import usable_cores

SEQ, HEADS_OF_A_CORE, DIM, ROUNDS = 1024, 2, 64, 7


def main() -> None:
    """Share the heads out, compare with one device, and time both in turn."""
    cores = usable_cores()
    jax.config.update("jax_num_cpu_devices", cores)  # works only before JAX is first used
    devices = jax.devices("cpu")
    mesh, by_heads = jax.make_mesh((cores,), ("core",), devices=devices), P(None, None, "core")

    rng = np.random.default_rng(0)
    shape = (1, SEQ, cores * HEADS_OF_A_CORE, DIM)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for _ in range(3)]
    alone = [jax.device_put(x, devices[0]) for x in arrays]
    apart = [jax.device_put(x, NamedSharding(mesh, by_heads)) for x in arrays]

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return aj.flash_attention(q, k, v, causal=True)

    on_one = jax.jit(attend).lower(*alone).compile()
    shared = jax.shard_map(attend, mesh=mesh, in_specs=by_heads, out_specs=by_heads)
    on_each = jax.jit(shared).lower(*apart).compile(compiler_options=aj.QUICK_TO_RUN)
    difference = np.abs(np.asarray(on_each(*apart)) - np.asarray(on_one(*alone))).max()
    print(f"{cores} core(s), {shape[2]} heads of {SEQ} rows")
    print(f"max |difference| from one device: {difference:.1e}")

    times: dict[str, list[float]] = {"one device": [], "a device per core": []}
    for _ in range(ROUNDS):
        times["one device"].append(milliseconds(lambda: on_one(*alone)))
        times["a device per core"].append(milliseconds(lambda: on_each(*apart)))
    for name, each in times.items():
        print(f"{name + ':':18} {statistics.median(each):6.2f} ms, median of {ROUNDS}")


def milliseconds(run: Callable[[], jax.Array]) -> float:
    """Return the time of one run, after an untimed one that wakes the cores up."""
    jax.block_until_ready(run())
    start = time.perf_counter()
    jax.block_until_ready(run())
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()
