"""What the main job prints: the path from call to result, timeline, memory, speed and error; or one JSON object."""

from typing import Any

import jax.numpy as jnp
import numpy as np

import ascend_jax as aj
from ascend_jax.chip.onchip import LEVELS
from ascend_jax.cli.attention_job import JobResult
from ascend_jax.cli.attention_program import size
from ascend_jax.insight import gantt
from ascend_jax.insight.kinds import KERNEL


def as_json(result: JobResult) -> dict[str, Any]:
    """Return the report as plain data."""
    shapes, spec = result.job.shapes, result.job.spec
    used = dict(zip(LEVELS, np.asarray(result.onchip.used_bytes).tolist(), strict=True))
    return {
        "chip": spec.name,
        "calibration": result.confidence.label,
        "error_band": result.confidence.band,
        "shape": {"q": list(shapes.q), "k": list(shapes.k), "v": list(shapes.v)},
        "dtype": shapes.dtype.name,
        "causal": result.job.is_causal,
        "streams": "per-head" if result.job.per_head else "fused",
        "launches": result.job.launches,
        "tile": list(result.tile),
        "makespan_us": result.makespan_ns / 1e3,
        "kernel_us": result.kernel_ns / 1e3,
        "tflops": result.tflops,
        "peak_tflops": result.peak_tflops,
        "limit": result.limit,
        "blocks": int(result.run.executor.cost.blocks),
        "tiles": result.tiles,
        "waves": result.waves,
        "tile_us": None if result.is_measured else _tile_us(result),  # a measured time has no parts
        "fixed_us": None if result.is_measured else result.fixed_us,
        "cube_busy_us": float(result.run.executor.cost.cube_busy_ns) / 1e3,
        "vector_busy_us": float(result.run.executor.cost.vector_busy_ns) / 1e3,
        "max_abs_error": result.max_abs_error,
        "relative_error": result.relative_error,
        "hbm_peak_bytes": aj.hbm_peak_bytes(result.run.card),
        "workspace_bytes": result.run.workspace_bytes,
        "hbm_read_bytes": result.read_bytes,
        "hbm_written_bytes": result.written_bytes,
        "onchip_bytes": {level: used[level] for level in LEVELS if level != "L2"},
        "steps": [
            {
                "step": i,
                "name": s.name,
                "what": s.what,
                "start_us": s.start_ns / 1e3,
                "end_us": s.end_ns / 1e3,
            }
            for i, s in enumerate(result.run.steps, 1)
        ],
        "wall_s": result.wall_s,
    }


def as_text(result: JobResult, *, width: int = 110) -> str:
    """Return the report for reading."""
    parts = [_title(result), _path(result), _execution(result), _timeline(result, width), _memory(result)]
    parts.append(_figures(result))
    return "\n\n".join(parts)


def _title(result: JobResult) -> str:
    shapes, job = result.job.shapes, result.job
    how = f"{job.launches} launches on {job.streams} streams, one per head" if job.per_head else "one fused launch"
    kind = "causal" if job.is_causal else "full"
    return (
        f"FlashAttention forward on a simulated {job.spec.name}, {how}\n"
        f"q {list(shapes.q)}, k and v {list(shapes.k)} (batch, heads, seq, dim), {shapes.dtype}, {kind}"
    )


def _path(result: JobResult) -> str:
    lines = [
        "From call to result (simulated time):",
        f"  {'step':<24}{'from us':>10}{'to us':>10}   what happened",
    ]
    for number, step in enumerate(result.run.steps, 1):
        times = f"{step.start_ns / 1e3:>10.1f}{step.end_ns / 1e3:>10.1f}"
        lines.append(f"  {number} {step.name:<22}{times}   {step.what}")
    return "\n".join(lines)


def _execution(result: JobResult) -> str:
    """Where the time of one launch comes from."""
    cost, tile, spec = result.run.executor.cost, result.tile, result.job.spec
    busy = f"{float(cost.cube_busy_ns) / 1e3:.1f} us (cube), {float(cost.vector_busy_ns) / 1e3:.1f} us (vector)"
    waves = f"{result.waves} wave{'s' if result.waves != 1 else ''}"
    hand_over = " -> L2 -> " if int(spec["vector_per_cube"]) > 1 else " -> "
    path = ["q, k -> L1 -> L0A, L0B -> cube: q k^T -> L0C", "UB -> vector: softmax"]
    path += ["L1 -> L0A, L0B -> cube: p v -> L0C", "UB -> vector: rescale, add"]
    return "\n".join(
        [
            "Execution of one launch on the cube and vector units:",
            f"  {result.tiles} tiles of {tile[0]} query rows on {int(cost.blocks)} cube cores: {waves}",
            f"  {result.launch_us:.1f} us {_made_of(result, waves)}",
            f"  the busiest core computes {busy}",
            f"  a tile, for every {tile[1]} key columns:",
            f"    {hand_over.join(path[:2])}{hand_over}".rstrip(),
            f"    {hand_over.join(path[2:])}",
        ]
    )


