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
from ascend_jax.chip.spec import ChipSpec, chip
from ascend_jax.ops.attention.tiling import LIMITS as ATTENTION_LIMITS
from ascend_jax.ops.attention.tiling import AttentionShape
from ascend_jax.ops.attention.visibility import SparseMode
from ascend_jax.ops.timing import attention, matmul, vector
from ascend_jax.ops.timing.matmul import MatmulShape, Tile
from ascend_jax.ops.timing.targets import Target
from ascend_jax.ops.timing.vector import VectorShape

# Names that stand for a product rather than a chip; a table of a product is predicted for its usual chip.
PRODUCTS = {
    "a2": "Ascend910B2",
    "910b": "Ascend910B2",
    "910bx": "Ascend910B2",
    "a3": "Ascend910_9382",
    "910c": "Ascend910_9382",
    "910": "Ascend910A",
    "950": "Ascend950PR_9589",
    "950pr": "Ascend950PR_9589",
    "950dt": "Ascend950DT_9581",
    "310p": "Ascend310P3",
    "310b": "Ascend310B1",
}
_PACKAGE_DIES = {"910c": 2, "a3": 2}


@dataclasses.dataclass(frozen=True)
class Answer:
    """A predicted time with the work that it took, so that it can be told in any unit."""

    time_ns: float
    limit: str  # the unit that bounds it
    flop: float = 0.0
    nbytes: float = 0.0
    clock_hz: float = 1.0
    sides: float = 1.0  # 2: a rate counts both directions of a link

    def in_unit(self, unit: str) -> float:
        """The prediction in the unit of a row.

        Raises:
            ValueError: An unknown unit, or one that needs operations or bytes that the kind does not have.
        """
        times = {"ns": 1.0, "us": 1e-3, "ms": 1e-6, "s": 1e-9, "cycles": self.clock_hz * 1e-9}
        if unit in times:
            return self.time_ns * times[unit]
        rates = {"TFLOPS": (self.flop, 1e-3), "TOPS": (self.flop, 1e-3), "GFLOPS": (self.flop, 1.0)}
        rates |= {"GB/s": (self.nbytes, 1.0), "TB/s": (self.nbytes, 1e-3), "MB/s": (self.nbytes, 1e3)}
        if unit not in rates:
            raise ValueError(f"unit {unit!r}: known are {', '.join((*times, *rates))}")
        amount, scale = rates[unit]
        if not amount:
            raise ValueError(f"unit {unit!r}: this kind is a time; give us or cycles")
        return amount * self.sides / self.time_ns * scale


def find_chip(soc: str) -> ChipSpec:
    """The chip a row is about, from names such as `910B2`, `A2 48 AIV` or `910 first gen`.

    Raises:
        ValueError: No word of the name is a chip or a product.

    Example:
        >>> [find_chip(soc).name for soc in ("910B1 (24 AIC @1.85)", "A2", "910 first gen")]
        ['Ascend910B1', 'Ascend910B2', 'Ascend910A']
    """
    for word in re.split(r"[\s(),;@]+|-like", soc):
        short = word.lower().removeprefix("ascend")
        if short in PRODUCTS:
            return chip(PRODUCTS[short])
        try:
            return chip(word)
        except ValueError:
            continue
    raise ValueError(f"soc {soc!r} names no chip; see `ascend-jax chips`")


def dies(soc: str) -> int:
    """Dies that a row counts together: two for a 910C package, else one."""
    return _PACKAGE_DIES.get(re.split(r"[\s(]", soc.lower().removeprefix("ascend"))[0], 1)


@functools.partial(jax.jit, static_argnames="library")
def _matmul(spec: ChipSpec, shape: MatmulShape, library: bool) -> matmul.MatmulCost:
    return matmul.choose_tile(spec, shape, fixed_ns=matmul.library_ns(spec) if library else None)[0]


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
    return _matmul_answer(_matmul(spec, shape, True), shape)


