"""Where ``jit`` stands: public verbs are plain Python around a few compiled stages.

A *verb* is what people call; it captures the call site. A *stage* is one compiled function ``card, ... -> card`` or
``card, ... -> (card, out)``; under an outer ``jit`` or ``vmap`` it is simply inlined.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax import lax
from jax.extend.core import get_opaque_trace_state

from ascend_jax.runtime import callsite

F = TypeVar("F", bound=Callable[..., Any])
Site = int | jax.Array | None  # a call site; None until `verb` fills it in


def verb(function: F) -> F:
    """Pass the caller's site to ``function`` as ``site`` unless one is given."""

    @functools.wraps(function)
    def call(*args: Any, site: Any = None, **options: Any) -> Any:
        return function(*args, site=callsite.here() if site is None else site, **options)

    return call  # type: ignore[return-value]


_EAGER = get_opaque_trace_state()
_REGIONS = {"xla_cpu_copy_insertion_use_region_analysis": True}  # fewer copies of what the engine's loop carries
# ``compiler_options`` of XLA's CPU compiler, for programs that are jitted whole; stages use the first themselves
QUICK_TO_COMPILE = _REGIONS | {"xla_cpu_use_fusion_emitters": False}  # takes half as long; runs a quarter slower
QUICK_TO_RUN = _REGIONS | {"xla_cpu_prefer_vector_width": 512}  # a tenth faster


def compiled(function: F, options: dict[str, Any], **jit_options: Any) -> F:
    """Return ``jax.jit(function, **jit_options)`` that compiles with XLA options where it is the outermost.

    Under another transformation JAX takes options from there only, so that it is plain ``jit`` then.
    """
    plain = jax.jit(function, **jit_options)

    @functools.cache
    def own() -> Any:
        is_cpu = jax.default_backend() == "cpu"
        return jax.jit(function, compiler_options=options, **jit_options) if is_cpu else plain

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        is_outermost = get_opaque_trace_state() == _EAGER
        return (own() if is_outermost else plain)(*args, **keywords)

    return call  # type: ignore[return-value]


def stage(function: F | None = None, *, static: tuple[str, ...] = ()) -> Any:
    """Compile ``function(card, ...)``; a card with ``donate`` set gives its buffers away.

    A stage does not see ``card.kernels``, so loading a kernel recompiles none.

    Args:
      function: Pure function whose first argument and (first) result is a card.
      static: Keyword arguments that are compile-time constants.
    """
    if function is None:
        return functools.partial(stage, static=static)

    @functools.wraps(function)
    def strong(*args: Any, **options: Any) -> Any:
        # a weakly typed result would compile every later stage a second time
        result = function(*args, **options)
        return jax.tree.map(lambda leaf: lax.convert_element_type(leaf, jax.dtypes.result_type(leaf)), result)

    keeping = compiled(strong, QUICK_TO_COMPILE, static_argnames=static)
    donating = compiled(strong, QUICK_TO_COMPILE, static_argnames=static, donate_argnums=0)

    @functools.wraps(function)
    def call(card: Any, *args: Any, **options: Any) -> Any:
        if isinstance(card, tuple):
            raise TypeError("card is a tuple: the call before returned a card and a value; write card, value = ...")
        kernels = card.kernels
        if kernels:
            card = dataclasses.replace(card, kernels=())
        args = jax.tree.map(_as_int32, args)
        options = {name: value if name in static else _as_int32(value) for name, value in options.items()}
        try:
            result = (donating if card.donate else keeping)(card, *args, **options)
        except (RuntimeError, ValueError):
            _explain_if_consumed(card)
            raise
        if not kernels:
            return result
        if isinstance(result, tuple):
            return dataclasses.replace(result[0], kernels=kernels), *result[1:]
        return dataclasses.replace(result, kernels=kernels)

    return call


def _explain_if_consumed(card: Any) -> None:
    """Say what is wrong if a card is used whose buffers an earlier call was given."""
    try:
        is_consumed = any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(card))
    except jax.errors.ConcretizationTypeError:
        return  # traced: nothing is ever consumed
    if is_consumed:
        raise ValueError(
            "this card was made with donate=True and a later call has consumed it: go on with the card which that call "
            "returned, or make it with donate=False"
        ) from None


def concrete(value: jax.Array) -> np.ndarray | None:
    """Return the numbers of an array, or None while it is traced."""
    try:
        return np.asarray(value)
    except jax.errors.TracerArrayConversionError:
        return None


def _as_int32(value: Any) -> Any:
    # one dtype for every whole number, so that a Python int and a handle from a previous call share a trace
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        if not -(2**31) <= value < 2**31:
            raise ValueError(f"{value} does not fit int32: handles, byte counts and values here are below 2**31")
        return np.int32(value)
    return value
