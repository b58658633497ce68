"""The main job: FlashAttention from a host call to its result, on a simulated card, checked against float64."""

import dataclasses
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import ascend_jax as aj
from ascend_jax.chip.onchip import OnChipPlan
from ascend_jax.cli.attention_inputs import (
    AttentionRequest,
    load_arrays,
    make_arrays,
    shapes_of,
    shapes_of_arrays,
)
from ascend_jax.cli.attention_program import MIB, Job, Run, simulate
from ascend_jax.cli.errors import UsageError
from ascend_jax.insight import Timeline
from ascend_jax.insight.kinds import KERNEL
from ascend_jax.ops.attention.tiling import TILES, place_tile
from ascend_jax.ops.timing.attention import forward_confidence
from ascend_jax.ops.timing.confidence import Confidence
from ascend_jax.ops.timing.measured import Measurements, kernel_key
from ascend_jax.runtime.kernels import LIMITS


@dataclasses.dataclass(frozen=True)
class JobResult:
    """Everything the command reports."""

    job: Job
    run: Run
    timeline: Timeline
    max_abs_error: float
    max_abs_reference: float  # greatest absolute value of the reference
    wall_s: float

    @property
    def tile(self) -> tuple[int, int]:
        """Query rows and key columns of the Ascend tile."""
        return TILES[int(self.run.executor.cost.tile)]

    @property
    def tiles(self) -> int:
        """Runs of query rows of one head that a launch works through."""
        shape = self.job.launch_shape
        return shape.batch * shape.heads * -(-shape.q_len // self.tile[0])

    @property
    def waves(self) -> int:
        """Tiles that the busiest core of a launch works through, one after another."""
        return -(-self.tiles // int(self.run.executor.cost.blocks))

    @property
    def fixed_us(self) -> float:
        """Time of a launch that does not depend on its shape."""
        return float(self.job.spec["kernel_head_ns"] + self.job.spec["attention_fixed_ns"]) / 1e3

    @property
    def launch_us(self) -> float:
        """Predicted time of one launch on an idle card."""
        return self.run.predicted_ns / 1e3

    @property
    def onchip(self) -> OnChipPlan:
        """Where the tile's buffers lie in one core."""
        return place_tile(self.job.spec, self.job.launch_shape, self.tile)

    @property
    def limit(self) -> str:
        """The unit that bounds the time of a launch."""
        return LIMITS[int(self.run.executor.cost.limit)]

    @property
    def kernel_ns(self) -> int:
        """From the first kernel's start to the last one's end."""
        is_kernel = self.timeline.kind == KERNEL
        return int(self.timeline.end_ns[is_kernel].max() - self.timeline.start_ns[is_kernel].min())

    @property
    def makespan_ns(self) -> int:
        """From the program's start to its results on the host."""
        return aj.host_time_ns(self.run.card)

    @property
    def written_bytes(self) -> int:
        """HBM bytes that the kernels write: the results, once."""
        return sum(each.nbytes for each in self.job.outputs.values())

    @property
    def read_bytes(self) -> int:
        """HBM bytes that the kernels read, as the timing model counts them."""
        moved = float(self.run.executor.cost.hbm_bytes) * self.job.launches
        return round(moved) - self.written_bytes

    @property
    def confidence(self) -> Confidence:
        """How far the times can be trusted: label, error band, and why."""
        model = forward_confidence(self.job.spec, self.job.launch_shape)
        return self._measured(model) or model

    @property
    def is_measured(self) -> bool:
        """Whether the time of a launch is one of your own measurements."""
        return self._measured(Confidence("", 0.0, "")) is not None

    def _measured(self, model: Confidence) -> Confidence | None:
        own, kernel = self.job.measurements, self.run.executor.kernel
        found = own.look_up(*kernel_key(kernel), model) if own and kernel else None
        return None if found is None else found[1]

    @property
    def relative_error(self) -> float:
        """Error relative to the greatest value; 0 where all are 0."""
        return self.max_abs_error / self.max_abs_reference if self.max_abs_reference else 0.0

    @property
    def flop(self) -> int:
        """Floating-point operations of the visible pairs: 2 (D + Dv) each."""
        shapes = self.job.shapes
        pairs = aj.ops.Visibility(shapes.q[2], shapes.k[2], self.job.mode).live_pairs()
        return 2 * (shapes.q[3] + shapes.v[3]) * int(pairs) * shapes.q[0] * shapes.q[1]

    @property
    def tflops(self) -> float:
        """Achieved TFLOPS of the attention itself, over kernel time."""
        return self.flop / self.kernel_ns / 1e3

    @property
    def peak_tflops(self) -> float:
        """Peak TFLOPS of the chip's cube cores for this dtype."""
        return float(aj.peak_flops(self.job.spec, self.job.shapes.dtype.itemsize)) / 1e12


def run(
    request: AttentionRequest,
    *,
    chip: str,
    is_causal: bool,
    per_head: bool,
    measurements: Measurements | None = None,
) -> JobResult:
    """Run the job.

    Args:
      request: Where q, k and v come from.
      chip: Name of the chip.
      is_causal: Row i sees key j only if j <= i + (key length - query length).
      per_head: One launch and one stream per head instead of one launch for all.
      measurements: Your own times; one of a launch's shape replaces the predicted time.

    Raises:
      UsageError: Anything about the request that cannot work.
    """
    started = time.perf_counter()
    try:
        spec = aj.chip(chip)
    except ValueError as error:
        raise UsageError(f"--chip: {error}") from None
    arrays = None if request.input is None else load_arrays(request)
    shapes = shapes_of(request) if arrays is None else shapes_of_arrays(*arrays)
    job = Job(spec, shapes, is_causal, per_head, measurements)
    _check(job)
    try:
        return _measure(job, make_arrays(shapes, request.seed) if arrays is None else arrays, started)
    except aj.AscendError as error:
        raise UsageError(str(error)) from None


def _check(job: Job) -> None:
    """Refuse what cannot run, before any array is made."""
    shapes, spec = job.shapes, job.spec
    try:
        assert job.outputs  # checks the shapes
    except aj.ParameterError as error:
        raise UsageError(str(error)) from None
    need, has = sum(job.value_bytes), int(spec["hbm_bytes"])
    size = f"q {list(shapes.q)}, k and v {list(shapes.k)} in {shapes.dtype} with the outputs"
    fix = "use a shorter --seq, fewer --heads or a smaller --batch"
    if need > has - 2 * MIB:
        raise UsageError(
            f"HBM too small: {size} need {need / 2**30:.2f} GiB, {spec.name} has {has / 2**30:.0f} GiB; {fix}"
        )
    if need > 2**31 - 64 * MIB:
        raise UsageError(f"too large to compute: {size} are {need / 2**30:.2f} GiB, the limit is 1.93 GiB; {fix}")
    most = int(spec["max_streams"]) - 1
    if job.per_head and job.streams > most:
        raise UsageError(
            f"--streams per-head: {job.streams} heads need as many streams, {spec.name} has {most}; use --streams fused"
        )


def _measure(job: Job, arrays: Sequence[np.ndarray], started: float) -> JobResult:
    with ThreadPoolExecutor(1) as pool:  # the reference runs while XLA compiles
        reference = pool.submit(aj.ops.attention_reference, *arrays, mode=int(job.mode), scale=job.scale)
        outcome = simulate(job, arrays)
        aj.raise_if_error(outcome.card)
        expected = reference.result()[0]
    if not all(np.isfinite(each.astype(np.float32)).all() for each in outcome.outputs):
        raise UsageError("q and k are so large that their products overflow float32; scale the inputs down")
    error = float(np.abs(outcome.outputs[0].astype(np.float64) - expected).max())
    wall_s = time.perf_counter() - started
    result = JobResult(job, outcome, aj.insight.timeline(outcome.card), error, float(np.abs(expected).max()), wall_s)
    label = result.confidence.label
    return dataclasses.replace(result, timeline=dataclasses.replace(result.timeline, calibration=label))
