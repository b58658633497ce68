"""Pictures of a roofline: text for a terminal, SVG for a page."""

import html
import math
from collections.abc import Sequence

from ascend_jax.ops.timing.roofline import Point


def letters(points: Sequence[Point]) -> list[str]:
    """Return a sign for each point, from A on, no two alike while there are letters and digits left."""
    signs = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    return [signs[i] if i < len(signs) else "+" for i in range(len(points))]


def _frame(points: Sequence[Point]) -> tuple[float, float, float, float]:
    """Decades of the axes: least and greatest intensity, least and greatest rate."""
    ridge = max(point.peak_flops / point.rate_bytes_per_s for point in points)
    x = [point.intensity for point in points] + [ridge]
    y = [point.achieved for point in points] + [max(point.peak_flops for point in points)]
    return (
        math.floor(math.log10(min(x) / 1.5)),
        math.ceil(math.log10(max(x) * 3)),
        math.floor(math.log10(min(y) / 1.5)),
        math.ceil(math.log10(max(y) * 1.05)),
    )


def text(points: Sequence[Point], chip: str, *, width: int = 64, height: int = 16) -> str:
    """Return the picture as text: a letter per operator, and the roof of each unit and memory among them."""
    left, right, bottom, top = _frame(points)
    roofs = _roofs(points)
    cells = [[" "] * width for _ in range(height)]

    def cell(log_x: float, log_y: float) -> tuple[int, int]:
        column = round((log_x - left) / (right - left) * (width - 1))
        row = round((top - log_y) / (top - bottom) * (height - 1))
        return min(max(row, 0), height - 1), min(max(column, 0), width - 1)

    for column in range(width):
        log_x = left + (right - left) * column / (width - 1)
        for peak, rate in roofs:
            sloped = log_x + math.log10(rate)
            log_y = min(sloped, math.log10(peak))
            if bottom <= log_y <= top:
                cells[cell(log_x, log_y)[0]][column] = "/" if sloped < math.log10(peak) else "-"
    for letter, point in zip(letters(points), points, strict=True):
        row, column = cell(math.log10(point.intensity), math.log10(point.achieved))
        cells[row][column] = letter
    title = f"{chip}: TFLOPS over FLOP a byte, both logarithmic"
    lines = [title, *(f"roof: {_roof_name(*roof)}" for roof in roofs)]
    for i, row_cells in enumerate(cells):
        log_y = top - (top - bottom) * i / (height - 1)
        mark = f"{10 ** (log_y - 12):>9.3g}" if i % 5 == 0 else " " * 9
        lines.append(f"{mark} |{''.join(row_cells)}".rstrip())
    marks = f"{10.0**left:.3g}".ljust(width // 2) + f"{10 ** ((left + right) / 2):.3g}".ljust(width // 2)
    return "\n".join([*lines, " " * 10 + "+" + "-" * width, " " * 11 + marks + f"{10.0**right:.3g}"])


def _roofs(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Peak and memory rate of each roof, once."""
    return list(dict.fromkeys((point.peak_flops, point.rate_bytes_per_s) for point in points))


def _roof_name(peak: float, rate: float) -> str:
    return f"{peak / 1e12:.1f} TFLOPS, {rate / 1e12:.2f} TB/s"


def svg(points: Sequence[Point], chip: str) -> str:
    """Return the picture as an SVG document: each operator under the roof of its own unit and memory."""
    left, right, bottom, top = _frame(points)
    width, height, edge = 640, 400, 60

    def at(x: float, y: float) -> str:
        px = edge + (math.log10(x) - left) / (right - left) * (width - 2 * edge)
        py = height - edge - (math.log10(y) - bottom) / (top - bottom) * (height - 2 * edge)
        return f"{px:.1f},{py:.1f}"

    parts = [f'<rect width="{width}" height="{height}" fill="white"/>']
    for decade in range(int(left), int(right) + 1):
        parts.append(
            f'<polyline points="{at(10.0**decade, 10.0**bottom)} {at(10.0**decade, 10.0**top)}" stroke="#ddd"/>'
        )
        x, y = at(10.0**decade, 10.0**bottom).split(",")
        parts.append(f'<text x="{x}" y="{float(y) + 16:.1f}" text-anchor="middle">{10.0**decade:g}</text>')
    for decade in range(int(bottom), int(top) + 1):
        parts.append(
            f'<polyline points="{at(10.0**left, 10.0**decade)} {at(10.0**right, 10.0**decade)}" stroke="#ddd"/>'
        )
        x, y = at(10.0**left, 10.0**decade).split(",")
        parts.append(f'<text x="{float(x) - 6:.1f}" y="{y}" text-anchor="end">{10.0 ** (decade - 12):g}</text>')
    for i, (peak, rate) in enumerate(_roofs(points)):
        start = max(10.0**left, 10.0**bottom / rate)
        corners = [(start, start * rate), (peak / rate, peak), (10.0**right, peak)]
        path = " ".join(at(x, y) for x, y in corners)
        parts.append(f'<polyline points="{path}" fill="none" stroke="black" stroke-width="1.5"/>')
        x, y = at(10.0**right, peak).split(",")
        label = f'text-anchor="end">{_roof_name(peak, rate)}</text>'
        parts.append(f'<text x="{x}" y="{float(y) - 4 - 12 * (i % 2):.1f}" {label}')
    for letter, point in zip(letters(points), points, strict=True):
        x, y = at(point.intensity, point.achieved).split(",")
        label = html.escape(f"{letter} {point.name}: {point.achieved / 1e12:.4g} TFLOPS, bound by {point.limit}")
        parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="#1f6feb"><title>{label}</title></circle>')
        parts.append(f'<text x="{float(x) + 8:.1f}" y="{float(y) + 4:.1f}">{letter}</text>')
    title = html.escape(f"{chip}: TFLOPS over FLOP a byte")
    parts.append(f'<text x="{width / 2}" y="24" text-anchor="middle" font-size="15">{title}</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 14}" text-anchor="middle">operations a byte (FLOP/byte)</text>')
    turned = f'transform="rotate(-90 16 {height / 2})"'
    parts.append(f'<text x="16" y="{height / 2}" text-anchor="middle" {turned}>rate (TFLOPS)</text>')
    body = "\n".join(parts)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    return f'{head} font-family="sans-serif" font-size="11">\n{body}\n</svg>\n'
