"""Files of the main job: the results as ``.npz`` and the trace for Perfetto."""

from typing import Any

import numpy as np

from ascend_jax.cli.attention_job import JobResult
from ascend_jax.cli.files import write_atomically
from ascend_jax.insight import HostSpan, to_perfetto

NAMES = ("attention_out", "softmax_max", "softmax_sum")


def write(result: JobResult, *, output: str | None, trace: str | None) -> list[str]:
    """Write what was asked for; return one line about each file."""
    lines = []
    if output is not None:
        arrays = dict(zip(NAMES, result.run.outputs, strict=True))
        # .npz knows no bfloat16; float32 holds the same values
        storable: dict[str, Any] = {
            name: array.astype(np.float32) if array.dtype.name == "bfloat16" else array
            for name, array in arrays.items()
        }
        write_atomically(output, lambda file: np.savez(file, **storable))
        shown = ", ".join(f"{name} {array.dtype.name}{list(array.shape)}" for name, array in storable.items())
        lines.append(f"wrote {output}: {shown}")
    if trace is not None:
        spans = [HostSpan(step.name, step.start_ns, step.end_ns) for step in result.run.steps]
        to_perfetto(result.timeline, trace, host_spans=spans)
        lines.append(f"wrote {trace}: open it at https://ui.perfetto.dev")
    return lines
