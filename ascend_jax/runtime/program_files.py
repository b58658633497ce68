"""Programs on disk: plain arrays and descriptions of kernels, no code."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime.kernels import Argument, KernelSpec
from ascend_jax.runtime.layout import Field
from ascend_jax.runtime.program import Program

FORMAT = 1


def save_program(program: Program, path: str | Path) -> None:
    """Write a program, or a batch of them, as one npz file; the same program gives the same bytes.

    Raises:
      TypeError: A kernel has an attribute that is no number, string or tuple of such.
    """
    about = {
        "format": FORMAT,
        "columns": [field.name for field in Field],
        "streams": program.streams,
        "kernels": [_described(spec) for spec in program.kernels],
    }
    words = np.array(json.dumps(about))
    with Path(path).open("wb") as file:
        np.savez(file, fields=np.asarray(program.fields), operands=np.asarray(program.operands), about=words)


def load_program(path: str | Path) -> Program:
    """Return the program that :func:`save_program` wrote; its operators must be registered before it runs.

    Raises:
      ValueError: The file is no program, or was written by a version whose command table has other columns.
    """
    with np.load(path, allow_pickle=False) as file:
        if set(file.files) != {"fields", "operands", "about"}:
            raise ValueError(f"path = {path}: no saved program")
        about = json.loads(str(file["about"]))
        if about["format"] != FORMAT or about["columns"] != [field.name for field in Field]:
            raise ValueError(f"path = {path}: saved by another version; capture or compile the program again")
        arrays = jnp.array(file["fields"]), jnp.array(file["operands"])
    return Program(*arrays, about["streams"], tuple(_spec(one) for one in about["kernels"]))


def _described(spec: KernelSpec) -> dict[str, Any]:
    return {
        "operator": spec.operator,
        "attributes": [[name, _plain(value)] for name, value in spec.attributes],
        "inputs": [[list(arg.shape), arg.dtype.name] for arg in spec.inputs],
        "outputs": [[list(arg.shape), arg.dtype.name] for arg in spec.outputs],
        "scalars": list(spec.scalars),
    }


def _spec(about: Mapping[str, Any]) -> KernelSpec:
    inputs, outputs = (
        tuple(Argument(tuple(shape), jnp.dtype(dtype)) for shape, dtype in about[side])
        for side in ("inputs", "outputs")
    )
    attributes = tuple((name, _value(one)) for name, one in about["attributes"])
    return KernelSpec(about["operator"], attributes, inputs, outputs, scalars=tuple(about["scalars"]))


def _plain(value: Any) -> Any:
    """An attribute as JSON; tuples are the only containers that an attribute can have."""
    if isinstance(value, tuple):
        return {"tuple": [_plain(one) for one in value]}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"attribute = {value!r}: a kernel can be saved if its attributes are numbers, strings and tuples")


def _value(plain: Any) -> Any:
    return tuple(_value(one) for one in plain["tuple"]) if isinstance(plain, dict) else plain
