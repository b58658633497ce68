"""What the model says to a published measurement: one function per kind, none of which sees the measured value."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax

from ascend_jax.chip import cost, links, memory
from ascend_jax.chip.instructions import sequence_ns
from ascend_jax.chip.pipeline import serial_ns, stages
from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops.attention.tiling import LIMITS as ATTENTION_LIMITS
from ascend_jax.ops.attention.tiling import AttentionShape
from ascend_jax.ops.attention.visibility import SparseMode
from ascend_jax.ops.timing import attention, matmul, vector
from ascend_jax.ops.timing.answers import Answer
from ascend_jax.ops.timing.matmul import MatmulShape, Tile
from ascend_jax.ops.timing.products import dies
from ascend_jax.ops.timing.targets import Target
from ascend_jax.ops.timing.vector import VectorShape


@functools.partial(jax.jit, static_argnames="library")
def _matmul(spec: ChipSpec, shape: MatmulShape, cores: int, library: bool) -> matmul.MatmulCost:
    return matmul.choose_tile(spec, shape, cores=cores, fixed_ns=matmul.library_ns(spec) if library else None)[0]


def _cores(spec: ChipSpec, target: Target, unit: str = "cube") -> int:
    """Cores of a row, all of the chip if it states none.

    Raises:
        ValueError: More than the chip has.
    """
    there = int(spec[f"{unit}_cores"])
    cores = target.counts.get("cores", there)
    if cores > there:
        raise ValueError(f"column cores is {cores}; {spec.name} has {there} {unit} cores")
    return cores


_matmul_tile = jax.jit(matmul.matmul_cost, static_argnames=("buffers", "constant_tiling"))
_vector = jax.jit(vector.choose_tile)
_forward = jax.jit(attention.forward, static_argnames=("shape", "library"))
_backward = jax.jit(attention.backward, static_argnames=("shape", "library"))


def matmul_shape(target: Target) -> MatmulShape:
    """Shape of a matmul row."""
    m, n, k = (target.count(axis) for axis in "mnk")
    return MatmulShape(m, n, k, target.dtype_bytes, target.counts.get("batch", 1))


def gemm(spec: ChipSpec, target: Target) -> Answer:
    """Library matmul, warm: the fastest tile and the launch of a library."""
    shape = matmul_shape(target)
    return _matmul_answer(_matmul(spec, shape, _cores(spec, target), True), shape)


def gemm_task(spec: ChipSpec, target: Target) -> Answer:
    """One kernel: the fastest tile, pipelined, unless the note says otherwise in words of `STEPS`.

    `tile 64x64x64` in a note states the tile. In the note of a tuning ladder (`ladder`) the last word of `STEPS` names
    the step that the kernel has reached. A step without a tile takes 128 x 256, which is a guess. Other words say nothing.
    """
    shape, cores, note = matmul_shape(target), _cores(spec, target), target.note.lower()
    tile = re.search(r"\btile\s+\[?(\d+)\s*[x*,]\s*(\d+)(?:\s*[x*,]\s*(\d+))?", note)
    step = _step(note)
    if not tile and step is None:
        return _matmul_answer(_matmul(spec, shape, cores, False), shape)
    depth = 128 // target.dtype_bytes
    bm, bn, bk = (int(tile[1]), int(tile[2]), int(tile[3] or depth)) if tile else (128, 256, depth)
    if min(bm, bn, bk) < 16 or any(side % 16 for side in (bm, bn, bk)):
        raise ValueError(f"tile {bm}x{bn}x{bk}: sides are multiples of 16, the edge of a cube step")
    serial, constant = step == "serial", step in (None, "constant")
    chosen = Tile(bm, bn, bk, 1 if serial else 4)
    found = _matmul_tile(spec, shape, chosen, cores=cores, buffers=1 if serial else 2, constant_tiling=constant)
    if not bool(found.fits):
        raise ValueError(f"tile {bm}x{bn}x{bk} does not fit {spec.name}")
    guess = "" if tile and tile[3] else "the row states no tile; 128 x 256 stands in"
    return dataclasses.replace(_matmul_answer(found, shape), guess=guess)


# What the words of a gemm_task note mean; words of a ladder count only in a note with the word `ladder`.
STEPS: dict[str, tuple[str, ...]] = {
    "serial": ("naive", "single buffer", "single-buffer", "single buffering", "no double buffer"),
    "ladder serial": ("tile", "split"),  # the first steps of the published ladder, before any buffer is doubled
    "ladder pipelined": ("double", "ping", "pong", "pingpong", "preload", "depth", "l1", "l2"),
    "ladder constant": ("const", "constant", "unit"),
}


def _step(note: str) -> str | None:
    """`serial`, `pipelined` or `constant` (pipelined, the tiling a compile-time constant); None: nothing is said."""
    is_ladder = _says(note, "ladder")
    for name in ("serial", "ladder constant", "ladder pipelined", "ladder serial"):
        if any(_says(note, word) for word in STEPS[name]) and (is_ladder or name == "serial"):
            return name.removeprefix("ladder ")
    return None


def _says(note: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", note) is not None


def gemm_peak_test(spec: ChipSpec, target: Target) -> Answer:
    """Best rate of square library matmuls from 2048 to 8192."""
    shapes = [MatmulShape(n, n, n, target.dtype_bytes) for n in (2048, 3072, 4096, 6144, 8192)]
    answers = [_matmul_answer(_matmul(spec, shape, _cores(spec, target), True), shape) for shape in shapes]
    return dataclasses.replace(max(answers, key=lambda answer: answer.flop / answer.time_ns), is_rate=True)


def _matmul_answer(found: matmul.MatmulCost, shape: MatmulShape) -> Answer:
    return Answer(float(found.duration_ns), matmul.LIMITS[int(found.limit)], flop=float(shape.flop))


def attention_shape(target: Target) -> AttentionShape:
    """Shape of an attention row; as many key heads as query heads."""
    batch, heads, q_len, kv_len, dim = (target.count(name) for name in ("batch", "heads", "sq", "sk", "d"))
    mode = SparseMode.RIGHT_DOWN_CAUSAL if target.is_causal else SparseMode.NO_MASK
    return AttentionShape(batch, heads, heads, q_len, kv_len, dim, dim, target.dtype_bytes, mode)


def attention_forward(spec: ChipSpec, target: Target) -> Answer:
    """Attention forward: the vendor's operator (`fa_fwd_vendor`) or a hand-written kernel (`fa_fwd`)."""
    shape = attention_shape(target)
    found = _forward(spec, shape=shape, library="vendor" in target.kind, cores=_cores(spec, target))
    limit = ATTENTION_LIMITS[int(found.limit)]
    return Answer(float(found.duration_ns), limit, flop=attention.forward_flop(shape))


