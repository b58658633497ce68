"""Files of measurements: what each kind is, rows that cannot be predicted, malformed files, promised errors."""

import json

import pytest

from ascend_jax.cli.main import main
from ascend_jax.ops.timing import confidence, validation
from ascend_jax.ops.timing.predictions import find_kind
from ascend_jax.ops.timing.products import dies, find_chip
from ascend_jax.ops.timing.targets import read_targets

HEADER = "target_id,soc,kind,dtype,m,n,k,batch,heads,sq,sk,d,causal,ranks,cores,bytes,value,unit,trust,note\n"


def rows(tmp_path, *lines, header=HEADER):
    path = tmp_path / "targets.csv"
    path.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
    return validation.validate(read_targets(path))


@pytest.fixture(scope="module")
def report():
    return validation.validate(read_targets(validation.calibration_file()))


def test_every_calibration_row_is_covered_and_fitted(report):
    assert len(report) == 83
    assert [row.target.name for row in report if row.predicted is None] == []
    assert all(row.is_fitted for row in report)
    assert all(row.confidence.label != "uncalibrated" for row in report if row.group == "gemm")


def test_promised_errors(report):
    found = validation.summary(report)
    assert found["rows"] == found["covered"] == 83
    assert found["median_abs_error"] <= 0.08 and found["p90_abs_error"] <= 0.25
    groups = found["by_group"]
    for name, most in {"gemm": 0.08, "memory": 0.08, "attention": 0.10, "collective": 0.15}.items():
        assert groups[name]["median_abs_error"] <= most, name
    assert groups["launch"]["max_ratio"] <= 1.5
    assert found["not_fitted"]["rows"] == 0 and found["not_fitted"]["median_abs_error"] is None


def test_no_prediction_sees_the_measured_value(tmp_path):
    line = "X,910B2,gemm,fp16,2048,2048,2048,,,,,,,,,,{},TFLOPS,,"
    first, second = rows(tmp_path, line.format(1), line.format(999))
    assert first.predicted == second.predicted and not first.is_fitted
    assert first.error == pytest.approx(first.predicted - 1)


@pytest.mark.parametrize(
    ("soc", "kind", "columns", "unit", "predicted"),
    [  # by hand, from the constants of the chips
        ("A2", "p2p_bidir", {}, "GB/s", 2 * 28 * 0.976),
        ("A2", "p2p", {}, "GB/s", 28 * 0.976),
        ("910B3", "l0c_gm_one_aic", {"cores": 1}, "GB/s", 143.52),
        ("910 first gen", "memset_plus_sync", {}, "us", 12 + 5 + 2.6),
        ("910 first gen", "aclnn_add_enqueue", {}, "us", 10.5),
        ("910B3", "scalar_fma_cycles", {"cores": 1}, "cycles", 6),
        ("A2", "allreduce", {"ranks": 8, "bytes": 1 << 23}, "us", 14.8 + 2**23 / 4 / (28e3 * 0.69) + 2**22 / 9e4),
        ("910B1", "gm_ub_read_per_core", {"cores": 48}, "GB/s", 1536 / 48),
    ],
)
def test_kinds_by_hand(tmp_path, soc, kind, columns, unit, predicted):
    header = ",".join(["soc", "kind", "value", "unit", *columns])
    line = ",".join(str(each) for each in (soc, kind, 1, unit, *columns.values()))
    (row,) = rows(tmp_path, line, header=header + "\n")
    assert row.reason == "" and row.predicted == pytest.approx(predicted, rel=1e-3)


def test_units_say_the_same(tmp_path):
    line = "X,910B2,gemm,fp16,4096,4096,4096,,,,,,,,,,1,{},,"
    us, ms, tflops = (row.predicted for row in rows(tmp_path, *(line.format(unit) for unit in ("us", "ms", "TFLOPS"))))
    assert us == pytest.approx(1e3 * ms) and 2 * 4096**3 / us / 1e6 == pytest.approx(tflops)


