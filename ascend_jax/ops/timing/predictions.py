"""What the model says to a published measurement: one function per kind, none of which sees the measured value."""

from collections.abc import Callable

import jax

from ascend_jax.chip import cost, links
from ascend_jax.chip.instructions import sequence_ns
from ascend_jax.chip.pipeline import LIMITS, QUEUES, serial_ns, stages, steady_ns
from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops.attention.tiling import AttentionShape
from ascend_jax.ops.attention.visibility import SparseMode
from ascend_jax.ops.timing import attention, vector
from ascend_jax.ops.timing import attention_queues as queues
from ascend_jax.ops.timing.answers import Answer
from ascend_jax.ops.timing.matmul_rows import gemm, gemm_peak_test, gemm_task
from ascend_jax.ops.timing.memory_rows import path_rate, read_all
from ascend_jax.ops.timing.products import cores_of, dies
from ascend_jax.ops.timing.targets import Target
from ascend_jax.ops.timing.vector import VectorShape

_vector = jax.jit(vector.choose_tile)
_forward = jax.jit(attention.forward, static_argnames=("shape", "library"))
_backward = jax.jit(attention.backward, static_argnames=("shape", "library"))


def attention_shape(target: Target) -> AttentionShape:
    """Shape of an attention row; as many key heads as query heads."""
    batch, heads, q_len, kv_len, dim = (target.count(name) for name in ("batch", "heads", "sq", "sk", "d"))
    mode = SparseMode.RIGHT_DOWN_CAUSAL if target.is_causal else SparseMode.NO_MASK
    return AttentionShape(batch, heads, heads, q_len, kv_len, dim, dim, target.dtype_bytes, mode)


def attention_forward(spec: ChipSpec, target: Target) -> Answer:
    """Attention forward: the vendor's operator (`fa_fwd_vendor`) or a hand-written kernel (`fa_fwd`)."""
    shape = attention_shape(target)
    found = _forward(spec, shape=shape, library="vendor" in target.kind, cores=cores_of(spec, target))
    limit = LIMITS[int(found.limit)]
    return Answer(float(found.duration_ns), limit, flop=attention.forward_flop(shape))


def attention_backward(spec: ChipSpec, target: Target) -> Answer:
    """Attention backward (`fa_bwd`, `fa_bwd_vendor`); 2.5 times the operations of forward."""
    shape = attention_shape(target)
    found, _ = _backward(spec, shape=shape, library="vendor" in target.kind, cores=cores_of(spec, target))
    limit = LIMITS[int(found.limit)]
    return Answer(float(found.duration_ns), limit, flop=2.5 * attention.forward_flop(shape))


def mla_decode_peak(spec: ChipSpec, target: Target) -> Answer:
    """Best rate of multi-head latent attention decode: the cube cores of attention at work without end.

    128 heads share one latent key of 576 and value of 512 columns (DeepSeek), so they are the rows of one block. Its
    vector work is taken as hidden, and the rate of a 910C package is that of its two dies.
    """
    (dim, value_dim), columns, rounds = (576, 512), 8192, 8
    cores = int(spec["cube_cores"])
    pair = queues.forward_block(spec, 128, columns, rounds, (dim, value_dim), target.dtype_bytes, cores)
    flop = 2.0 * 128 * columns * (dim + value_dim) * cores * dies(target.soc)
    return Answer(float(steady_ns(spec, pair.cube)), QUEUES[int(pair.cube.argmax())], flop=flop, is_rate=True)


def vector_cycles(spec: ChipSpec, target: Target) -> Answer:
    """`vector_cycles_NAMES`: cycles of vector instructions in turn over n elements, each waiting for the last."""
    known = {"vadd": "add", "vsub": "sub", "vmul": "mul", "vmax": "max", "vmin": "min", "vdiv": "div", "vexp": "exp"}
    words = target.kind.removeprefix("vector_cycles_").split("_")
    names = [known.get(word, word) for word in words]
    time_ns = sequence_ns(spec, names, target.counts.get("n", 256), target.dtype_bytes)
    return Answer(float(time_ns), "vector", clock_hz=float(spec["clock_hz"]))


def scalar_cycles(spec: ChipSpec, target: Target) -> Answer:
    """Cycles of one dependent scalar multiply-add."""
    clock = float(spec["clock_hz"])
    return Answer(float(spec["scalar_fma_cycles"]) / clock * 1e9, "scalar", clock_hz=clock)


