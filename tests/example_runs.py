"""What every example promises to print, and how one is run; two files of tests share it, for a worker each."""

import pathlib
import subprocess
import sys

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
PROMISES = {
    "attention_per_core.py": ["max |difference| from one device", "a device per core:"],
    "all_reduce_sweep.py": ["pipeline with nhr", "sum over 8 cards: [0, 8, 16, 24, 32, 40, 48, 56]"],
    "multi_card_attention.py": ["max |difference| from one card", "not hidden: 0.0 us"],
    "transformer_block.py": ["outputs and gradients", "64 cards, tensor 8 x data 8"],
    "quickstart.py": ["max |error| against float64", "# kernel"],
    "jit_pipeline.py": ["traced 1 time(s)", "2200 MHz: attention"],
    "memory_pool.py": [
        "malloc and free        pool",
        "fragmentation, %",
        "the pool reserved 74 MiB and used at most 50 MiB",
    ],
    "kv_cache_paging.py": ["code 207001, 0 pages free", "8 pages free", "lies in slot 1752 and holds 98"],
    "multi_stream_heads.py": ["heads at a time: 6", "cube 0-2"],
}
LONG = ("jit_pipeline.py", "multi_card_attention.py", "transformer_block.py")


def check(name, folder):
    """Run an example in an empty folder: no warnings, and every line that it promises."""
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name], capture_output=True, text=True, cwd=folder, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for line in PROMISES[name]:
        assert line in done.stdout
