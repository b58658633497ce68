"""Letters, sentinels and table columns: every integer that two rooms of the runtime must agree on.

Dimension letters, used everywhere:

====== ==========================================================
letter what it counts
====== ==========================================================
``S``  stream slots of a card; slot ``S`` itself is the host's own
``E``  event slots
``N``  rows of the command table; row ``N`` is the trash row
``P``  operands of a command (:data:`OPERANDS`)
``R``  resources a command can occupy (:class:`Resource`)
``M``  blocks a heap can hold
``B``  lanes (independent cards under one ``vmap``)
====== ==========================================================

Everything here is a Python int: importing it starts no backend.
"""

import enum

GRANULE_SHIFT = 6  # a shift divides: XLA's signed division by a constant is ten instructions
GRANULE_BYTES = (
    1 << GRANULE_SHIFT
)  # pointers and sizes count granules; aclrtMalloc aligns to 64 bytes (CANN, aclrtMalloc)
NULL = 0  # the null pointer
HBM_BASE = (2 << 20) // GRANULE_BYTES  # the first huge page of the address space is the null page
HOST_BASE = -(2**31) + 1  # pinned host memory has negative pointers, so a direction shows in the addresses
NONE = -1  # "no such row, event or command"

OPERANDS = 12  # operand slots of one command; the last one is the workspace
WORKSPACE = OPERANDS - 1

LIMB = 1 << 30  # a time is hi * LIMB + lo nanoseconds, both int32
FOREVER_HI = 2**31 - 2  # high limb of "never"


class Kind(enum.IntEnum):
    """What a command does."""

    NOTHING = 0
    KERNEL = 1
    COPY = 2
    MEMSET = 3
    EVENT_RECORD = 4
    EVENT_WAIT = 5


class Resource(enum.IntEnum):
    """What a command can hold while it runs: cores are counted, a copy engine is one unit."""

    CUBE = 0
    VECTOR = 1
    H2D = 2
    D2H = 3
    D2D = 4


class Phase(enum.IntEnum):
    """How far a command has come."""

    EMPTY = 0
    QUEUED = 1
    READY = 2
    RUNNING = 3
    DONE = 4


class Effect(enum.IntEnum):
    """How much of a command's data effect is already in memory."""

    NONE = 0
    COMPUTED = 1  # results lie in the shadow bytes
    PUBLISHED = 2  # results are visible


class Field(enum.IntEnum):
    """Columns of ``CommandTable.fields`` [N + 1, FIELDS], written when a command is enqueued."""

    KIND = 0
    STREAM = 1
    SEQUENCE = 2  # running number of the command on its card
    NEXT = 3  # row of the next command in the same stream
    DEPENDS = 4  # sequence number of the command to wait for
    EVENT = 5  # event slot recorded or waited for
    NEED = 6  # first of len(Resource) columns: units of each resource
    BLOCKS = NEED + len(Resource)
    DURATION_HI = BLOCKS + 1
    DURATION_LO = BLOCKS + 2
    ISSUE_HI = BLOCKS + 3
    ISSUE_LO = BLOCKS + 4
    KERNEL = BLOCKS + 5  # index into the card's loaded kernels
    FILL = BLOCKS + 6  # byte value of a memset
    READS = BLOCKS + 7  # bit p: operand p is read
    WRITES = BLOCKS + 8  # bit p: operand p is written
    CUBE_NS = BLOCKS + 9  # busy time of one cube core
    VECTOR_NS = BLOCKS + 10  # busy time of one vector core
    MOVED = BLOCKS + 11  # granules moved to and from HBM
    LIMIT = BLOCKS + 12  # which unit bounds the time
    SITE = BLOCKS + 13  # call site
    SCALARS = BLOCKS + 14  # first of SCALARS columns: bits of a kernel's float32 arguments


SCALARS = 4  # float arguments that a kernel can have
FIELDS = Field.SCALARS + SCALARS  # columns of ``CommandTable.fields``; NEED and SCALARS span several


class Operand(enum.IntEnum):
    """Columns of ``CommandTable.operands`` [N + 1, P, len(Operand)]: one exact byte range each."""

    POINTER = 0  # granule
    OFFSET = 1  # bytes from there to the first byte
    WHOLE = 2  # length in whole granules, so that a range may exceed 2 GiB
    REST = 3  # bytes beyond them, 0..63


class Time(enum.IntEnum):
    """Columns of ``CommandTable.times`` [N + 1, len(Time)], written by the engine."""

    PHASE = 0
    EFFECT = 1
    READY_HI = 2
    READY_LO = 3
    START_HI = 4
    START_LO = 5
    END_HI = 6
    END_LO = 7


class Stream(enum.IntEnum):
    """Columns of ``CardState.streams`` [S + 1, len(Stream)]."""

    ALIVE = 0
    HEAD = 1  # row of the oldest unfinished command, N when empty
    LAST = 2  # row of the newest command, N when empty
    RUNNING = 3  # 1 while the head command holds its resources
    LEFT_HI = 4  # time left of the running command
    LEFT_LO = 5
    PENDING = 6  # commands not finished yet


class Event(enum.IntEnum):
    """Columns of ``CardState.events`` [E, len(Event)]."""

    ALIVE = 0
    RECORD = 1  # sequence number of the latest record, NONE before the first


class Clock(enum.IntEnum):
    """Entries of ``CardState.clock`` [len(Clock)]."""

    HOST_HI = 0  # where the host program stands
    HOST_LO = 1
    DEVICE_HI = 2  # up to where the engine has simulated
    DEVICE_LO = 3
    ENQUEUED = 4  # commands enqueued so far


class StatusWord(enum.IntEnum):
    """Entries of ``CardState.status`` [len(StatusWord)]."""

    CODE = 0  # first failure, sticky
    CALL = 1  # number of the call that failed first
    STREAM = 2  # stream it concerns, or NONE
    SITE = 3  # call site of it
    LAST = 4  # code of the latest call
    CALLS = 5  # calls made


class HeapEntry(enum.IntEnum):
    """Columns of ``Heap.blocks`` [M, len(HeapEntry)], sorted by START; unused rows start at the far end."""

    START = 0  # granule
    SIZE = 1  # granules taken, whole pages
    ASKED = 2  # whole granules asked for
    REST = 3  # bytes asked for beyond them, 0..63
    SITE = 4  # call site of the allocation


class HeapWord(enum.IntEnum):
    """Entries of ``Heap.words`` [len(HeapWord)]."""

    COUNT = 0  # live blocks
    USED = 1  # granules
    PEAK = 2  # most granules ever used
    BASE = 3  # first granule
    END = 4  # granule past the last
