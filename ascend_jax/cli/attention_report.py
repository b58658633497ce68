"""What the main job prints: the path from call to result, timeline, memory, speed and error; or one JSON object."""

from typing import Any

import numpy as np

import ascend_jax as aj
from ascend_jax.chip.onchip import LEVELS
from ascend_jax.cli.attention_job import JobResult
from ascend_jax.cli.attention_program import MIB
from ascend_jax.insight import gantt
from ascend_jax.insight.timeline import KERNEL


def as_json(result: JobResult) -> dict[str, Any]:
    """Return the report as plain data."""
    shapes, spec = result.job.shapes, result.job.spec
    used = dict(zip(LEVELS, np.asarray(result.onchip.used_bytes).tolist(), strict=True))
    return {
        "chip": spec.name,
        "calibration": spec.calibration,
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
        "max_abs_error": result.max_abs_error,
        "relative_error": result.max_abs_error / result.max_abs_reference,
        "hbm_peak_bytes": aj.hbm_peak_bytes(result.run.card),
        "workspace_bytes": result.run.workspace_bytes,
        "hbm_traffic_bytes": int(result.timeline.moved_bytes[result.timeline.kind == KERNEL].sum()),
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
    parts = [_title(result), _path(result), _timeline(result, width), _memory(result), _figures(result)]
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


def _timeline(result: JobResult, width: int) -> str:
    kernels = result.timeline.of_kind(KERNEL)
    parts = ["Timeline of the whole program:", _indent(gantt(result.timeline, width=width))]
    if result.job.per_head:
        parts = ["Timeline of the kernels, by stream:", _indent(gantt(kernels, width=width))]
    parts += ["Timeline of the kernels, by core:", _indent(gantt(kernels, width=width, by="core"))]
    return "\n".join(parts)


def _memory(result: JobResult) -> str:
    spec, plan = result.job.spec, result.onchip
    free, total = aj.mem_get_info(result.run.card)
    moved = int(result.timeline.moved_bytes[result.timeline.kind == KERNEL].sum())
    lines = [
        "Memory:",
        f"  HBM peak {aj.hbm_peak_bytes(result.run.card) / MIB:.1f} MiB of {total / MIB:.0f} MiB "
        f"(workspace {result.run.workspace_bytes / MIB:.1f} MiB); still free {free / MIB:.0f} MiB",
        f"  HBM traffic of the kernels {moved / MIB:.1f} MiB: inputs and outputs; scores stay on chip and in L2",
        f"  on chip, per core, for a tile of {result.tile[0]} query rows x {result.tile[1]} key columns:",
    ]
    rows = plan.report()
    used = np.asarray(plan.used_bytes).tolist()
    for level, taken in zip(LEVELS, used, strict=True):
        if level != "L2":
            buffers = ", ".join(_buffer(row) for row in rows if row["level"] == level)
            size = int(spec[f"{level.lower()}_bytes"])
            lines.append(f"    {level:<4}{taken / 1024:>7.1f} of {size / 1024:>6.1f} KiB   {buffers}")
    return "\n".join(lines)


def _buffer(row: dict[str, Any]) -> str:
    copies = f" x {row['copies']}" if row["copies"] > 1 else ""
    return f"{row['buffer']} {row['size_bytes'] / 1024:.1f}{copies}"


def _figures(result: JobResult) -> str:
    share = result.tflops / result.peak_tflops
    spec = result.job.spec
    relative = result.max_abs_error / result.max_abs_reference
    backing = {
        "calibrated": "the timing model is fitted to published measurements of this family",
        "uncalibrated": "no published measurement backs this chip's times",
    }[spec.calibration]
    return "\n".join(
        [
            "Result:",
            f"  attention {result.kernel_ns / 1e3:.1f} us, {result.tflops:.1f} TFLOPS of {result.peak_tflops:.1f} peak "
            f"({share:.0%}), bound by {result.limit}",
            f"  whole program {result.makespan_ns / 1e3:.1f} us from first call to results on the host",
            f"  times are {spec.calibration}: {backing}",
            f"  max |error| against float64 {result.max_abs_error:.2e}, {relative:.1e} of the largest value",
            f"  computed here in {result.wall_s:.1f} s",
        ]
    )


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
