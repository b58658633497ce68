"""``ascend-jax roofline``: the table, and the picture beside it."""

import json
from collections.abc import Sequence
from pathlib import Path

import ascend_jax as aj
from ascend_jax.cli import files, roofline_picture
from ascend_jax.cli.errors import UsageError
from ascend_jax.ops.timing import roofline
from ascend_jax.ops.timing.roofline import Point


def report(
    operators: Sequence[str],
    *,
    dtype: str,
    chip: str,
    program: str | None,
    svg: str | None,
    measurements: str | None,
    as_json: bool,
) -> str:
    """Return the roofline of operators given as `NAME:SIZExSIZE...`, or of a saved program; write a picture if asked.

    Raises:
      UsageError: An unknown chip or operator, a malformed shape, or a file that is no program.
    """
    try:
        spec = aj.chip(chip)
    except ValueError as error:
        raise UsageError(f"--chip: {error}") from None
    try:
        times = None if measurements is None else files.own_measurements(measurements)
        points = [roofline.operator_point(*_parsed(text), dtype, spec, times) for text in operators]
        if program is not None:
            points += roofline.program_points(aj.load_program(program), spec, times)
    except FileNotFoundError:
        raise UsageError(f"--program {program}: no such file") from None
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(str(error)) from None
    if not points:
        raise UsageError("nothing to draw: name an operator such as matmul:4096x4096x4096, or a --program with kernels")
    if svg is not None:
        Path(svg).write_text(roofline_picture.svg(points, spec.name), encoding="utf-8")
    if as_json:
        return json.dumps({"chip": spec.name, "points": roofline.table(points)}, allow_nan=False)
    return "\n\n".join([_points(points), roofline_picture.text(points, spec.name)])


def _parsed(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.partition(":")
    try:
        shape = tuple(int(size) for size in sizes.replace(",", "x").split("x"))
    except ValueError:
        raise ValueError(f"operator {text!r}: write NAME:SIZExSIZE..., for example matmul:4096x4096x4096") from None
    return name, shape


def _points(points: Sequence[Point]) -> str:
    head = f"  {'operator':<38}{'GFLOP':>10}{'MB':>10} {'from':<5}{'FLOP/B':>9}{'us':>10}"
    lines = [f"{head}{'TFLOPS':>9}{'roof':>9}{'share':>8}  bound by"]
    for letter, row in zip(roofline_picture.letters(points), roofline.table(points), strict=True):
        lines.append(
            f"{letter} {row['operator'][:37]:<38}{row['gflop']:>10.4g}{row['moved_mb']:>10.4g} {row['memory']:<5}"
            f"{row['flop_per_byte']:>9.4g}{row['time_us']:>10.4g}{row['tflops']:>9.4g}{row['roof_tflops']:>9.4g}"
            f"{100 * row['share_of_roof']:>7.1f}%  {row['limit']}"
        )
    return "\n".join(lines)