def attention_backward(spec: ChipSpec, target: Target) -> Answer:
    """Attention backward (`fa_bwd`, `fa_bwd_vendor`); 2.5 times the operations of forward."""
    shape = attention_shape(target)
    found, _ = _backward(spec, shape=shape, library="vendor" in target.kind, cores=_cores(spec, target))
    limit = ATTENTION_LIMITS[int(found.limit)]
    return Answer(float(found.duration_ns), limit, flop=2.5 * attention.forward_flop(shape))


def mla_decode_peak(spec: ChipSpec, target: Target) -> Answer:
    """Best rate of multi-head latent attention decode: cube and MTE1 at work without end, vector work hidden.

    128 heads share one latent key of 576 and value of 512 columns (DeepSeek), so each 128-column piece multiplies
    [128, 576] x [576, 128] and [128, 128] x [128, 512].
    """
    size = target.dtype_bytes
    parts = [(128, 128, 576), (128, 512, 128)]
    cube = sum(cost.cube_ns(spec, *part, size) for part in parts)
    feed = sum(cost.cube_feed_ns(spec, *part, size) for part in parts)
    time_ns = float(cube + spec["overlap_loss"] * feed)
    flop = sum(2.0 * m * n * k for m, n, k in parts) * int(spec["cube_cores"]) * dies(target.soc)
    return Answer(time_ns, "cube", flop=flop, is_rate=True)


def read_all(spec: ChipSpec, target: Target) -> Answer:
    """`gm_ub_read`, `gm_l1_read` and their `_l2` forms: all cores read `bytes` together.

    The tile in the note gives copies and runs of fp16 elements; without one, runs are 512 B into L1 and 2 KiB into UB.
    """
    to_l1 = "_l1_" in target.kind
    cores = _cores(spec, target, "cube" if to_l1 else "vector")
    share = target.count("bytes") / cores
    run, instruction = _runs(target.note, to_l1)
    hits = _hit_share(target)
    rate = memory.cube_read_rate if to_l1 else memory.vector_read_rate
    slower = _slower(spec, target.note, to_l1)
    time_ns = 0.0
    for part, from_l2 in ((share * (1 - hits), False), (share * hits, True)):
        if part > 0:
            speed = rate(spec, cores, from_l2=from_l2) * slower
            time_ns += float(memory.copies_ns(spec, part, speed, instruction_bytes=instruction, run_bytes=run))
    launch = float(spec["kernel_head_ns"] + spec["kernel_end_ns"])
    return Answer(time_ns + launch, "mte2", nbytes=float(target.count("bytes")))


