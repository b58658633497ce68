"""How far a predicted time can be trusted: a word, an error band, and why.

A prediction is `calibrated` if the calibration file holds measurements of its group on the same chip (or on a product
that the chip stands for), with the same element size, and its size lies within them, a factor of two either way;
`extrapolated` if it holds some of the same family; else `uncalibrated`. Only a chip of the catalogue, as it stands
there, is calibrated: one with other values is extrapolated at best, one of a file of your own uncalibrated. The band
is a share of the time: nine of ten published rows lie within the calibrated one (`data/bands.toml`); the others widen
it by a factor that no measurement backs.
"""

import dataclasses
import functools
import importlib.resources
import tomllib

import numpy as np

from ascend_jax.chip.spec import ChipSpec, chip, chips

LABELS = ("calibrated", "extrapolated", "uncalibrated")
_WIDEST = 0.95  # a band never reaches down to no time at all


@dataclasses.dataclass(frozen=True)
class Confidence:
    """Trust in one prediction."""

    label: str  # one of LABELS
    band: float  # share of the predicted time: it lies within time * (1 -+ band)
    why: str


def confidence(
    spec: ChipSpec, group: str, dtype: str, size: float, *, kind: str = "", ranks: int = 0, unlike: str = ""
) -> Confidence:
    """Trust in a prediction of a group ("gemm", "attention", "memory", ...).

    Args:
        spec: The chip.
        group: Group of kinds, as in `data/bands.toml`.
        dtype: Element type by name, "" where it does not matter.
        size: Operations of the launch, or bytes where it computes nothing, or its time in ns.
        kind: Kind of a row, for groups whose kinds are measured on different chips; "" for the group's usual one.
        ranks: Ranks of a collective.
        unlike: How the shape differs from what is measured, "" if it does not.

    Raises:
        ValueError: There is no such group.

    Example:
        >>> from ascend_jax.chip import chip
        >>> confidence(chip("Ascend910B2"), "gemm", "float16", 2 * 4096.0**3).label
        'calibrated'
        >>> confidence(chip("Ascend310P3"), "gemm", "float16", 2 * 4096.0**3).label
        'uncalibrated'
    """
    bands = _bands()
    if group not in bands:
        raise ValueError(f"group {group!r}: known are {', '.join(name for name in bands if name != 'widening')}")
    entry, widening = bands[group], bands["widening"]
    label, why = _label(spec, entry, _element(dtype), size, kind)
    if label == "calibrated" and entry.get("ranks") and ranks not in entry["ranks"]:
        label, why = "extrapolated", f"measured with {_listed(entry['ranks'])} ranks, not with {ranks}"
    if label == "calibrated" and unlike:
        label, why = "extrapolated", unlike
    factor = 1.0 if label == "calibrated" else float(widening[label])
    return Confidence(label, round(min(float(entry["band"]) * factor, _WIDEST), 3), why)


def is_catalogue(spec: ChipSpec) -> bool:
    """Whether a chip has the name and all values of one of the catalogue; concrete, unbatched specs only.

    Example:
        >>> from ascend_jax.chip import chip
        >>> spec = chip("Ascend910B2")
        >>> is_catalogue(spec), is_catalogue(spec.replace(clock_hz=3e8))
        (True, False)
    """
    if spec.name not in chips():
        return False
    known = chip(spec.name)
    return spec.calibration == known.calibration and np.array_equal(np.asarray(spec.values), np.asarray(known.values))


def _label(spec: ChipSpec, entry: dict, element: str, size: float, kind: str) -> tuple[str, str]:
    if spec.family not in entry["families"]:
        return "uncalibrated", f"no published measurement of this kind on {spec.family}"
    if not is_catalogue(spec) and spec.calibration != "calibrated":
        return "uncalibrated", f"{spec.name} is no chip of the catalogue; nothing is measured on it"
    if not is_catalogue(spec):
        return "extrapolated", f"its values are not those that the catalogue gives {spec.name}"
    measured_on = entry.get("kinds", {}).get(kind, []) if kind and "kinds" in entry else entry["chips"]
    if not measured_on:
        return "extrapolated", "built from measured paths and instructions, no operator of this kind is measured"
    if spec.name not in measured_on:
        return "extrapolated", f"measured on {', '.join(measured_on)}, not on {spec.name}"
    if spec.calibration != "calibrated":
        return "extrapolated", f"most of {spec.name}'s values are estimates; its file says {spec.calibration}"
    if entry["dtypes"] and element and element not in entry["dtypes"]:
        return "extrapolated", f"measured with elements of {', '.join(entry['dtypes'])} bytes"
    least, greatest = (float(each) for each in entry["sizes"])
    if not least / 2 <= size <= 2 * greatest:
        return "extrapolated", f"measured from {least:.3g} to {greatest:.3g} {entry['unit']}, this one is {size:.3g}"
    return "calibrated", f"fitted to published measurements on {', '.join(measured_on)}"


def _listed(numbers: list[int]) -> str:
    return ", ".join(str(each) for each in numbers)


def _element(dtype: str) -> str:
    short = dtype.lower()
    return {"fp16": "2", "bf16": "2", "float16": "2", "bfloat16": "2", "fp32": "4", "float32": "4", "int8": "1"}.get(
        short, short
    )


@functools.cache
def _bands() -> dict:
    text = importlib.resources.files("ascend_jax.ops.timing").joinpath("data/bands.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
