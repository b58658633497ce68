"""The host program of the main job, call by call, with the simulated time of each step."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

import ascend_jax as aj
from ascend_jax.cli.attention_inputs import AttentionShapes
from ascend_jax.insight.kinds import KERNEL
from ascend_jax.ops.attention.tiling import AttentionShape
from ascend_jax.ops.flash_attention_score import ALL_CORES, MASK_SIZE, NAME, attention_shape
from ascend_jax.ops.timing.measured import Measurements
from ascend_jax.runtime.kernels import Argument, Cost, Executor

MIB = 1 << 20
PAGE_SLACK = 4 * MIB  # what whole 2 MiB pages can add to one allocation


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of the path from call to result, in simulated time."""

    name: str
    what: str
    start_ns: int
    end_ns: int


@dataclasses.dataclass(frozen=True)
class Job:
    """What is to be run; ``per_head`` means one launch per (batch, head) and one stream per head."""

    spec: aj.ChipSpec
    shapes: AttentionShapes
    is_causal: bool
    per_head: bool
    measurements: Measurements | None = None  # own times, in place of predicted ones

    @property
    def mode(self) -> aj.ops.SparseMode:
        """Row i sees key j: always, or if j <= i + Skv - Sq."""
        return aj.ops.SparseMode.RIGHT_DOWN_CAUSAL if self.is_causal else aj.ops.SparseMode.NO_MASK

    @property
    def scale(self) -> float:
        """The usual factor of the scores, 1 / sqrt(D)."""
        return self.shapes.q[3] ** -0.5

    @property
    def launches(self) -> int:
        """Kernel launches."""
        return self.shapes.q[0] * self.shapes.q[1] if self.per_head else 1

    @property
    def streams(self) -> int:
        """Streams the launches are spread over."""
        return self.shapes.q[1] if self.per_head else 1

    @property
    def inputs(self) -> list[Argument]:
        """Query, key, value."""
        return [Argument(shape, self.shapes.dtype) for shape in (self.shapes.q, self.shapes.k, self.shapes.v)]

    @property
    def outputs(self) -> dict[str, Argument]:
        """The results, by name.

        Raises:
          ParameterError: The operator refuses the inputs.
        """
        return aj.ops.infer(NAME, self.inputs, {"sparse_mode": int(self.mode)})

    @property
    def value_bytes(self) -> list[int]:
        """Bytes of every array that lies in HBM, without the workspace."""
        arrays = [*self.inputs, *self.outputs.values()]
        return [each.nbytes for each in arrays] + [MASK_SIZE**2] * self.is_causal

    def part(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of an array's share of one launch."""
        return (1, 1, *shape[2:]) if self.per_head else shape

    @property
    def launch_shape(self) -> AttentionShape:
        """What the tiling knows of one launch."""
        q, k, v = (Argument(self.part(each.shape), each.dtype) for each in self.inputs)
        return attention_shape(q, k, v, self.mode)


@dataclasses.dataclass(frozen=True)
class Run:
    """What a job leaves behind."""

    card: aj.CardState
    steps: tuple[Step, ...]
    executor: Executor  # of the first launch; all are alike
    predicted_ns: float  # of that launch on an idle card
    outputs: tuple[np.ndarray, np.ndarray, np.ndarray]
    workspace_bytes: int  # of all streams together


class _Program:
    """The card as the host program sees it, and the steps so far."""

    def __init__(self, card: aj.CardState) -> None:
        self.card = card
        self.steps: list[Step] = []
        self.since_ns = 0

    def step(self, name: str, what: str) -> None:
        """Close a step that began where the last one ended."""
        now = aj.host_time_ns(self.card)
        self.steps.append(Step(name, what, self.since_ns, now))
        self.since_ns = now


def simulate(job: Job, arrays: Sequence[np.ndarray]) -> Run:
    """Run ``job`` on q, k, v in BNSD and return card, steps and results."""
    program = _Program(_new_card(job))
    streams = _open_streams(program, job)
    sources = [*arrays, aj.ops.causal_mask()] if job.is_causal else list(arrays)
    placed = [_allocate(program, Argument(array.shape, array.dtype)) for array in sources]
    outputs = [_allocate(program, each) for each in job.outputs.values()]
    nbytes = sum(tensor.nbytes for tensor in (*placed, *outputs))
    opened = f"{job.streams} streams created; " if job.per_head else ""
    program.step("set-up", f"{opened}{len(placed) + len(outputs)} arrays, {size(nbytes)}, allocated in HBM")
    for tensor, array in zip(placed, sources, strict=True):
        program.card = aj.upload(program.card, tensor.pointer, array)
    inputs, mask = placed[:3], placed[3] if job.is_causal else None
    names = "q, k, v and the 2048 x 2048 causal mask" if job.is_causal else "q, k and v"
    program.step("inputs", f"{names}, {size(sum(tensor.nbytes for tensor in placed))}, host to HBM over PCIe")

    framework = job.spec["host_framework_ns"] - job.spec["host_op_prepare_ns"] - job.spec["host_launch_ns"]
    program.card = aj.host_work(program.card, int(max(0, framework)) * job.launches)
    program.step("framework call", f"{NAME} called {job.launches} x: arguments checked and unpacked")

    core_limit = aj.ops.share_cores(job.spec, job.launch_shape, job.launches) if job.per_head else ALL_CORES
    executors = _look_up(program, job, (*inputs, *outputs), mask, core_limit)
    first = executors[0]
    predicted_ns = float(jax.jit(Cost.duration_ns)(first.cost, job.spec))
    found = f"{NAME} found, tiles chosen, {predicted_ns / 1e3:.1f} us predicted per launch"
    program.step("operator look-up", found)

    workspaces = [_new_workspace(program, first) for _ in streams]
    total = int(first.workspace_bytes) * job.streams
    needed = f"{size(total)} of HBM, for scores between cube and vector cores"
    program.step("workspace allocation", needed if total else "none: a core keeps its scores")
    for index, executor in enumerate(executors):
        lane = index % job.streams
        program.card = aj.launch(program.card, executor, workspaces[lane], streams[lane])
    program.step("packing and enqueue", f"{_count(job.launches, 'kernel launch')} into {_count(job.streams, 'stream')}")

    program.card = aj.synchronize_device(program.card)
    _execution_steps(program, first)
    results = []
    for tensor in outputs:
        program.card, result = aj.download(program.card, tensor.pointer, tensor.shape, tensor.dtype)
        results.append(np.asarray(result))
    program.step("output", f"3 arrays, {size(sum(each.nbytes for each in results))}, HBM to host over PCIe")
    return Run(program.card, tuple(program.steps), first, predicted_ns, tuple(results), total)  # type: ignore[arg-type]


def _new_card(job: Job) -> aj.CardState:
    return aj.init(
        job.spec,
        hbm_backing_bytes=_up(sum(nbytes + PAGE_SLACK for nbytes in job.value_bytes), 64 << 20),
        max_streams=_up(job.streams + 1, 8) if job.per_head else 1,
        max_events=1,
        max_commands=_up(job.launches + 16, 64),
        max_blocks=_up(job.streams + 16, 32),
        donate=True,
    )


def _up(least: int, step: int) -> int:
    """Return a size in coarse steps, so that one process compiles once for jobs of about the same size."""
    return -(-least // step) * step


def _allocate(program: _Program, each: Argument) -> aj.Tensor:
    program.card, pointer = aj.malloc(program.card, each.nbytes)
    return aj.tensor(pointer, each.shape, each.dtype)


def _look_up(
    program: _Program, job: Job, tensors: Sequence[aj.Tensor], mask: aj.Tensor | None, core_limit: int
) -> list[Executor]:
    """First phase of every launch: on the whole tensors, or on one head's share of each."""
    executors = []
    for index in range(job.launches):
        q, k, v, out, row_max, row_sum = (_share(job, tensor, index) for tensor in tensors)
        program.card, _, executor = aj.ops.flash_attention_score_get_workspace_size(
            program.card,
            q,
            k,
            v,
            attention_out=out,
            softmax_max=row_max,
            softmax_sum=row_sum,
            head_num=q.shape[1],
            atten_mask=mask,
            scale_value=job.scale,
            sparse_mode=int(job.mode),
            core_limit=core_limit,
        )
        executors.append(executor if job.measurements is None else job.measurements.apply(job.spec, executor))
    return executors


def _share(job: Job, tensor: aj.Tensor, index: int) -> aj.Tensor:
    if not job.per_head:
        return tensor
    heads = tensor.shape[1]  # of this tensor: fewer for keys and values of grouped heads
    batch, head = divmod(index, job.shapes.q[1])
    row = batch * heads + head * heads // job.shapes.q[1]
    elements = tensor.nbytes // tensor.dtype.itemsize // (tensor.shape[0] * heads)
    return aj.tensor(tensor.pointer, job.part(tensor.shape), tensor.dtype, offset=row * elements)


def _open_streams(program: _Program, job: Job) -> list[jax.Array | int]:
    if not job.per_head:
        return [0]  # the default stream
    streams: list[jax.Array | int] = []
    for _ in range(job.streams):
        program.card, stream = aj.create_stream(program.card)
        streams.append(stream)
    return streams


def _new_workspace(program: _Program, executor: Executor) -> jax.Array | int:
    """Launches that may overlap must not share a workspace, so there is one per stream."""
    if int(executor.workspace_bytes) == 0:
        return 0
    program.card, pointer = aj.malloc(program.card, executor.workspace_bytes)
    return pointer


def _execution_steps(program: _Program, executor: Executor) -> None:
    """Add the steps of the device, which overlap the host's waiting."""
    timeline = aj.insight.timeline(program.card)
    is_kernel = (timeline.kind == KERNEL) & timeline.finished
    if not is_kernel.any():  # the status word says why
        return
    start, end = int(timeline.start_ns[is_kernel].min()), int(timeline.end_ns[is_kernel].max())
    blocks, cost = int(executor.cost.blocks), executor.cost
    cube, vector = blocks * int(cost.cube_cores), blocks * int(cost.vector_cores)
    what = f"{_count(blocks, 'block')} on {cube} cube and {vector} vector cores"
    if is_kernel.sum() > 1:
        what += f" per launch, {timeline.max_concurrent_kernels()} launches at a time"
    program.steps.append(Step("execution", what, start, end))
    program.since_ns = end
    program.step("completion", "the host's synchronize call returns")


def size(nbytes: int) -> str:
    """Return a byte count for reading.

    >>> size(512), size(3 << 10), size(24 << 20)
    ('512 B', '3.0 KiB', '24.0 MiB')
    """
    if nbytes < 1 << 10:
        return f"{nbytes} B"
    return f"{nbytes / (1 << 10):.1f} KiB" if nbytes < MIB else f"{nbytes / MIB:.1f} MiB"


def _count(number: int, noun: str) -> str:
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{ending}"
