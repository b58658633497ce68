"""A small card in plain Python that makes random, feasible logs, and a function to build logs by hand."""

import functools
import random

import pytest

from ascend_jax.insight.timeline import Timeline

CUBE, VECTOR = 4, 8


@pytest.fixture(scope="session")
def build():
    """Timeline.from_rows for a card of 4 cube and 8 vector cores."""
    return functools.partial(
        Timeline.from_rows, chip="Ascend910B2", calibration="test", cube_cores=CUBE, vector_cores=VECTOR
    )


@pytest.fixture(scope="session")
def random_rows():
    return simulate


@pytest.fixture(scope="session")
def random_log(build):
    return lambda seed, count=30: build(simulate(seed, count))


def simulate(seed, count=30, streams=4):
    """Rows of a run: FIFO per stream, events, and engines given out in the order of becoming ready.

    A wait is ready when it comes to the head of its stream, and starts and ends when what it awaits has ended.
    """
    rng = random.Random(seed)
    rows = [_command(rng, number, streams) for number in range(count)]
    issue = rng.randrange(1000)
    for row in rows:
        row["issue_ns"] = issue = issue + rng.choice([0, 1, 1, 30])
    queues = {s: [row for row in rows if row["stream"] == s] for s in range(streams)}
    free_from = dict.fromkeys(range(streams), 0)
    ended, running, clock = {}, [], 0
    while any(queues.values()):
        heads = [queue[0] for queue in queues.values() if queue and _is_free(queue[0], ended)]
        for row in heads:
            row["ready_ns"] = max(row["issue_ns"], free_from[row["stream"]])
        row = min(heads, key=lambda row: (row["ready_ns"], row["command"]))
        queues[row["stream"]].remove(row)
        released = max(row["ready_ns"], ended.get(row.get("waits_for"), 0))
        start = released if not _demand(row) else max(released, clock)
        while not _fits(row, start, running):
            start = min(end for end, _ in running if end > start)
        if _demand(row):
            clock = start
        row["start_ns"], row["end_ns"] = start, start + row.pop("took")
        running.append((row["end_ns"], row))
        free_from[row["stream"]] = ended[row["command"]] = row["end_ns"]
    return rows


def _command(rng, number, streams):
    kind = rng.choice(["kernel", "kernel", "kernel", "copy", "memset", "event record", "event wait"])
    row = {"command": 10 + number, "kind": kind, "name": f"{kind} {number}", "stream": rng.randrange(streams)}
    row["took"] = rng.randrange(1, 60)
    if kind == "kernel":
        row["held_cube"] = rng.randrange(CUBE + 1)
        row["held_vector"] = rng.randrange(0 if row["held_cube"] else 1, VECTOR + 1)
        row["cube_busy_ns"] = row["vector_busy_ns"] = rng.randrange(row["took"] + 1)
    elif kind == "copy":
        row["engine"], row["moved_bytes"] = rng.choice(["h2d", "d2h", "d2d"]), rng.randrange(5000)
    elif kind != "memset":
        row["took"] = 0
    if kind == "event wait" and number:
        row["waits_for"] = 10 + rng.randrange(number)
    return row


def _demand(row):
    return row.get("held_cube", 0) or row.get("held_vector", 0) or row.get("engine")


def _is_free(row, ended):
    return row.get("waits_for") is None or row["waits_for"] in ended


def _fits(row, start, running):
    busy = [other for end, other in running if end > start and other["start_ns"] <= start]
    cube, vector = (sum(other.get(key, 0) for other in busy) for key in ("held_cube", "held_vector"))
    same_engine = any(other.get("engine") and other.get("engine") == row.get("engine") for other in busy)
    enough = cube + row.get("held_cube", 0) <= CUBE and vector + row.get("held_vector", 0) <= VECTOR
    return enough and not same_engine
