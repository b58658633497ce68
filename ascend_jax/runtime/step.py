"""One step of the exact engine: what can happen now happens, or time moves to where something can.

Everything is an array over streams and lanes, ``[S, B]``, because a stream serves one command at a time: its head. A
step does one of two things in each lane. If a command is over, a mark can happen or a deadline has passed, the first
such command retires and its stream's next command becomes the head. Otherwise waiting blocks are granted units, the
running ones share the memory rates, and time moves to the next change; a command that is over there retires at once. So
N commands take about N steps.

The stages are kept apart, and few wide arrays are carried, because a step is bound by memory traffic.
"""

import jax.numpy as jnp

from ascend_jax.runtime import dispatch, motion, retire
from ascend_jax.runtime.apart import apart, over_streams
from ascend_jax.runtime.clock import is_before
from ascend_jax.runtime.coupling import Coupling
from ascend_jax.runtime.heads import Orders
from ascend_jax.runtime.lanes import NOBODY, Carry, Lane, State, Tables
from ascend_jax.runtime.rendezvous import hold, is_parked, kept_live, meet, unlimited, with_doors
from ascend_jax.runtime.share import pace


def step(orders: Orders, tables: Tables, carry: Carry, coupling: Coupling | None = None) -> Carry:
    """Do one step in every live lane; with a ``coupling``, lanes are cards that meet."""
    flag = carry.number(Lane.RETIRED)[0] >= 0  # which it always is
    if coupling is not None:
        parked, was_live = is_parked(tables, carry), carry.is_live
        tables, goal = unlimited(tables, parked), tables
        meeting = meet(coupling, carry)
        carry = with_doors(carry, meeting)
    look = apart(flag, dispatch.look, tables, carry)
    first, *held = over_streams(look.turn, *look.held, least=1)
    is_idle = carry.is_live & (first == NOBODY) & is_before(carry.now, tables.limit)
    granted = apart(flag, dispatch.grant, tables.capacity, carry.head, look, held, is_idle)
    begun, running = apart(flag, dispatch.begin, carry, look, granted)
    head = carry.head._replace(**begun)
    rate = pace(flag, running, head, has_links=coupling is not None)
    wait_ns = apart(flag, motion.wait_ns, carry, head, running, rate).min(0)
    if coupling is not None:
        first, is_idle, wait_ns = hold(coupling, carry, meeting, parked, first, is_idle, wait_ns)
        begun, _ = dispatch.begin(carry, look, jnp.where(is_idle, granted, 0))
        head = carry.head._replace(**begun)
    delta_ns, now = apart(flag, motion.move, tables, carry, wait_ns, is_idle)
    worked, over = apart(flag, motion.work, carry, head, rate, delta_ns)
    head = head._replace(**worked)
    first_over, all_over = over_streams(over, (over != NOBODY).astype(jnp.int32), least=1)
    chosen = jnp.minimum(first_over, jnp.where(is_idle, NOBODY, first))
    retired = apart(flag, retire.choose, carry, head, chosen)
    carry = carry._replace(head=head)
    moved = (now.hi != carry.now.hi) | (now.lo != carry.now.lo)
    numbers = {
        Lane.NOW_HI: now.hi,
        Lane.NOW_LO: now.lo,
        Lane.INSTANTS: carry.number(Lane.INSTANTS) + moved,
        Lane.STATE: jnp.where(motion.is_stuck(tables, wait_ns, is_idle), State.STUCK, carry.number(Lane.STATE)),
    }
    has_more = all_over > (chosen == first_over)
    if coupling is None:
        return retire.retire(flag, orders, tables, carry, retired, now, numbers, has_more)
    return kept_live(coupling, retire.retire(flag, orders, goal, carry, retired, now, numbers, has_more), was_live)