def _hit_share(target: Target) -> float:
    stated = re.search(r"(\d+(?:\.\d+)?)\s*% L2", target.note)
    if stated and float(stated[1]) > 100:
        raise ValueError(f"note says {stated[0]}: a share of hits is at most 100 %")
    if stated:
        return float(stated[1]) / 100
    return 0.75 if target.kind.endswith("_l2") else 0.0


def _runs(note: str, to_l1: bool) -> tuple[float, float]:
    tile = re.search(r"\[\s*(\d+)\s*,\s*(\d+)\s*\]", note) or re.search(r"tile\s+(\d+)\s*x\s*(\d+)", note)
    rows = re.search(r"(\d+) B rows", note)
    if not tile:
        run = float(rows[1]) if rows else (512.0 if to_l1 else 2048.0)
        return run, 64 * run
    run = float(rows[1]) if rows else 2.0 * int(tile[2])
    return run, int(tile[1]) * run


def _slower(spec: ChipSpec, note: str, to_l1: bool) -> float:
    if re.search(r"unalign|misalign|not aligned|32 ?B.align", note, re.I):
        return float(spec["unaligned_nd2nz_share" if to_l1 else "unaligned_share"])
    return float(spec["same_line_share"]) if re.search(r"same (address|order|line)", note, re.I) else 1.0


def path_rate(spec: ChipSpec, target: Target) -> Answer:
    """Rate of one data path, long copies, `cores` at work; a time only of the `bytes` that the row states."""
    kind = target.kind
    cores = _cores(spec, target, "vector" if "_ub_" in f"_{kind}" else "cube")
    if "_one_" in kind and target.counts.get("cores", 1) != 1:
        raise ValueError(f"column cores is {cores}; kind {kind} is one core's rate")
    rates: dict[str, Callable[[], Any]] = {
        "hbm_read_all_aic": lambda: cores * memory.cube_read_rate(spec, cores),
        "gm_l1_one_aic": lambda: memory.cube_read_rate(spec, 1),
        "l1_l0a_one_aic": lambda: spec["l1_l0a_bytes_per_s"],
        "l1_l0b_one_aic": lambda: spec["l1_l0b_bytes_per_s"],
        "l0c_gm_one_aic": lambda: spec["l0c_gm_bytes_per_s"],
        "gm_ub_one_aiv": lambda: memory.vector_read_rate(spec, 1),
        "ub_gm_one_aiv": lambda: memory.vector_write_rate(spec, 1),
        "gm_ub_one_aiv_duplex": lambda: memory.vector_read_rate(spec, 1, both_ways=True),
        "ub_gm_one_aiv_duplex": lambda: memory.vector_write_rate(spec, 1, both_ways=True),
        "gm_ub_read_per_core": lambda: memory.vector_read_rate(spec, cores),
        "ub_gm_write_per_core": lambda: memory.vector_write_rate(spec, cores),
        "gm_l1_read_per_core": lambda: memory.cube_read_rate(spec, cores),
    }
    rate = float(rates[kind]())
    queue = {"l1_l0": "mte1", "l0c_g": "fixpipe", "ub_gm": "mte3"}.get(kind[:5], "mte2")
    if "bytes" not in target.counts:
        return Answer(1e9, queue, nbytes=rate, is_rate=True)
    return Answer(1e9 * target.count("bytes") / rate, queue, nbytes=float(target.count("bytes")))


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


def vector_operator(spec: ChipSpec, target: Target) -> Answer:
    """A vector operator over m rows of n elements, named by the kind: `add`, `softmax_task`, `aclnn_transpose`."""
    shape = VectorShape(_vector_name(target.kind), target.count("m"), target.count("n"), target.dtype_bytes)
    found, _ = _vector(spec, shape, cores=_cores(spec, target, "vector"))
    nbytes = float(shape.read_bytes + shape.written_bytes)
    return Answer(float(found.duration_ns), vector.LIMITS[int(found.limit)], flop=float(shape.flop), nbytes=nbytes)


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
