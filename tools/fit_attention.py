"""Fit the two constants of the attention time model to published times of a fused attention operator.

    python tools/fit_attention.py CSV [--chip Ascend910B2] [--kind fa_fwd_vendor] [--json]

The CSV has the columns soc, kind, dtype, batch, heads, sq, sk, d, causal, value (us). Time is linear in both
constants once the tiles are known, so each step is a least-squares solve on relative errors; the steps repeat
until the tiles that `choose_tile` takes stay the same. Copy the two numbers into the chip file by hand.
"""

import argparse
import csv
import json
from typing import Any

import jax
import numpy as np

from ascend_jax.chip import ChipSpec, chip
from ascend_jax.ops.attention.tiling import LIMITS, TILES, AttentionShape, attention_cost, choose_tile
from ascend_jax.ops.attention.visibility import SparseMode

CONSTANTS = ("attention_fixed_ns", "attention_overlap_loss")
_DTYPE_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
_choose = jax.jit(choose_tile, static_argnums=1)
_cost = jax.jit(attention_cost, static_argnums=(1, 2))


def read_rows(path: str, name: str, kind: str) -> list[tuple[AttentionShape, float]]:
    """Rows (shape, measured ns) of one chip and kind."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == kind and name.endswith(row["soc"])]
    return [(_shape(row), 1e3 * float(row["value"])) for row in rows]


def fit(spec: ChipSpec, rows: list[tuple[AttentionShape, float]], steps: int = 20) -> ChipSpec:
    """Spec with both constants set to the least relative error that the steps meet."""
    measured = np.array([ns for _, ns in rows])
    best, least = spec, np.inf
    seen: set[tuple[int, ...]] = set()
    for _ in range(steps):
        tiles = tuple(int(_choose(spec, shape).tile) for shape, _ in rows)
        error = np.square(predict(spec, rows) / measured - 1).sum()
        if seen and error < least:
            best, least = spec, error
        if tiles in seen:
            break
        seen.add(tiles)
        at = [_durations(spec, rows, tiles, loss) for loss in (0.0, 1.0)]
        matrix = np.stack([np.ones_like(measured), at[1] - at[0]], axis=1) / measured[:, None]
        solution = np.linalg.lstsq(matrix, 1 - at[0] / measured, rcond=None)[0]
        fixed, loss = max(round(solution[0], -2), 100.0), np.clip(round(solution[1], 3), 0.0, 1.0)
        spec = spec.replace(attention_fixed_ns=fixed, attention_overlap_loss=loss)
    return best


def predict(spec: ChipSpec, rows: list[tuple[AttentionShape, float]]) -> np.ndarray:
    """Predicted ns of each row, with the tile that the model chooses."""
    return np.array([float(_choose(spec, shape).duration_ns) for shape, _ in rows])


def report(spec: ChipSpec, rows: list[tuple[AttentionShape, float]]) -> dict[str, Any]:
    """Constants and one line a row."""
    lines = []
    for shape, ns in rows:
        cost = _choose(spec, shape)
        lines.append(
            {
                "q_len": shape.q_len,
                "measured_us": ns / 1e3,
                "predicted_us": round(float(cost.duration_ns) / 1e3, 3),
                "error_percent": round(100 * (float(cost.duration_ns) / ns - 1), 1),
                "tile": TILES[int(cost.tile)],
                "limit": LIMITS[int(cost.limit)],
            }
        )
    return {"chip": spec.name, **{name: round(float(spec[name]), 4) for name in CONSTANTS}, "rows": lines}


def _shape(row: dict[str, str]) -> AttentionShape:
    batch, heads, sq, sk, d = (int(row[key]) for key in ("batch", "heads", "sq", "sk", "d"))
    mode = SparseMode.RIGHT_DOWN_CAUSAL if int(row["causal"] or 0) else SparseMode.NO_MASK
    return AttentionShape(batch, heads, heads, sq, sk, d, d, _DTYPE_BYTES[row["dtype"]], mode)


def _durations(
    spec: ChipSpec, rows: list[tuple[AttentionShape, float]], tiles: tuple[int, ...], loss: float
) -> np.ndarray:
    at = spec.replace(attention_fixed_ns=0.0, attention_overlap_loss=loss)
    pairs = zip(rows, tiles, strict=True)
    return np.array([float(_cost(at, shape, TILES[tile]).duration_ns) for (shape, _), tile in pairs])


def main() -> None:
    """Read, fit, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("csv")
    parser.add_argument("--chip", default="Ascend910B2")
    parser.add_argument("--kind", default="fa_fwd_vendor")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    spec = chip(args.chip)
    rows = read_rows(args.csv, spec.name, args.kind)
    if len(rows) < len(CONSTANTS):
        raise SystemExit(f"{args.csv}: {len(rows)} {args.kind} rows of {spec.name}; at least two are needed")
    before, after = report(spec, rows), report(fit(spec, rows), rows)
    if args.json:
        print(json.dumps({"in_catalogue": before, "fitted": after}, indent=2))
        return
    for title, result in (("in the catalogue", before), ("fitted", after)):
        print(f"{title}: " + ", ".join(f"{name} = {result[name]}" for name in CONSTANTS))
        for line in result["rows"]:
            print("  " + "  ".join(f"{key}={value}" for key, value in line.items()))


if __name__ == "__main__":
    main()
