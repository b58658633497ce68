"""The three arrays of an attention job: from a file or from a seed, checked before anything is computed."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from ascend_jax.cli.errors import UsageError
from ascend_jax.ops.attention_call import MAX_DIM

DTYPES = ("float16", "bfloat16", "float32")
DEFAULTS = {"batch": 1, "heads": 32, "seq": 1024, "dim": 128}
DEFAULT_DTYPE = "float16"
DEFAULT_SEED = 0


@dataclasses.dataclass(frozen=True)
class AttentionRequest:
    """What the command line asked for; None where it said nothing."""

    input: str | None = None
    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    seq: int | None = None
    kv_seq: int | None = None
    dim: int | None = None
    dtype: str | None = None
    seed: int | None = None


@dataclasses.dataclass(frozen=True)
class AttentionShapes:
    """Shapes and dtype of q, k, v in BNSD, known before any array is made."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    dtype: np.dtype


def shapes_of(request: AttentionRequest) -> AttentionShapes:
    """Return the shapes that a request without a file asks for.

    Raises:
      UsageError: A size is not positive, or the heads do not divide.
    """
    sizes = {name: getattr(request, name) for name in ("batch", "heads", "seq", "dim")}
    sizes = {name: DEFAULTS[name] if value is None else value for name, value in sizes.items()}
    sizes["kv_heads"] = sizes["heads"] if request.kv_heads is None else request.kv_heads
    sizes["kv_seq"] = sizes["seq"] if request.kv_seq is None else request.kv_seq
    if not 1 <= sizes["dim"] <= MAX_DIM:
        raise UsageError(f"--dim {sizes['dim']}: must be from 1 to {MAX_DIM}")
    for name, value in sizes.items():
        if value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be at least 1")
        if value >= 2**31:
            raise UsageError(f"--{name.replace('_', '-')} {str(value)[:24]}: must be below 2147483648")
    if request.seed is not None and request.seed < 0:
        raise UsageError(f"--seed {request.seed}: must be at least 0")
    if sizes["heads"] % sizes["kv_heads"]:
        raise UsageError(
            f"--heads {sizes['heads']} --kv-heads {sizes['kv_heads']}: heads must be a multiple of kv-heads; "
            f"for example --kv-heads {math.gcd(sizes['heads'], sizes['kv_heads'])}"
        )
    q = (sizes["batch"], sizes["heads"], sizes["seq"], sizes["dim"])
    k = (sizes["batch"], sizes["kv_heads"], sizes["kv_seq"], sizes["dim"])
    return AttentionShapes(q, k, k, jnp.dtype(request.dtype or DEFAULT_DTYPE))


def shapes_of_arrays(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> AttentionShapes:
    """Return the shapes of arrays that were loaded."""
    return AttentionShapes(q.shape, k.shape, v.shape, q.dtype)


def make_arrays(shapes: AttentionShapes, seed: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return standard normal q, k, v of these shapes; the same seed gives the same bytes everywhere."""
    generator = np.random.Generator(np.random.PCG64(DEFAULT_SEED if seed is None else seed))
    q, k, v = (
        generator.standard_normal(shape, dtype=np.float32).astype(shapes.dtype)
        for shape in (shapes.q, shapes.k, shapes.v)
    )
    return q, k, v


def load_arrays(request: AttentionRequest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read q, k, v from the request's file, cast to its dtype if it names one.

    Raises:
      UsageError: No such file, not an .npz file, an array missing, a wrong rank or dtype, shapes that do not fit, or
        values that are not finite.
    """
    path = request.input
    assert path is not None
    named = [f"--{name.replace('_', '-')}" for name in ("batch", "heads", "kv_heads", "seq", "kv_seq", "dim", "seed")]
    clash = [flag for flag in named if getattr(request, flag[2:].replace("-", "_")) is not None]
    if clash:
        raise UsageError(f"{' '.join(clash)}: shapes and values come from --input {path}; leave one of the two out")
    arrays = _read_npz(path)
    dtype = _common_dtype(path, arrays, request.dtype)
    for name, array in arrays.items():
        if array.ndim != 4:
            raise UsageError(
                f"--input {path}: {name} has shape {list(array.shape)}; expected rank 4: [batch, heads, seq, dim]"
            )
        if 0 in array.shape:
            raise UsageError(
                f"--input {path}: {name} has shape {list(array.shape)}; every dimension must be at least 1"
            )
    with np.errstate(over="ignore"):  # what does not fit becomes infinite and is refused below
        q, k, v = (arrays[name].astype(dtype) for name in ("q", "k", "v"))
    _check_fit(path, q, k, v)
    for name, array in (("q", q), ("k", k), ("v", v)):
        if not np.isfinite(array.astype(np.float32)).all():
            raise UsageError(
                f"--input {path}: {name} holds NaN or infinity in {dtype}; the error could not be measured; "
                "remove them, scale the input or choose another --dtype"
            )
    return q, k, v


def _read_npz(path: str) -> dict[str, np.ndarray]:
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise UsageError(f"--input {path}: holds one bare array; expected an .npz file with q, k and v")
        with file:
            missing = [name for name in ("q", "k", "v") if name not in file]
            if missing:
                found = ", ".join(sorted(file)) or "nothing"
                raise UsageError(
                    f"--input {path}: array {', '.join(missing)} missing (found {found}); "
                    "save with np.savez(path, q=q, k=k, v=v)"
                )
            arrays = {name: file[name] for name in ("q", "k", "v")}
            if not all(isinstance(array, np.ndarray) for array in arrays.values()):
                raise TypeError
            return {name: array.astype(array.dtype.newbyteorder("=")) for name, array in arrays.items()}
    except FileNotFoundError:
        raise UsageError(f"--input {path}: no such file; give an .npz file with arrays q, k, v in BNSD") from None
    except UsageError:
        raise
    except Exception as error:  # a broken file can make zip, tokenizer and NumPy fail in any way
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not numbers in the npz format"
        raise UsageError(
            f"--input {path}: not a readable .npz file ({reason}); save with np.savez(path, q=q, k=k, v=v)"
        ) from None


def _common_dtype(path: str, arrays: dict[str, np.ndarray], wanted: str | None) -> np.dtype:
    given = {name: array.dtype for name, array in arrays.items()}
    for name, dtype in given.items():
        if dtype.kind != "f" or (wanted is None and dtype.name not in DTYPES):
            hint = (
                "np.savez cannot store bfloat16: save float32 and add --dtype bfloat16"
                if dtype.kind == "V"
                else (
                    f"convert with {name}.astype('float32')" if dtype.kind != "f" else "add --dtype float32 to convert"
                )
            )
            raise UsageError(f"--input {path}: {name} is {dtype}; expected {', '.join(DTYPES)}; {hint}")
    if wanted is None and len(set(given.values())) > 1:
        listed = ", ".join(f"{name} {dtype}" for name, dtype in given.items())
        raise UsageError(f"--input {path}: dtypes differ ({listed}); save one dtype or add --dtype float16")
    return jnp.dtype(wanted or given["q"])


def _check_fit(path: str, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    shown = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if k.shape[:3] != v.shape[:3]:
        raise UsageError(f"--input {path}: {shown}; k and v must agree in batch, heads and length")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise UsageError(f"--input {path}: {shown}; q and k must agree in batch and dim")
    if q.shape[1] % k.shape[1]:
        raise UsageError(
            f"--input {path}: {shown}; the {q.shape[1]} heads of q must be a multiple of the {k.shape[1]} of k"
        )
