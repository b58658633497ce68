"""Host programs, run by the twin and by ascend_jax: eagerly, under one jit, under vmap."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ascend_jax as aj
from ascend_jax.runtime.kernels import kernel_cost
from tests.runtime.calls import CALLS, HOST_WORD, NAMES, SHEETS, TIES, Kit, kit, text, twin
from tests.runtime.oracle import Card

__all__ = [
    "NAMES", "SHEETS", "TIES", "Kit", "difference", "expect", "expect_one", "kit", "launch", "run_eager",
    "runner", "text", "twin",
]  # fmt: skip


def branch(kit: Kit, name: str) -> Callable[..., tuple]:
    """Return ``(card, arguments) -> (card, answer, bytes [HOST_WORD])``."""
    call = CALLS[name]

    def run(card: aj.CardState, arguments: Any) -> tuple:
        result = call.run(kit, card, *(arguments[i] for i in range(len(call.names))))
        card, answer = result if isinstance(result, tuple) else (result, jnp.int32(0))
        is_bytes = answer.ndim == 1
        return card, jnp.int32(0) if is_bytes else answer, answer if is_bytes else jnp.zeros(HOST_WORD, jnp.uint8)

    return run


def twin_call(kit: Kit, twin: Card, row: np.ndarray) -> tuple[int, bytes]:
    """Make one call on the twin; return (answer, bytes)."""
    call = CALLS[NAMES[row[0]]]
    answer = call.twin(kit, twin, *(int(value) for value in row[1 : 1 + len(call.names)]))
    return (0, answer) if isinstance(answer, bytes) else (answer or 0, bytes(HOST_WORD))


def launch(kit: Kit, card: aj.CardState, stream: int, block_ns: float, **options: int) -> aj.CardState:
    """Launch the small kernel with chosen cost; ``source`` and ``target`` are byte offsets in the device block."""
    offsets = [options.pop("source", 0), options.pop("target", 0)]
    operands = np.array(kit.mix.operands)
    operands[:2, 1] = offsets
    short = {"cube": "cube_cores", "vector": "vector_cores"}
    cost = kernel_cost(block_ns, **{short.get(name, name): value for name, value in options.items()})
    return aj.launch(card, dataclasses.replace(kit.mix, operands=operands, cost=cost), 0, stream)


def outcome(card: aj.CardState, answer: Any, out: Any) -> tuple:
    """What is compared after every call: host clock, status word, answer, bytes."""
    return card.clock[:2], card.status, answer, out


def run_eager(kit: Kit, program: np.ndarray) -> tuple[aj.CardState, tuple]:
    card, seen = kit.card, []
    kit.shelf.clear()
    for row in program:
        card, answer, out = branch(kit, NAMES[row[0]])(card, [int(x) for x in row[1:]])
        seen.append(outcome(card, answer, out))
    return card, tuple(np.stack([np.asarray(one[part]) for one in seen]) for part in range(4))


def runner(kit: Kit, names: tuple[str, ...] = NAMES) -> Any:
    """Return ``(card, calls [L], arguments [B, L, ARGUMENTS]) -> (cards, outcomes)`` of B lanes.

    Calls count in ``names``. Each call is a ``vmap`` over the lanes; one over all of them would be traced three times.
    """
    table = [branch(kit, name) for name in names]

    def run(card: aj.CardState, calls: jax.Array, arguments: jax.Array) -> tuple:
        def step(cards: aj.CardState, call: tuple) -> tuple:
            def one(card: aj.CardState, own: jax.Array) -> tuple:
                card, answer, out = jax.lax.switch(call[0], table, card, own)
                return card, outcome(card, answer, out)

            return jax.vmap(one)(cards, call[1])

        cards = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(arguments), *leaf.shape)), card)
        cards, seen = jax.lax.scan(step, cards, (calls, jnp.moveaxis(arguments, 1, 0)))
        return cards, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), seen)

    return run


def expect(kit: Kit, twin: Card, program: np.ndarray) -> list[tuple]:
    """Run ``program`` on the twin; return (host ns, code, calls, sticky code, answer, bytes) after every call."""
    return [expect_one(kit, twin, row) for row in program]


def expect_one(kit: Kit, twin: Card, row: np.ndarray) -> tuple:
    answer, data = twin_call(kit, twin, row)
    return twin.host, twin.last, twin.calls, twin.sticky, answer, data.hex()


PARTS = ("host ns", "code", "calls", "sticky code", "answer", "bytes")


def difference(twin: Card, expected: list[tuple], program: np.ndarray, card: aj.CardState, seen: tuple) -> str:
    """Say where ``card`` differs first from what the twin has done; empty if nowhere."""
    for number, row in enumerate(program):
        clock, status, answer, data = (np.asarray(part[number]) for part in seen)
        got = (int(clock[0]) * 2**30 + int(clock[1]), int(status[4]), int(status[5]), int(status[0]))
        got += (int(answer), bytes(data).hex())
        for what, want, have in zip(PARTS, expected[number], got, strict=True):
            if want != have:
                return f"after call {number} {text(row)}: {what} expected {want} got {have}"
    return difference_of_commands(twin, card) or difference_of_memory(twin, card)


def difference_of_commands(twin: Card, card: aj.CardState) -> str:
    log = aj.insight.timeline(card)
    kept = [job for job in twin.jobs[log.forgotten :] if not (job.is_captured or job.is_erased)]
    if [job.sequence for job in kept] != log.command.tolist():
        return f"commands: expected {[job.sequence for job in kept]} got {log.command.tolist()}"
    columns = ("issue_ns", "ready_ns", "start_ns", "end_ns", "code", "stream", "priority", "kind")
    for row, job in enumerate(kept):
        got = [getattr(log, name)[row] for name in columns] + [bool(log.dropped_ns[row] >= 0)]
        stream = -1 if job.stream == twin.host_stream else job.stream
        is_new = job.start < 0 and job.end < 0 and (job.dropped or job.ready == twin.scheduler.now)
        ready = -1 if is_new else job.ready  # what comes up in the instant where a look ends shows later
        want = [job.issue, ready, job.start, job.end, job.result, stream, job.priority, job.kind, job.dropped]
        got[1] = -1 if is_new else got[1]
        if [*map(str, want)] != [*map(str, got)]:
            return f"command {job.sequence}: {(*columns, 'dropped')} expected {want} got {got}"
    return ""


def difference_of_memory(twin: Card, card: aj.CardState) -> str:
    memory = bytes(np.asarray(card.memory)[: len(twin.memory)])
    if memory == bytes(twin.memory):
        return ""
    first = next(i for i, (x, y) in enumerate(zip(memory, twin.memory, strict=True)) if x != y)
    return f"memory byte {first}: expected {twin.memory[first]} got {memory[first]}"
