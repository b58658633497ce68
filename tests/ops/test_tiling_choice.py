"""The choice of tiles from outside: explanation, refusals, trust, and measured times."""

import pytest

from ascend_jax.chip import OnChipError, chip
from ascend_jax.ops import tiling
from ascend_jax.ops.attention.tiling import AttentionShape
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
    times = Measurements({("matmul", ((256, 128), (128, 512)), "float16"): 7.5}, "mine.csv")
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