def _made_of(result: JobResult, waves: str) -> str:
    if result.is_measured:
        return "are your own measurement"
    return f"= {result.fixed_us:.1f} fixed + {waves} x {_tile_us(result):.1f} per tile"


def _tile_us(result: JobResult) -> float:
    return (result.launch_us - result.fixed_us) / result.waves


def _timeline(result: JobResult, width: int) -> str:
    kernels = result.timeline.of_kind(KERNEL)
    parts = ["Timeline of the whole program:", _indent(gantt(result.timeline, width=width))]
    if result.job.per_head:
        parts = ["Timeline of the kernels, by stream:", _indent(gantt(kernels, width=width))]
        parts += ["", "Timeline of the kernels, by core:", _indent(gantt(kernels, width=width, by="core", max_rows=24))]
    return "\n".join(parts)


def _memory(result: JobResult) -> str:
    spec, plan = result.job.spec, result.onchip
    free, total = aj.mem_get_info(result.run.card)
    asked = sum(result.job.value_bytes) + result.run.workspace_bytes
    lines = [
        "Memory:",
        f"  HBM peak {size(aj.hbm_peak_bytes(result.run.card))} of {size(total)}: {size(asked)} asked for, "
        f"in whole pages; {size(free)} still free",
        f"  HBM traffic of the kernels, as modelled: {size(result.read_bytes)} of inputs read, "
        f"{size(result.written_bytes)} of results written",
        f"  {_where_scores_go(result)}",
        f"  on chip, per core, for a tile of {result.tile[0]} query rows x {result.tile[1]} key columns:",
    ]
    rows = plan.report()
    used = np.asarray(plan.used_bytes).tolist()
    for level, taken in zip(LEVELS, used, strict=True):
        if level != "L2":
            buffers = ", ".join(_buffer(row) for row in rows if row["level"] == level)
            capacity = int(spec[f"{level.lower()}_bytes"])
            lines.append(f"    {level:<4}{taken / 1024:>7.1f} of {capacity / 1024:>6.1f} KiB   {buffers}")
    return "\n".join(lines)


def _where_scores_go(result: JobResult) -> str:
    workspace, l2_bytes = result.run.workspace_bytes, int(result.job.spec["l2_bytes"])
    if workspace == 0:
        return "scores never leave the core"
    room = f"a workspace of {size(workspace)}, L2 has {size(l2_bytes)}"
    if workspace <= l2_bytes:
        return f"scores pass from cube to vector cores through L2 ({room}) and are not kept"
    return f"scores pass from cube to vector cores through {room}: part of them goes through HBM, not counted above"


def _buffer(row: dict[str, Any]) -> str:
    copies = f" x {row['copies']}" if row["copies"] > 1 else ""
    return f"{row['buffer']} {row['size_bytes'] / 1024:.1f}{copies}"


def _figures(result: JobResult) -> str:
    share = result.tflops / result.peak_tflops
    step = float(jnp.finfo(result.job.shapes.dtype).eps) / 2
    return "\n".join(
        [
            "Result:",
            f"  attention {result.kernel_ns / 1e3:.1f} us, {result.tflops:.1f} TFLOPS of {result.peak_tflops:.1f} peak "
            f"({share:.1%}), bound by {'the fixed start-up' if result.limit == 'fixed' else result.limit}",
            f"  whole program {result.makespan_ns / 1e3:.1f} us from first call to results on the host",
            f"  times are {_trust(result)}",
            f"  max |error| against float64 {result.max_abs_error:.2e}, {result.relative_error:.1e} of the greatest; "
            f"{result.job.shapes.dtype} itself rounds by {step:.1e}",
            f"  computed here in {result.wall_s:.1f} s",
        ]
    )


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _trust(result: JobResult) -> str:
    trust = result.confidence
    return f"{trust.label}, +-{100 * trust.band:.0f} %: {trust.why}"
