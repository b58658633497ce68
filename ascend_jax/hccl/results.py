"""Results of HCCL calls: the codes of ``HcclResult``, and the error that carries one."""

import enum

from ascend_jax.runtime.codes import Explanation, register_explanations


class HcclResult(enum.IntEnum):
    """What an HCCL call returns (``HcclResult`` of CANN; 23, 24 and 1041 are of newer headers only)."""

    SUCCESS = 0
    PARA = 1
    PTR = 2
    MEMORY = 3
    INTERNAL = 4
    NOT_SUPPORT = 5
    NOT_FOUND = 6
    UNAVAIL = 7
    SYSCALL = 8
    TIMEOUT = 9
    OPEN_FILE_FAILURE = 10
    TCP_CONNECT = 11
    ROCE_CONNECT = 12
    TCP_TRANSFER = 13
    ROCE_TRANSFER = 14
    RUNTIME = 15
    DRV = 16
    PROFILING = 17
    CCE = 18
    NETWORK = 19
    AGAIN = 20
    REMOTE = 21
    SUSPENDING = 22
    OPRETRY_FAIL = 23
    OOM = 24
    IN_STATUS = 1041


_MEANINGS = {
    HcclResult.SUCCESS: "the call was accepted",
    HcclResult.PARA: "an argument is wrong",
    HcclResult.PTR: "a required pointer is null",
    HcclResult.MEMORY: "a buffer does not lie in device memory",
    HcclResult.INTERNAL: "the library failed inside",
    HcclResult.NOT_SUPPORT: "the chip or the operation does not support this",
    HcclResult.NOT_FOUND: "there is no such object",
    HcclResult.UNAVAIL: "the resource is not ready",
    HcclResult.SYSCALL: "the operating system refused a call",
    HcclResult.TIMEOUT: "a rank did not come in time",
    HcclResult.OPEN_FILE_FAILURE: "a file cannot be read",
    HcclResult.TCP_CONNECT: "no TCP connection to a rank",
    HcclResult.ROCE_CONNECT: "no RoCE connection to a rank",
    HcclResult.TCP_TRANSFER: "a TCP transfer failed",
    HcclResult.ROCE_TRANSFER: "a RoCE transfer failed",
    HcclResult.RUNTIME: "a call of the runtime failed",
    HcclResult.DRV: "the driver failed",
    HcclResult.PROFILING: "profiling failed",
    HcclResult.CCE: "a CCE call failed",
    HcclResult.NETWORK: "a network call failed",
    HcclResult.AGAIN: "try again",
    HcclResult.REMOTE: "the other side reported an error",
    HcclResult.SUSPENDING: "the communicator is suspended",
    HcclResult.OPRETRY_FAIL: "repeating the operation failed too",
    HcclResult.OOM: "device memory is exhausted",
    HcclResult.IN_STATUS: "the communicator is in the wrong state",
}


_REMEDIES = {
    HcclResult.PARA: "check counts, types, roots and displacements; send and receive buffers of AlltoAll must differ, "
    "offsets be multiples of an element",
    HcclResult.PTR: "pass a device pointer that malloc returned",
    HcclResult.MEMORY: "pass memory of this device that is allocated and as long as the call needs",
    HcclResult.NOT_SUPPORT: "use a data type and reduction of the chip, and a stream that is not being captured",
    HcclResult.NOT_FOUND: "create the communicator on this cluster first, and do not use it after comm_destroy",
    HcclResult.UNAVAIL: "give the cluster a larger max_notifies: each pair of ranks that sends takes one",
    HcclResult.TIMEOUT: "let every rank make the same calls in the same order; hccl.explain_cluster names the missing",
    HcclResult.RUNTIME: "use a live stream that has not failed; the first failure of the card says why it did",
    HcclResult.AGAIN: "synchronize the streams with calls of the communicator, then try again",
}

register_explanations(
    {
        int(code): Explanation(
            f"HCCL_E_{code.name}", meaning, _REMEDIES.get(code, "look for the first failure on the other ranks")
        )
        for code, meaning in _MEANINGS.items()
        if code != HcclResult.SUCCESS
    }
)


class HcclError(ValueError):
    """A refused HCCL call.

    Attributes:
      code: The ``HcclResult``.
      rank: Rank that is concerned, or None.

    >>> HcclError(HcclResult.PARA, "count = -1: must be at least 0", rank=2).code
    <HcclResult.PARA: 1>
    """

    def __init__(self, code: HcclResult, detail: str, *, rank: int | None = None, label: str = "") -> None:
        self.code, self.rank, self.label = HcclResult(code), rank, label
        where = "" if rank is None else f"rank {rank}: "
        mark = f" [{label}]" if label else ""
        super().__init__(f"HCCL_E_{self.code.name} ({int(self.code)}){mark}: {where}{detail}")


def error_string(code: int) -> str:
    """Return what a result means (``HcclGetErrorString``).

    >>> error_string(9)
    'a rank did not come in time'
    """
    known = [each for each in HcclResult if each == code]
    return _MEANINGS[known[0]] if known else f"no HCCL result has the number {code}"
