"""What a program refers to is found when it runs: values at their addresses, notifies and flags by their handles."""

import jax
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import Clock
from tests.runtime.captures import make
from tests.runtime.cards import MARK_COSTS, SIZES, card_of, code

EXTERNAL = aj.EventFlag.EXTERNAL
EQUAL = 1  # the flag of value_wait


@pytest.fixture(scope="module")
def made():
    """Streams 1 and 2, events 0 and 1, and a block of 4096 bytes that are all 0."""
    card, pointer = make()
    return aj.memset(card, pointer, 0, 4096), pointer


def waiting(card, pointer, offset=0):
    """A program that waits for a 1 and then fills 4 bytes with 5."""
    card = aj.value_wait(aj.capture_begin(card, 1), pointer, 1, 1, flag=EQUAL, offset=offset)
    card, program = aj.capture_end(aj.memset_async(card, pointer, 5, 4, 1, dst_offset=64), 1)
    assert (code(card), program.rows) == (0, 2)
    return card, program


def run(card, program, stream=1):
    return aj.synchronize_stream(aj.execute_program(card, program, stream), stream)


def test_a_wait_looks_at_memory_as_it_is_at_each_execution(made):
    card, program = waiting(*made)
    pointer = made[1]
    for first in (1, 0, 1):  # no value_write: a fill changes what memory holds
        card = aj.memset(card, pointer, first, 1)
        ran = run(card, program)
        assert code(ran) == (0 if first else aj.Code.DEADLOCK)
    _, out = aj.download(ran, pointer, (68,), "uint8")
    assert out[64:].tolist() == [5] * 4


def test_a_program_that_compiled_code_knows_looks_at_memory_as_it_does_eagerly(made):
    card, program = waiting(*made)
    card = aj.host_work(aj.memset_async(card, made[1], 1, 1, 2), 20)  # over by then, and nobody has looked since
    ran = jax.jit(lambda card: run(card, program), compiler_options=aj.QUICK_TO_COMPILE)(card)
    assert code(ran) == code(run(card, program)) == 0


def test_programs_that_are_arguments_look_at_memory_as_it_is(made):
    card, program = waiting(*made)

    def fill_and_run(card, program):
        card = aj.host_work(aj.memset_async(card, made[1], 1, 1, 2), 1e6)  # over before the program begins
        return run(card, program)

    programs = jax.tree.map(lambda leaf: leaf[None], program)
    lanes = jax.jit(jax.vmap(fill_and_run, (None, 0)), compiler_options=aj.QUICK_TO_COMPILE)(card, programs)
    assert aj.last_code(lanes).tolist() == [code(fill_and_run(card, program))] == [0]


def test_a_fill_that_is_still_queued_counts_once_it_has_run(made):
    """The execution looks at memory when the host makes the call; then only value_write changes what it waits for."""
    card, program = waiting(*made)
    pointer = made[1]
    card = aj.memset_async(card, pointer, 1, 1, 2)  # takes 11 ns
    assert code(run(card, program)) == aj.Code.DEADLOCK
    assert code(run(aj.host_work(card, 20), program)) == 0


def test_slots_that_other_addresses_have_taken_meanwhile(made):
    card, program = waiting(*made)
    pointer = made[1]
    card = aj.memset(card, pointer, 1, 1)
    slots = len(card.values)
    others = [128 + 8 * number for number in range(slots)]
    other = card
    for offset in others:
        other = aj.value_write(other, pointer, 7, 2, offset=offset)
    other = aj.synchronize_stream(other, 2)
    assert code(other) == 0
    assert code(run(other, program)) == 0
    held = card
    for offset in others:  # keep all slots
        held = aj.value_wait(held, pointer, 9, 2, flag=EQUAL, offset=offset)
    refused = aj.execute_program(held, program, 1)
    assert code(refused) == aj.Code.OBJECT_TABLE_FULL
    np.testing.assert_array_equal(refused.table.fields, held.table.fields)
    for name in ("values", "cells", "memory"):
        np.testing.assert_array_equal(getattr(refused, name), getattr(held, name))
    for offset in others:
        refused = aj.value_write(refused, pointer, 9, 1, offset=offset)
    assert code(aj.synchronize_stream(refused, 2)) == 0


def test_writes_of_a_program_let_waits_go_in_either_order(made):
    card, pointer = made
    begun = aj.value_write(aj.capture_begin(card, 1), pointer, 1, 1)
    card, writing = aj.capture_end(begun, 1)
    for _ in range(2):
        waits = aj.value_wait(aj.memset(card, pointer, 0, 8), pointer, 1, 2, flag=EQUAL)
        assert code(aj.synchronize_stream(waits, 2)) == aj.Code.DEADLOCK
        card = aj.synchronize_stream(aj.execute_program(waits, writing, 1), 2)
        assert code(card) == 0
    _, out = aj.download(card, pointer, (8,), "uint8")
    assert out.tolist() == [1, *[0] * 7]


def test_a_card_without_bytes_keeps_what_was_written():
    card, pointer = aj.malloc(card_of(MARK_COSTS, SIZES), 4096)
    card, program = waiting(aj.create_stream(card)[0], pointer)
    assert code(run(card, program)) == aj.Code.DEADLOCK
    written = aj.synchronize_device(aj.value_write(card, pointer, 1, 0))
    for _ in range(2):
        written = run(written, program)
        assert code(written) == 0


def test_a_notify_or_flag_that_is_gone_is_an_unknown_one(made):
    card, notify = aj.create_notify(made[0])
    card, flag = aj.create_event_with_flag(card, EXTERNAL)
    begun = aj.record_notify(aj.capture_begin(card, 1), notify, 1)
    card, noting = aj.capture_end(begun, 1)
    begun = aj.record_event(aj.capture_begin(card, 1), flag, 1)
    card, flagging = aj.capture_end(begun, 1)
    assert code(run(run(card, noting), flagging)) == 0
    for gone, program in ((aj.destroy_notify(card, notify), noting), (aj.destroy_event(card, flag), flagging)):
        taken, again = aj.create_notify(gone) if program is noting else aj.create_event_with_flag(gone, EXTERNAL)
        assert int(again) in (int(notify) + (1 << 18), int(flag) + (1 << 18))  # the same slot
        for after in (gone, taken):
            refused = aj.execute_program(after, program, 1)
            assert code(refused) == aj.Code.RT_PARAM_INVALID
            assert int(refused.clock[Clock.ENQUEUED]) == int(after.clock[Clock.ENQUEUED])
            assert not np.asarray(refused.cells).any()


def test_a_program_finds_its_notify_on_a_card_of_another_size(made, two_streams):
    assert two_streams.max_events != made[0].max_events
    card, notify = aj.create_notify(two_streams)
    begun = aj.record_notify(aj.capture_begin(card, 1), notify, 1)
    _, program = aj.capture_end(begun, 1)
    other = made[0]
    assert code(aj.execute_program(other, program, 1)) == aj.Code.RT_PARAM_INVALID
    other, _ = aj.create_notify(other)
    waits = aj.wait_and_reset_notify(other, 0, 2)
    assert code(aj.synchronize_stream(aj.execute_program(waits, program, 1), 2)) == 0
