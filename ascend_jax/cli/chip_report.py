"""``ascend-jax chips`` and ``ascend-jax info``."""

import json
import platform

import jax
import numpy as np

import ascend_jax as aj
from ascend_jax.chip.spec import chip_sheet
from ascend_jax.cli.errors import UsageError


def chips(name: str | None, *, as_json: bool) -> str:
    """Return a line per chip, or every value of one chip with its source.

    Raises:
      UsageError: No such chip.
    """
    if name is None:
        rows = [_summary(each) for each in aj.chips()]
        if as_json:
            return json.dumps(rows)
        head = f"{'chip':<16}{'cube':>5}{'vector':>8}{'MHz':>7}{'fp16 TFLOPS':>13}{'HBM GiB':>9}{'TB/s':>6}   times"
        lines = [
            f"{r['chip']:<16}{r['cube_cores']:>5}{r['vector_cores']:>8}{r['clock_mhz']:>7.0f}{r['peak_fp16_tflops']:>13.1f}"
            f"{r['hbm_gib']:>9.0f}{r['hbm_tb_per_s']:>6.1f}   {r['calibration']}"
            for r in rows
        ]
        return "\n".join([head, *lines])
    try:
        spec, sheet = aj.chip(name), chip_sheet(name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if as_json:
        fields = ("field", "value", "unit", "source", "certainty")
        values = [dict(zip(fields, row, strict=True)) for row in sheet]
        return json.dumps({"chip": spec.name, "family": spec.family, "calibration": spec.calibration, "values": values})
    lines = [f"{spec.name} ({spec.family}), times {spec.calibration}"]
    lines += [
        f"  {field:<30}{value:>16,.6g} {unit:<12}{certainty:<8}{source}"
        for field, value, unit, source, certainty in sheet
    ]
    return "\n".join(lines)


def _summary(name: str) -> dict[str, float | str]:
    spec = aj.chip(name)
    return {
        "chip": name,
        "cube_cores": int(spec["cube_cores"]),
        "vector_cores": int(spec["vector_cores"]),
        "clock_mhz": float(spec["clock_hz"]) / 1e6,
        "peak_fp16_tflops": round(float(aj.peak_flops(spec, 2)) / 1e12, 1),
        "hbm_gib": float(spec["hbm_bytes"]) / 2**30,
        "hbm_tb_per_s": round(float(spec["hbm_bytes_per_s"]) / 1e12, 3),
        "calibration": spec.calibration,
    }


def info(name: str, *, as_json: bool) -> str:
    """Return versions, the XLA device that computes, and what a program sees of a simulated card.

    Raises:
      UsageError: No such chip.
    """
    try:
        card = aj.init(aj.chip(name), hbm_backing_bytes=0)
    except ValueError as error:
        raise UsageError(f"--chip: {error}") from None
    facts: dict[str, object] = {
        "ascend_jax": aj.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "computes_on": str(jax.devices()[0]),
        "operators": list(aj.ops.names()),
        **aj.device_info(card),
    }
    if as_json:
        return json.dumps(facts)
    return "\n".join(
        f"{key:<18}{', '.join(value) if isinstance(value, list) else value}" for key, value in facts.items()
    )
