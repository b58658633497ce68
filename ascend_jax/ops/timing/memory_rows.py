"""What the model says to published rates of data paths: all cores reading, one core, one path."""

import re
from collections.abc import Callable
from typing import Any

from ascend_jax.chip import memory
from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops.timing.answers import Answer
from ascend_jax.ops.timing.products import cores_of
from ascend_jax.ops.timing.targets import Target


def read_all(spec: ChipSpec, target: Target) -> Answer:
    """`gm_ub_read`, `gm_l1_read` and their `_l2` forms: all cores read `bytes` together.

    The tile in the note gives copies and runs of fp16 elements; without one, runs are 512 B into L1 and 2 KiB into UB.
    """
    to_l1 = "_l1_" in target.kind
    cores = cores_of(spec, target, "cube" if to_l1 else "vector")
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
    cores = cores_of(spec, target, "vector" if "_ub_" in f"_{kind}" else "cube")
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
