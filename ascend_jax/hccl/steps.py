"""Steps of a card: what a host program enqueues on its streams, as data. Lists of them make a :class:`Plan`."""

import dataclasses
import math
from typing import Any

import numpy as np

from ascend_jax.hccl.algorithm import ALGORITHMS
from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.cost.phases import Collective
from ascend_jax.hccl.datatypes import DataType, ReduceOp, check_reduction, data_type, item_bytes
from ascend_jax.hccl.results import HcclError, HcclResult
from ascend_jax.runtime import callsite

REDUCTIONS = (Collective.ALL_REDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER)
ROOTED = (Collective.BROADCAST, Collective.REDUCE, Collective.SCATTER)


def _check_whole(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(f"{what} = {value!r}: must be an integer of at least 0")


def _check_order(what: str, stream: object, after: object) -> None:
    _check_whole(f"{what}: stream", stream)
    if not isinstance(after, tuple | list):
        raise ValueError(f"{what}: after = {after!r}: must be a tuple of numbers of steps")
    for number in after:
        _check_whole(f"{what}: after", number)


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

    def __post_init__(self) -> None:
        each = np.asarray(self.duration_ns)
        if each.ndim > 1 or not np.issubdtype(each.dtype, np.integer):
            what = f"{each.dtype}{list(each.shape)}" if each.ndim else repr(self.duration_ns)
            raise ValueError(f"work {self.name!r}: duration_ns = {what}: must be an integer, or one for each card")
        if (each < 0).any():
            card = f" of card {int(np.argmax(each < 0))}" if each.ndim else ""
            raise ValueError(f"work {self.name!r}: duration_ns = {int(each.min())}{card}: must be at least 0")
        for field in ("cube_cores", "vector_cores"):
            _check_whole(f"work {self.name!r}: {field}", getattr(self, field))
        if not (math.isfinite(self.hbm_bytes) and self.hbm_bytes >= 0):
            raise ValueError(f"work {self.name!r}: hbm_bytes = {self.hbm_bytes}: must be at least 0 and finite")
        _check_order(f"work {self.name!r}", self.stream, self.after)

    @property
    def title(self) -> str:
        """Name in timelines and reports."""
        return self.name


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
    site: int | np.int32 = dataclasses.field(
        default_factory=callsite.here
    )  # where it was made, see ``runtime.callsite``

    def __post_init__(self) -> None:
        if not isinstance(self.collective, Collective):
            raise HcclError(HcclResult.PARA, f"collective = {self.collective!r}: must be one of hccl.Collective")
        check_call(self.collective, self.comm, self.count, self.dtype, self.op, self.root)
        _check_order(f"call of {self.title}", self.stream, self.after)
        if self.algorithm is not None and self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm = {self.algorithm!r}: must be one of {', '.join(ALGORITHMS)}")

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
        said["algorithm"] = self.algorithm or "the library's choice"
        return said


def check_call(
    collective: Collective, comm: Communicator, count: object, dtype: Any, op: object = ReduceOp.SUM, root: object = 0
) -> DataType:
    """Return HCCL's data type of a call, or refuse what no rank may ask for.

    Raises:
      HcclError: PARA: a count that is no integer of at least 0, no such root or operation; NOT_SUPPORT: the data
        type; PTR: no communicator.
    """
    if not isinstance(comm, Communicator):
        raise HcclError(HcclResult.PTR, f"comm = {comm!r}: must be a communicator")
    kind = data_type(dtype)
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
        raise HcclError(HcclResult.PARA, f"count = {count!r}: must be an integer of at least 0")
    if collective in REDUCTIONS:
        check_reduction(kind, op)
    if collective in ROOTED:
        comm.check_rank(root, "root")
    return kind


Step = Work | Call