def test_a_ladder_gets_faster_step_by_step(tmp_path):
    notes = ["tile 64x64x64", "tile 128x256x64", "4x6 split", "+L1 depth", "+const tiling"]
    cores = [1, 1, 24, 24, 24]
    line = "X,910B1,gemm_task,fp16,8192,8192,8192,,,,,,,,{},,1,us,,official sample ladder: {}"
    times = [row.predicted for row in rows(tmp_path, *(line.format(*each) for each in zip(cores, notes, strict=True)))]
    assert times == sorted(times, reverse=True) and times[0] / times[-1] > 100


def test_read_rows_follow_their_notes(tmp_path):
    line = "X,A2,{},,,,,,,,,,,,48,301989888,1,us,,{}"
    kinds = [("gm_ub_read", note) for note in ('"[64,1024]"', '"[1,64] 128 B rows"', '"[64,1024], unaligned"')]
    full, short, unaligned = (row.predicted for row in rows(tmp_path, *(line.format(*each) for each in kinds)))
    assert short > 2 * full and unaligned == pytest.approx(full / 0.7, rel=0.02)


def test_rows_without_a_prediction_are_listed(tmp_path):
    found = rows(
        tmp_path,
        "A,H100,gemm,fp16,16,16,16,,,,,,,,,,1,us,,",
        "B,910B2,conv2d,fp16,16,16,16,,,,,,,,,,1,us,,",
        "C,910B2,gemm,fp16,16,,16,,,,,,,,,,1,us,,",
        "D,910B2,gemm,fp16,16,16,16,,,,,,,,,,1,furlongs,,",
        "E,910B2,gemm,fp12,16,16,16,,,,,,,,,,1,us,,",
        "F,910B2,gemm,fp16,16,16,16,,,,,,,,,,1,us,,",
    )
    reasons = [row.reason for row in found]
    for words, reason in zip(
        ("names no chip", "no model", "column n is empty", "furlongs", "fp12"), reasons, strict=False
    ):
        assert words in reason
    assert reasons[5] == ""
    summary = validation.summary(found)
    assert (summary["rows"], summary["covered"]) == (6, 1)
    assert [row["line"] for row in summary["not_covered"]] == [2, 3, 4, 5, 6]


def test_vector_operators_are_kinds_too(tmp_path):
    (row,) = rows(tmp_path, "A,910B2,add_task,fp16,8192,8192,,,,,,,,,,,264,us,,")
    assert row.group == "vector" and abs(row.error) < 0.1 and row.confidence.label == "extrapolated"


