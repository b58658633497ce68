"""``Cluster``: the cards of one or more servers as one stacked ``CardState``, and what runs on all of them."""

import contextvars
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.hccl.carrier import AXIS, CarrierChoice, carry_knowing, choose_carrier, knowing
from ascend_jax.hccl.topology import Topology, default_topology
from ascend_jax.runtime.edge import QUICK_TO_COMPILE
from ascend_jax.runtime.state import CardState, init


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cluster:
    """Cards with their own contexts, streams, memories and clocks. ``C`` is the number of cards."""

    cards: CardState  # leaves [C, ...]
    topology: Topology = dataclasses.field(metadata={"static": True})
    carrier: str = dataclasses.field(metadata={"static": True})
    destroyed: frozenset[int] = dataclasses.field(default=frozenset(), metadata={"static": True})  # communicators

    @property
    def size(self) -> int:
        """C, the number of cards."""
        return self.topology.cards

    @property
    def choice(self) -> CarrierChoice:
        """The carrier and the reason for it."""
        return choose_carrier(self.size, self.carrier)

    def card(self, number: int) -> CardState:
        """Return one card alone, to look at: collectives of its streams never go on there.

        Raises:
          ValueError: There is no such card.
        """
        self.topology.server_of(number)
        return dataclasses.replace(_card_of(self.cards, number), coupling=None)

    def on(self, carrier: str) -> "Cluster":
        """Return the same cluster on another carrier.

        Raises:
          ValueError: As :func:`ascend_jax.hccl.choose_carrier`.
        """
        return dataclasses.replace(self, carrier=choose_carrier(self.size, carrier).name)


def cluster(
    chip: ChipSpec | Sequence[ChipSpec],
    cards: int | None = None,
    *,
    topology: Topology | None = None,
    carrier: str | None = None,
    **options: Any,
) -> Cluster:
    """Return cards that have just been set up.

    Args:
      chip: What every card is, or one sheet for each card: ``chip.replace(clock_hz=...)`` is a slow card,
        ``chip.replace(hbm_bytes=...)`` one with less memory. All sheets are of one product.
      cards: How many; not needed with a list of chips.
      topology: Servers; as the product has them by default.
      carrier: ``"vmap"`` (any number of cards; the default), ``"shard_map"`` or ``"pmap"`` (one XLA device for each).
      **options: Of :func:`ascend_jax.init`, for every card.

    Raises:
      ValueError: No cards, chips of different products, a topology or carrier for another number of cards.

    >>> import ascend_jax as aj
    >>> chip = aj.chip("Ascend910B2")
    >>> two = cluster([chip, chip.replace(clock_hz=1.2e9)], hbm_backing_bytes=0)
    >>> two.size, float(two.card(1).chip["clock_hz"])
    (2, 1200000000.0)
    """
    specs = list(chip) if isinstance(chip, Sequence) else None
    count = len(specs) if specs is not None and cards is None else cards
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise ValueError(f"cards = {count!r}: must be an integer of at least 1")
    if specs is None:
        assert isinstance(chip, ChipSpec)
        specs = [chip] * int(count)
    if len(specs) != count:
        raise ValueError(f"cards = {count}: {len(specs)} chips are given")
    kinds = {(one.name, one.family, one.calibration) for one in specs}
    if len(kinds) > 1:
        raise ValueError(f"chips of several products: {', '.join(sorted(name for name, *_ in kinds))}; one is possible")
    topology = topology or default_topology(specs[0], int(count))
    if topology.cards != count:
        raise ValueError(f"topology has {topology.cards} cards, the cluster {count}")
    choice = choose_carrier(int(count), carrier)
    least = min(specs, key=lambda one: float(one["hbm_bytes"]))
    init(least, **options)  # checks sizes against the card that has least; under vmap they cannot be seen
    values = jnp.stack([jnp.asarray(one.values) for one in specs])
    sheets = dataclasses.replace(specs[0], values=values)
    return Cluster(_fresh_cards(sheets, tuple(sorted(options.items()))), topology, choice.name)


