"""Communicators: three ways to make one, and everything that a wrong one is told."""

import copy
import json

import pytest

from ascend_jax import hccl
from ascend_jax.hccl import CommConfig, Gathering, HcclError, HcclResult, Topology

INFO = hccl.get_root_info(7)


def gathering(ranks=3):
    return Gathering(cards=8, n_ranks=ranks, root_info=INFO)


def test_by_root_info_in_any_order():
    made = gathering().join(3, INFO, 2, 5).join(3, INFO, 0, 1).join(3, INFO, 1, 0)
    comm = made.finish()
    assert comm.groups == ((1, 0, 5),)
    assert [comm.rank_of(card) for card in (1, 0, 5)] == [0, 1, 2]
    assert comm.size == 3
    assert comm.memory_bytes == 400 << 20


@pytest.mark.parametrize(
    ("call", "rank", "words"),
    [
        ((3, INFO, 0, 2), 0, "rank 0 has joined on card 1"),
        ((3, INFO, 1, 1), 1, "card 1: rank 0 has joined on card 1"),
        ((3, INFO, 3, 2), 3, "must be 0 to 2"),
        ((3, INFO, 1, 8), 1, "card 8"),
        ((4, INFO, 1, 2), 1, "nRanks = 4"),
        ((3, hccl.get_root_info(8), 1, 2), 1, "rootInfo of 4108 bytes"),
        ((3, b"", 1, 2), 1, "rootInfo of 0 bytes"),
    ],
)
def test_a_rank_that_cannot_join(call, rank, words):
    with pytest.raises(HcclError) as caught:
        gathering().join(3, INFO, 0, 1).join(*call)
    assert (caught.value.code, caught.value.rank) == (HcclResult.PARA, rank)
    assert words in str(caught.value)


def test_missing_ranks_are_named_after_the_connect_timeout():
    with pytest.raises(HcclError, match=r"\[EI0006\].*rank\(s\) \[1, 2\].*\[0\] wait 140 s") as caught:
        gathering().join(3, INFO, 0, 1).finish()
    assert caught.value.code == HcclResult.TIMEOUT


def device(number, rank):
    return {"device_id": str(number), "device_ip": f"192.168.0.{rank}", "rank_id": str(rank)}


TABLE = {
    "version": "1.0",
    "status": "completed",
    "server_count": "2",
    "server_list": [
        {"server_id": "a", "device": [device(0, 1), device(1, 0)]},
        {"server_id": "b", "device": [device(2, 2)]},
    ],
}


def test_by_rank_table(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(TABLE))
    assert hccl.read_rank_table(tmp_path / "t.json", Topology(16, 8)) == (1, 0, 10)


def changed(*path, value):
    table = copy.deepcopy(TABLE)
    place = table
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return table


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (changed("status", value="initializing"), "'initializing'"),
        (changed("version", value="1.2"), "'1.2'"),
        (changed("server_count", value="3"), "'3'"),
        (changed("server_list", 1, "device", 0, "rank_id", value="1"), "rank 1: .*given twice"),
        (changed("server_list", 1, "device", 0, "rank_id", value="4"), r"rank_id \[2, 3\] missing"),
        (changed("server_list", 1, "device", 0, "device_id", value="8"), "rank 2: .*device_id = 8"),
        (changed("server_list", 1, "device", 0, "device_id", value=2), "device_id = 2: must be a whole number"),
        (changed("server_list", 0, value={}), "needs a list 'device'"),
        ([], "server_list"),
    ],
)
def test_a_wrong_rank_table(table, words):
    with pytest.raises(HcclError, match=words) as caught:
        hccl.ranks_of_table(table, Topology(16, 8))
    assert caught.value.code == HcclResult.PARA


def test_a_rank_table_that_is_no_file(tmp_path):
    with pytest.raises(HcclError) as caught:
        hccl.read_rank_table(tmp_path / "none.json", Topology(8, 8))
    assert caught.value.code == HcclResult.OPEN_FILE_FAILURE
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(HcclError, match="no JSON, line 1"):
        hccl.read_rank_table(tmp_path / "t.json", Topology(8, 8))


def test_ranks_and_cards_that_cannot_be():
    with pytest.raises(HcclError, match="rank 1: card 0 already is rank 0"):
        hccl.Communicator(4, ((0, 0),))
    with pytest.raises(HcclError, match="rank 1: card 4"):
        hccl.Communicator(4, ((0, 4),))
    with pytest.raises(HcclError, match="at least one rank"):
        hccl.Communicator(4, ())
    with pytest.raises(HcclError, match="of one size"):
        hccl.Communicator(4, ((0,), (1, 2)))
    with pytest.raises(HcclError, match="rank 4: the communicator has ranks 0 to 3"):
        hccl.comm_world(4).sub([0, 4])
    with pytest.raises(HcclError, match="3 colors"):
        hccl.comm_world(4).split([0, 0, 1])
    with pytest.raises(HcclError, match="card 3 has no rank"):
        hccl.comm_world(4).sub([0, 1]).rank_of(3)
    for wrong in ({"buffer_mb": 0}, {"name": "x" * 129}, {"connect_timeout_s": 119}, {"exec_timeout_s": -1}):
        with pytest.raises(HcclError):
            CommConfig(**wrong)


def test_results_have_words():
    assert hccl.error_string(9) == "a rank did not come in time"
    assert "no HCCL result" in hccl.error_string(99)
    assert all(hccl.error_string(code) for code in HcclResult)


def test_topology():
    topology = Topology(20, 8)
    assert topology.servers == 3
    assert topology.split([17, 0, 9, 1]) == ((0, 1), (9,), (17,))
    with pytest.raises(ValueError, match="card = 20"):
        topology.server_of(20)
    with pytest.raises(ValueError, match="cards = 0"):
        Topology(0, 8)
