"""Layouts of the attention operators: from BSH, SBH, BNSD, BSND and TND to [B, N, S, D] and back.

A packed tensor [T, N, D] becomes one batch row [1, N, T, D]; which rows belong together is the scoring's business.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime.codes import Code, ParameterError

__all__ = [
    "LAYOUTS",
    "check_numbers",
    "from_heads_first",
    "host_integers",
    "one_integer",
    "refuse",
    "sequence_lengths",
    "to_heads_first",
]

LAYOUTS = {"BSH": 3, "SBH": 3, "BNSD": 4, "BSND": 4, "TND": 3}  # rank


def refuse(parameter: str, given: object, rule: str, code: Code = Code.PARAM_INVALID) -> ParameterError:
    """Make the refusal of a parameter; 561002 (``Code.INNER_TILING``) is for what only the tiling looks at."""
    return ParameterError(code, parameter, given, rule)


def to_heads_first(name: str, x: jax.Array, layout: str, heads: int) -> jax.Array:
    """Return ``[B, N, S, D]`` of an array in ``layout``.

    Args:
      name: Of the parameter, for the refusal.
      x: The array.
      layout: One of ``LAYOUTS``.
      heads: N of this array; BSH and SBH do not say.

    Raises:
      ParameterError: 161002: unknown layout, wrong rank, H that N does not divide, or another N.

    >>> to_heads_first("query", jnp.zeros((2, 5, 12)), "BSH", 3).shape
    (2, 3, 5, 4)
    """
    if layout not in LAYOUTS:
        raise refuse("input_layout", layout, f"must be one of {', '.join(LAYOUTS)}")
    if x.ndim != LAYOUTS[layout]:
        raise refuse(f"{name}.shape", list(x.shape), f"must have rank {LAYOUTS[layout]}: {layout}")
    if layout in ("BSH", "SBH"):
        if heads < 1 or x.shape[2] % heads:
            raise refuse(f"{name}.shape", list(x.shape), f"H must be a multiple of its {heads} heads")
        x = x if layout == "BSH" else jnp.swapaxes(x, 0, 1)
        return jnp.swapaxes(x.reshape(*x.shape[:2], heads, x.shape[2] // heads), 1, 2)
    axis = {"BNSD": 1, "BSND": 2, "TND": 1}[layout]
    if x.shape[axis] != heads:
        raise refuse(f"{name}.shape", list(x.shape), f"must have {heads} heads in axis {axis}: {layout}")
    if layout == "TND":
        return jnp.swapaxes(x, 0, 1)[None]
    return x if layout == "BNSD" else jnp.swapaxes(x, 1, 2)


def from_heads_first(x: jax.Array, layout: str) -> jax.Array:
    """Return an array ``[B, N, S, D]`` in ``layout``.

    >>> from_heads_first(jnp.zeros((2, 3, 5, 4)), "SBH").shape
    (5, 2, 12)
    """
    if layout == "BNSD":
        return x
    if layout == "TND":
        return jnp.swapaxes(x[0], 0, 1)
    x = jnp.swapaxes(x, 1, 2)
    if layout == "BSND":
        return x
    x = x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])
    return x if layout == "BSH" else jnp.swapaxes(x, 0, 1)


def check_numbers(name: str, given: object) -> None:
    """Refuse truth values among host integers: True is 1 to Python, but no length.

    Raises:
      ParameterError: 161002.
    """
    entries = given if isinstance(given, list | tuple) else (given,)
    if any(isinstance(x, bool) or str(getattr(x, "dtype", "")) == "bool" for x in entries):
        raise refuse(name, given, "must be integers, not truth values")


def host_integers(name: str, given: object) -> list[int]:
    """Return host integers as a list.

    Raises:
      ParameterError: 161002 for truth values; 561002 for numbers that are no integers.

    >>> host_integers("prefix", np.array([4, 5]))
    [4, 5]
    """
    check_numbers(name, given)
    numbers = np.asarray(given).ravel()
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise refuse(name, numbers.tolist(), "must be integers", Code.INNER_TILING)
    return [int(n) for n in numbers]


def one_integer(name: str, given: object) -> int:
    """Return a host integer, or the only entry of a list.

    Raises:
      ParameterError: As :func:`host_integers`, and 161002 for a list of none or several.
    """
    numbers = host_integers(name, given)
    if len(numbers) != 1:
        raise refuse(name, given, "must be one integer, or a list of one")
    return numbers[0]


def sequence_lengths(name: str, ends: object, total: int, *, is_exact: bool = False) -> list[int]:
    """Return the lengths of packed sequences from their cumulative ends; trailing zeros drop sequences.

    Args:
      name: Of the parameter, for the refusal.
      ends: Integers, without a leading 0.
      total: T of the tensor.
      is_exact: The last end must be T, as the inference operators want it; else T may be larger.

    Raises:
      ParameterError: 161002 if T rows have none, or one is a truth value; 561002 if the ends fall, are no integers, or
        the last one does not fit T.

    >>> sequence_lengths("actual_seq_qlen", [2, 2, 5, 0], 6)
    [2, 0, 3, 0]
    """
    values = host_integers(name, ends)
    count = len(values)
    if total and not values:
        raise refuse(name, [], f"must have an entry for each sequence of the T = {total} rows")
    while values and values[-1] == 0:
        values.pop()
    lengths = [end - before for before, end in zip([0, *values], values, strict=False)]
    if any(length < 0 for length in lengths):
        raise refuse(name, values, "cumulative ends may not fall; these look like lengths", Code.INNER_TILING)
    if is_exact and (values[-1] if values else 0) != total:
        last = values[-1] if values else 0
        raise refuse(name, values, f"the last end {last} must equal T = {total}", Code.INNER_TILING)
    if values and values[-1] > total:
        raise refuse(name, values, f"the last end must not exceed T = {total}", Code.INNER_TILING)
    return lengths + [0] * (count - len(lengths))
