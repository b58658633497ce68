"""The card as a pytree: reuse of table rows, donation, times without values, traces, static mistakes."""

import copy
import dataclasses
import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.kernels import Argument, KernelSpec
from ascend_jax.runtime.launch import load_kernel

ROWS = 16  # max_commands of the shared card


def test_rows_are_reused_after_a_synchronisation(kit, programs):
    card = kit.card
    for _ in range(5):
        for _ in range(ROWS - 3):
            card = programs.launch(kit, card, 1, 10)
        card = aj.synchronize_stream(card, 1)
    aj.raise_if_error(card)
    log = aj.insight.timeline(card)
    assert log.forgotten == 5 * (ROWS - 3) - ROWS and len(log) == ROWS
    assert log.command.tolist() == list(range(log.forgotten, log.forgotten + ROWS))


def full_table(kit, programs):
    card = kit.card
    for _ in range(ROWS - 1):
        card = programs.launch(kit, card, 1, 1000)
    card = aj.record_event(card, 0, 1)  # so that it can be waited for
    aj.raise_if_error(card)
    return card


CALLS_THAT_ENQUEUE = {
    "memset_async": lambda kit, card: aj.memset_async(card, kit.device, 0, 64, 0),
    "memcpy_async": lambda kit, card: aj.memcpy_async(card, kit.device, kit.host, 64, 0),
    "memset": lambda kit, card: aj.memset(card, kit.device, 0, 64),
    "upload": lambda kit, card: aj.upload(card, kit.device, np.zeros(40, np.uint8)),
    "record": lambda kit, card: aj.record_event(card, 0, 0),
    "wait": lambda kit, card: aj.stream_wait_event(card, 0, 0),
}


@pytest.mark.parametrize("name", CALLS_THAT_ENQUEUE)
def test_a_full_table_refuses_under_jit_and_recovers(kit, programs, name):
    card = full_table(kit, programs)
    after = jax.jit(lambda card: CALLS_THAT_ENQUEUE[name](kit, card), compiler_options=aj.QUICK_TO_COMPILE)(card)
    assert aj.status(after).code == aj.Code.TABLE_FULL
    if not name.endswith(("memset", "upload")):  # those wait for what is queued
        chex.assert_trees_all_equal(after.table, card.table)
        chex.assert_trees_all_equal(
            (after.memory, after.events, after.streams), (card.memory, card.events, card.streams)
        )
    card = aj.synchronize_device(aj.clear_error(after))
    card = programs.launch(kit, card, 1, 10)
    aj.raise_if_error(card)


@pytest.mark.parametrize("name", CALLS_THAT_ENQUEUE)
def test_a_full_table_makes_the_host_wait_for_a_row(kit, programs, name):
    card = full_table(kit, programs)
    first_end = aj.insight.timeline(aj.synchronize_device(card)).end_ns[0]
    after = CALLS_THAT_ENQUEUE[name](kit, card)
    aj.raise_if_error(after)
    log = aj.insight.timeline(after)
    assert log.forgotten == 1 and log.issue_ns[-1] >= first_end


def test_a_full_table_of_finished_work_costs_no_wait(kit, programs):
    card = aj.host_work(full_table(kit, programs), 10**9)
    before = aj.host_time_ns(card)
    card = aj.record_event(card, 0, 0)
    aj.raise_if_error(card)
    assert aj.host_time_ns(card) - before == int(card.chip["host_event_ns"])


def test_a_wait_for_a_record_that_left_the_table_is_over(kit, programs):
    card = aj.record_event(kit.card, 0, 1)
    for _ in range(2):
        for _ in range(ROWS - 3):
            card = programs.launch(kit, card, 1, 10)
        card = aj.synchronize_stream(card, 1)
    card = aj.stream_wait_event(card, 0, 0)
    card = aj.synchronize_device(aj.synchronize_event(card, 0))
    aj.raise_if_error(card)


def test_an_old_card_stays_valid(kit, programs):
    before = jax.tree.map(np.array, kit.card)
    card = programs.launch(kit, kit.card, 0, 100)
    aj.synchronize_device(aj.upload(card, kit.device, np.ones(40, np.uint8)))
    chex.assert_trees_all_equal(jax.tree.map(np.array, kit.card), before)


