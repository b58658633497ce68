"""A while loop that stays cheap under ``vmap``."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

Tree = Any


def settle_loop(
    unfinished: Callable[[Tree, Tree], jax.Array],
    step: Callable[[Tree, Tree], Tree],
    tables: Tree,
    carry: Tree,
) -> Tree:
    """Repeat ``carry = step(tables, carry)`` while ``unfinished(tables, carry)``.

    ``step`` must leave a carry that is not unfinished as it is. Then a batch of lanes needs no select: the loop runs
    until the last lane is finished. A plain vmapped ``while_loop`` selects the whole carry in every step, which costs
    a copy of every table and, for memory contents, tens of ms (jax ``_while_loop_batching_rule``; jax#8192, #13522).

    Collectives do not belong in here: lanes and cards leave the loop at different steps.

    Args:
      unfinished: Boolean scalar of ``(tables, carry)``; closes over nothing traced.
      step: One step of ``(tables, carry)``; closes over nothing traced.
      tables: What the loop reads only.
      carry: What the loop changes.

    Returns:
      The final carry.
    """

    @jax.custom_batching.custom_vmap
    def run(tables: Tree, carry: Tree) -> Tree:
        return lax.while_loop(lambda c: unfinished(tables, c), lambda c: step(tables, c), carry)

    @run.def_vmap
    def run_batched(axis_size: int, in_batched: list, tables: Tree, carry: Tree) -> tuple[Tree, Tree]:
        tables_axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched[0])
        carry = jax.tree.map(
            lambda x, batched: x if batched else jax.numpy.broadcast_to(x, (axis_size, *x.shape)),
            carry,
            in_batched[1],
        )
        any_unfinished = jax.vmap(unfinished, in_axes=(tables_axes, 0))
        step_all = jax.vmap(step, in_axes=(tables_axes, 0))
        done = lax.while_loop(lambda c: any_unfinished(tables, c).any(), lambda c: step_all(tables, c), carry)
        return done, jax.tree.map(lambda _: True, done)

    return run(tables, varying_together(tables, carry)[1])


def varying_together(tables: Tree, carry: Tree) -> tuple[Tree, Tree]:
    """Under ``shard_map``, let every leaf vary with the cards as soon as one does; return both trees."""
    axes = frozenset().union(*(_varying_axes(leaf) for leaf in jax.tree.leaves((tables, carry))))

    def vary(leaf: jax.Array) -> jax.Array:
        missing = tuple(sorted(axes - _varying_axes(leaf)))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(vary, (tables, carry))


def _varying_axes(leaf: jax.Array) -> frozenset[str]:
    kind = jax.typeof(leaf)
    axes = getattr(kind, "vma", None)  # jax 0.10.2 moved it into manual_axis_type
    return axes if axes is not None else getattr(getattr(kind, "manual_axis_type", None), "varying", frozenset())
