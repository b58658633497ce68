"""Roofline points by hand, of operators and of a program's kernels, and the command with its pictures."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.cli import roofline_picture
from ascend_jax.cli.main import main
from ascend_jax.ops.timing import roofline
from ascend_jax.ops.timing.roofline import Point
from ascend_jax.runtime.kernels import Argument, KernelSpec
from ascend_jax.runtime.layout import NONE, Field, Kind, Resource

B2 = aj.chip("Ascend910B2")


def command(*flags):
    return main(["ascend-jax", "roofline", *flags])


def test_a_point_by_hand():
    point = Point("x", 8e9, 1e9, "hbm", 1000.0, 100e12, 1.5e12, "cube")
    assert (point.intensity, point.achieved, point.roof) == (8, 8e12, 12e12)
    assert Point("y", 8e12, 1e9, "hbm", 1e6, 100e12, 1.5e12, "cube").roof == 100e12


@pytest.mark.parametrize(
    ("operator", "shape", "flop", "peak"),
    [
        ("matmul", (4096, 4096, 4096), 2 * 4096**3, 353.9e12),
        ("flash_attention", (1, 4, 2048, 2048, 128), 4 * 4 * 2048**2 * 128, 353.9e12),
        ("add", (8192, 8192), 8192**2, 48 * 128 * 1.8e9),
    ],
)
def test_operators(operator, shape, flop, peak):
    point = roofline.operator_point(operator, shape, "float16", B2)
    assert point.flop == flop and point.peak_flops == pytest.approx(peak, rel=1e-3)
    assert 0 < point.achieved < point.roof * 1.001
    assert point.memory == ("hbm" if operator != "matmul" else "l2")


def test_an_operator_that_computes_nothing():
    with pytest.raises(ValueError, match="computes nothing"):
        roofline.operator_point("copy", (64, 64), "float16", B2)


def kernel_row(**columns):
    row = {Field.KIND: Kind.KERNEL, Field.STREAM: 0, Field.KERNEL: NONE, Field.BLOCKS: 48, Field.BLOCK_LO: 50_000}
    row |= {Field.NEED + Resource.CUBE: 1, Field.CUBE_NS: 40_000, Field.MOVED: 1 << 20, Field.HEAD_NS: 3000}
    return row | {getattr(Field, name): value for name, value in columns.items()}


def test_kernels_of_a_program_by_hand(tmp_path, capsys):
    program = aj.program_from_rows([kernel_row(), kernel_row(), kernel_row(BLOCKS=24)])
    first, second = roofline.program_points(program, B2)
    assert first.time_us == pytest.approx(3 + 2 * 50) and second.time_us == pytest.approx(3 + 50)
    peak = 24 * 8192 * 1.8e9
    assert first.flop == pytest.approx(40e-6 * peak, rel=1e-5)  # all cores busy for 40 us
    assert first.moved_bytes == 64 << 20
    aj.save_program(program, tmp_path / "p.npz")
    assert command("--program", str(tmp_path / "p.npz"), "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["points"]) == 2
    assert command("--program", str(tmp_path / "none.npz")) == 2
    assert "no such file" in capsys.readouterr().err


def test_known_kernels_count_their_operations():
    half = np.dtype(np.float16)
    product = KernelSpec("Matmul", (), (Argument((3, 4, 5), half), Argument((3, 5, 6), half)), ())
    assert roofline.kernel_flop(product) == 2 * 3 * 4 * 5 * 6
    qkv = tuple(Argument((1, 2, 8, 16), half) for _ in range(3))
    fused = KernelSpec("FlashAttentionScore", (("sparse_mode", 2),), qkv, ())
    assert roofline.kernel_flop(fused) == 4 * 2 * 36 * 16
    assert roofline.kernel_flop(KernelSpec("Other", (), qkv, ())) == roofline.kernel_flop(None) == 0


def test_table_and_pictures(tmp_path, capsys):
    svg = tmp_path / "roof.svg"
    assert command("matmul:4096x4096x4096", "flash_attention:1,4,2048,2048,128", "--svg", str(svg)) == 0
    text = capsys.readouterr().out
    assert text.count("matmul 4096x4096x4096 float16") == 1 and "bound by" in text
    picture = text.split("\n\n")[1]
    assert "A" in picture and "B" in picture and "/" in picture and "---" in picture
    root = ElementTree.fromstring(svg.read_text())
    assert sum(each.tag.endswith("circle") for each in root.iter()) == 2
    labels = [each.text or "" for each in root.iter() if each.tag.endswith("text")]
    assert {"operations a byte (FLOP/byte)", "rate (TFLOPS)"} <= set(labels)
    assert any("TB/s" in label for label in labels)
    assert command("matmul:4096x4096x4096", "--json") == 0
    point = json.loads(capsys.readouterr().out)["points"][0]
    assert point["share_of_roof"] == pytest.approx(point["tflops"] / point["roof_tflops"], rel=1e-2)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["matmul"], "write NAME:SIZExSIZE"),
        (["matmul:1x2"], "takes (m, n, k"),
        (["conv:1x2"], "no tile model"),
        (["copy:64x64"], "computes nothing"),
        (["add:8x8", "--chip", "H100"], "unknown chip"),
        ([], "nothing to draw"),
        (["add:8x8", "--svg", "no/such/dir/x.svg"], "does not exist"),
    ],
)
def test_bad_requests_are_one_line(flags, words, capsys):
    assert command(*flags) == 2
    printed = capsys.readouterr()
    assert words in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_chips_from_a_file(tmp_path, capsys):
    path = tmp_path / "Mine.toml"
    clock = 'clock_hz = { value = 2_000_000_000, source = "mine", certainty = "low" }'
    path.write_text(f'base = "Ascend910B2"\ncalibration = "uncalibrated"\n{clock}\n')
    assert main(["ascend-jax", "chips", str(path)]) == 0
    assert "mine" in capsys.readouterr().out
    assert command("add:64x64", "--chip", str(path)) == 0
    assert "Mine" in capsys.readouterr().out
    path.write_text('base = "Ascend910B2"\nclock_hz = { value = -1, source = "mine", certainty = "low" }\n')
    assert main(["ascend-jax", "chips", str(path)]) == 2
    assert "clock_hz is -1" in capsys.readouterr().err


def test_a_picture_shows_every_roof_and_tells_points_apart(capsys):
    assert command("matmul:4096x4096x4096", "softmax:4096x4096") == 0
    assert capsys.readouterr().out.count("roof: ") == 2
    assert len(set(roofline_picture.letters([None] * 62))) == 62


def test_a_size_beyond_int32_is_one_line(capsys):
    assert command("matmul:99999999999x9x9") == 2
    printed = capsys.readouterr()
    assert "99999999999 is no whole number" in printed.err and printed.err.count("\n") == 1


def test_own_measurements_replace_the_model(tmp_path, capsys):
    path = tmp_path / "mine.csv"
    path.write_text("operator,shape,dtype,us\nmatmul,256x256;256x256,float16,77\n")
    assert command("matmul:256x256x256", "--measurements", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["points"][0]["time_us"] == 77
    assert command("matmul:256x256x256", "--measurements", str(tmp_path / "none.csv")) == 2
    assert "--measurements" in capsys.readouterr().err
