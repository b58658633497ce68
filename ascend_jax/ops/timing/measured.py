"""Your own measurements in place of the model: (operator, input shapes, dtype) -> time, from CSV or msprof.

Two formats, told apart by their columns:

- `operator,shape,dtype,us[,sparse_mode]`: one row a measurement; shape lists the inputs, `4096,4096;4096,4096` or
  `4096x4096;...`; sparse_mode is attention's mask (0 without one, 3 causal), 0 if empty;
- an `op_summary` file of msprof: `OP Type`, `Input Shapes`, `Input Data Types`, `Task Duration(us)`. It does not say
  the mask of an attention, so such rows count as unmasked. Rows without operands or duration are skipped and counted.

Rows of the same operator, shapes, dtype and mask count as one measurement: their median, with a band that holds all.
"""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops.timing.confidence import Confidence
from ascend_jax.ops.timing.table_file import Line, read_lines
from ascend_jax.runtime.kernels import Executor, KernelSpec

Shapes = tuple[tuple[int, ...], ...]
Key = tuple[str, Shapes, str, int]  # operator, shapes of its inputs, dtype, sparse mode (0: no mask)
OWN = ("operator", "shape", "dtype", "us")
MSPROF = ("OP Type", "Input Shapes", "Input Data Types", "Task Duration(us)")
_OPERATORS = {
    "matmulv2": "matmul",
    "matmulv3": "matmul",
    "mm": "matmul",
    "batchmatmul": "matmul",
    "batchmatmulv2": "matmul",
    "batchmatmulv3": "matmul",
    "flashattentionscore": "flashattention",
    "flashattentionscorev2": "flashattention",
    "flashattentionscoregrad": "flashattentionbackward",
    "softmaxv2": "softmax",
    "layernormv3": "layernorm",
    "realdiv": "div",
    "maximum": "max",
    "minimum": "min",
}
_ATTENTION = ("flashattention", "flashattentionbackward")
_DTYPES = {
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "bfloat": "bfloat16",
    "fp32": "float32",
    "float": "float32",
}


def operator_name(name: str) -> str:
    """One spelling for an operator: `aclnnMatmul`, `MatMulV3` and `matmul` are the same.

    Example:
        >>> operator_name("aclnnFlashAttentionScore"), operator_name("layer_norm")
        ('flashattention', 'layernorm')
    """
    short = re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("aclnn")
    return _OPERATORS.get(short, short)


def dtype_name(name: str) -> str:
    """One spelling for a dtype: `DT_BF16`, `bf16` and `bfloat16` are the same."""
    short = name.strip().lower().removeprefix("dt_")
    return _DTYPES.get(short, short)


@dataclasses.dataclass(frozen=True)
class Measurements:
    """Measured times. An empty one changes nothing."""

    us: Mapping[Key, float]
    source: str = ""
    bands: Mapping[Key, float] = dataclasses.field(
        default_factory=dict
    )  # of keys with several rows: share of the median
    skipped: int = 0  # rows of an op_summary without operands or duration

    def find(self, operator: str, shapes: Sequence[Sequence[int]], dtype: str, mode: int = 0) -> float | None:
        """Measured us of an operator on inputs of these shapes and under this mask, or None."""
        return self.us.get(_key(operator, shapes, dtype, mode))

    def band(self, operator: str, shapes: Sequence[Sequence[int]], dtype: str, mode: int = 0) -> float | None:
        """Greatest distance of a row from their median, as a share of it; None if there are fewer than two rows."""
        return self.bands.get(_key(operator, shapes, dtype, mode))

    def look_up(
        self, operator: str, shapes: Sequence[Sequence[int]], dtype: str, mode: int, model: Confidence
    ) -> tuple[float, Confidence] | None:
        """Measured us and the trust in it, or None; one row alone does not show its spread: the model's band stays."""
        us, band = self.find(operator, shapes, dtype, mode), self.band(operator, shapes, dtype, mode)
        if us is None:
            return None
        return us, Confidence("calibrated", model.band if band is None else round(band, 3), f"measured: {self.source}")

    def apply(self, chip: ChipSpec, executor: Executor) -> Executor:
        """The executor with its measured time, if there is one; blocks, cores and traffic stay.

        Example:
            executor = aj.ops.read_measurements("op_summary.csv").apply(card.chip, executor)
        """
        kernel = executor.kernel
        if kernel is None:
            return executor
        us = self.find(*kernel_key(kernel))
        if us is None:
            return executor
        cost = executor.cost
        head_ns = jnp.minimum(cost.head_ns, jnp.float32(us * 1e3) / 2)
        block_ns = (jnp.float32(us * 1e3) - head_ns) / cost.waves(chip)
        return dataclasses.replace(executor, cost=dataclasses.replace(cost, head_ns=head_ns, block_ns=block_ns))