def mix_kernel_floor(spec: ChipSpec, target: Target) -> Answer:
    """Smallest kernel of both core kinds: one 128 x 128 x 128 fp16 tile, its result handed to a vector core."""
    tile = 128 * 128 * 2.0
    once = stages(
        mte2=cost.copy_ns(spec, 2 * tile, spec["l2_l1_bytes_per_s"]),
        mte1=cost.cube_feed_ns(spec, 128, 128, 128, 2),
        cube=cost.cube_ns(spec, 128, 128, 128, 2),
        fixpipe=cost.copy_ns(spec, 2 * tile, spec["l0c_gm_bytes_per_s"]),
        mte3=cost.copy_ns(spec, tile / 2, spec["l2_ub_bytes_per_s"]),
    )
    return Answer(float(spec["kernel_head_ns"] + serial_ns(spec, once)), "launch")


def all_reduce(spec: ChipSpec, target: Target) -> Answer:
    """AllReduce of `bytes` a rank: inside one server up to `server_devices` ranks, across servers beyond."""
    time = links.blocking_all_reduce_ns if target.kind.endswith("_host") else links.all_reduce_ns
    return _collective(time, spec, target)


def half_reduce(spec: ChipSpec, target: Target) -> Answer:
    """`allgather`, `reducescatter`: `bytes` of the whole buffer, across servers as `all_reduce`."""
    return _collective(links.half_reduce_ns, spec, target)


