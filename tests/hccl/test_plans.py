"""Plans of many cards: starts, overlap, late ranks, ranks that disagree or never come; nothing hangs."""

import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax import hccl
from ascend_jax.hccl import Call, Collective, CommConfig, HcclError, Topology, Work, comm_world, explain_plan

CHIP, FIRST = aj.chip("Ascend910B2"), aj.chip("Ascend910A")
THREE = Topology(3, 8)
WORLD = comm_world(3)
S = 1_000_000_000
ALL, SEND = Collective.ALL_REDUCE, Collective.SEND_RECV


def run(steps, topology=THREE, chip=CHIP):
    return hccl.run_plan(hccl.make_plan(chip, steps, topology))


def duration(collective, nbytes, cards=range(3), topology=THREE):
    return round(hccl.collective_time(CHIP, topology, collective, nbytes, cards).time_ns)


def columns(times, name, step):
    return [times.steps(card)[step][name] for card in range(times.plan.cards)]


def test_a_late_rank_holds_up_all():
    times = run([Work("kernel", np.array([1000, 90_000, 5000])), Call(ALL, WORLD, 1 << 20), Work("kernel", 10)])
    length = duration(ALL, 4 << 20)
    assert columns(times, "start_ns", 1) == [90_000] * 3
    assert columns(times, "end_ns", 2) == [90_000 + length + 10] * 3
    assert [times.busy_ns(card) for card in range(3)] == [1010, 90_010, 5010]
    assert times.makespan_ns == 90_010 + length
    assert explain_plan(times) == []


def test_communication_hides_behind_computation():
    length = duration(ALL, 4 << 20)
    steps = [
        Work("a", 500),
        Call(ALL, WORLD, 1 << 20, stream=1, after=(0,)),
        Work("b", 2 * length),
        Work("c", 7, after=(1,)),
    ]
    times = run(steps)
    assert columns(times, "start_ns", 1) == [500] * 3
    assert times.makespan_ns == 500 + 2 * length + 7
    assert [times.exposed_ns(card) for card in range(3)] == [0] * 3
    steps[2] = Work("b", 100)
    assert run(steps).exposed_ns(0) == length - 100


def test_groups_meet_on_their_own():
    pairs = comm_world(4).split([0, 0, 1, 1])
    times = run([Work("kernel", np.array([10, 20, 3000, 40])), Call(ALL, pairs, 256)], Topology(4, 8))
    assert columns(times, "start_ns", 1) == [20, 20, 3000, 3000]


def test_ranks_that_disagree_are_told_and_end():
    def steps(count=12, dtype="float32", op=hccl.ReduceOp.SUM, collective=ALL, root=0):
        return [Work("kernel", 100), Call(collective, WORLD, count, dtype, op, root), Work("kernel", 50)]

    for wrong, words in (
        (steps(count=8), "rank 1 has count = 8, rank 0 has 12"),
        (steps(dtype="float16"), "rank 1 has dtype = FP16, rank 0 has FP32"),
        (steps(op=hccl.ReduceOp.MAX), "rank 1 has op = MAX, rank 0 has SUM"),
        (steps(collective=Collective.BROADCAST), "rank 1 has operation = broadcast, rank 0 has all_reduce"),
    ):
        times = run([steps(), wrong, steps()])
        assert columns(times, "end_ns", 1) == [None] * 3
        assert (times.code == aj.Code.RT_INTERNAL_ERROR).sum() == 3
        assert explain_plan(times) == [f"HCCL_E_PARA (1) [EI0005]: call 0 of hccl_world_group: {words}"]
    roots = [steps(collective=Collective.BROADCAST, root=root) for root in (0, 0, 2)]
    assert "rank 2 has root = 2, rank 0 has 0" in explain_plan(run(roots))[0]


def test_another_order_is_a_mismatch():
    small, large = Call(ALL, WORLD, 4), Call(ALL, WORLD, 8)
    times = run([[small, large], [large, small], [small, large]])
    assert "call 0 of hccl_world_group: rank 1 has count = 8, rank 0 has 4" in explain_plan(times)[0]


