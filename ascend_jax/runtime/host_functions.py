"""Host functions: functions of the host program that a stream calls in a thread which the runtime makes for it.

What a function does is up to the program; the card knows it by a number that the program chooses, and by how long it
runs. To the engine it is a task that occupies nothing of the chip.
"""

import dataclasses

import jax
import jax.numpy as jnp

from ascend_jax.runtime import layout
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import Command, answer, at_least_1ns, enqueue
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.handles import find_stream
from ascend_jax.runtime.host import duration_limbs, spend
from ascend_jax.runtime.layout import LIMB, Field, Kind, Stream
from ascend_jax.runtime.rows import Number, get_row, put_if, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.synchronize import make_room

LONGEST_FUNCTION_NS = (layout.LONGEST_BLOCK_HI + 1) * LIMB - 1


def is_no_function(number: Number) -> jax.Array:
    """Return whether a number stands for no function of the host program, as -1 does where one is returned."""
    return jnp.asarray(number, jnp.int32) < 0


@stage
def _launch_host_func(
    card: CardState, stream: Number, function: Number, duration: tuple[Number, Number], site: Number
) -> CardState:
    code, slot = find_stream(card, stream)
    entry = get_row(card.streams, slot)
    rest = first_code(
        (is_no_function(function), Code.RT_PARAM_INVALID),
        (entry[Stream.REPORTER] >= 0, Code.RT_STREAM_SUBSCRIBE),
    )
    block = at_least_1ns(Instant(*(jnp.asarray(limb, jnp.int32) for limb in duration)))
    fields = {Field.OBJECT: function, Field.SITE: site}
    command = Command(Kind.HOST_FUNC, slot, block=block, has_effect=False, fields=fields)
    card, code = enqueue(spend(card, card.chip["host_event_ns"]), command, first_failing(code, rest))
    served = with_entries(get_row(card.streams, slot), {Stream.REPORTER: layout.OWN_THREAD})
    card = dataclasses.replace(card, streams=put_if(code == Code.SUCCESS, card.streams, slot, served))
    return answer(card, code, site, stream)[0]


@verb
def launch_host_func(
    card: CardState, stream: Number, function: Number, *, duration_ns: Number | float = 0, site: Site = None
) -> CardState:
    """Let ``stream`` call a function of the host program in a thread of the runtime's own (``aclrtLaunchHostFunc``).

    The stream waits until the function has run; no call of the program is needed for that, unlike a callback's. Which
    ones have run, and when, is in the timeline.

    Args:
      card: The card.
      stream: Stream that calls it.
      function: The host program's number of the function, from 0.
      duration_ns: How long it runs: 0 counts as 1 ns; longer than 273 s is a ValueError.
      site: Call site, filled in by the runtime.

    Returns:
      The card. Status 107003 for an unknown stream, 107000 for a number below 0; 107011 if a thread has subscribed to
      its callbacks, because CANN forbids both on one stream (it does not say with which code). From then on nobody can
      subscribe to them.

    In a stream that is captured it is recorded, and called in each execution of the program (torch_npu's
    ``save_npugraph_tensor`` does that with ``aclrtLaunchHostFunc``).

    >>> import ascend_jax as aj
    >>> card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0)
    >>> card = aj.synchronize_device(aj.launch_host_func(card, 0, 7, duration_ns=500))
    >>> log = aj.insight.timeline(card)
    >>> log.kind.tolist(), (log.end_ns - log.start_ns).tolist()
    (['host function'], [500])
    """
    duration = duration_limbs(duration_ns, "duration_ns", LONGEST_FUNCTION_NS)
    return _launch_host_func(make_room(card, site, stream), stream, function, duration, site)
