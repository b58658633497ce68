"""Compare the runtime with its plain Python twins on random programs; print the first difference, minimised.

    python tools/fuzz_engine.py --programs 100000 --seed 1 [--kind host] [--json]

Kind ``schedule``: lists of commands (all kinds, blocks, priorities, shared rates, cells, timeouts, faults). The exact
engine runs them as lanes, the scheduler of the tests one by one; times to 1 ns, phases, codes and errors are compared.

Kind ``host``: lists of host calls on streams, events, kernels, copies and fills; every fourth records a stream and a
side stream and executes that. Host clock, status and bytes read are compared after every call, then the times of every
command and all of memory.

A program depends on the seed and its number only. Exit status 1 means a difference.
"""

import argparse
import dataclasses
import importlib
import itertools
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ascend_jax as aj
from tests.runtime import lanes
from tests.runtime.random_tasks import describe
from tests.runtime.scheduler import Command

HOST_LENGTHS = (12, 24, 40)  # calls
PROCESSES = 2


class Batch(NamedTuple):
    """Lists of commands as arrays, and the scheduler's answers."""

    tables: np.ndarray  # int32 [B, N, FIELDS]
    cores: np.ndarray  # [2, B], cube and vector
    answers: lanes.Answer  # [B, ...]


class Found(NamedTuple):
    """A difference, and the program that shows it."""

    program: int
    what: str
    lines: list[str]


def stops_in(number: int) -> bool:
    """Return whether streams of a program take no more commands after a failure; whole batches of lanes do or not."""
    return number // lanes.LANES % 2 == 1


def draw(seed: int, first: int) -> Batch:
    """Draw a batch of lists and run the scheduler on each."""
    lists = [lanes.random_list(f"{seed}/{number}") for number in range(first, first + lanes.LANES)]
    return answered([commands for commands, _ in lists], [capacity for _, capacity in lists], stops_in(first))


def answered(lists: Sequence[list[Command]], capacities: Sequence[dict[str, int]], stops: bool) -> Batch:
    """Run the scheduler on lists of commands."""
    tables = np.stack([lanes.table_of(commands, lanes.ROWS) for commands in lists])
    pairs = zip(lists, capacities, strict=True)
    answers = [lanes.scheduled(fresh(commands), capacity, lanes.ROWS, stops=stops) for commands, capacity in pairs]
    cores = np.array([[capacity[unit] for capacity in capacities] for unit in ("cube", "vector")], np.float32)
    return Batch(tables, cores, lanes.stacked(answers))


def fresh(commands: Sequence[Command], without: Command | None = None) -> list[Command]:
    """Copy commands that nothing has happened to yet, all but one."""
    copies: dict[Command, Command] = {}
    for one in commands:
        if one is not without:
            depends = copies.get(one.depends) if one.depends else None
            copies[one] = dataclasses.replace(one, depends=depends)
    return list(copies.values())


class ScheduleFuzzer:
    """Lists of commands: the engine in lanes, compiled once, against the scheduler in processes of its own."""

    def __init__(self, seed: int) -> None:
        self.seed, self.chip = seed, aj.chip("Ascend910B2")
        self.report = {"programs_equal": 0, "commands_ended": 0}

    def run(self, programs: int) -> Found | None:
        """Compare; stop at the first difference."""
        for number, batch in enumerate(self.batches(programs)):
            first = number * lanes.LANES
            count = min(lanes.LANES, programs - first)
            for lane, what in self.differences(batch, stops_in(first)):
                if lane < count:
                    return self.explain(first + lane, what)
            self.report["programs_equal"] += count
            self.report["commands_ended"] += int((batch.answers.end[:count] >= 0).sum())
        return None

    def batches(self, programs: int) -> Iterator[Batch]:
        """Draw ahead of the engine; workers are spawned, as a fork would copy locks that JAX holds."""
        firsts = iter(range(0, programs, lanes.LANES))
        with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
            ahead = [pool.submit(draw, self.seed, first) for first in itertools.islice(firsts, 2 * PROCESSES)]
            while ahead:
                yield ahead.pop(0).result()
                ahead += [pool.submit(draw, self.seed, first) for first in itertools.islice(firsts, 1)]

    def differences(self, batch: Batch, stops: bool) -> Iterator[tuple[int, str]]:
        """Yield lanes whose answers differ; the first list is repeated to fill the engine's lanes."""
        count = len(batch.tables)
        lane = np.arange(lanes.LANES) % count
        cube, vector = batch.cores[:, lane]
        chips = self.chip.replace(cube_cores=cube, vector_cores=vector)
        found = lanes.simulated(lanes.programs_of(batch.tables[lane]), chips, stops=stops)
        for number in range(count):
            what = lanes.difference(lanes.lane(found, number), lanes.lane(batch.answers, number))
            if what:
                yield number, what

    def explain(self, number: int, what: str) -> Found:
        """Drop commands while a difference stays; the candidates of a round are lanes of one run."""
        commands, capacity = lanes.random_list(f"{self.seed}/{number}")
        stops, candidates = stops_in(number), [commands]
        while candidates:
            batch = answered(candidates, [capacity] * len(candidates), stops)
            lane, shown = next(self.differences(batch, stops), (None, ""))
            if lane is None:
                break
            commands, what = candidates[lane], shown
            candidates = [fresh(commands, one) for one in commands] if len(commands) > 1 else []
        cores = f"{capacity['cube']} cube and {capacity['vector']} vector cores"
        return Found(number, f"{cores}, streams stop: {stops}: {what}", [describe(one) for one in commands])