def test_the_odd_rank_out_is_named_whichever_it_is():
    call, wrong = Call(ALL, WORLD, 12), Call(ALL, WORLD, 8)
    (line,) = explain_plan(run([[wrong], [call], [call]]))
    assert line == "HCCL_E_PARA (1) [EI0005]: call 0 of hccl_world_group: rank 0 has count = 8, rank 1 has 12"
    ring = Call(ALL, WORLD, 12, algorithm="ring")
    (line,) = explain_plan(run([[ring], [call], [call]]))
    assert line.endswith("rank 0 has algorithm = ring, rank 1 has the library's choice")
    (line,) = explain_plan(run([[call], [call], [ring]]))
    assert line.endswith("rank 2 has algorithm = ring, rank 0 has the library's choice")


def test_two_communicators_in_another_order_wait_for_each_other():
    first, second = (comm_world(2, CommConfig(name=name)) for name in ("first", "second"))
    a, b = Call(ALL, first, 64), Call(Collective.BROADCAST, second, 32)
    times = run([[a, b], [b, a]], Topology(2, 8))
    lines = explain_plan(times)
    assert times.makespan_ns == 140 * S
    assert len(lines) == 2
    for line, waits, held, call, blocker in (
        (lines[0], 0, 1, "all_reduce", "call 0 of second, broadcast at hccl/test_plans.py:"),
        (lines[1], 1, 0, "broadcast", "call 0 of first, all_reduce at hccl/test_plans.py:"),
    ):
        assert line.startswith("HCCL_E_TIMEOUT (9) [EI0006]: call 0 of ")
        assert f", {call} at hccl/test_plans.py:" in line
        assert f"rank {held} is held by {blocker}" in line
        assert line.endswith(f"rank(s) [{waits}] wait for them and give up after 140 s")