def gemm_task(spec: ChipSpec, target: Target) -> Answer:
    """One kernel: a given tile without double buffering, a step of a tuning ladder, or the best tile."""
    shape = matmul_shape(target)
    note, ladder = target.note.lower(), "ladder" in target.note.lower()
    tile = re.search(r"tile\s+\[?(\d+)\s*[x,]\s*(\d+)(?:\s*[x,]\s*(\d+))?", note)
    if not tile and not ladder:
        return _matmul_answer(_matmul(spec, shape, False), shape)
    depth = 128 // target.dtype_bytes
    bm, bn, bk = (int(tile[1]), int(tile[2]), int(tile[3] or depth)) if tile else (128, 256, depth)
    steps = ("double", "ping") if tile else ("l1", "l2", "const", "unit", "double", "ping", "preload", "depth")
    pipelined = any(word in note for word in steps)
    chosen = Tile(bm, bn, bk, 4 if pipelined else 1)
    constant = not ladder or "const" in note or "unit" in note
    cores = target.counts.get("cores", int(spec["cube_cores"]))
    found = _matmul_tile(spec, shape, chosen, cores=cores, buffers=2 if pipelined else 1, constant_tiling=constant)
    if not bool(found.fits):
        raise ValueError(f"tile {bm}x{bn}x{bk} does not fit {spec.name}")
    return _matmul_answer(found, shape)


def gemm_peak_test(spec: ChipSpec, target: Target) -> Answer:
    """Best rate of square library matmuls from 2048 to 8192."""
    shapes = [MatmulShape(n, n, n, target.dtype_bytes) for n in (2048, 3072, 4096, 6144, 8192)]
    answers = [_matmul_answer(_matmul(spec, shape, True), shape) for shape in shapes]
    return max(answers, key=lambda answer: answer.flop / answer.time_ns)


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
    found = _forward(spec, shape=shape, library="vendor" in target.kind)
    limit = ATTENTION_LIMITS[int(found.limit)]
    return Answer(float(found.duration_ns), limit, flop=attention.forward_flop(shape))


def attention_backward(spec: ChipSpec, target: Target) -> Answer:
    """Attention backward (`fa_bwd`, `fa_bwd_vendor`); 2.5 times the operations of forward."""
    shape = attention_shape(target)
    found, _ = _backward(spec, shape=shape, library="vendor" in target.kind)
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
    return Answer(time_ns, "cube", flop=flop)


def read_all(spec: ChipSpec, target: Target) -> Answer:
    """`gm_ub_read`, `gm_l1_read` and their `_l2` forms: all cores read `bytes` together.

    The tile in the note gives copies and runs of fp16 elements; without one, runs are 512 B into L1 and 2 KiB into UB.
    """
    to_l1 = "_l1_" in target.kind
    cores = target.counts.get("cores", int(spec["cube_cores" if to_l1 else "vector_cores"]))
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
    """Rate of one data path, long copies, `cores` at work."""
    cores = target.counts.get("cores", int(spec["cube_cores"]))
    kind = target.kind
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
    return Answer(1e9, queue, nbytes=rate)


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
    ranks, inside = target.count("ranks"), int(spec["server_devices"])
    servers = -(-ranks // inside) if inside > 1 else 1
    time = links.blocking_all_reduce_ns if target.kind.endswith("_host") else links.all_reduce_ns
    found = time(spec, target.count("bytes"), ranks // servers, servers=servers)
    return Answer(float(found), "link", nbytes=float(target.count("bytes")))


def link_rate(spec: ChipSpec, target: Target) -> Answer:
    """Rate of long copies: `h2d`, `d2h`, `d2d`, `p2p` and, both directions together, `p2p_bidir`."""
    rates = {"h2d": spec["h2d_bytes_per_s"], "d2h": spec["d2h_bytes_per_s"], "d2d": spec["d2d_bytes_per_s"]}
    rate = rates.get(target.kind, links.path_rate(spec, "fabric"))
    return Answer(1e9, "link", nbytes=float(rate), sides=2.0 if target.kind.endswith("bidir") else 1.0)


def vector_operator(spec: ChipSpec, target: Target) -> Answer:
    """A vector operator over m rows of n elements, named by the kind: `add`, `softmax_task`, `aclnn_transpose`."""
    shape = VectorShape(_vector_name(target.kind), target.count("m"), target.count("n"), target.dtype_bytes)
    found, _ = _vector(spec, shape)
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
    **dict.fromkeys(("h2d", "d2h", "d2d", "p2p", "p2p_bidir"), ("link", link_rate)),
}  # kind: group, function


def find_kind(kind: str) -> tuple[str, Predictor]:
    """Group and function of a kind.

    Raises:
        ValueError: The model has no such kind.
    """
    if kind.startswith("vector_cycles_"):
        return "instruction", vector_cycles
    if kind not in KINDS and _vector_name(kind) in vector.OPERATORS:
        return "vector", vector_operator
    if kind not in KINDS:
        raise ValueError(
            f"kind {kind!r} has no model; known: {', '.join(KINDS)}, vector_cycles_..., {', '.join(vector.OPERATORS)}"
        )
    return KINDS[kind]
