"""Where ``jit`` stands: public verbs are plain Python around a few compiled stages.

A *verb* is what people call; it captures the call site. A *stage* is one compiled function ``card, ... -> card`` or
``card, ... -> (card, out)``; under an outer ``jit`` or ``vmap`` it is simply inlined.
"""

import dataclasses
import functools
import gc
import inspect
import typing
from array import array
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import get_opaque_trace_state

from ascend_jax.runtime import callsite

F = TypeVar("F", bound=Callable[..., Any])
Site = int | jax.Array | None  # a call site; None until `verb` fills it in


def verb(function: F) -> F:
    """Pass the caller's site to ``function`` as ``site`` unless one is given; refuse numbers that are not whole.

    A parameter that is declared as ``Number`` (or ``Number | None``) is a handle, a count, a flag or a time in whole
    units: a float or a bool there is a TypeError, whatever it would round to.
    """
    parameters = inspect.signature(function).parameters
    wanted = tuple(name if _is_number(one.annotation) else "" for name, one in parameters.items())
    may_lack = {name for name, one in parameters.items() if type(None) in typing.get_args(one.annotation)}

    @functools.wraps(function)
    def call(*args: Any, site: Any = None, **options: Any) -> Any:
        for name, value in zip(wanted, args, strict=False):
            if name and type(value) is not int and (value is not None or name not in may_lack):
                _check_whole(name, value)
        for name, value in options.items():
            if type(value) is not int and name in wanted and (value is not None or name not in may_lack):
                _check_whole(name, value)
        return function(*args, site=callsite.here() if site is None else site, **options)

    return call  # type: ignore[return-value]


def _check_whole(name: str, value: Any) -> None:
    # the quick way for what other calls return
    if getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u"):
        return
    if isinstance(value, list | tuple):
        raise TypeError(f"{name} = {value!r}: must be one whole number")
    require_whole(**{name: value})


def _is_number(annotation: Any) -> bool:
    return set(typing.get_args(annotation)) - {type(None)} == {int, jax.Array}


def require_whole(**numbers: Any) -> None:
    """Refuse what counts nothing and names nothing.

    Raises:
      TypeError: A number is a bool or has a fraction.
    """
    for name, number in numbers.items():
        if isinstance(number, int | np.integer) and not isinstance(number, bool):
            continue
        kind = number.dtype if hasattr(number, "dtype") else np.asarray(number).dtype
        if not jnp.issubdtype(kind, np.integer):
            given = f"of type {kind}" if isinstance(number, jax.core.Tracer) else f"= {number!r}"
            raise TypeError(f"{name} {given}: must be a whole number")


_EAGER = get_opaque_trace_state()
# ``compiler_options`` of XLA's CPU compiler, for programs that are jitted whole; stages use the first themselves
QUICK_TO_COMPILE: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False}  # takes half as long; runs a quarter slower
# for engines, twice as fast: kernels of a scheduler are too small to be worth waking a second thread for, and so are
# those of attention on a device that has one core
QUICK_TO_RUN: dict[str, Any] = {
    "xla_cpu_prefer_vector_width": 512,
    # nor is what these two make of a small loop worth their own kernels
    "xla_disable_hlo_passes": "cpu-parallel-task-assigner,while-loop-invariant-code-motion,tree_reduction_rewriter",
    "xla_backend_optimization_level": 2,
    "xla_cpu_parallel_codegen_split_count": 2,  # many parts cost more than they gain
}


def compiled(function: F, options: dict[str, Any], **jit_options: Any) -> F:
    """Return ``jax.jit(function, **jit_options)`` that compiles with XLA options where it is the outermost.

    Under another transformation JAX takes options from there only. On the CPU it then is a call that XLA leaves one:
    inlined into a long program it would be computed again in every kernel that uses what comes out of it. Other
    backends need not run such calls.
    """
    traced = _uncollected(function)
    plain = jax.jit(traced, **jit_options)

    @functools.cache
    def own() -> Any:
        return jax.jit(traced, compiler_options=options, **jit_options) if _is_cpu() else plain

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if get_opaque_trace_state() == _EAGER:
            return own()(*args, **keywords)
        out = plain(*args, **keywords)
        return _kept(out, (args, keywords)) if _is_cpu() else out

    return call  # type: ignore[return-value]


def _uncollected(function: F) -> F:
    """Return ``function`` with no garbage collected while it runs, which it does when JAX traces it.

    Tracing makes many objects, which all stay: looking through them again and again takes a fifth of the time.
    """

    @functools.wraps(function)
    def traced(*args: Any, **keywords: Any) -> Any:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return function(*args, **keywords)
        finally:
            if was_enabled:
                gc.enable()

    return traced  # type: ignore[return-value]


def _kept(out: Any, arguments: Any) -> Any:
    """Return ``out``, with the call that made it marked for XLA to keep: the mark goes where a result comes from."""
    leaves, tree = jax.tree.flatten(out)
    given = {id(leaf) for leaf in jax.tree.leaves(arguments)}
    made = next((index for index, leaf in enumerate(leaves) if id(leaf) not in given), None)
    if made is not None:
        leaves[made] = set_xla_metadata(leaves[made], inlineable="false")
    return jax.tree.unflatten(tree, leaves)


def _is_cpu() -> bool:
    return jax.default_backend() == "cpu"


def computed_once(number: jax.Array) -> jax.Array:
    """Return ``number`` unchanged: XLA repeats what is cheap in every kernel that uses it, but never a sort."""
    return lax.sort(jnp.stack([number, number]))[0]