def test_a_rank_that_comes_too_late():
    call = Call(ALL, comm_world(3, CommConfig(exec_timeout_s=20)), 64)
    steps = [call, Work("late", np.array([5, 200 * S // 8, 5])), call]
    times = run(steps)
    (line,) = explain_plan(times)
    assert "[EI0002]: call 1 of hccl_world_group, all_reduce at hccl/test_plans.py:" in line
    assert "rank 1 comes 25 s after rank 0; rank(s) [0, 2] wait for them and give up after 20 s" in line
    assert explain_plan(run([call, Work("late", np.array([5, 19 * S, 5])), call])) == []


def test_what_a_step_may_not_be():
    for make, words in (
        (lambda: Work("a", 1.5), "duration_ns = 1.5: must be an integer"),
        (lambda: Work("a", np.array([1, -3])), "duration_ns = -3 of card 1: must be at least 0"),
        (lambda: Work("a", -1), "duration_ns = -1: must be at least 0"),
        (lambda: Work("a", 1, cube_cores=-2), "cube_cores = -2"),
        (lambda: Work("a", 1, stream=0.5), "stream = 0.5"),
        (lambda: Work("a", 1, after=(-1,)), "after = -1"),
        (lambda: Work("a", 1, hbm_bytes=float("nan")), "hbm_bytes = nan"),
        (lambda: Call(ALL, WORLD, 4, algorithm="star"), "algorithm = 'star'"),
        (lambda: Call(ALL, WORLD, 4, stream=-1), "stream = -1"),
    ):
        with pytest.raises(ValueError, match=words):
            make()
    for make, words, code in (
        (lambda: Call(ALL, WORLD, 2.0), "count = 2.0", 1),
        (lambda: Call(ALL, WORLD, True), "count = True", 1),
        (lambda: Call("all_reduce", WORLD, 2), "collective = 'all_reduce'", 1),
        (lambda: Call(ALL, None, 2), "comm = None", 2),
        (lambda: Call(ALL, WORLD, 2, op=7), "op = 7", 1),
        (lambda: Call(Collective.BROADCAST, WORLD, 2, root=1.0), "root = 1.0", 1),
        (lambda: Call(Collective.BROADCAST, WORLD, 2, root=-1), "root = -1", 1),
    ):
        with pytest.raises(HcclError, match=words) as caught:
            make()
        assert caught.value.code == code
    with pytest.raises(ValueError, match="must be an integer, or one for each card"):
        hccl.make_plan(CHIP, [Work("a", np.array([[1, 2]]))], THREE)
    with pytest.raises(ValueError, match="work 'a' has 2 durations: there are 3 cards"):
        hccl.make_plan(CHIP, [Work("a", np.array([1, 2]))], THREE)


def test_a_rank_that_leaves_after_the_first_call():
    # the second collective: rank 1 is gone, the others give up after the execution timeout
    call = Call(ALL, comm_world(3, CommConfig(exec_timeout_s=5)), 64)
    times = run([[call, call], [call], [call, call]])
    first = duration(ALL, 256)
    assert columns(times, "end_ns", 0) == [first] * 3
    ends = [int(times.end_ns[card].max()) for card in range(3)]
    assert ends == [first + 5 * S, first, first + 5 * S]
    assert (times.code == aj.Code.RT_WAIT_TIMEOUT).sum(1).tolist() == [1, 0, 1]
    (line,) = explain_plan(times)
    assert "HCCL_E_TIMEOUT (9) [EI0002]: call 1" in line
    assert "rank(s) [1] do not call; rank(s) [0, 2] wait for them and give up after 5 s" in line


def test_a_rank_that_never_calls():
    call = Call(ALL, comm_world(4), 64)
    times = run([[call], [call], [call], [Work("kernel", 5)]], Topology(4, 8))
    assert times.end_ns.max(1).tolist() == [140 * S, 140 * S, 140 * S, 5]
    (line,) = explain_plan(times)
    assert "[EI0006]: call 0" in line
    assert "rank(s) [3] do not call" in line


def test_for_ever_is_a_deadlock_and_no_hang():
    call = Call(ALL, comm_world(3, CommConfig(exec_timeout_s=0)), 64)
    times = run([[call, call], [call], [call, call]])
    assert times.makespan_ns == duration(ALL, 256)
    assert "give up never: HCCL_EXEC_TIMEOUT is 0" in explain_plan(times)[0]


def test_first_generation_counts_in_68_s():
    call = Call(ALL, comm_world(2, CommConfig(exec_timeout_s=600)), 64)
    times = run([[call, call], [call]], Topology(2, 8), FIRST)
    assert int(times.end_ns[0].max()) // S == 544


def test_wrong_plans():
    with pytest.raises(ValueError, match="2 lists of steps: the topology has 3 cards"):
        hccl.make_plan(CHIP, [[], []], THREE)
    with pytest.raises(ValueError, match=r"step 0 \(a\) is after step 1"):
        hccl.make_plan(CHIP, [Work("a", 1, after=(1,)), Work("b", 1)], THREE)
    with pytest.raises(ValueError, match="card 2 calls all_reduce of pair: it has no rank there"):
        hccl.make_plan(CHIP, [Call(ALL, WORLD.sub([0, 1], name="pair"), 4)], THREE)
    with pytest.raises(HcclError, match="count = -1"):
        Call(ALL, WORLD, -1)
    with pytest.raises(HcclError, match="root = 3"):
        Call(Collective.BROADCAST, WORLD, 1, root=3)
    with pytest.raises(HcclError, match="UINT8"):
        Call(ALL, WORLD, 1, "uint8")


def test_a_thousand_cards():
    cards = 1024
    rng = np.random.default_rng(0)
    delays = rng.integers(1000, 50_000, (10, cards))
    call = Call(ALL, comm_world(cards), 1 << 18)
    steps = [step for delay in delays for step in (Work("kernel", delay), call)]
    topology = Topology(cards, 8)
    times = run(steps, topology)
    length = duration(ALL, 1 << 20, range(cards), topology)
    assert times.makespan_ns == sum(int(delay.max()) + length for delay in delays)
    assert (times.end_ns.max(1) == times.makespan_ns).all()
