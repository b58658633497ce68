"""Carriers: how a function of one card, written against the axis name ``card``, runs on all of them.

``vmap`` puts any number of cards on one XLA device; ``shard_map`` and ``pmap`` put one card on each device. Card verbs,
collectives and simulated times are the same bits on all three. What a function computes besides is compiled for its
carrier: products of matrices may differ in the last bits. ``pmap`` is ``jit(shard_map)`` in JAX now; it is kept as the
classic name.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from ascend_jax.runtime.coupling import AXIS
from ascend_jax.runtime.edge import compiled

CARRIERS = ("pmap", "shard_map", "vmap")


class CarrierChoice(NamedTuple):
    """Which carrier runs the cards, and why."""

    name: str
    reason: str


def set_host_devices(count: int) -> None:
    """Let the CPU show ``count`` XLA devices, for one card on each; call it before JAX is first used.

    Its own threads serve each device, so keep it to a few times the number of cores. In a shell, the environment
    variable ``JAX_NUM_CPU_DEVICES`` does the same.

    Raises:
      ValueError: ``count`` is below 1.
      RuntimeError: JAX has started with fewer devices already.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count = {count!r}: must be an integer of at least 1")
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        present = len(jax.devices("cpu"))
        if present < count:
            raise RuntimeError(
                f"count = {count}: JAX has started with {present} CPU device(s); call set_host_devices before anything "
                f"is computed, or start with JAX_NUM_CPU_DEVICES={count}"
            ) from error


def choose_carrier(cards: int, carrier: str | None = None) -> CarrierChoice:
    """Return the carrier for so many cards; without a wish, ``vmap``.

    Raises:
      ValueError: No number of cards, no such carrier, or one that needs a device for each card where there are fewer.

    >>> choose_carrier(1000).name
    'vmap'
    """
    if isinstance(cards, bool) or not isinstance(cards, int | np.integer) or cards < 1:
        raise ValueError(f"cards = {cards!r}: must be an integer of at least 1")
    if carrier is not None and carrier not in CARRIERS:
        raise ValueError(f"carrier = {carrier!r}: must be one of {', '.join(CARRIERS)}")
    devices = len(jax.devices())
    if carrier in (None, "vmap"):
        return CarrierChoice("vmap", f"vmap: {cards} card(s) share one of {devices} XLA device(s)")
    if cards > devices:
        raise ValueError(
            f"carrier = {carrier!r}: {cards} cards need as many XLA devices, there are {devices}; use carrier='vmap', "
            f"or call ascend_jax.hccl.set_host_devices({cards}) first (JAX_NUM_CPU_DEVICES={cards} in a shell)"
        )
    return CarrierChoice(carrier, f"{carrier}: one card on each of {cards} of {devices} XLA devices")


def carry(
    function: Callable[..., Any],
    cards: int,
    carrier: str | None = None,
    *,
    compiler_options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Return ``function`` of one card as a compiled function of all of them, each leaf with a leading axis ``card``.

    Inside, ``jax.lax.axis_index("card")`` is the number of the card, and the collectives of :mod:`ascend_jax.hccl`
    work. ``compiler_options`` are XLA's, for example ``ascend_jax.QUICK_TO_COMPILE``; ``pmap`` takes none.

    Raises:
      ValueError: As :func:`choose_carrier`, or an argument has another leading axis.
      TypeError: ``function`` cannot be called.

    >>> import jax.numpy as jnp
    >>> carry(lambda x: x + jax.lax.psum(x, "card"), 3)(jnp.arange(3)).tolist()
    [3, 4, 5]
    """
    if not callable(function):
        raise TypeError(f"function = {function!r}: must be a function of one card's arrays")
    return carry_knowing(function, int(cards), choose_carrier(cards, carrier).name, options=compiler_options)


_destroyed: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar("destroyed", default=frozenset())


def is_destroyed(number: int) -> bool:
    """Return whether the program that is being traced runs on a cluster where this communicator was destroyed."""
    return number in _destroyed.get()


@contextlib.contextmanager
def knowing(destroyed: frozenset[int]) -> Iterator[None]:
    """Let programs that run or are traced in here know which communicators of their cluster were destroyed."""
    token = _destroyed.set(destroyed)
    try:
        yield
    finally:
        _destroyed.reset(token)


def carry_knowing(
    function: Callable[..., Any],
    cards: int,
    carrier: str,
    destroyed: frozenset[int] = frozenset(),
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """As :func:`carry`, for a cluster some of whose communicators were destroyed.

    ``options`` are XLA's, for the carriers that ``jax.jit`` compiles; ``jax.pmap`` takes none.
    """
    return _carried(function, cards, carrier, destroyed, tuple(sorted((options or {}).items())))


@functools.lru_cache(maxsize=64)
def _carried(
    plain: Callable[..., Any],
    cards: int,
    carrier: str,
    destroyed: frozenset[int],
    options: tuple[tuple[str, Any], ...],
) -> Callable[..., Any]:

    @functools.wraps(plain)
    def function(*args: Any) -> Any:
        with knowing(destroyed):
            return plain(*args)

    if carrier == "vmap":
        every = compiled(jax.vmap(function, axis_name=AXIS, axis_size=cards), dict(options))
    elif carrier == "pmap":
        every = jax.pmap(function, axis_name=AXIS, devices=jax.devices()[:cards])
    else:
        mesh, spec = Mesh(jax.devices()[:cards], (AXIS,)), PartitionSpec(AXIS)

        def one(*shards: Any) -> Any:
            results = function(*jax.tree.map(lambda leaf: leaf[0], shards))
            return jax.tree.map(lambda leaf: leaf[None], results)

        # unchecked, as under pmap: loops of a card start from constants, which do not vary with the card
        sharded: Any = jax.shard_map(one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        every = compiled(sharded, dict(options))

    @functools.wraps(plain)
    def call(*args: Any) -> Any:
        for number, arg in enumerate(args):
            for leaf in jax.tree.leaves(arg):
                shape = np.shape(leaf)
                if not shape or shape[0] != cards:
                    rule = f"its first axis must be the {cards} cards"
                    raise ValueError(f"argument {number} has shape {list(shape)}: {rule}")
        return every(*args)

    return call
