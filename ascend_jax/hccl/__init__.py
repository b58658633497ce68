"""HCCL: communicators, collectives with real values and predicted times, and clusters of cards."""

from ascend_jax.hccl.algorithm import ALGORITHMS, Candidate, CollectiveTime, collective_time, explain_collective
from ascend_jax.hccl.all_to_all_verbs import HcclAlltoAll, HcclAlltoAllV, HcclAlltoAllVC
from ascend_jax.hccl.carrier import AXIS, CARRIERS, CarrierChoice, carry, choose_carrier, set_host_devices
from ascend_jax.hccl.cluster import Cluster, card_number, cluster, on_card, on_cards
from ascend_jax.hccl.collectives import (
    all_gather,
    all_reduce,
    all_reduce_bytes,
    all_to_all,
    all_to_all_v,
    barrier,
    batch_send_recv,
    broadcast,
    reduce,
    reduce_scatter,
    scatter,
    send_recv,
)
from ascend_jax.hccl.communicator import CommConfig, Communicator, comm_world
from ascend_jax.hccl.cost.phases import Collective
from ascend_jax.hccl.creation import check_alive, comm_destroy, comm_init, comm_init_all
from ascend_jax.hccl.datatypes import DataType, ReduceOp, data_type, item_bytes
from ascend_jax.hccl.explain_cluster import explain_cluster
from ascend_jax.hccl.explain_plan import explain_plan
from ascend_jax.hccl.mismatch import Mismatch
from ascend_jax.hccl.plan import Plan, make_plan
from ascend_jax.hccl.point_to_point import HcclBatchSendRecv, HcclRecv, HcclSend, SendRecvItem
from ascend_jax.hccl.rank_table import ranks_of_table, read_rank_table
from ascend_jax.hccl.results import HcclError, HcclResult, error_string
from ascend_jax.hccl.root_info import Gathering, get_root_info
from ascend_jax.hccl.run_plan import PlanTimes, run_plan
from ascend_jax.hccl.steps import Call, Step, Work
from ascend_jax.hccl.topology import Topology, default_topology
from ascend_jax.hccl.uneven_verbs import HcclAllGatherV, HcclReduceScatterV
from ascend_jax.hccl.verbs import (
    HcclAllGather,
    HcclAllReduce,
    HcclBarrier,
    HcclBroadcast,
    HcclReduce,
    HcclReduceScatter,
    HcclScatter,
)
from ascend_jax.hccl.waits import synchronize_device, synchronize_event, synchronize_stream

__all__ = [
    "ALGORITHMS",
    "AXIS",
    "CARRIERS",
    "Call",
    "Candidate",
    "CarrierChoice",
    "Cluster",
    "Collective",
    "CollectiveTime",
    "CommConfig",
    "Communicator",
    "DataType",
    "Gathering",
    "HcclAllGather",
    "HcclAllGatherV",
    "HcclAllReduce",
    "HcclAlltoAll",
    "HcclAlltoAllV",
    "HcclAlltoAllVC",
    "HcclBarrier",
    "HcclBatchSendRecv",
    "HcclBroadcast",
    "HcclError",
    "HcclRecv",
    "HcclReduce",
    "HcclReduceScatter",
    "HcclReduceScatterV",
    "HcclResult",
    "HcclScatter",
    "HcclSend",
    "Mismatch",
    "Plan",
    "PlanTimes",
    "ReduceOp",
    "SendRecvItem",
    "Step",
    "Topology",
    "Work",
    "all_gather",
    "all_reduce",
    "all_reduce_bytes",
    "all_to_all",
    "all_to_all_v",
    "barrier",
    "batch_send_recv",
    "broadcast",
    "card_number",
    "carry",
    "check_alive",
    "choose_carrier",
    "cluster",
    "collective_time",
    "comm_destroy",
    "comm_init",
    "comm_init_all",
    "comm_world",
    "data_type",
    "default_topology",
    "error_string",
    "explain_cluster",
    "explain_collective",
    "explain_plan",
    "get_root_info",
    "item_bytes",
    "make_plan",
    "on_card",
    "on_cards",
    "ranks_of_table",
    "read_rank_table",
    "reduce",
    "reduce_scatter",
    "run_plan",
    "scatter",
    "send_recv",
    "set_host_devices",
    "synchronize_device",
    "synchronize_event",
    "synchronize_stream",
]
