"""The twin's calls: the host's own work, memory, kernels and copies."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import floor

from tests.runtime.machine import (
    RT_PARAM_INVALID,
    SUCCESS,
    Machine,
)
from tests.runtime.records import NOBODY
from tests.runtime.scheduler import POOL

NOT_SUPPORTED, CUBE_LATE, VECTOR_LATE = 207000, 507014, 507034


class MemoryCalls(Machine):
    """What moves and computes bytes."""

    # memory and operators ---------------------------------------------------------------------------------------

    def work(self, duration: int) -> None:
        self.host += max(0, duration)

    def malloc(self, nbytes: int, policy: int = 0) -> int:
        code, pointer = (self.has_context(), 0) if self.has_context() else self.hbm.malloc(nbytes, policy)
        self.spend("host_malloc_ns")
        self.answer(code)
        return pointer

    def free(self, pointer: int) -> None:
        self.spend("host_free_ns")
        self.answer(self.hbm.free(pointer))

    def malloc_host(self, nbytes: int) -> int:
        code, pointer = (self.has_context(), 0) if self.has_context() else self.pinned.malloc(nbytes)
        self.spend("host_malloc_ns")
        self.answer(code)
        return pointer

    def prepare(self) -> None:
        self.spend("host_op_prepare_ns")
        self.answer(SUCCESS)

    def launch(
        self,
        handle: int,
        block_ns: int,
        cores: tuple[int, int],
        reads: Sequence[tuple[int, int, int]],
        writes: Sequence[tuple[int, int, int]],
        value: Callable[..., Sequence[bytes]],
        *,
        blocks: int = 1,
        at_once: int = 0,
        head_ns: int = 0,
        hbm_bytes: int = 0,
        l2_bytes: int = 0,
    ) -> None:
        """Queue a kernel; ``cores`` are cube and vector cores of a block, places are (pointer, offset, bytes)."""
        self.make_room(handle)
        self.spend("host_launch_ns")
        code, stream = self.find_stream(handle)
        for place in (*reads, *writes):
            code = code or self.check(*place) or (RT_PARAM_INVALID if place[0] < 0 else SUCCESS)
        code = code or self._check_blocks(cores, blocks, at_once)
        if not code:
            seconds = Fraction(block_ns * blocks, 10**9)
            pools = {"hbm": hbm_bytes, "l2": l2_bytes}
            inputs = [(self.index(p, o), n) for p, o, n in reads]
            code, _ = self.enqueue(
                "kernel",
                stream.slot,
                block=max(1, block_ns),
                head=head_ns,
                blocks=blocks,
                mode=at_once,
                cube=cores[0],
                vector=cores[1],
                writes=tuple((self.index(p, o), n) for p, o, n in writes),
                compute=lambda memory: value(*(bytes(memory[i : i + n]) for i, n in inputs)),
                timeout=self.op_timeout,
                timeout_code=CUBE_LATE if cores[0] else VECTOR_LATE,
                timeout_reach="device",
                **{pool: self._share(pool, nbytes, seconds) for pool, nbytes in pools.items()},
            )
        self.answer(code)

    def _share(self, pool: str, nbytes: int, seconds: Fraction) -> int:
        """What one block draws of a pool, in 1/65536, rounded down."""
        whole = seconds * self.fields[f"{pool}_bytes_per_s"]
        return min(POOL - 1, floor(POOL * nbytes / whole)) if nbytes else 0

    def _check_blocks(self, cores: tuple[int, int], blocks: int, at_once: int) -> int:
        """A block must fit the chip, and blocks that start together must all fit."""
        together = blocks if at_once else 1
        fits = all(
            n * together <= self.fields[f"{core}_cores"] for n, core in zip(cores, ("cube", "vector"), strict=True)
        )
        is_block = 1 <= blocks < 65536 and 0 <= cores[0] <= 1 and 0 <= cores[1] <= 2
        return SUCCESS if fits and is_block else RT_PARAM_INVALID

    # copies -----------------------------------------------------------------------------------------------------

    def _find_queue(self, handle: int | None) -> tuple[int, int]:
        """Return (code, slot): a blocking call runs on the host's own stream."""
        if handle is None:
            return self.has_context() or self.bars_blocking(), self.host_stream
        code, stream = self.find_stream(handle)
        return code, stream.slot if stream else NOBODY

    def _begin(self, handle: int | None) -> tuple[int, int]:
        self.make_room(0 if handle is None else handle)
        self.spend("host_copy_sync_ns" if handle is None else "host_copy_enqueue_ns")
        return self._find_queue(handle)

    def _finish(self, handle: int | None) -> None:
        if handle is None:
            slots = [self.host_stream]
            self.overrule(self.settle(self.is_empty(slots), streams=slots))

    def copy(self, dst: tuple[int, int], src: tuple[int, int], nbytes: int, handle: int | None = None) -> None:
        """Copy between (pointer, offset) places, without a stream blocking on the host's own."""
        code, slot = self._begin(handle)
        to_host, from_host = dst[0] < 0, src[0] < 0
        code = code or (NOT_SUPPORTED if to_host and from_host and handle is not None else SUCCESS)
        code = code or self.check(*dst, nbytes) or self.check(*src, nbytes)
        if not code and dst != src and abs(self.index(*dst) - self.index(*src)) < nbytes:
            code = RT_PARAM_INVALID
        if not code and nbytes and dst != src:
            first, last = self.index(*src), self.index(*src) + nbytes
            code, _ = self.enqueue(
                "copy",
                slot,
                writes=((self.index(*dst), nbytes),),
                compute=lambda memory: [bytes(memory[first:last])],
                **self.transfer(nbytes, to_host, from_host),
            )
        self.answer(code)
        self._finish(handle)

    def fill(self, dst: tuple[int, int], value: int, nbytes: int, handle: int | None = None) -> None:
        """Set bytes, without a stream blocking on the host's own."""
        code, slot = self._begin(handle)
        code = code or self.check(*dst, nbytes)
        if not code and nbytes:
            data = bytes([value % 256]) * nbytes
            code, _ = self.enqueue(
                "memset",
                slot,
                writes=((self.index(*dst), nbytes),),
                compute=lambda memory: [data],
                **self.transfer(nbytes, dst[0] < 0, dst[0] < 0),
            )
        self.answer(code)
        self._finish(handle)

    def _pageable(self, place: tuple[int, int], nbytes: int, engine: str) -> bool:
        """Copy between a place and the program's own arrays; return whether the bytes arrive."""
        code, slot = self._begin(None)
        code = code or (RT_PARAM_INVALID if place[0] < 0 else self.check(*place, nbytes))
        if not code and nbytes:
            code, _ = self.enqueue("copy", slot, **self.transfer(nbytes, engine == "d2h", engine == "h2d"))
        self.answer(code)
        self._finish(None)
        return not self.last

    def upload(self, place: tuple[int, int], data: bytes) -> None:
        if self._pageable(place, len(data), "h2d"):
            self._put(place, data)

    def download(self, place: tuple[int, int], nbytes: int) -> bytes:
        return self._get(place, nbytes) if self._pageable(place, nbytes, "d2h") else bytes(nbytes)

    def host_write(self, place: tuple[int, int], data: bytes) -> None:
        self.look()
        if self.answer(RT_PARAM_INVALID if place[0] > 0 else self.check(*place, len(data))) == SUCCESS:
            self._put(place, data)

    def host_read(self, place: tuple[int, int], nbytes: int) -> bytes:
        self.look()
        code = self.answer(RT_PARAM_INVALID if place[0] > 0 else self.check(*place, nbytes))
        return self._get(place, nbytes) if code == SUCCESS else bytes(nbytes)

    def _put(self, place: tuple[int, int], data: bytes) -> None:
        self.memory[self.index(*place) : self.index(*place) + len(data)] = data

    def _get(self, place: tuple[int, int], nbytes: int) -> bytes:
        return bytes(self.memory[self.index(*place) : self.index(*place) + nbytes])
