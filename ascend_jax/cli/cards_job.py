"""The main job on several simulated cards: values by a carrier, times by the exact engine, checked against float64."""

import dataclasses
import functools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ascend_jax as aj
from ascend_jax import hccl, ops
from ascend_jax.cli.attention_inputs import AttentionRequest, load_arrays, make_arrays, shapes_of, shapes_of_arrays
from ascend_jax.cli.cards_plan import CardsJob
from ascend_jax.cli.errors import UsageError
from ascend_jax.hccl import PlanTimes
from ascend_jax.insight import Timeline, gantt, to_perfetto


@dataclasses.dataclass(frozen=True)
class CardsResult:
    """Everything the command reports."""

    job: CardsJob
    carrier: hccl.CarrierChoice
    times: PlanTimes
    out: np.ndarray  # [B, N, S, Dv]
    max_abs_error: float
    wall_s: float

    @property
    def per_card(self) -> list[dict[str, Any]]:
        """What each card did."""
        times, topology = self.times, self.times.plan.topology
        return [
            {
                "card": card,
                "server": topology.server_of(card),
                "busy_us": times.busy_ns(card) / 1e3,
                "exposed_us": times.exposed_ns(card) / 1e3,
                "communication_us": times.communication_ns(card) / 1e3,
                "end_us": int(times.end_ns[card].max()) / 1e3,
            }
            for card in range(self.job.cards)
        ]

    @property
    def timeline(self) -> Timeline:
        """All cards in one log: stream 2 c is what card c computes, 2 c + 1 what it exchanges."""
        rows = [
            row | {"name": f"card {card}: {row['name']}", "stream": 2 * card + row["stream"], "held_cube": 0}
            for card in range(self.job.cards)
            for row in self.times.steps(card)
        ]
        rows = [row | {"command": number} for number, row in enumerate(rows)]
        cores = int(self.job.spec["cube_cores"]), int(self.job.spec["vector_cores"])
        return Timeline.from_rows(
            rows, chip=self.job.spec.name, calibration="extrapolated", cube_cores=cores[0], vector_cores=cores[1]
        )


def run(
    request: AttentionRequest, *, chip: str, is_causal: bool, cards: int, shard: str, carrier: str | None
) -> CardsResult:
    """Run the job on several cards.

    Args:
      request: Where q, k and v come from.
      chip: Name of the chip.
      is_causal: Row i sees key j only if j <= i.
      cards: How many cards.
      shard: "heads", "sequence" (ring) or "ulysses".
      carrier: "pmap", "shard_map", "vmap" or None for the default.

    Raises:
      UsageError: Anything about the request that cannot work.
    """
    started = time.perf_counter()
    if carrier in ("pmap", "shard_map") and cards >= 1:
        try:
            hccl.set_host_devices(cards)
        except RuntimeError as error:
            raise UsageError(f"--carrier {carrier}: {error}") from None
    try:
        spec = aj.chip(chip)
    except ValueError as error:
        raise UsageError(f"--chip: {error}") from None
    arrays = None if request.input is None else load_arrays(request)
    shapes = shapes_of(request) if arrays is None else shapes_of_arrays(*arrays)
    job = CardsJob(spec, shapes, is_causal, cards, shard)
    try:
        choice = hccl.choose_carrier(cards, carrier)
    except ValueError as error:
        raise UsageError(f"--carrier: {error}") from None
    q, k, v = make_arrays(shapes, request.seed) if arrays is None else arrays
    with ThreadPoolExecutor(1) as pool:  # the reference runs while XLA compiles
        scale = float(np.float32(shapes.q[3] ** -0.5))
        reference = pool.submit(ops.attention_reference, q, k, v, mode=int(job.mode), scale=scale)
        out = np.asarray(_values(job, choice.name, q, k, v))
        times = hccl.run_plan(job.plan())
        difference = float(np.abs(out.astype(np.float64) - reference.result()[0]).max())
    return CardsResult(job, choice, times, out, difference, time.perf_counter() - started)


def _values(job: CardsJob, carrier: str, *arrays: np.ndarray) -> jax.Array:
    """Return attention out ``[B, N, S, Dv]``, computed by all cards."""
    q, k, v = (jnp.asarray(x.swapaxes(1, 2)) for x in arrays)
    causal, cards = job.is_causal, job.cards
    if job.shard == "heads":
        parts = [ops.shard_axis(x, cards, 2, "heads") for x in (q, k, v)]
        every = hccl.carry(functools.partial(ops.flash_attention, causal=causal), cards, carrier)
        return ops.join_axis(every(*parts), 2).swapaxes(1, 2)
    zigzag = causal and job.shard == "sequence"
    attention = ops.ring_attention if job.shard == "sequence" else ops.ulysses_attention
    parts = [ops.shard_sequence(x, cards, causal=zigzag) for x in (q, k, v)]
    every = hccl.carry(functools.partial(attention, causal=causal), cards, carrier)
    return ops.join_sequence(every(*parts), causal=zigzag).swapaxes(1, 2)


def as_json(result: CardsResult) -> dict[str, Any]:
    """Return the report as plain data."""
    job = result.job
    return {
        "chip": job.spec.name,
        "calibration": "extrapolated" if job.spec.calibration == "calibrated" else job.spec.calibration,
        "shape": {"q": list(job.shapes.q), "k": list(job.shapes.k), "v": list(job.shapes.v)},
        "dtype": job.shapes.dtype.name,
        "causal": job.is_causal,
        "cards": job.cards,
        "shard": job.shard,
        "carrier": result.carrier.name,
        "makespan_us": result.times.makespan_ns / 1e3,
        "max_abs_error": result.max_abs_error,
        "per_card": result.per_card,
        "wall_s": result.wall_s,
    }


def as_text(result: CardsResult) -> str:
    """Return the report for people."""
    job = result.job
    lines = [
        f"FlashAttention on {job.cards} simulated {job.spec.name}, sharded by {job.shard}; {result.carrier.reason}",
        f"q {list(job.shapes.q)}, k and v {list(job.shapes.k)}, {job.shapes.dtype.name}"
        + (", causal" if job.is_causal else ""),
        "",
        gantt(result.timeline, width=100, max_rows=16),
        "",
        "card  server   busy us   communication us   not hidden us     end us",
    ]
    lines += [
        f"{one['card']:4}  {one['server']:6}  {one['busy_us']:8.1f}  {one['communication_us']:17.1f}  "
        f"{one['exposed_us']:14.1f}  {one['end_us']:9.1f}"
        for one in result.per_card[:16]
    ]
    if job.cards > 16:
        lines.append(f"... {job.cards - 16} more")
    lines += ["", f"makespan {result.times.makespan_ns / 1e3:.1f} us simulated, times extrapolated from one card"]
    lines.append(f"max |error| {result.max_abs_error:.1e} against float64; {result.wall_s:.1f} s on this machine")
    return "\n".join(lines)


def write(result: CardsResult, *, output: str | None, trace: str | None) -> list[str]:
    """Write the files that were asked for; return one line about each."""
    lines = []
    if output is not None:
        np.savez(
            output, attention_out=result.out.astype(np.float32) if result.out.dtype.name == "bfloat16" else result.out
        )
        lines.append(f"wrote {output}: attention_out {list(result.out.shape)}")
    if trace is not None:
        with open(trace, "w", encoding="utf-8") as file:
            json.dump(to_perfetto(result.timeline), file)
        lines.append(f"wrote {trace}: open it at https://ui.perfetto.dev")
    return lines
