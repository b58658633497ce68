"""`--measurements`: your own times in place of predicted ones, in every command that tells a time."""

import json

import pytest

from ascend_jax.cli.main import main

JOB = ["run", "flash-attention", "--heads", "2", "--seq", "48", "--dim", "16"]
QKV = ";".join(["1x2x48x16"] * 3)


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.csv"
    rows = [f"FlashAttentionScore,{QKV},float16,{us},{mode}" for us, mode in ((77.5, 0), (20.0, 3), (30.0, 3))]
    path.write_text("\n".join(["operator,shape,dtype,us,sparse_mode", *rows, "matmul,64x32;32x16,float16,9,"]) + "\n")
    return str(path)


@pytest.mark.parametrize(("flags", "us", "band"), [([], 77.5, 0.26), (["--causal"], 25.0, 0.2)])
def test_a_launch_takes_its_measured_time(flags, us, band, own, capsys):
    """One row keeps the model's band; two rows of 20 and 30 us lie 20 % from their median."""
    assert main(["ascend-jax", *JOB, *flags, "--measurements", own]) == 0
    text = capsys.readouterr().out
    assert f"{us:.1f} us are your own measurement" in text and "measured: " in text
    assert main(["ascend-jax", *JOB, *flags, "--measurements", own, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    step = next(step for step in found["steps"] if step["name"] == "execution")
    assert step["end_us"] - step["start_us"] == pytest.approx(us, abs=0.002)
    assert found["calibration"] == "calibrated" and found["error_band"] == band


def test_roofline_takes_them_too(own, capsys):
    assert main(["ascend-jax", "roofline", "matmul:64x16x32", "--measurements", own, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["points"][0]["time_us"] == 9


@pytest.mark.parametrize("command", [JOB, ["validate"], ["roofline", "matmul:64x16x32"]])
def test_bad_files_are_one_line(command, tmp_path, capsys):
    path = tmp_path / "bad.csv"
    path.write_text("operator,shape,dtype,us\nmatmul,4x4,float16,0\n")
    for name, words in ((path, "line 2: column us is '0'"), (tmp_path / "none.csv", "no such file")):
        assert main(["ascend-jax", *command, "--measurements", str(name)]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1 and words in printed.err
    assert main(["ascend-jax", *JOB, "--cards", "2", "--measurements", str(path)]) == 2
