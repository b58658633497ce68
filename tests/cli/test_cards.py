"""The main job on several cards: the same output for every sharding, what it reports, and requests it refuses."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from ascend_jax.cli.main import main

ROOT = pathlib.Path(__file__).parents[2]
SMALL = ["--heads", "4", "--seq", "64", "--dim", "16", "--dtype", "float32"]


def run(*flags):
    return main(["ascend-jax", "run", "flash-attention", *SMALL, *flags])


def test_every_sharding_gives_the_same(capsys):
    outs, reports = [], []
    for shard in ("heads", "sequence", "ulysses"):
        assert run("--cards", "4", "--shard", shard, "--json", "--output", f"{shard}.npz", "--causal") == 0
        reports.append(json.loads(capsys.readouterr().out))
        outs.append(np.load(f"{shard}.npz")["attention_out"])
    assert all(np.abs(out - outs[0]).max() < 2e-6 for out in outs)
    for report, shard in zip(reports, ("heads", "sequence", "ulysses"), strict=True):
        assert (report["cards"], report["shard"], report["carrier"]) == (4, shard, "vmap")
        assert report["max_abs_error"] < 2e-6
        cards = report["per_card"]
        assert [one["card"] for one in cards] == [0, 1, 2, 3]
        busy = [one["busy_us"] for one in cards]
        assert max(busy) <= 1.05 * min(busy)
        assert report["makespan_us"] == max(one["end_us"] for one in cards)
    assert reports[0]["per_card"][0]["communication_us"] == 0


def test_text_and_trace_of_a_ring_without_zigzag(capsys):
    assert run("--cards", "4", "--shard", "sequence", "--trace", "t.json") == 0
    text = capsys.readouterr().out
    assert "sharded by sequence; vmap: 4 card(s) share one of" in text
    assert float(text.split("max |error| ")[1].split()[0]) < 2e-6
    names = {event["name"] for event in json.loads(pathlib.Path("t.json").read_text())["traceEvents"]}
    assert {"card 1: own keys", "card 1: keys 1 on", "card 1: ring step 1"} <= names


def test_one_device_for_each_card():
    command = [sys.executable, "-m", "ascend_jax.cli.main", "run", "flash-attention", *SMALL]
    command += ["--cards", "4", "--shard", "sequence", "--carrier", "pmap", "--causal", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["carrier"] == "pmap"
    assert report["max_abs_error"] < 2e-6


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--shard", "heads"], "--shard heads: needs --cards N"),
        (["--cards", "0"], "--cards 0: must be at least 1"),
        (["--cards", "3"], "heads 4 and kv-heads 4 must both divide by 3"),
        (["--cards", "5", "--shard", "sequence"], "must be equal multiples of 5"),
        (["--cards", "64", "--shard", "sequence", "--causal"], "must be equal multiples of 128"),
        (["--cards", "2", "--causal", "--kv-seq", "128"], "needs equal lengths"),
        (["--cards", "2", "--streams", "per-head"], "--streams per-head"),
        (["--cards", "1000", "--carrier", "pmap"], "JAX has started with"),
    ],
)
def test_requests_that_cannot_be(flags, words, capsys):
    assert run("--cards", "1") == 0  # JAX has started
    capsys.readouterr()
    assert run(*flags) == 2
    assert words in capsys.readouterr().err
