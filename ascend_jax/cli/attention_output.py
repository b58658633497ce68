"""Files of the main job: the results as ``.npz`` and the trace for Perfetto."""

from collections.abc import Callable
from typing import IO, Any

import numpy as np

from ascend_jax.cli.attention_job import JobResult
from ascend_jax.cli.errors import UsageError
from ascend_jax.insight import HostSpan, to_perfetto
from ascend_jax.insight.files import write_together
from ascend_jax.insight.perfetto import encode

NAMES = ("attention_out", "softmax_max", "softmax_sum")


def write(result: JobResult, *, output: str | None, trace: str | None) -> list[str]:
    """Write what was asked for, all or nothing; return one line about each file.

    Raises:
      UsageError: The files could not be written.
    """
    lines: list[str] = []
    writers: dict[str, Callable[[IO[bytes]], object]] = {}
    if output is not None:
        # .npz knows no bfloat16; float32 holds the same values
        storable: dict[str, Any] = {
            name: each.astype(np.float32) if each.dtype.name == "bfloat16" else each
            for name, each in zip(NAMES, result.run.outputs, strict=True)
        }
        writers[output] = lambda file: np.savez(file, **storable)
        shown = ", ".join(f"{name} {array.dtype.name}{list(array.shape)}" for name, array in storable.items())
        note = (
            " (bfloat16 values as float32: .npz has no bfloat16)" if result.job.shapes.dtype.name == "bfloat16" else ""
        )
        lines.append(f"wrote {output}: {shown}{note}")
    if trace is not None:
        spans = [HostSpan(step.name, step.start_ns, step.end_ns) for step in result.run.steps]
        writers[trace] = lambda file: file.write(encode(to_perfetto(result.timeline, host_spans=spans)))
        lines.append(f"wrote {trace}: open it at https://ui.perfetto.dev")
    try:
        write_together(writers)
    except OSError as error:
        raise UsageError(
            f"{' '.join(writers)}: not written ({error.strerror or error}); choose another place"
        ) from None
    return lines
