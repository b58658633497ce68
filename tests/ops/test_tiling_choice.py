"""The choice of tiles from outside: explanation, refusals, trust, and measured times."""

import pytest

from ascend_jax.chip import OnChipError, chip
from ascend_jax.ops import tiling
from ascend_jax.ops.attention.tiling import AttentionShape
from ascend_jax.ops.attention.visibility import SparseMode
from ascend_jax.ops.timing.matmul import MatmulShape
from ascend_jax.ops.timing.measured import Measurements

ASKED = {
    "matmul": (4096, 4096, 4096),
    "flash_attention": (1, 32, 1024, 1024, 128),
    "flash_attention_backward": (1, 8, 2048, 2048, 128),
    "softmax": (4096, 4096),
}


@pytest.fixture(scope="module")
def chosen():
    return {name: tiling.choose(name, shape, "float16", "Ascend910B2") for name, shape in ASKED.items()}


@pytest.mark.parametrize("name", ASKED)
def test_the_fastest_legal_candidate_wins(chosen, name):
    choice = chosen[name]
    legal = [each for each in choice.candidates if not each.refused]
    assert choice.tile == choice.candidates[0].tile and not choice.candidates[0].refused
    assert choice.time_us == pytest.approx(min(each.time_us for each in legal), rel=1e-3)
    assert choice.why.startswith(f"bound by {choice.limit}") and choice.flop > 0
    refused = [each for each in choice.candidates if each.refused]
    assert all("bytes asked for" in each.refused and "available" in each.refused for each in refused)
    assert choice.candidates[len(legal) :] == tuple(refused), "legal ones come first"


def test_limits_are_those_of_the_shape(chosen):
    assert chosen["matmul"].limit == "cube" and chosen["flash_attention"].limit == "vector"
    assert tiling.choose("matmul", (16, 16384, 16384), "float16", "Ascend910B2").limit == "hbm"
    assert tiling.choose("matmul", (64, 64, 64), "float16", "Ascend910B2").limit == "launch"


def test_a_level_that_is_too_small_is_named():
    tight = chip("Ascend910B2").replace(l1_bytes=65536)
    choice = tiling.choose("matmul", (4096, 4096, 4096), "float16", tight)
    assert "L1 size is the next limit" in choice.why
    loose = tiling.choose("matmul", (4096, 4096, 4096), "float16", "Ascend910B2")
    assert choice.time_us > loose.time_us
    with pytest.raises(ValueError, match=r"no tile fits.*UB: \d+ bytes asked for, 512 available"):
        tiling.choose("softmax", (4096, 4096), "float16", chip("Ascend910B2").replace(ub_bytes=512))


def test_an_illegal_tile_is_refused_with_numbers():
    with pytest.raises(OnChipError, match="L0C: 262144 bytes asked for, 131072 available"):
        tiling.check("matmul", (4096, 4096, 4096), "float16", "910B2", (256, 256, 64, 1))
    with pytest.raises(OnChipError, match="UB: 208896 bytes asked for, 196608 available"):
        tiling.check("flash_attention", (1, 1, 8192, 8192, 128), "float16", "910B2", (128, 2048))
    assert bool(tiling.check("softmax", (64, 64), "float16", "910B2", (1024,)).fits)


def test_trust():
    small, large = (4096, 4096, 4096), (32768, 65536, 65536)
    labels = {
        ("910B2", small): "calibrated",
        ("910B2", large): "extrapolated",
        ("910B4", small): "extrapolated",
        ("310P3", small): "uncalibrated",
    }
    for (name, shape), label in labels.items():
        found = tiling.choose("matmul", shape, "float16", name).confidence
        assert found.label == label and 0 < found.band < 1 and found.why
    bands = [tiling.choose("matmul", small, "float16", name).confidence.band for name in ("910B2", "910B4", "310P3")]
    assert bands == sorted(bands) and bands[0] < bands[2]


def test_shapes_as_objects_and_measured_times():
    shape = MatmulShape(256, 512, 128, 2)
    times = Measurements({("matmul", ((256, 128), (128, 512)), "float16", 0): 7.5}, "mine.csv")
    found = tiling.choose("matmul", shape, "float16", "910B2", measurements=times)
    assert found.time_us == 7.5 and found.confidence.why == "measured: mine.csv"
    predicted = tiling.choose("matmul", shape, "bfloat16", "910B2", measurements=times)
    assert predicted.time_us != 7.5, "another dtype was measured"
    queries = AttentionShape(1, 8, 2, 16, 32, 64, 64, 2)
    assert tiling.input_shapes("flash_attention", queries) == [(1, 8, 16, 64), (1, 2, 32, 64), (1, 2, 32, 64)]


