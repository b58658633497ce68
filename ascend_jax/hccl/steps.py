"""Steps of a card: what a host program enqueues on its streams, as data. Lists of them make a :class:`Plan`."""

import dataclasses
from typing import Any

import numpy as np

from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.cost.phases import Collective
from ascend_jax.hccl.datatypes import DataType, ReduceOp, check_reduction, data_type, item_bytes
from ascend_jax.hccl.results import HcclError, HcclResult

REDUCTIONS = (Collective.ALL_REDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER)
ROOTED = (Collective.BROADCAST, Collective.REDUCE, Collective.SCATTER)


@dataclasses.dataclass(frozen=True)
class Work:
    """A kernel. It takes ``duration_ns`` once its cores are free; several blocks run at the same time."""

    name: str
    duration_ns: Any  # int, or int [C] for cards that differ
    stream: int = 0
    after: tuple[int, ...] = ()  # numbers of earlier steps, of other streams, that must be over
    cube_cores: int = 0  # held all the time; 0: none, it runs beside everything
    vector_cores: int = 0
    hbm_bytes: float = 0.0  # moved to and from HBM, evenly over its time


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """A collective: it starts when all ranks of its group have come to it, and takes the time of its algorithm.

    ``count`` counts elements as the HCCL call does: those of the send buffer for AllReduce, Broadcast, Reduce,
    AllGather and AlltoAll (to each rank), of the receive buffer for ReduceScatter and Scatter.
    """

    collective: Collective
    comm: Communicator
    count: int
    dtype: Any = "float32"
    op: ReduceOp = ReduceOp.SUM
    root: int = 0
    stream: int = 0
    after: tuple[int, ...] = ()
    algorithm: str | None = None
    name: str = ""

    def __post_init__(self) -> None:
        kind = data_type(self.dtype)
        if isinstance(self.count, bool) or not isinstance(self.count, int | np.integer) or self.count < 0:
            raise HcclError(HcclResult.PARA, f"count = {self.count!r}: must be an integer of at least 0")
        if self.collective in REDUCTIONS:
            check_reduction(kind, self.op)
        if self.collective in ROOTED and not 0 <= self.root < self.comm.size:
            raise HcclError(
                HcclResult.PARA, f"root = {self.root}: the communicator has ranks 0 to {self.comm.size - 1}"
            )

    @property
    def title(self) -> str:
        """Name in timelines and reports."""
        return self.name or self.collective.value

    @property
    def nbytes(self) -> int:
        """Bytes of the larger buffer of one rank."""
        spreads = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.SCATTER, Collective.ALL_TO_ALL)
        ranks = self.comm.size if self.collective in spreads else 1
        return int(self.count) * item_bytes(data_type(self.dtype)) * ranks

    def signature(self) -> dict[str, object]:
        """What all ranks must say alike."""
        kind: DataType = data_type(self.dtype)
        said: dict[str, object] = {"operation": self.collective.value, "count": int(self.count), "dtype": kind.name}
        if self.collective in REDUCTIONS:
            said["op"] = ReduceOp(self.op).name
        if self.collective in ROOTED:
            said["root"] = self.root
        return said


Step = Work | Call