def test_a_donated_card_gives_the_same_and_is_consumed(kit, programs):
    fresh = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), kit.card)
    donated = dataclasses.replace(fresh, donate=True)

    def use(card):
        card = aj.upload(card, kit.device, np.arange(40, dtype=np.uint8), site=1)
        card = aj.launch(card, kit.mix, 0, 1, site=2)
        card = aj.synchronize_device(card, site=3)
        return aj.download(card, kit.device, (40,), np.uint8, site=4)

    (kept, want), (used, got) = use(kit.card), use(donated)
    np.testing.assert_array_equal(got, want)
    chex.assert_trees_all_equal(dataclasses.replace(used, donate=False), kept)
    assert donated.memory.is_deleted() and not kit.card.memory.is_deleted()
    with pytest.raises((RuntimeError, ValueError), match="made with donate=True"):
        aj.synchronize_device(donated)


def test_times_are_the_same_without_values(kit, programs):
    timing = programs.kit(programs.TIES, hbm_backing_bytes=0)
    assert not timing.card.has_values and timing.card.memory.shape[0] < kit.card.memory.shape[0]

    def use(one):
        card = programs.launch(one, one.card, 0, 1000, cube=1, blocks=13)
        card = programs.launch(one, card, 1, 1000, cube=1, blocks=13)
        card = aj.memcpy_async(card, one.host, one.device, 100, 0)
        card = aj.memset(card, one.device, 1, 100)
        card, back = aj.download(card, one.device, (8,), np.uint8)
        card = aj.upload(card, one.device, np.ones(8, np.uint8))
        return aj.synchronize_device(card), back

    (with_values, _), (without, nothing) = use(kit), use(timing)
    mine, other = aj.insight.timeline(with_values), aj.insight.timeline(without)
    for column in ("issue_ns", "ready_ns", "start_ns", "end_ns", "stream"):
        np.testing.assert_array_equal(getattr(mine, column), getattr(other, column))
    assert aj.host_time_ns(with_values) == aj.host_time_ns(without)
    assert not np.asarray(nothing).any()


def test_card_is_frozen_and_a_pytree(kit):
    with pytest.raises(dataclasses.FrozenInstanceError):
        kit.card.memory = None
    leaves, shape = jax.tree.flatten(kit.card)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    chex.assert_trees_all_equal(jax.tree.unflatten(shape, leaves), kit.card)
    assert hash(shape) == hash(jax.tree.structure(kit.card))
    chex.assert_trees_all_equal(jax.jit(lambda card: card)(kit.card), kit.card)
    host = jax.device_get(kit.card)
    chex.assert_trees_all_equal(copy.deepcopy(host), host)
    back = pickle.loads(pickle.dumps(host))
    chex.assert_trees_all_equal(aj.synchronize_device(back, site=1), aj.synchronize_device(kit.card, site=1))


def test_fresh_cards_share_no_buffer_and_change_independently():
    sizes = {
        "max_streams": 1,
        "max_events": 1,
        "max_commands": 2,
        "max_blocks": 2,
        "hbm_backing_bytes": 64,
        "host_backing_bytes": 64,
    }
    one, two = (aj.init(aj.chip("Ascend910B2"), **sizes) for _ in range(2))
    pointers = [leaf.unsafe_buffer_pointer() for card in (one, two) for leaf in jax.tree.leaves(card) if leaf.size]
    assert len(set(pointers)) == len(pointers)


def test_changed_values_do_not_trace_again(kit, programs):
    @chex.assert_max_traces(n=1)
    def program(card, executor, stream, event, nbytes, offset, duration, value):
        executor = dataclasses.replace(executor, cost=dataclasses.replace(executor.cost, block_ns=duration))
        card = aj.memset_async(card, kit.device, value, nbytes, stream, dst_offset=offset, site=1)
        card = aj.record_event(card, event, stream, site=1)
        card = aj.stream_wait_event(card, stream, event, site=1)
        card = aj.launch(card, executor, 0, stream, site=1)
        return aj.host_work(card, nbytes)

    program = jax.jit(program, compiler_options=aj.QUICK_TO_COMPILE)
    for numbers in [(0, 0, 64, 0, 10.0, 1), (1, 5, 100, 3, 1e9, 2), (9, -1, -4, 2**31 - 1, 0.0, -1)]:
        arrays = [np.asarray(x, np.float32 if isinstance(x, float) else np.int32) for x in numbers]
        program(kit.card, kit.mix, *arrays)