def kernel_key(kernel: KernelSpec) -> Key:
    """What a launched kernel is measured as."""
    mode = int(dict(kernel.attributes).get("sparse_mode", 0))  # type: ignore[call-overload]
    shapes = [each.shape for each in kernel.inputs]
    return _key(kernel.operator, shapes[:3] if mode else shapes, str(kernel.inputs[0].dtype), mode)


def read_measurements(path: str | Path) -> Measurements:
    """All measurements of a file, or none.

    Raises:
        ValueError: The file has neither format; names the line, the column, the value and the rule.
        OSError: The file cannot be read.
    """
    header, lines = read_lines(Path(path))
    columns = next((names for names in (OWN, MSPROF) if set(names) <= set(header)), None)
    if columns is None:
        raise ValueError(f"{path}: needs the columns {', '.join(OWN)} or, as op_summary, {', '.join(MSPROF)}")
    found: dict[Key, list[float]] = defaultdict(list)
    skipped = 0
    for line in lines:
        operator, shape, dtype = (line.cells[column] for column in columns[:3])
        if columns is MSPROF and _is_no_kernel(line):
            skipped += 1  # events, copies of the framework, tasks that the profiler did not see end
            continue
        if not operator_name(operator):
            raise ValueError(f"{line.where}: column {columns[0]} is empty; name the operator")
        key = _key(operator, _shapes(line.where, shape), dtype.split(";")[0], _mode(line))
        found[key].append(line.positive(columns[3], "a time in us"))
    us = {key: float(np.median(times)) for key, times in found.items()}
    bands = {key: float(np.abs(np.array(times) / us[key] - 1).max()) for key, times in found.items() if len(times) > 1}
    return Measurements(us, str(path), bands, skipped)


def _key(operator: str, shapes: Sequence[Sequence[int]], dtype: str, mode: int) -> Key:
    name, full = operator_name(operator), tuple(tuple(int(n) for n in shape) for shape in shapes)
    has_mask = any(len(shape) == 2 for shape in full[3:])
    if name in _ATTENTION and not has_mask:
        full = full[:3]  # a profile lists the statistics and gradients too
    return name, full, dtype_name(dtype), mode


def _is_no_kernel(line: Line) -> bool:
    shape, duration = (line.cells[column].strip("\"' ;") for column in (MSPROF[1], MSPROF[3]))
    if shape in ("", "N/A") or duration in ("", "N/A"):
        return True
    try:
        return float(duration) == 0
    except ValueError:
        return False


def _mode(line: Line) -> int:
    text = line.cells.get("sparse_mode", "") or "0"
    if text not in {str(mode) for mode in range(9)}:
        raise ValueError(f"{line.where}: column sparse_mode is {text[:40]!r}; a whole number from 0 to 8")
    return int(text)


def _shapes(where: str, text: str) -> Shapes:
    try:
        parts = [part for part in text.strip("\" '").split(";") if part.strip()]
        shapes = tuple(tuple(int(n) for n in re.split(r"[x,]", part.strip("[]() "))) for part in parts)
    except ValueError:
        shapes = ()
    if not shapes or any(n < 0 for shape in shapes for n in shape):
        raise ValueError(f"{where}: shape {text[:60]!r}; inputs as 4096,4096;4096,4096 or 4096x4096;4096x4096")
    return shapes
