"""The main job, end to end: what it prints and writes, and how it takes bad input."""

import itertools
import json
import pathlib
import re

import ml_dtypes
import numpy as np
import pytest

from ascend_jax.cli.main import main

ROOT = pathlib.Path(__file__).parents[2]
SMALL = ["--heads", "2", "--seq", "48", "--dim", "16"]
KEYS = {
    "chip",
    "makespan_us",
    "tflops",
    "peak_tflops",
    "max_abs_error",
    "hbm_peak_bytes",
    "onchip_bytes",
    "steps",
    "wall_s",
}


def run(*flags):
    return main(["ascend-jax", "run", "flash-attention", *flags])


def softmax_attention(q, k, v, causal):
    """Attention written down from its definition, float64, one head at a time."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros((*q.shape[:3], v.shape[3]))
    rows = np.zeros((2, *q.shape[:3]))
    for b, h in np.ndindex(q.shape[:2]):
        kv = h // (q.shape[1] // k.shape[1])
        scores = q[b, h] @ k[b, kv].T / np.sqrt(q.shape[3])
        if causal:
            i, j = np.ogrid[: q.shape[2], : k.shape[2]]
            scores[j > i + k.shape[2] - q.shape[2]] = -np.inf
        top = scores.max(1)
        weights = np.exp(scores - top[:, None])
        out[b, h] = weights @ v[b, kv] / weights.sum(1, keepdims=True)
        rows[:, b, h] = top, weights.sum(1)
    return out, *rows


def masked(text):
    """Replace what depends on the machine."""
    text = re.sub(r"\d\.\d+e-\d+", "<e>", text)
    return re.sub(r"computed here in [\d.]+ s", "computed here in <t> s", text)


def test_text_tells_the_path_and_the_result(default_job):
    text = default_job[0]
    steps = ["framework call", "operator look-up", "workspace allocation", "packing and enqueue", "execution"]
    for words in [*steps, "completion", "output", "HBM peak", "TFLOPS of 353.9 peak", "against float64", "L0C"]:
        assert words in text


def test_readme_shows_this_output(default_job):
    readme = (ROOT / "README.md").read_text()
    shown = re.search(r"<!-- output: ascend-jax run flash-attention -->\n```text\n(.*?)```", readme, re.S)
    assert masked(shown[1]).strip() == masked(default_job[0]).strip()


def test_json_has_the_promised_keys(default_job):
    report = default_job[1]
    assert set(report) >= KEYS
    assert report["chip"] == "Ascend910B2"
    assert 0 < report["tflops"] < report["peak_tflops"]
    assert report["relative_error"] < 1e-3
    assert report["wall_s"] > 0
    assert set(report["onchip_bytes"]) == {"L1", "L0A", "L0B", "L0C", "UB"}
    tiles = 32 * 1024 // report["tile"][0]
    assert (report["blocks"], report["tiles"], report["waves"]) == (24, tiles, -(-tiles // 24))


def test_steps_follow_one_another(default_job):
    steps = default_job[1]["steps"]
    assert [step["step"] for step in steps] == list(range(1, 10))
    assert all(step["start_us"] <= step["end_us"] for step in steps)
    assert all(a["start_us"] <= b["start_us"] and a["end_us"] <= b["end_us"] for a, b in itertools.pairwise(steps))
    assert steps[-1]["end_us"] == pytest.approx(default_job[1]["makespan_us"])


def test_only_inputs_and_outputs_reach_hbm(default_job):
    report = default_job[1]
    array = 32 * 1024 * 128 * 2  # bytes of each of q, k, v and the output
    statistics = 2 * 32 * 1024 * 32  # softmax_max and softmax_sum: 32 bytes a row
    assert report["hbm_read_bytes"] == 3 * array
    assert report["hbm_written_bytes"] == array + statistics  # no 32 x 1024 x 1024 scores
    assert report["hbm_peak_bytes"] < 100 << 20


def test_output_file_holds_the_results(default_job):
    generator = np.random.Generator(np.random.PCG64(0))
    shape = (1, 32, 1024, 128)
    q, k, v = (generator.standard_normal(shape, dtype=np.float32).astype(np.float16) for _ in range(3))
    with np.load(default_job[2] / "out.npz") as file:
        assert set(file) == {"attention_out", "softmax_max", "softmax_sum"}
        out, row_max, row_sum = file["attention_out"], file["softmax_max"], file["softmax_sum"]
    expected, top, total = softmax_attention(q[:, :2], k[:, :2], v[:, :2], causal=False)
    assert out.dtype == np.float16 and out.shape == shape
    assert row_max.dtype == row_sum.dtype == np.float32 and row_max.shape == (1, 32, 1024, 8)
    assert np.abs(out[:, :2] - expected).max() < 2e-4
    np.testing.assert_allclose(row_max[:, :2], np.repeat(top[..., None], 8, -1), rtol=1e-5)
    np.testing.assert_allclose(row_sum[:, :2], np.repeat(total[..., None], 8, -1), rtol=1e-4)


def test_trace_file_opens(default_job):
    trace = json.loads((default_job[2] / "trace.json").read_text())
    names = {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert {"FlashAttentionScore", "copy host to device", "operator look-up"} <= names
    assert [path.name for path in default_job[2].iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(("dtype", "streams"), [("float32", "fused"), ("float16", "per-head"), ("bfloat16", "fused")])
def test_own_arrays(dtype, streams, capsys):
    generator = np.random.default_rng(3)
    q = generator.standard_normal((2, 4, 40, 24)).astype(np.float32)
    k = generator.standard_normal((2, 2, 72, 24)).astype(np.float32)
    v = generator.standard_normal((2, 2, 72, 16)).astype(np.float32)
    np.savez("in.npz", q=q, k=k, v=v)
    flags = ["--input", "in.npz", "--dtype", dtype, "--causal", "--streams", streams, "--output", "out.npz", "--json"]
    assert run(*flags) == 0
    report = json.loads(capsys.readouterr().out)
    cast = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    expected, top, total = softmax_attention(*(x.astype(cast) for x in (q, k, v)), causal=True)
    with np.load("out.npz") as file:
        out, row_max, row_sum = file["attention_out"], file["softmax_max"], file["softmax_sum"]
    limit = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
    assert np.abs(out - expected).max() <= limit * np.abs(expected).max()
    np.testing.assert_allclose(row_max[..., 7], top, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(row_sum[..., 0], total, rtol=1e-5)
    assert report["max_abs_error"] == pytest.approx(np.abs(out - expected).max(), rel=1e-3, abs=1e-9)
    assert report["launches"] == (8 if streams == "per-head" else 1)


def test_heads_run_side_by_side(capsys):
    assert run("--heads", "32", "--seq", "64", "--dim", "16", "--streams", "per-head") == 0
    text = capsys.readouterr().out
    assert "32 launches on 32 streams" in text
    assert int(re.search(r"per launch, (\d+) launches at a time", text)[1]) > 8
    lanes = [re.search(rf"cube {core} +\| *([A-Z])", text)[1] for core in range(8)]
    assert lanes == list("ABCDEFGH"), "eight heads start on eight different cores"


def test_a_row_that_sees_nothing(capsys):
    assert (
        run("--heads", "1", "--seq", "8", "--kv-seq", "4", "--dim", "16", "--causal", "--output", "o.npz", "--json")
        == 0
    )
    with np.load("o.npz") as file:
        assert not file["attention_out"][0, 0, :4].any()
        assert (file["softmax_max"][0, 0, :4] == -np.finfo(np.float32).max).all()
        assert (file["softmax_sum"][0, 0, :4] == np.finfo(np.float32).max).all()


def test_uncalibrated_chips_say_so(capsys):
    assert run(*SMALL, "--chip", "Ascend310P3") == 0
    text = capsys.readouterr().out
    assert "uncalibrated" in text and "no published measurement" in text


def save(name, **arrays):
    np.savez(name, **arrays)
    return name


GOOD = {name: np.zeros((1, 2, 8, 16), np.float16) for name in "qkv"}
BAD = [
    (lambda: ["--input", "nothere.npz"], "nothere.npz: no such file"),
    (lambda: ["--input", save("a.npz", q=GOOD["q"], k=GOOD["k"])], "array v missing (found k, q)"),
    (lambda: ["--input", str(pathlib.Path("t.npz").write_text("not a zip") and "t.npz")], "not a readable .npz file"),
    (lambda: ["--input", str(np.save("b.npy", GOOD["q"]) or "b.npy")], "one bare array"),
    (lambda: ["--input", save("c.npz", **GOOD | {"q": np.zeros((2, 8, 16), np.float16)})], "q has shape [2, 8, 16]"),
    (lambda: ["--input", save("d.npz", **GOOD | {"q": np.zeros((1, 3, 8, 16), np.float16)})], "3 heads of q"),
    (lambda: ["--input", save("e.npz", **{n: a.astype(np.int32) for n, a in GOOD.items()})], "q is int32"),
    (lambda: ["--input", save("f.npz", **{n: a.astype(np.float64) for n, a in GOOD.items()})], "add --dtype float32"),
    (lambda: ["--input", save("g.npz", **GOOD | {"v": np.full((1, 2, 8, 16), np.nan, np.float16)})], "v holds NaN"),
    (lambda: ["--input", save("h.npz", **GOOD | {"k": np.zeros((1, 2, 9, 16), np.float16)})], "k and v must agree"),
    (lambda: ["--input", save("i.npz", **GOOD | {"q": np.zeros((1, 2, 0, 16), np.float16)})], "at least 1"),
    (lambda: ["--input", save("j.npz", **GOOD | {"q": GOOD["q"].astype(np.float32)})], "dtypes differ"),
    (lambda: ["--input", save("k.npz", **GOOD), "--seq", "8"], "--seq: shapes and values come from --input"),
    (lambda: ["--heads", "32", "--kv-heads", "5"], "heads must be a multiple of kv-heads"),
    (lambda: ["--chip", "Ascend910Z"], "Ascend910Z"),
    (lambda: ["--chip", "Ascend910B"], "Ascend910B1"),
    (lambda: ["--dtype", "int8"], "invalid choice: 'int8'"),
    (lambda: ["--seq", "0"], "--seq 0: must be at least 1"),
    (lambda: ["--heads", "-4"], "--heads -4: must be at least 1"),
    (lambda: ["--seed", "-1"], "--seed -1: must be at least 0"),
    (lambda: ["--output", "same.json", "--trace", "./same.json"], "name two different files"),
    (lambda: ["--output", str(pathlib.Path("loop").symlink_to("loop") or "loop")], "--output loop: cannot be a file"),
    (lambda: ["--trace", "x" * 300], "the name is empty or too long"),
    (lambda: ["--output", ""], "the name is empty or too long"),
    (lambda: ["--output", "/dev/full"], "is not a regular file"),
    (lambda: ["--dim", "many"], "invalid int value: 'many'"),
    (lambda: ["--dim", "1024"], "--dim 1024: must be from 1 to 768"),
    (lambda: ["--seq", "10000000", "--heads", "64"], "HBM too small"),
    (lambda: ["--seq", "1000000", "--heads", "32"], "too large to compute"),
    (lambda: ["--heads", "257", "--seq", "16"], "head_num = 257: must be 1 to 256"),
    (lambda: ["--output", "no/such/folder/o.npz"], "no/such/folder does not exist"),
    (lambda: ["--trace", "."], "is a folder"),
    (lambda: ["--unknown"], "--unknown"),
]


@pytest.mark.parametrize(("flags", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_input_is_one_line_and_status_2(flags, words, capsys, tmp_path):
    flags = flags()
    before = {path.name for path in tmp_path.iterdir()}
    try:
        status = run("--output", "o.npz", "--trace", "t.json", *flags)
    except SystemExit as stop:
        status = stop.code
    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    assert printed.err.count("\n") == 1 and "Traceback" not in printed.err
    assert words in printed.err
    assert {path.name for path in tmp_path.iterdir()} == before, "a file was left behind"


def test_chips_and_info(capsys):
    assert main(["ascend-jax", "chips", "--json"]) == 0
    rows = {row["chip"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["Ascend910B3"]["clock_mhz"] == 1800 and rows["Ascend910B2"]["peak_fp16_tflops"] == 353.9
    assert main(["ascend-jax", "chips", "910b4"]) == 0
    assert "hbm_bytes" in capsys.readouterr().out
    assert main(["ascend-jax", "chips", "nope"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["ascend-jax", "info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["soc_name"] == "Ascend910B2"
