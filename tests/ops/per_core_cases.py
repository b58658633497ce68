"""Attention on two CPU devices under `shard_map` against one, in a process of its own: `python -m` this module."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import ascend_jax as aj
from ascend_jax.ops import philox_dropout
from ascend_jax.ops.attention import host_cores

BATCH, ROWS, COLUMNS, HEADS, KV_HEADS, DIM = 1, 40, 72, 4, 2, 16
BY_HEADS = P(None, None, "core")


def check() -> None:
    """Every case, forward and backward: the same bits on two devices as on one."""
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    mesh = jax.make_mesh((2,), ("core",))
    rng = np.random.default_rng(0)
    q, d_out = rng.normal(size=(2, BATCH, ROWS, HEADS, DIM)).astype(np.float32)
    k, v = rng.normal(size=(2, BATCH, COLUMNS, KV_HEADS, DIM)).astype(np.float32)
    bias = rng.normal(size=(BATCH, HEADS, ROWS, COLUMNS)).astype(np.float32)
    sink = rng.normal(size=HEADS).astype(np.float32)
    scores = HEADS // 2 * ROWS * -(-COLUMNS // 16) * 16  # of a shard, as dropout counts them

    def results(core, d_out, q, k, v, bias, sink):
        """Return output and gradients of each case; ``core`` is the number of the shard."""
        dropout = philox_dropout(0.7, seed=5, offset=core * scores)
        cases = {
            "causal": lambda q, k, v, bias, sink: aj.flash_attention(
                q, k, v, causal=True, window=(9, None), sink=sink, tile=32
            ),
            "bias": lambda q, k, v, bias, sink: aj.flash_attention(q, k, v, bias=bias, dropout=dropout, tile=32),
        }
        found = {}
        for name, case in cases.items():
            out, pull = jax.vjp(case, q, k, v, bias, sink)
            found[name] = (out, pull(d_out))
        return found

    given, specs = (d_out, q, k, v, bias, sink), (BY_HEADS,) * 4 + (P(None, "core"), P("core"))
    of_case = (BY_HEADS, specs[1:])
    out_specs = dict.fromkeys(("causal", "bias"), of_case)

    def shared_out(function, in_specs, out_specs, *given):
        placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(given, in_specs, strict=True)]
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs))(*placed)

    on_two = shared_out(lambda *x: results(jax.lax.axis_index("core"), *x), specs, out_specs, *given)
    on_one = jax.jit(results)(jnp.int32(0), *given)
    for name, (out, grads) in on_one.items():
        assert float(jnp.abs(out).max()) > 0.1, name
        for got, want in zip(jax.tree.leaves(on_two[name]), jax.tree.leaves((out, grads)), strict=True):
            np.testing.assert_array_equal(got, want, err_msg=name)

    # a key head that every device has whole, and the batch shared out
    def with_lse(q, k, v):
        return aj.flash_attention(q, k, v, causal="lower_right", return_lse=True, tile=32)

    whole = (q, k[:, :, :1], v[:, :, :1]), (BY_HEADS, P(), P()), BY_HEADS
    batch = [np.concatenate([x, x[:, ::-1]]) for x in (q, k, v)], (P("core"),) * 3, P("core")
    for operands, in_specs, spec in (whole, batch):
        found = shared_out(with_lse, in_specs, (spec, spec), *operands)
        for got, want in zip(found, jax.jit(with_lse)(*operands), strict=True):
            np.testing.assert_array_equal(got, want)

    # decoding from pages, by key heads
    pool = rng.normal(size=(2, 6, 16, KV_HEADS * DIM)).astype(np.float32)
    pages = (
        rng.normal(size=(2, 1, HEADS * DIM)).astype(np.float32),
        *pool,
        np.array([[4, 0, 2], [5, 1, 3]]),
        np.array([40, 17]),
    )

    def decode(q, k, v, table, lengths):
        return aj.ops.fused_infer_attention_score(
            q, k, v, num_heads=q.shape[2] // DIM, num_key_value_heads=k.shape[2] // DIM, scale_value=0.25,
            block_table=table, block_size=16, actual_seq_lengths_kv=lengths,
        ).attention_out  # fmt: skip

    # the devices of a mesh share the cores, a device alone has all of them, however many there are
    host_cores.usable_cores = lambda: 2
    seen = []

    def note(x):
        seen.append(host_cores.device_cores())
        return x

    shared_out(note, (BY_HEADS,), BY_HEADS, q)
    both = jax.make_mesh((1, 2), ("row", "core"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    jax.jit(jax.shard_map(note, mesh=both, in_specs=P("row"), out_specs=P("row"), axis_names={"row"}))(q)
    jax.pmap(note)(q.reshape(2, -1))
    with jax.set_mesh(both):
        assert len(jax.jit(note)(q).sharding.device_set) == 2
    jax.jit(note)(q)
    assert seen == [1, 1, 1, 1, 2]

    wanted = jax.jit(decode)(*pages)
    assert float(jnp.abs(wanted).max()) > 0.1
    np.testing.assert_allclose(shared_out(decode, (BY_HEADS,) * 3 + (P(), P()), BY_HEADS, *pages), wanted, atol=1e-6)

    # with one seed, heads that are alike get the same bits on each device; with seeds of their own they do not
    same = [np.concatenate([x[:, :, : x.shape[2] // 2]] * 2, axis=2) for x in (q, k, v)]
    for step, is_same in ((0, True), (1, False)):

        def drop(q, k, v, step=step):
            return aj.flash_attention(q, k, v, dropout=philox_dropout(0.7, seed=5 + step * jax.lax.axis_index("core")))

        first, second = np.split(np.asarray(shared_out(drop, (BY_HEADS,) * 3, BY_HEADS, *same)), 2, axis=2)
        assert np.array_equal(first, second) == is_same


if __name__ == "__main__":
    check()
    print("equal")