BYTES = ("memory", "shadow")  # fields of a card that are as large as its backing


def stage(
    function: F | None = None,
    *,
    static: tuple[str, ...] = (),
    reads: tuple[str, ...] = ("chip",),
    changes: tuple[str, ...] | None = None,
) -> Any:
    """Compile ``function(card, ...)``; a card with ``donate`` set gives the buffers away that are changed.

    A stage sees only what it needs of a card: a compiled function copies what it hands on (26 ms for 64 MiB), and each
    array and each object costs time per call. It never sees ``card.kernels``, so loading a kernel recompiles none.

    Args:
      function: Pure function whose first argument and (first) result is a card.
      static: Keyword arguments that are compile-time constants.
      reads: Array fields of the card that the function reads and leaves as they are.
      changes: Those that it may change; by default all but ``reads`` and memory contents. The others are None to it.
    """
    if function is None:
        return functools.partial(stage, static=static, reads=reads, changes=changes)
    plain = function

    def strong(frame: _Frame, changed: tuple, shown: tuple, *args: Any, **options: Any) -> Any:
        kind: Any = type(frame.card)
        names = (*_changed(kind, reads, changes), *reads)
        card = _replaced(frame.card, dict(zip(names, (*changed, *shown), strict=True)))
        result = plain(card, *args, **options)
        result = result if isinstance(result, tuple) else (result,)
        result = tuple(getattr(result[0], name) for name in names[: len(changed)]), *result[1:]
        # a weakly typed result would compile every later stage a second time
        return jax.tree.map(lambda leaf: lax.convert_element_type(leaf, jax.dtypes.result_type(leaf)), result)

    strong.__name__ = function.__name__  # under which profiles show it
    keeping = compiled(strong, QUICK_TO_COMPILE, static_argnums=0, static_argnames=static)
    donating = compiled(strong, QUICK_TO_COMPILE, static_argnums=0, static_argnames=static, donate_argnums=1)

    @functools.wraps(function)
    def call(card: Any, *args: Any, **options: Any) -> Any:
        if isinstance(card, tuple):
            raise TypeError("card is a tuple: the call before returned a card and a value; write card, value = ...")
        kind: Any = type(card)
        fields = card.__dict__
        names = _changed(kind, reads, changes)
        frame = _frame(kind, tuple([fields[name] for name in _static(kind)]))
        changed, shown = tuple([fields[name] for name in names]), tuple([fields[name] for name in reads])
        args = tuple([arg if isinstance(arg, np.ndarray | np.int32) else _as_whole(arg) for arg in args])
        options = {name: value if name in static else _as_int32(value) for name, value in options.items()}
        try:
            result = (donating if card.donate else keeping)(frame, changed, shown, *args, **options)
        except (RuntimeError, ValueError):
            _explain_if_consumed(card)
            raise
        card = _replaced(card, dict(zip(names, result[0], strict=True)))
        return (card, *result[1:]) if len(result) > 1 else card

    return call


@dataclasses.dataclass(frozen=True, eq=False)
class _Frame:
    """A card without its arrays and kernels: what of it is constant to a compiled function."""

    card: Any


@functools.cache
def _frame(card_type: type, constants: tuple) -> _Frame:
    """Return the frame of cards with these constants: always the same one, so that comparing frames takes no time."""
    card: Any = object.__new__(card_type)
    card.__dict__.update(dict.fromkeys(field.name for field in dataclasses.fields(card_type)), kernels=())
    return _Frame(_replaced(card, dict(zip(_static(card_type), constants, strict=True))))


@functools.cache
def _static(card_type: type) -> tuple[str, ...]:
    """Return the fields of a card that are constants, but for its kernels."""
    fields = dataclasses.fields(card_type)
    return tuple(field.name for field in fields if field.metadata.get("static") and field.name != "kernels")


@functools.cache
def _changed(card_type: type, reads: tuple[str, ...], changes: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the array fields of a card that a stage hands on."""
    arrays = [field.name for field in dataclasses.fields(card_type) if not field.metadata.get("static")]
    return tuple(name for name in arrays if name not in (*reads, *BYTES)) if changes is None else changes


def _replaced(card: Any, fields: dict[str, Any]) -> Any:
    """Return a card with other fields: ``dataclasses.replace`` without its 6 us, for calls made one by one."""
    copy = object.__new__(type(card))
    copy.__dict__.update(card.__dict__, **fields)
    return copy


def _as_whole(argument: Any) -> Any:
    """Return an argument of a stage with its whole numbers as int32."""
    return argument if isinstance(argument, jax.Array) else jax.tree.map(_as_int32, argument)


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


def packed(*numbers: Any) -> Any:
    """Return numbers as one int32 array, because each argument of a compiled function costs time.

    Raises:
      ValueError: One does not fit int32.
    """
    try:
        return np.frombuffer(array("i", numbers), np.int32)
    except (TypeError, OverflowError):  # a number that is traced, or none, or too large
        numbers = tuple(_as_int32(number) for number in numbers)
    known = [concrete(number) for number in numbers]
    if any(number is None for number in known):
        return jnp.stack([jnp.asarray(number, jnp.int32) for number in numbers])
    return np.array(known, np.int32)


def _as_int32(value: Any) -> Any:
    # one dtype for every whole number, so that a Python int and a handle from a previous call share a trace
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        if not -(2**31) <= value < 2**31:
            raise ValueError(f"{value} does not fit int32: handles, byte counts and values here are below 2**31")
        return np.int32(value)
    return value
