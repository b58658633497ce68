"""Letters, sentinels and table columns: every integer that two rooms of the runtime must agree on.

Dimension letters, used everywhere:

====== ==========================================================
letter what it counts
====== ==========================================================
``S``  stream slots of a card; slot ``S`` itself is the host's own
``E``  event slots
``T``  notify slots
``V``  addresses that value waits look at
``X``  context slots
``H``  host threads
``F``  planned faults
``G``  frees that are remembered
``L``  memory pools
``W``  reservations of virtual addresses and mappings
``C``  cells: E + T + V + (S + 1) + H int64 variables, of events, notifies, values, streams' and threads' callbacks
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
PAGE = 4096 // GRANULE_BYTES  # page sizes of device memory, in granules
HUGE_PAGE = (2 << 20) // GRANULE_BYTES
GIANT_PAGE = (1 << 30) // GRANULE_BYTES
NULL = 0  # the null pointer
HBM_BASE = (2 << 20) // GRANULE_BYTES  # the first huge page of the address space is the null page
HOST_BASE = -(2**31) + 1  # host memory has the lowest pointers, so a direction shows in the addresses
HOST_END = -(2**31) + (1 << 25)  # 2 GiB: no more can be real
NONE = -1  # "no such row, event or command"
OWN_THREAD = -2  # a thread that the runtime made for a stream's host functions

OPERANDS = 20  # operand slots of one command, as many as a gradient of attention takes; the last is the workspace
WORKSPACE = OPERANDS - 1

LIMB = 1 << 30  # a time is hi * LIMB + lo nanoseconds, both int32
FOREVER_HI = 2**31 - 2  # high limb of "never"


class Kind(enum.IntEnum):
    """What a command does. Tasks take time and hold units of the chip; marks take none."""

    NOTHING = 0
    KERNEL = 1
    COPY = 2
    MEMSET = 3
    EVENT_RECORD = 4
    EVENT_WAIT = 5
    EVENT_RESET = 6
    NOTIFY_RECORD = 7
    NOTIFY_WAIT = 8
    VALUE_WRITE = 9
    VALUE_WAIT = 10
    CALLBACK = 11  # hands a callback to the thread that serves the stream
    CALLBACK_WAIT = 12  # holds the stream until that callback has run
    RENDEZVOUS = 13  # holds the stream until all cards of a channel have come to it; alone, a card does not wait
    COLLECTIVE = 14  # a card's part of a collective, over its links to other cards
    HOST_FUNC = 15  # runs a function in a thread that the runtime made for it; occupies nothing of the chip


TASKS = (Kind.KERNEL, Kind.COPY, Kind.MEMSET, Kind.COLLECTIVE, Kind.HOST_FUNC)


class Resource(enum.IntEnum):
    """What a command can hold while it runs: cores are counted, a copy engine is one unit."""

    CUBE = 0
    VECTOR = 1
    H2D = 2
    D2H = 3
    D2D = 4


class Phase(enum.IntEnum):
    """How far a command has come; from DONE on it is finished."""

    EMPTY = 0
    QUEUED = 1
    READY = 2
    RUNNING = 3
    DONE = 4
    FAULTED = 5  # ended with its injected fault
    EXPIRED = 6  # ended by its timeout
    DROPPED = 7  # will never run: stream aborted, stopped or device lost
    CAPTURED = 8  # recorded for a Program, not queued


class Condition(enum.IntEnum):
    """What a mark demands of its cell, an int64 variable of the card (``aclrtValueWait`` flags are these less one)."""

    NONE = 0
    GE = 1  # cell - value >= 0, as signed 64-bit numbers
    EQ = 2
    AND = 3  # cell & value is not 0
    NOR = 4  # ~(cell | value) is not 0


class Change(enum.IntEnum):
    """What a mark does to its cell when it happens."""

    NONE = 0
    SET = 1  # to the command's value
    ADD = 2  # the command's value
    CLEAR = 3  # to 0


class Reach(enum.IntEnum):
    """What a failing command takes with it."""

    STREAM = 1
    DEVICE = 2


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
    OBJECT = 5  # event, notify, value slot or callback concerned
    CELL = 6  # cell that a mark looks at or changes
    CONDITION = 7
    CHANGE = 8
    VALUE_HI = 9  # the mark's value, as two 32-bit words
    VALUE_LO = 10
    NEED = 11  # first of len(Resource) columns: units of each resource per block
    BLOCKS = NEED + len(Resource)
    MODE = BLOCKS + 1  # 1: all blocks start at once
    PRIORITY = BLOCKS + 2
    HEAD_NS = BLOCKS + 3  # launch head, before the first blocks compute
    BLOCK_HI = BLOCKS + 4  # time of one block at full speed
    BLOCK_LO = BLOCKS + 5
    HBM_SHARE = BLOCKS + 6  # of the HBM rate that one block draws at full speed, in 1/SHARES
    L2_SHARE = BLOCKS + 7  # the same of L2; of a COLLECTIVE, of its links in 1/LINK_SHARES, and which links above that
    TIMEOUT_HI = BLOCKS + 8  # 0: none
    TIMEOUT_LO = BLOCKS + 9
    FAULT = BLOCKS + 10  # code with which it fails at its end, or 0
    REACH = BLOCKS + 11  # of that fault
    ISSUE_HI = BLOCKS + 12
    ISSUE_LO = BLOCKS + 13
    THREAD = BLOCKS + 14  # host thread that issued it
    KERNEL = BLOCKS + 15  # index into the card's loaded kernels
    FILL = BLOCKS + 16  # byte value of a memset
    READS = BLOCKS + 17  # bit p: operand p is read
    WRITES = BLOCKS + 18  # bit p: operand p is written
    CUBE_NS = BLOCKS + 19  # busy time of one cube core
    VECTOR_NS = BLOCKS + 20  # busy time of one vector core
    MOVED = BLOCKS + 21  # granules moved to and from HBM
    LIMIT = BLOCKS + 22  # which unit bounds the time
    SITE = BLOCKS + 23  # call site
    POSITION = BLOCKS + 24  # running number in its stream's queue
    SCALARS = BLOCKS + 25  # first of SCALARS columns: bits of a kernel's float32 arguments; of a 2-D copy, Pitch


class Pitch(enum.IntEnum):
    """What the SCALARS columns of a 2-D copy hold, in bytes; all are 0 for other copies."""

    DST = 0
    SRC = 1
    WIDTH = 2
    ROWS = 3  # how many


SCALARS = 4  # float arguments that a kernel can have
FIELDS = Field.SCALARS + SCALARS  # columns of ``CommandTable.fields``; NEED and SCALARS span several
SHARES = 1 << 16  # a pool's whole rate, in the units of HBM_SHARE and L2_SHARE
LINK_SHARES = 1 << 8  # the whole rate of a card's links
LINKS = 8  # bits that tell links of a card apart
FULL_RATE = 256  # work units that a block at full speed does in 1 ns
CHUNK_NS = 1 << 22  # while something runs, time moves by this at most
WORK_CHUNK = CHUNK_NS * FULL_RATE  # work is a number of chunks and a rest
LONGEST_BLOCK_HI = (1 << 8) - 2  # limbs: a block is shorter than 273 s, so that with its head it has 2**16 chunks


class Operand(enum.IntEnum):
    """Columns of ``CommandTable.operands`` [N + 1, P, len(Operand)]: one exact byte range each."""

    POINTER = 0  # granule
    OFFSET = 1  # bytes from there to the first byte
    WHOLE = 2  # length in whole granules, so that a range may exceed 2 GiB
    REST = 3  # bytes beyond them, 0..63


class Time(enum.IntEnum):
    """Columns of ``CommandTable.times`` [N + 1, len(Time)], written by the engine.

    A command is ready once it is issued and at the head of its stream; a wait starts, and ends, when it is over.
    """

    READY_HI = 0
    READY_LO = 1
    PHASE = 2
    START_HI = 3
    START_LO = 4
    END_HI = 5
    END_LO = 6
    ORDER = 7  # running number of its end on its card: orders what ends at one instant


class Stream(enum.IntEnum):
    """Columns of ``CardState.streams`` [S + 1, len(Stream)]. Those from HEAD on belong to the engine."""

    ALIVE = 0
    GENERATION = 1  # how often the slot has been given back
    CONTEXT = 2  # context slot it belongs to
    PRIORITY = 3  # 0 first .. 7 last
    FLAGS = 4
    STOPS = 5  # failure mode: 1 = takes no more commands after one has failed
    REPORTER = 6  # host thread that serves its callbacks, NONE, or OWN_THREAD
    MASTER = 7  # slot of the stream for which it runs a side of a program, NONE for streams of the host program
    CAPTURE = 8  # 0, or a Capture
    CAPTURE_MODE = 9
    CAPTURE_THREAD = 10
    CAPTURE_GROUP = 11  # 0, or how many commands its capture had when a task group was begun in it, plus 1
    LAST = 12  # row of the newest command, N when empty
    PENDING = 13  # commands not finished yet
    ERROR = 14  # code of the first failed command, sticky
    HEAD = 15  # row of the oldest unfinished command, N when empty
    KEY = 16  # order in which commands are served: priority and instant at which ready; UNREADY before
    START_HI = 17  # of the head, once a block has started
    START_LO = 18
    COUNTS = 19  # blocks not started, running in the second group and in the first: 16 + 8 + 8 bits
    CHUNKS = 20  # whole WORK_CHUNKs left per block of the second and first group: 16 + 16 bits
    REST_FIRST = 21  # work left per block of the first group beyond the chunks
    REST_SECOND = 22


UNREADY = 2**31 - 1
FRESH_HEAD = {Stream.KEY: UNREADY}  # engine columns of a stream whose head command has not been looked at


class Capture(enum.IntEnum):
    """What part a stream has in a capture."""

    NONE = 0
    ORIGIN = 1  # capture began on it
    JOINED = 2  # it waited for an event that the capture recorded


class EventKind(enum.IntEnum):
    """How an event behaves."""

    PLAIN = 0  # aclrtCreateEvent
    FLAG = 1  # aclrtCreateEventWithFlag: a flag that is set, waited for and reset in run-time order
    EX = 2  # aclrtCreateEventExWithFlag: a wait is bound to the latest record
    NOTIFY = 3  # aclrtCreateNotify: a wait consumes one record
    COMMUNICATOR = 4  # HCCL: counts the calls, see hccl.creation
    COUNTING = 5  # aclrtCntNotifyCreate: a number that is set, added to and compared


class Event(enum.IntEnum):
    """Columns of ``CardState.events`` [E + T, len(Event)]: events, then notifies. Row = number of its cell."""

    ALIVE = 0
    GENERATION = 1
    CONTEXT = 2
    KIND = 3
    FLAGS = 4
    RECORD = 5  # sequence number of the latest record, NONE before the first
    CAPTURED = 6  # 1: that record belongs to a capture


NAMELESS = {Stream.REPORTER: NONE, Stream.MASTER: NONE}  # columns of a stream that is nothing to anybody
UNUSED_EVENT = {Event.RECORD: NONE}  # columns of an event slot that nobody has


class Context(enum.IntEnum):
    """Columns of ``CardState.contexts`` [X, len(Context)]; slot 0 is the primary context."""

    ALIVE = 0
    GENERATION = 1
    STREAM = 2  # slot of its default stream


class Thread(enum.IntEnum):
    """Columns of ``CardState.threads`` [H, len(Thread)]; the row of the current thread is stale."""

    ALIVE = 0
    HOST_HI = 1  # where it stands
    HOST_LO = 2
    CONTEXT = 3  # its current context slot, or NONE
    CAPTURE_MODE = 4  # which captures bar its calls, never stale


class Fault(enum.IntEnum):
    """Columns of ``CardState.faults`` [F, len(Fault)]: failures that are planned."""

    SEQUENCE = 0  # command that fails, NONE in an unused row
    CODE = 1
    REACH = 2


class Device(enum.IntEnum):
    """Entries of ``CardState.device`` [len(Device)]."""

    USERS = 0  # set_device calls less reset_device calls
    ERROR = 1  # code with which the device was lost, sticky
    THREAD = 2  # current host thread
    CONTEXT = 3  # its current context slot, or NONE
    INSTANTS = 4  # instants at which something happened
    OP_TIMEOUT_HI = 5  # of kernels; 0, 0: none; NONE: the chip's
    OP_TIMEOUT_LO = 6
    WAIT_TIMEOUT_HI = 7  # of waits, 0: none
    WAIT_TIMEOUT_LO = 8
    RETIRED = 9  # commands that have left their streams
    PEERS = 10  # bit d: access to device d is enabled
    HBM_BACKING = 11  # granules of HBM with real bytes
    HOST_BACKING = 12  # granules of pinned host memory with real bytes


class Clock(enum.IntEnum):
    """Entries of ``CardState.clock`` [len(Clock)]."""

    HOST_HI = 0  # where the host program stands
    HOST_LO = 1
    DEVICE_HI = 2  # up to where the engine has simulated
    DEVICE_LO = 3
    ENQUEUED = 4  # commands enqueued so far


class StatusWord(enum.IntEnum):
    """Entries of ``CardState.status`` [STATUS_WORDS]."""

    CODE = 0  # first failure, sticky
    CALL = 1  # number of the call that failed first
    STREAM = 2  # stream it concerns, or NONE
    SITE = 3  # call site of it
    LAST = 4  # code of the latest call
    CALLS = 5  # calls made
    REFUSES = 6  # 0, or why the call under way gets no room in its queue
    GIVEN = 7  # first of GIVEN_WORDS entries: what the call that failed first was given, see `refusals`


GIVEN_WORDS = 9
STATUS_WORDS = StatusWord.GIVEN + GIVEN_WORDS


class HeapEntry(enum.IntEnum):
    """Rows of ``Heap.blocks`` [len(HeapEntry), M], sorted by START; unused columns start at the far end."""

    START = 0  # granule
    SIZE = 1  # granules taken, whole pages
    ASKED = 2  # whole granules asked for
    REST = 3  # bytes asked for beyond them, 0..63, and above REST_BITS the allocation's number modulo 2**26
    SITE = 4  # call site of the allocation
    BORN = 5  # commands enqueued before it was allocated; of an idle block of a pool, before it was given back
    FLAGS = 6  # HeapFlag bits


class HeapFlag(enum.IntFlag):
    """Bits of ``HeapEntry.FLAGS``."""

    PAGEABLE = 1  # ordinary host memory
    REGISTERED = 2  # ordinary host memory that was pinned later
    POOL = 4  # of a memory pool
    IDLE = 8  # kept by its pool, used by nobody
    PHYSICAL = 16  # allocated to be mapped
    CONDEMNED = 32  # freed: goes when it is unmapped, or when the stream it was given back in is past
    RUNTIME = 64  # kept for operators (workspace), not by the program
    SEGMENT = 128  # behind an expandable segment


REST_BITS = GRANULE_SHIFT
POOL_SHIFT = 8  # above it: slot of the pool, 8 bits
STREAM_SHIFT = 16  # above it: slot of the stream in whose order a block of a pool was given back


class Virtual(enum.IntEnum):
    """Columns of ``CardState.virtual`` [W, len(Virtual)]: reserved virtual addresses, and what is mapped there."""

    KIND = 0  # VirtualKind
    START = 1  # granule
    SIZE = 2
    PHYSICAL = 3  # granule behind the first one, of a mapping; of a segment: of `memory`, or 0 or -its window: no bytes


class VirtualKind(enum.IntEnum):
    """What a row of ``CardState.virtual`` is."""

    NONE = 0
    RESERVATION = 1
    MAPPING = 2
    SEGMENT = 3  # addresses of an expandable segment that have memory


class HeapWord(enum.IntEnum):
    """Entries of ``Heap.words`` [len(HeapWord)]."""

    COUNT = 0  # live blocks
    USED = 1  # granules
    PEAK = 2  # most granules ever used
    BASE = 3  # first granule
    END = 4  # granule past the last
    IDLE = 5  # granules kept by pools and used by nobody
    SHORT_WHOLE = 6  # the latest allocation that did not fit: granules asked for ...
    SHORT_REST = 7  # ... and bytes beyond them,
    SHORT_FREE = 8  # granules free then,
    SHORT_LARGEST = 9  # in the longest free run then,
    SHORT_IDLE = 10  # kept by pools and used by nobody then,
    SHORT_SITE = 11  # and its call site
    SHORTAGES = 12  # allocations that did not fit
    SHORT_HIGH = 13  # the latest that did not fit: 128 GiB asked for beyond SHORT_WHOLE,
    SHORT_LIMIT = 14  # most that the pool asked may reserve, 0 = as much as there is,
    SHORT_HELD = 15  # what it had reserved,
    SHORT_HI = 16  # and the host's time
    SHORT_LO = 17
    MADE = 18  # allocations so far


class Pool(enum.IntEnum):
    """Columns of ``CardState.pools`` [L, len(Pool)]: memory pools. Sizes are granules."""

    ALIVE = 0
    GENERATION = 1
    LIMIT = 2  # most it may reserve
    THRESHOLD = 3  # what it keeps when a stream is synchronized
    RESERVED = 4
    RESERVED_HIGH = 5
    USED = 6
    USED_HIGH = 7
    REUSE = 8  # PoolReuse bits


class Freed(enum.IntEnum):
    """Columns of ``CardState.freed`` [G + 1, len(Freed)]: blocks given back; the last row holds their number."""

    START = 0  # granule
    ASKED = 1  # whole granules
    REST = 2
    SITE = 3  # call site of the allocation
    FREE_SITE = 4
    BORN = 5  # commands enqueued before it was allocated ...
    SEQUENCE = 6  # ... and before it was given back
    HOST_HI = 7  # when that was
    HOST_LO = 8
    STREAM = 9  # slot of the stream in whose order it was given back, or NONE: at once


class Early(enum.IntEnum):
    """Columns of ``CardState.early`` [G + 1, len(Early)]: host accesses before a command ended; last row: how many."""

    COMMAND = 0  # its running number
    COMMAND_SITE = 1
    POINTER = 2  # granule that the access begins in
    SITE = 3  # call site of the access
    IS_WRITE = 4
    HOST_HI = 5  # when that was
    HOST_LO = 6
