"""Compare the memory allocators with their plain Python twins on random sequences.

    python tools/fuzz_memory.py [--kind heap] --sequences 50000 --seed 1 [--json]

heap: device and pinned memory, 512 sequences at a time. Every sequence is 40 calls of malloc and free with all
policies, edge sizes, and wrong arguments; pointers, codes, counters and every block are compared after each call.
cache: the caching allocator, one sequence after another. Every sequence draws an option string and 40 calls of alloc,
free, record_stream, empty_cache, tasks in streams, waits for them, and memory taken beside the cache; pointers, blocks,
segments, device memory and every statistic are compared after each call.

A sequence depends on its kind and number only. Exit status 1 means a difference; the first one is printed.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.runtime import cache_programs, heap_programs

LANES = 512


def compare_heap(first: int, sequences: int) -> dict:
    """Return how many sequences and calls of the heap were equal, and the first difference."""
    card, lanes = heap_programs.small_card(), jax.jit(jax.vmap(heap_programs.run, in_axes=(None, 0)))
    result: dict = {"sequences_equal": 0, "calls": 0, "difference": None}
    for number in range(first, first + sequences, LANES):
        count = min(LANES, first + sequences - number)
        drawn = np.stack([heap_programs.draw(number + lane) for lane in range(LANES)])
        answers = heap_programs.card_answers(jax.device_get(lanes(card, drawn)[1]))[:count]
        expected = np.stack([heap_programs.twin_run(program) for program in drawn[:count]])
        wrong = np.argwhere((answers != expected).any(-1))
        if len(wrong):
            lane, row = wrong[0].tolist()
            result["difference"] = {
                "sequence": number + lane,
                "calls": drawn[lane, : row + 1].tolist(),
                "card": answers[lane, row].tolist(),
                "twin": expected[lane, row].tolist(),
            }
            break
        result["sequences_equal"] += count
        result["calls"] += count * heap_programs.LENGTH
    return result


def compare_cache(first: int, sequences: int) -> dict:
    """Return how many sequences and calls of the caching allocator were equal, and the first difference."""
    start = cache_programs.fresh_card()
    result: dict = {"sequences_equal": 0, "calls": 0, "difference": None}
    for number in range(first, first + sequences):
        calls, result["difference"] = cache_programs.run(number, *start)
        result["calls"] += calls
        if result["difference"]:
            break
        result["sequences_equal"] += 1
    return result


def main() -> None:
    """Parse the flags, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("heap", "cache"), default="heap", help="what (default %(default)s)")
    parser.add_argument("--sequences", type=int, default=50_000, help="how many (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="first number is seed * 1,000,000 (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    started = time.perf_counter()
    compare = {"heap": compare_heap, "cache": compare_cache}[options.kind]
    result = compare(options.seed * 1_000_000, options.sequences)
    result["seconds"] = round(time.perf_counter() - started, 1)
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name}: {value}")
    sys.exit(1 if result["difference"] else 0)


if __name__ == "__main__":
    main()
