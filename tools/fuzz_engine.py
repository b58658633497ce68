"""Compare the runtime with its plain Python twin on random programs; print the first difference, minimised.

    python tools/fuzz_engine.py --programs 20000 --seed 1 [--json]

A program is a list of host calls on streams, events, kernels, copies and fills. Host clock, status and bytes read are
compared after every call, then the times of every command and all of memory. Exit status 1 means a difference.
"""

import argparse
import importlib.util
import json
import random
import sys
import time
from pathlib import Path
from types import ModuleType

import jax
import numpy as np

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "runtime"
LENGTHS = (12, 24, 40)  # one compilation each


def load(name: str) -> ModuleType:
    """Import a helper of the runtime's tests by path."""
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Fuzzer:
    """Programs, the twin and one compiled interpreter."""

    def __init__(self) -> None:
        self.oracle, self.programs = load("oracle"), load("programs")
        self.sheets = {"ties": self.programs.TIES, "odd": self.programs.ODD}
        self.kits = {name: self.programs.kit(sheet) for name, sheet in self.sheets.items()}
        self.run = jax.jit(self.programs.runner(self.kits["ties"]))

    def draw(self, seed: str) -> tuple[str, np.ndarray]:
        """Return a chip sheet's name and a program, int32 [L, 8]."""
        rng = random.Random(seed)
        sheet = rng.choice(sorted(self.sheets))
        table = self.programs.sizes()["max_commands"]
        calls = self.programs.random_calls(rng, rng.choice(LENGTHS), table=table)
        arguments = self.programs.random_arguments(rng, calls, ties=sheet == "ties")
        return sheet, np.concatenate([calls[:, None], arguments], axis=1)

    def differs(self, sheet: str, program: np.ndarray) -> str:
        """Return the first difference, or an empty text. Dropped calls become idle host work to keep the shape."""
        kit, twin = self.kits[sheet], self.programs.twin(self.oracle, self.sheets[sheet])
        padded = self.pad(program)
        card, seen = jax.device_get(self.run(kit.card, padded[:, 0], padded[:, 1:]))
        try:
            return self.programs.difference(kit, twin, padded, card, seen)
        except AssertionError as error:
            return f"twin: {error}"

    def pad(self, program: np.ndarray) -> np.ndarray:
        """Put host work of 0 ns in front, so that few lengths are ever compiled."""
        length = next(length for length in LENGTHS if length >= len(program))
        idle = np.zeros((length - len(program), program.shape[1]), np.int32)
        idle[:, 0] = self.programs.CALL["work"]
        return np.concatenate([idle, program])

    def minimise(self, sheet: str, program: np.ndarray) -> np.ndarray:
        """Drop calls one by one while a difference stays; the closing synchronisation is kept."""
        index = 0
        while index < len(program) - 1:
            shorter = np.delete(program, index, axis=0)
            if self.differs(sheet, shorter):
                program, index = shorter, 0
            else:
                index += 1
        return program


def main() -> int:
    """Run the comparison; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000, help="how many programs to compare")
    parser.add_argument("--seed", type=int, default=0, help="programs depend on the seed and their number only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    fuzzer, begin, calls = Fuzzer(), time.monotonic(), 0
    report: dict = {"programs_equal": 0, "calls_compared": 0, "seed": options.seed, "difference": None}
    for number in range(options.programs):
        sheet, program = fuzzer.draw(f"{options.seed}/{number}")
        if fuzzer.differs(sheet, program):
            small = fuzzer.minimise(sheet, program)
            report["difference"] = {
                "program": number,
                "chip": sheet,
                "what": fuzzer.differs(sheet, small),
                "calls": [fuzzer.programs.text(call) for call in small],
            }
            break
        calls += len(program)
        report |= {"programs_equal": number + 1, "calls_compared": calls}
    report["seconds"] = round(time.monotonic() - begin, 1)
    print(json.dumps(report) if options.json else _text(report))
    return int(report["difference"] is not None)


def _text(report: dict) -> str:
    lines = [f"{report['programs_equal']} programs, {report['calls_compared']} calls equal in {report['seconds']} s"]
    if report["difference"]:
        found = report["difference"]
        lines += [f"program {found['program']} on chip sheet {found['chip']}: {found['what']}"]
        lines += [f"  {call}" for call in found["calls"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