@functools.partial(jax.jit, static_argnums=1)
def _fresh_cards(sheets: ChipSpec, options: tuple[tuple[str, Any], ...]) -> CardState:
    # compiled, as call by call it would be a compiled function for each shape of an array
    return jax.vmap(lambda one: init(one, **dict(options)))(sheets)


def on_cards(
    cluster: Cluster,
    program: Callable[..., Any],
    *args: Any,
    compiler_options: Mapping[str, Any] = QUICK_TO_COMPILE,
) -> tuple[Cluster, Any]:
    """Run ``program(card, *args) -> card, out`` on every card, as its carrier does it.

    Inside, all verbs of :mod:`ascend_jax` work on ``card``, and ``jax.lax.axis_index("card")`` is its number; the
    collectives of :mod:`ascend_jax.hccl` exchange arrays.

    Args:
      cluster: The cards.
      program: Pure function of one card.
      *args: Trees of arrays with a leading axis of the cards.
      compiler_options: Of XLA's CPU compiler; those that compile quickly, as most programs run for milliseconds. A
        program that computes much takes ``{}``.

    Returns:
      The cluster, and ``out`` of all cards, leaves [C, ...].

    >>> import jax
    >>> import ascend_jax as aj
    >>> two = cluster(aj.chip("Ascend910B2"), 2, hbm_backing_bytes=0)
    >>> def program(card):
    ...     card = aj.host_work(card, 100 * (1 + jax.lax.axis_index("card")))
    ...     return card, card.clock[1]
    >>> on_cards(two, program)[1].tolist()
    [100, 200]
    """
    carrier = choose_carrier(cluster.size, cluster.carrier).name
    every = carry_knowing(program, cluster.size, carrier, cluster.destroyed, compiler_options)
    cards, out = every(cluster.cards, *args)
    return dataclasses.replace(cluster, cards=cards), out


def on_card(cluster: Cluster, number: int, program: Callable[..., Any], *args: Any) -> tuple[Cluster, Any]:
    """Run ``program(card, *args) -> card, out`` on one card only, as a rank that does something of its own.

    What blocks the host belongs in :func:`on_cards`: a card that waits alone cannot know when the others come.

    Raises:
      ValueError: There is no such card; the program waits although the cluster has communicators.
    """
    cluster.topology.server_of(number)
    token = _alone.set(number)
    try:
        with knowing(cluster.destroyed):
            card, out = program(_card_of(cluster.cards, number), *args)
    finally:
        _alone.reset(token)
    cards = dataclasses.replace(cluster.cards, kernels=card.kernels, coupling=card.coupling)
    leaves, tree = jax.tree.flatten(cards)
    cards = jax.tree.unflatten(tree, _replaced_rows(leaves, jax.tree.leaves(card), number))
    return dataclasses.replace(cluster, cards=cards), out


def _card_of(cards: CardState, number: int) -> CardState:
    leaves, tree = jax.tree.flatten(cards)
    return jax.tree.unflatten(tree, _rows(leaves, number))


# of leaves and not of cards, which would be compiled anew whenever a card loads a kernel
@jax.jit
def _rows(leaves: list[jax.Array], number: int | jax.Array) -> list[jax.Array]:
    return [lax.dynamic_index_in_dim(leaf, number, keepdims=False) for leaf in leaves]


@jax.jit
def _replaced_rows(leaves: list[jax.Array], rows: list[jax.Array], number: int | jax.Array) -> list[jax.Array]:
    return [lax.dynamic_update_index_in_dim(leaf, row, number, 0) for leaf, row in zip(leaves, rows, strict=True)]


_alone: contextvars.ContextVar[int | None] = contextvars.ContextVar("alone", default=None)


def lone_card() -> int | None:
    """Return the card whose program :func:`on_card` runs, or None."""
    return _alone.get()


def card_number() -> jax.Array:
    """Return the number of the card that a program runs on, int32; in :func:`on_cards` and :func:`on_card`.

    Raises:
      ValueError: Neither of them runs the program.
    """
    number = _alone.get()
    if number is not None:
        return jnp.int32(number)
    try:
        return lax.axis_index(AXIS)
    except NameError:
        raise ValueError("no card has a number here: run the program by hccl.on_cards or hccl.on_card") from None