def test_eager_verbs_compile_once(kit):
    def use(card, stream, event, nbytes, offset):
        card = aj.memset_async(card, kit.device, nbytes, nbytes, stream, dst_offset=offset)
        card = aj.memcpy_async(card, kit.device, kit.host, nbytes, stream, src_offset=offset)
        card = aj.record_event(card, event, stream)
        card = aj.stream_wait_event(card, stream, event)
        card = aj.host_work(card, nbytes)
        card = aj.memcpy(card, kit.device, kit.host, nbytes)
        card, pointer = aj.malloc(card, nbytes)
        card = aj.free(card, pointer)
        return aj.synchronize_device(aj.synchronize_event(aj.synchronize_stream(card, stream), event))

    use(kit.card, 0, 0, 64, 0)
    with NoCompilation():
        use(kit.card, 1, 0, 128, 7)
        use(kit.card, jnp.int32(0), np.int64(0), 5, 1)
        use(kit.card, 99, 99, 2**31 - 1, -1)
    with pytest.raises(AssertionError, match="compile"), NoCompilation():
        jax.jit(lambda x: x * 3 + 1)(np.float32(1))  # the check itself works


class NoCompilation:
    """Fail on any compilation inside the block."""

    def __enter__(self):
        self.seen = []
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def __exit__(self, *error):
        jax.monitoring.unregister_event_duration_listener(self._note)
        assert not self.seen, self.seen

    def _note(self, event, duration, **rest):
        if "backend_compile" in event:
            self.seen.append(event)


def test_the_same_kernel_is_loaded_once(kit):
    argument = Argument((48,), np.dtype("uint8"))
    card, index = load_kernel(kit.card, KernelSpec("runtime_test_mix", (), (argument,), (argument,)))
    assert index == 0 and card.kernels == kit.card.kernels
    tensor = aj.tensor(kit.device, (48,), "uint8", offset=3)
    card, _, executor = aj.ops.get_workspace_size(card, "runtime_test_mix", [tensor], [tensor], {})
    assert card.kernels == kit.card.kernels
    assert executor.kernel == card.kernels[0]


def test_a_card_learns_the_kernel_of_an_executor_it_has_not_seen(kit):
    stranger = dataclasses.replace(kit.card, kernels=kit.card.kernels[::-1])
    card = aj.upload(stranger, kit.device, np.arange(48, dtype=np.uint8))
    card = aj.synchronize_device(aj.launch(card, kit.mix, 0, 0))
    aj.raise_if_error(card)
    _, back = aj.download(card, kit.device, (48,), np.uint8)
    np.testing.assert_array_equal(back, np.arange(48, dtype=np.uint8) * 3 + 7)
    assert aj.insight.timeline(card).name.tolist()[1] == "runtime_test_mix"


@pytest.mark.parametrize(
    "sizes",
    [
        {"max_streams": 0}, {"max_events": -1}, {"max_commands": 1}, {"max_blocks": 0}, {"hbm_backing_bytes": -1},
        {"hbm_backing_bytes": 2**31}, {"host_backing_bytes": 2**31}, {"max_streams": 2.5}, {"max_commands": True},
        {"max_streams": 2**20},
    ],
)  # fmt: skip
def test_init_names_the_size_it_refuses(sizes):
    (name, value), *_ = sizes.items()
    with pytest.raises(ValueError, match=f"{name} = {value}"):
        aj.init(aj.chip("Ascend910B2"), **sizes)


def test_init_wants_a_chip():
    with pytest.raises(TypeError, match="ChipSpec"):
        aj.init("Ascend910B2")


def test_a_consumed_card_says_so(kit):
    fresh = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), kit.card)
    card = dataclasses.replace(fresh, donate=True)
    aj.host_work(card, 5)
    for call in (lambda: aj.malloc(card, 64), lambda: aj.synchronize_device(card), lambda: aj.record_event(card, 0, 0)):
        with pytest.raises(ValueError, match="made with donate=True"):
            call()


def test_a_pair_instead_of_a_card_says_so(kit):
    with pytest.raises(TypeError, match="write card, value"):
        aj.free(aj.malloc(kit.card, 64), 1)