@pytest.mark.parametrize(
    ("operator", "shape", "dtype", "name", "words"),
    [
        ("conv", (1, 1), "float16", "910B2", "'conv' has no tile model"),
        ("matmul", (1, 2), "float16", "910B2", r"takes \(m, n, k"),
        ("flash_attention", (1, 2, 3), "float16", "910B2", "batch, heads, q_len"),
        ("add", (1, 2, 3), "float16", "910B2", "rows, columns"),
        ("add", (1, 2), "complex64", "910B2", "dtype 'complex64'"),
        ("add", (1, 2), "float16", "H100", "unknown chip"),
        ("matmul", (0, 2, 3), "float16", "910B2", "m=0"),
    ],
)
def test_bad_requests(operator, shape, dtype, name, words):
    with pytest.raises(ValueError, match=words):
        tiling.choose(operator, shape, dtype, name)


@pytest.mark.parametrize(
    ("tile", "words"), [((16, 16), "4 sides: bm, bn, bk, steps_k"), ((0, 16, 16, 1), "at least 1")]
)
def test_bad_tiles(tile, words):
    with pytest.raises(ValueError, match=words):
        tiling.check("matmul", (16, 16, 16), "float16", "910B2", tile)


def test_only_chips_of_the_catalogue_are_calibrated(tmp_path):
    shape, spec = (4096, 4096, 4096), chip("Ascend910B2")
    own = tmp_path / "Ascend910B2.toml"
    own.write_text('base = "Ascend910B2"\n')
    assert chip(str(own)).calibration == "uncalibrated"
    slow = tmp_path / "Slow.toml"
    slow.write_text('base = "Ascend910B2"\nclock_hz = { value = 3e8, source = "x", certainty = "low" }\n')
    chips = [spec, spec.replace(clock_hz=3e8), chip(str(own)), chip(str(slow)), chip("Ascend950PR_9589")]
    labels = [tiling.choose("matmul", shape, "float16", each).confidence.label for each in chips]
    assert labels == ["calibrated", "extrapolated", "uncalibrated", "uncalibrated", "extrapolated"]


def test_attention_is_calibrated_as_it_was_measured():
    cases = {
        (1, 8, 2048, 2048, 128): "calibrated",
        (1, 8, 2048, 2048, 64): "extrapolated",
        (4, 32, 1, 32768, 128): "extrapolated",  # decode
    }
    for shape, label in cases.items():
        assert tiling.choose("flash_attention", shape, "float16", "910B2").confidence.label == label, shape
    causal = AttentionShape(1, 8, 8, 2048, 2048, 128, 128, 2, SparseMode.RIGHT_DOWN_CAUSAL)
    assert tiling.choose("flash_attention", causal, "float16", "910B2").confidence.label == "extrapolated"
    shapes = tuple(tiling.input_shapes("flash_attention", causal))
    full = Measurements({("flashattention", shapes, "float16", 0): 9.0}, "mine.csv")
    masked = Measurements({("flashattention", shapes, "float16", 3): 9.0}, "mine.csv", {}, 0)
    times = [
        tiling.choose("flash_attention", causal, "float16", "910B2", measurements=m).time_us for m in (full, masked)
    ]
    assert times[0] != 9.0 and times[1] == 9.0


@pytest.mark.parametrize(
    ("operator", "tile", "words"),
    [
        ("matmul", (17, 33, 5, 1), "bm, bn, bk are multiples of 16"),
        ("matmul", (16, 16, 16, 1.5), "1.5 is no whole number"),
        ("matmul", (16, 16, float("nan"), 1), "nan is no whole number"),
        ("flash_attention", (100, 100), "q_rows, kv_cols are multiples of 16"),
        ("flash_attention_backward", (64, 100), "kv_rows, q_cols are multiples of 16"),
    ],
)
def test_illegal_sides(operator, tile, words):
    with pytest.raises(ValueError, match=words):
        tiling.check(operator, ASKED[operator], "float16", "910B2", tile)


@pytest.mark.parametrize(
    ("shape", "dtype", "words"),
    [
        ((4096.7, 64, 64), "float16", "4096.7 is no whole number"),
        (4096, "float16", "a sequence of whole numbers"),
        ((2**40, 64, 64), "float16", "1099511627776 is no whole number up to"),
        (MatmulShape(64, 64, 64, 4), "float16", "dtype_bytes=4, dtype float16 has 2"),
        (AttentionShape(1, 1, 1, 64, 64, 64, 64, 2), "float16", "matmul takes a MatmulShape"),
    ],
)
def test_shapes_that_cannot_be(shape, dtype, words):
    with pytest.raises(ValueError, match=words):
        tiling.choose("matmul", shape, dtype, "910B2")


def test_the_smallest_tile_is_named_if_none_fits():
    tight = chip("Ascend910B2").replace(l0a_bytes=1024)
    # By hand: 16 rows of a 64-element step, two bytes each, twice: 4096 bytes of L0A.
    with pytest.raises(ValueError, match="no tile fits; smallest: L0A: 4096 bytes asked for, 1024 available"):
        tiling.choose("matmul", (4096, 4096, 4096), "float16", tight)