class HostFuzzer:
    """Lists of host calls, made one by one on a card and on its twin."""

    def __init__(self, seed: int) -> None:
        self.drawing, self.programs = (
            importlib.import_module(f"tests.runtime.{name}") for name in ("draw", "programs")
        )
        self.seed, self.kits = seed, {name: self.programs.kit(fields) for name, fields in self.programs.SHEETS.items()}
        self.report = {"programs_equal": 0, "calls_compared": 0}

    def run(self, programs: int) -> Found | None:
        """Compare; stop at the first difference."""
        for number in range(programs):
            rng = random.Random(f"{self.seed}/{number}")
            sheet, length = rng.choice(sorted(self.kits)), rng.choice(HOST_LENGTHS)
            options = {"ties": sheet == "ties", "fills": rng.random() < 0.2}
            program, _ = self.drawing.program(rng, self.kits[sheet], self.twin(sheet), length, **options)
            if self.difference(sheet, program):
                return self.explain(number, sheet, program)
            self.report["programs_equal"] += 1
            self.report["calls_compared"] += len(program)
        return None

    def twin(self, sheet: str) -> Any:
        """Return the twin of a fresh card; a call that is not compiled waits for room in the command table."""
        return self.programs.twin(self.programs.SHEETS[sheet], waits_for_room=True)

    def difference(self, sheet: str, program: np.ndarray) -> str:
        """Return the first difference, or an empty text."""
        kit, twin = self.kits[sheet], self.twin(sheet)
        expected = self.programs.expect(kit, twin, program)
        return self.programs.difference(twin, expected, program, *self.programs.run_eager(kit, program))

    def explain(self, number: int, sheet: str, program: np.ndarray) -> Found:
        """Drop calls one by one while a difference stays; the closing synchronisation is kept."""
        index = 0
        while index < len(program) - 1:
            shorter = np.delete(program, index, axis=0)
            if self.difference(sheet, shorter):
                program, index = shorter, 0
            else:
                index += 1
        what = f"chip sheet {sheet}: {self.difference(sheet, program)}"
        return Found(number, what, [self.programs.text(call) for call in program])


def main() -> int:
    """Run the comparison; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=10_000, help="how many programs to compare")
    parser.add_argument("--seed", type=int, default=0, help="programs depend on the seed and their number only")
    parser.add_argument("--kind", choices=("schedule", "host"), default="schedule", help="what a program is a list of")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    begin = time.monotonic()
    fuzzer = {"schedule": ScheduleFuzzer, "host": HostFuzzer}[options.kind](options.seed)
    found = fuzzer.run(options.programs)
    report = {"kind": options.kind, "seed": options.seed, **fuzzer.report}
    report |= {"seconds": round(time.monotonic() - begin, 1), "difference": found and found._asdict()}
    print(json.dumps(report) if options.json else _text(report, found))
    return int(found is not None)


def _text(report: dict, found: Found | None) -> str:
    lines = [", ".join(f"{name} {value}" for name, value in report.items() if name != "difference")]
    if found:
        lines += [f"program {found.program}: {found.what}", *(f"  {line}" for line in found.lines)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