def test_names_of_chips_and_kinds():
    assert find_chip("Ascend910B4").name == "Ascend910B4" and find_chip("910B2-like").name == "Ascend910B2"
    assert find_chip("A2 (910B3)").name == "Ascend910B3" and find_chip("910B (A2)").name == "Ascend910B2"
    assert (dies("910C"), dies("910B2")) == (2, 1)
    assert find_kind("vector_cycles_exp")[0] == "instruction"
    with pytest.raises(ValueError, match="names no chip"):
        find_chip("TPU v5")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("soc,kind,unit\n910B2,gemm,us\n", "line 1: column 'value' is missing"),
        ("soc,kind,value,unit\n910B2,gemm,1,us\n910B2,gemm,1\n", "line 3: 3 cells, the header has 4"),
        ("soc,kind,value,unit\n910B2,gemm,fast,us\n", "line 2: column value is 'fast'"),
        ("soc,kind,value,unit\n910B2,gemm,0,us\n", "line 2: column value is '0'; a number above zero"),
        ("soc,kind,value,unit\n910B2,gemm,inf,us\n", "line 2: column value"),
        ("soc,kind,value,unit,m\n910B2,gemm,1,us,1.5\n", "line 2: column m is '1.5'; a whole number"),
        ("soc,kind,value,unit,m\n910B2,gemm,1,us,-4\n", "line 2: column m is '-4'"),
        ("soc,kind,value,unit,causal\n910B2,fa_fwd,1,us,maybe\n", "line 2: column causal"),
        ("soc,kind,value,unit\n910B2,,1,us\n", "line 2: column kind is empty"),
        ('soc,kind,value,unit\n"910B2,gemm,1,us\n', "line 2: not CSV"),
    ],
)
def test_malformed_files_name_the_line(tmp_path, text, words, capsys):
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        read_targets(path)
    assert main(["ascend-jax", "validate", "--targets", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1


def test_the_command(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "A,A2,h2d,,,,,,,,,,,,,,24,GB/s,,\nB,A2,warp,,,,,,,,,,,,,,1,us,,\n")
    assert main(["ascend-jax", "validate", "--targets", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"rows", "covered", "median_abs_error", "p90_abs_error", "by_kind"} <= set(found)
    assert (found["rows"], found["covered"]) == (2, 1)
    assert found["by_kind"]["h2d"]["median_abs_error"] == pytest.approx(24.926 / 24 - 1, abs=1e-4)
    assert found["targets"][1]["reason"].startswith("kind 'warp' has no model")
    assert main(["ascend-jax", "validate", "--targets", str(path)]) == 0
    text = capsys.readouterr().out
    assert "1 of 2 rows cannot be predicted" in text and "line 3 (warp)" in text and "not fitted" in text
    assert main(["ascend-jax", "validate", "--targets", str(tmp_path / "none.csv")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_your_own_measurements_replace_predictions(tmp_path, capsys):
    targets, own = tmp_path / "t.csv", tmp_path / "own.csv"
    lines = ["A,910B2,gemm,fp16,64,32,128,,,,,,,,,,90,us,,", "B,910B2,gemm,bf16,64,32,128,,,,,,,,,,90,us,,"]
    lines += ["C,910B2,fa_fwd_vendor,fp16,,,,1,2,256,256,64,1,,,,90,us,,", "D,910B2,add,fp16,64,32,,,,,,,,,,,90,us,,"]
    targets.write_text(HEADER + "\n".join(lines) + "\n")
    qkv = "1x2x256x64;1x2x256x64;1x2x256x64"
    text = "operator,shape,dtype,us,sparse_mode\nMatMulV3,64x128;128x32,float16,91,\nadd,64x32;64x32,half,92,\n"
    own.write_text(text + f"FlashAttentionScore,{qkv},float16,93,3\n")
    flags = ["--targets", str(targets), "--measurements", str(own)]
    assert main(["ascend-jax", "validate", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["targets"]
    assert [row["predicted"] for row in found if row["limit"] == "measured"] == [91, 93, 92]
    assert found[1]["predicted"] < 50 and found[1]["limit"] != "measured", "bfloat16 was not measured"
    own.write_text("operator,shape,dtype,us\nadd,64x32,half,-2\n")
    assert main(["ascend-jax", "validate", *flags]) == 2
    assert "line 2: column us is '-2'" in capsys.readouterr().err


LINE = "X,{soc},{kind},fp16,{m},{n},{k},,,,,,,{ranks},{cores},{nbytes},1,{unit},,{note}"


def one(tmp_path, soc, kind, unit="us", **columns):
    empty = dict.fromkeys(("m", "n", "k", "ranks", "cores", "nbytes", "note"), "")
    return rows(tmp_path, LINE.format(soc=soc, kind=kind, unit=unit, **(empty | columns)))[0]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"soc": "A2", "kind": "allreduce", "ranks": 1, "nbytes": 1024}, "at least 2 ranks"),
        ({"soc": "A2", "kind": "allgather", "ranks": 1, "nbytes": 1024}, "at least 2 ranks"),
        ({"soc": "A2", "kind": "allreduce", "ranks": 9, "nbytes": 1024}, "equal shares of 2 groups of 8"),
        ({"soc": "910B2", "kind": "gemm", "m": "1e15", "n": 16, "k": 16}, "column m is 1000000000000000"),
        ({"soc": "910B2", "kind": "add", "m": 64, "n": 64, "cores": 4800}, "cores is 4800; Ascend910B2 has 48 vector"),
        ({"soc": "910B2", "kind": "gemm", "m": 64, "n": 64, "k": 64, "cores": 25}, "has 24 cube cores"),
        ({"soc": "910B2", "kind": "h2d"}, "states no size"),
        ({"soc": "910B2", "kind": "hbm_read_all_aic"}, "states no size"),
        ({"soc": "A2", "kind": "gm_ub_read", "nbytes": 4096, "note": "120% L2 hit"}, "at most 100 %"),
        (
            {"soc": "910B1", "kind": "gemm_task", "m": 64, "n": 64, "k": 64, "note": "tile 17x33x5"},
            "multiples of 16",
        ),
    ],
)
def test_rows_that_mean_nothing_are_listed(tmp_path, columns, words, capsys):
    row = one(tmp_path, **columns)
    assert row.predicted is None and words in row.reason
    assert main(["ascend-jax", "validate", "--targets", str(tmp_path / "targets.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["covered"] == 0


def test_attention_of_two_milliard_rows_is_listed(tmp_path):
    lines = [
        f"X,910B2,{kind},fp16,,,,1,1,2000000000,64,64,{causal},,,,1,us,,"
        for kind in ("fa_fwd", "fa_bwd")
        for causal in (0, 1)
    ]
    assert all("at most 67108864 query rows" in row.reason for row in rows(tmp_path, *lines))


def test_only_the_stated_words_of_a_note_steer_a_matmul(tmp_path):
    def us(note):
        return one(tmp_path, "910B1", "gemm_task", m=8192, n=8192, k=8192, cores=24, note=note).predicted

    assert us("") == us("ladder: best case") == us("community sample") == us("no constants; no units; naivety")
    serial = us('"naive, tile 128x256x64"')
    assert serial == us("single buffer tile 128x256x64") == us("ladder: tile 128x256x64")
    assert serial > 2 * us("tile 128x256x64")


def test_a_chips_constants_are_not_those_of_one_row():
    for name in ("Ascend950PR_9589", "Ascend950DT_9591"):
        spec, a2 = find_chip(name), find_chip("A2")
        for each in ("overlap_loss", "l2_effective_share", "matmul_fixed_ns"):
            assert spec[each] == a2[each]


def test_filled_columns_count(tmp_path):
    alone, all_cores = (one(tmp_path, "910B2", "add", m=8192, n=8192, cores=c).predicted for c in (1, 48))
    assert alone > 5 * all_cores
    # By hand: 500 ns and 4096 bytes at 28 GB/s * 0.976; 5000 ns and 1 MiB at 24.926 GB/s; 1.536 MB at 1536 GB/s.
    assert one(tmp_path, "910B2", "p2p", nbytes=4096).predicted == pytest.approx(0.5 + 4096 / 27328, rel=1e-4)
    assert one(tmp_path, "910B2", "h2d", nbytes=1 << 20).predicted == pytest.approx(5 + 2**20 / 24926, rel=1e-4)
    assert one(tmp_path, "910B3", "hbm_read_all_aic", nbytes=1536000).predicted == pytest.approx(1, rel=1e-3)
    line = "X,910B2,fa_{},fp16,,,,1,8,2048,2048,128,0,,{},,1,us,,"
    kinds = [("fwd", 1), ("fwd", 24), ("bwd", 1), ("bwd", 24)]
    times = [row.predicted for row in rows(tmp_path, *(line.format(*each) for each in kinds))]
    assert times[0] > 5 * times[1] and times[2] > 5 * times[3]


def test_collectives_across_servers_do_not_beat_the_network(tmp_path):
    n, link = 1 << 27, 28e9 * 0.69
    across = 7 * 7400 + 7 / 8 * n / 8 / (25e9 * 0.69) * 1e9  # eight servers of A2, one share of eight each
    inside = 7400 + n / 8 / link * 1e9 + (1 << 22) / 9e10 * 1e9 / 2
    for kind, phases in (("allgather", 1), ("reducescatter", 1), ("allreduce", 2)):
        row = one(tmp_path, "A2", kind, ranks=64, nbytes=n)
        assert row.predicted == pytest.approx(phases * (inside + across) / 1e3, rel=1e-4), kind
    # Two groups of four first-generation cards meet over PCIe, as path_between says.
    ring = 3 * 7400 + 3 / 4 * n / (30e9 * 0.69) * 1e9
    pcie = 7400 + n / 2 / 4 / (32e9 * 0.69) * 1e9
    assert one(tmp_path, "910A", "allreduce", ranks=8, nbytes=n).predicted == pytest.approx(
        2 * (ring + pcie) / 1e3, rel=1e-4
    )


def test_trust_knows_the_kind_the_chip_and_the_ranks(tmp_path):
    def label(soc, kind, **columns):
        return one(tmp_path, soc, kind, **columns).confidence.label

    assert [label("A2", "allreduce", ranks=r, nbytes=1 << 20) for r in (2, 8, 64)] == [
        "extrapolated", "calibrated", "extrapolated"
    ]  # fmt: skip
    assert label("A2", "allgather", ranks=8, nbytes=1 << 20) == "extrapolated"
    assert label("910B3", "stream_sync_idle") == "extrapolated"
    assert label("910B3", "task_minus_core") == "calibrated"
    assert label("910B1", "gemm_task", m=8192, n=8192, k=8192, note="ladder: const") == "extrapolated"  # a guessed tile
    line = "X,910B2,fa_fwd,fp16,,,,1,1,4096,4096,{},{},,,,1,us,,"
    found = rows(tmp_path, *(line.format(*each) for each in ((128, 0), (128, 1), (64, 0))))
    assert [row.confidence.label for row in found] == ["calibrated", "extrapolated", "extrapolated"]


def test_the_chips_of_each_measured_kind_are_those_of_the_file(report):
    for name, entry in confidence._bands().items():
        if "kinds" in entry:
            rows_of = [row for row in report if row.group == name and row.target.kind != "mla_decode_peak"]
            measured = {row.target.kind: {find_chip(row.target.soc).name} for row in rows_of}
            assert {kind: set(chips) for kind, chips in entry["kinds"].items()} == measured, name


def test_spellings_of_kinds_say_the_same(tmp_path):
    same = [("allreduce", "All_Reduce"), ("reducescatter", "reduce_scatter"), ("allgather", "AllGather")]
    for first, second in same:
        found = [one(tmp_path, "A2", kind, ranks=8, nbytes=1 << 20).predicted for kind in (first, second)]
        assert found[0] == found[1] is not None
    found = [
        one(tmp_path, "A2", kind, m=64, n=256).predicted for kind in ("layer_norm", "layernorm", "aclnn_LayerNorm")
    ]
    assert found[0] == found[1] == found[2] is not None


def test_a_blank_chip_or_a_size_of_zero_costs_one_row(tmp_path):
    blank = one(tmp_path, "", "add", m=64, n=64)
    assert blank.predicted is None and "names no chip" in blank.reason
    zero = one(tmp_path, "A2", "allreduce", ranks=8, nbytes=0)
    assert zero.predicted is None and "column bytes is empty" in zero.reason


def test_rows_that_are_chip_constants_are_counted_apart(report):
    found = validation.summary(report)
    assert found["constants"]["rows"] + found["without_constants"]["rows"] == found["rows"]
    assert found["constants"]["median_abs_error"] < 0.001 < found["without_constants"]["median_abs_error"]
    assert found["without_constants"]["p90_abs_error"] <= 0.25