def _collective(time: Callable[..., jax.Array], spec: ChipSpec, target: Target) -> Answer:
    ranks, inside = target.count("ranks"), int(spec["server_devices"])
    if ranks < 2:
        raise ValueError(f"column ranks is {ranks}; a collective takes at least 2 ranks")
    servers = -(-ranks // inside) if inside > 1 else 1
    if ranks % servers:
        raise ValueError(f"column ranks is {ranks}; the model knows equal shares of {servers} groups of {inside} only")
    found = time(spec, target.count("bytes"), ranks // servers, servers=servers)
    return Answer(float(found), "link", nbytes=float(target.count("bytes")))


def link_rate(spec: ChipSpec, target: Target) -> Answer:
    """Copies: `h2d`, `d2h`, `d2d`, `p2p` and, both directions together, `p2p_bidir`.

    With `bytes` (of each direction), latency and transfer; without, the rate of a copy that never ends.
    """
    rates = {"h2d": spec["h2d_bytes_per_s"], "d2h": spec["d2h_bytes_per_s"], "d2d": spec["d2d_bytes_per_s"]}
    rate = float(rates.get(target.kind, links.path_rate(spec, "fabric")))
    sides = 2.0 if target.kind.endswith("bidir") else 1.0
    if "bytes" not in target.counts:
        return Answer(1e9, "link", nbytes=rate, sides=sides, is_rate=True)
    nbytes = float(target.count("bytes"))
    latency_ns = float(spec["copy_latency_ns"] if target.kind in rates else links.path_latency_ns(spec, "fabric"))
    return Answer(latency_ns + 1e9 * nbytes / rate, "link", nbytes=nbytes, sides=sides)


def vector_shape(target: Target) -> VectorShape:
    """Shape of a row of a vector operator over m rows of n elements: `add`, `softmax_task`, `aclnn_transpose`."""
    return VectorShape(_vector_name(target.kind), target.count("m"), target.count("n"), target.dtype_bytes)


def vector_operator(spec: ChipSpec, target: Target) -> Answer:
    """A vector operator, named by the kind."""
    shape = vector_shape(target)
    found, _ = _vector(spec, shape, cores=cores_of(spec, target, "vector"))
    nbytes = float(shape.read_bytes + shape.written_bytes)
    return Answer(float(found.duration_ns), LIMITS[int(found.limit)], flop=float(shape.flop), nbytes=nbytes)


def _vector_name(kind: str) -> str:
    return kind.removeprefix("aclnn_").removesuffix("_task")


def host_or_launch(spec: ChipSpec, target: Target) -> Answer:
    """Host calls and launch overheads that are sums of chip constants."""
    sums = {
        "task_minus_core": ("kernel_end_ns",),
        "inter_kernel_gap": ("kernel_gap_ns",),
        "stream_sync_idle": ("host_sync_ns",),
        "memset_plus_sync": ("host_copy_sync_ns", "copy_latency_ns", "host_sync_ns"),
        "memcpy_async_enqueue": ("host_copy_enqueue_ns",),
        "notify_record_wait": ("host_event_ns", "host_event_ns"),
        "aclnn_add_enqueue": ("host_op_prepare_ns", "host_launch_ns"),
        "kernel_head": ("kernel_head_ns",),
        "kernel_launch_enqueue": ("host_launch_ns",),
        "stream_create": ("host_stream_create_ns",),
    }
    return Answer(sum(float(spec[field]) for field in sums[target.kind]), "host")


_PATHS = (
    "hbm_read_all_aic gm_l1_one_aic l1_l0a_one_aic l1_l0b_one_aic l0c_gm_one_aic gm_ub_one_aiv ub_gm_one_aiv "
    "gm_ub_one_aiv_duplex ub_gm_one_aiv_duplex gm_ub_read_per_core ub_gm_write_per_core gm_l1_read_per_core"
)
_HOST = (
    "task_minus_core inter_kernel_gap stream_sync_idle memset_plus_sync memcpy_async_enqueue notify_record_wait "
    "aclnn_add_enqueue kernel_head kernel_launch_enqueue stream_create"
)
Predictor = Callable[[ChipSpec, Target], Answer]
KINDS: dict[str, tuple[str, Predictor]] = {
    "gemm": ("gemm", gemm),
    "gemm_task": ("gemm", gemm_task),
    "gemm_peak_test": ("gemm", gemm_peak_test),
    **dict.fromkeys(("fa_fwd", "fa_fwd_vendor"), ("attention", attention_forward)),
    **dict.fromkeys(("fa_bwd", "fa_bwd_vendor"), ("attention_backward", attention_backward)),
    "mla_decode_peak": ("attention", mla_decode_peak),
    **dict.fromkeys(("gm_ub_read", "gm_l1_read", "gm_ub_read_l2", "gm_l1_read_l2"), ("memory", read_all)),
    **dict.fromkeys(_PATHS.split(), ("memory", path_rate)),
    "scalar_fma_cycles": ("instruction", scalar_cycles),
    "mix_kernel_floor": ("launch", mix_kernel_floor),
    **dict.fromkeys(_HOST.split(), ("launch", host_or_launch)),
    **dict.fromkeys(("allreduce", "allreduce_host"), ("collective", all_reduce)),
    **dict.fromkeys(("allgather", "reducescatter"), ("collective", half_reduce)),
    **dict.fromkeys(("h2d", "d2h", "d2d", "p2p", "p2p_bidir"), ("link", link_rate)),
}  # kind: group, function


_SPELLINGS = {
    **dict.fromkeys(("all_reduce", "hcclallreduce"), "allreduce"),
    **dict.fromkeys(("all_gather", "hcclallgather"), "allgather"),
    **dict.fromkeys(("reduce_scatter", "hcclreducescatter"), "reducescatter"),
    "all_reduce_host": "allreduce_host",
    "layernorm": "layer_norm",
    "rmsnorm": "rms_norm",
    "reducesum": "reduce_sum",
    "reducemax": "reduce_max",
    "matmul": "gemm",
}


def kind_name(kind: str) -> str:
    """One spelling for a kind: `All_Reduce` and `allreduce`, `aclnn_layernorm` and `layer_norm` are the same.

    Example:
        >>> kind_name("AllReduce"), kind_name("reduce_scatter"), kind_name("aclnn_layernorm_task")
        ('allreduce', 'reducescatter', 'layer_norm')
    """
    short = kind.lower().replace("-", "_")
    bare = _vector_name(short)
    return short if short in KINDS else _SPELLINGS.get(short, _SPELLINGS.get(bare, short))


def find_kind(kind: str) -> tuple[str, Predictor]:
    """Group and function of a kind.

    Raises:
        ValueError: The model has no such kind.
    """
    kind = kind_name(kind)
    if kind.startswith("vector_cycles_"):
        return "instruction", vector_cycles
    if kind not in KINDS and _vector_name(kind) in vector.OPERATORS:
        return "vector", vector_operator
    if kind not in KINDS:
        raise ValueError(
            f"kind {kind!r} has no model; known: {', '.join(KINDS)}, vector_cycles_..., {', '.join(vector.OPERATORS)}"
        )
    return KINDS[kind]
