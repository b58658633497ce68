"""The catalogue against numbers from the platform files and published measurements, written out by hand."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ascend_jax.chip import FIELDS, ChipSpec, chip, chip_sheet, chips, load_chip_file, peak_flops
from ascend_jax.chip.fields import MAY_BE_ZERO

NAMES = (
    "Ascend310",
    "Ascend310B1",
    "Ascend310P1",
    "Ascend310P3",
    "Ascend910A",
    "Ascend910B1",
    "Ascend910B2",
    "Ascend910B2C",
    "Ascend910B3",
    "Ascend910B4",
    "Ascend910B4-1",
    "Ascend910B_gen1",
    "Ascend910PremiumA",
    "Ascend910ProA",
    "Ascend910ProB",
    "Ascend910_9362",
    "Ascend910_9372",
    "Ascend910_9381",
    "Ascend910_9382",
    "Ascend910_9391",
    "Ascend910_9392",
    "Ascend950DT_9581",
    "Ascend950DT_9591",
    "Ascend950PR_9589",
    "Ascend950PR_9599",
)
MIB, GIB = 1 << 20, 1 << 30

# cube cores, vector cores, MHz, HBM bytes, L2 MiB, L1 KiB, L0C KiB, UB KiB, fp16 TFLOPS
EXPECTED = {
    "Ascend910A": (32, 32, 1000, 32 * GIB, 32, 1024, 256, 256, 262.14),
    "Ascend910PremiumA": (32, 32, 1220, 32 * GIB, 32, 1024, 256, 256, 319.82),
    "Ascend910ProA": (32, 32, 1100, 32 * GIB, 32, 1024, 256, 256, 288.36),
    "Ascend910ProB": (30, 30, 1150, 32 * GIB, 32, 1024, 256, 256, 282.62),
    "Ascend910B_gen1": (30, 30, 900, 32 * GIB, 32, 1024, 256, 256, 221.18),
    "Ascend910B1": (24, 48, 1850, 64 * GIB, 192, 512, 128, 192, 363.72),
    "Ascend910B2": (24, 48, 1800, 64 * GIB, 192, 512, 128, 192, 353.89),
    "Ascend910B2C": (24, 48, 1800, 64 * GIB, 192, 512, 128, 192, 353.89),
    "Ascend910B3": (20, 40, 1800, 64 * GIB, 192, 512, 128, 192, 294.91),
    "Ascend910B4": (20, 40, 1500, 32 * GIB, 96, 512, 128, 192, 245.76),
    "Ascend910B4-1": (20, 40, 1500, 32 * GIB, 168, 512, 128, 192, 245.76),
    "Ascend910_9391": (24, 48, 1850, 64 * GIB, 192, 512, 128, 192, 363.72),
    "Ascend910_9392": (24, 48, 1850, 64 * GIB, 192, 512, 128, 192, 363.72),
    "Ascend910_9381": (24, 48, 1800, 64 * GIB, 192, 512, 128, 192, 353.89),
    "Ascend910_9382": (24, 48, 1800, 64 * GIB, 192, 512, 128, 192, 353.89),
    "Ascend910_9372": (20, 40, 1800, 64 * GIB, 192, 512, 128, 192, 294.91),
    "Ascend910_9362": (20, 40, 1500, 64 * GIB, 168, 512, 128, 192, 245.76),
    "Ascend310": (2, 2, 680, 8 * GIB, 8, 1024, 256, 248, 11.14),
    "Ascend310P1": (10, 18, 1060, 23999807488, 16, 1024, 256, 256, 86.84),
    "Ascend310P3": (8, 15, 1060, 23999807488, 16, 1024, 256, 256, 69.47),
    "Ascend310B1": (1, 1, 1224, 32 * GIB, 4, 1024, 128, 248, 10.03),
    "Ascend950PR_9589": (32, 64, 1650, 128 * GIB, 128, 512, 256, 248, 432.54),
    "Ascend950PR_9599": (36, 72, 1800, 128 * GIB, 128, 512, 256, 248, 530.84),
    "Ascend950DT_9581": (32, 64, 1650, 144 * GIB, 128, 512, 256, 248, 432.54),
    "Ascend950DT_9591": (36, 72, 1800, 144 * GIB, 128, 512, 256, 248, 530.84),
}


def test_names():
    assert chips() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_platform_numbers(name):
    spec = chip(name)
    cube, vector, mhz, hbm, l2, l1, l0c, ub, tflops = EXPECTED[name]
    found = [int(spec[key]) for key in ("cube_cores", "vector_cores", "clock_hz", "hbm_bytes", "l2_bytes")]
    assert found == [cube, vector, mhz * 10**6, hbm, l2 * MIB]
    assert [int(spec[f"{key}_bytes"]) // 1024 for key in ("l1", "l0c", "ub")] == [l1, l0c, ub]
    assert int(spec["l0a_bytes"]) == int(spec["l0b_bytes"]) == 65536
    assert float(peak_flops(spec, 2)) / 1e12 == pytest.approx(tflops, abs=0.005)
    assert float(peak_flops(spec, 1)) == pytest.approx(2 * float(peak_flops(spec, 2)))


@pytest.mark.parametrize("name", NAMES)
def test_every_value_is_stated_positive_and_as_written(name):
    spec, sheet = chip(name), chip_sheet(name)
    assert [row[0] for row in sheet] == list(FIELDS)
    for field, value, unit, source, certainty in sheet:
        assert (value > 0 or field in MAY_BE_ZERO) and math.isfinite(value), field
        assert source and certainty in ("high", "medium", "low")
        if unit in ("bytes", "count", "Hz", "ns"):
            assert int(spec[field]) == value, f"{field} is not exact in float32"
        assert float(spec[field]) == pytest.approx(value, rel=1e-7)


def test_measured_rates_of_a2():
    spec = chip("Ascend910B3")
    assert float(spec["gm_l1_bytes_per_s"]) == pytest.approx(141.11e9)
    assert float(spec["l1_l0a_bytes_per_s"] / spec["clock_hz"]) == pytest.approx(251, rel=0.01)  # ini: 512
    assert float(spec["l1_l0b_bytes_per_s"] / spec["clock_hz"]) == pytest.approx(122, rel=0.01)  # ini: 256
    assert float(spec["l0c_gm_bytes_per_s"]) == pytest.approx(143.52e9)
    assert float(spec["h2d_bytes_per_s"]) == pytest.approx(24.926e9)
    assert 84.53 < float(peak_flops(chip("Ascend910B2"), 4)) / 1e12 < 84.53 / 0.95  # above the best measured rate
    assert float(chip("Ascend910B4")["hbm_bytes_per_s"]) == pytest.approx(0.8e12)


@pytest.mark.parametrize(
    ("name", "streams", "events", "depth"),
    [
        ("910B2", 1984, 65536, 2013),
        ("910_9392", 1984, 65536, 2013),
        ("950PR_9599", 1984, 65536, 2014),
        ("910A", 2048, 65535, 2042),
        ("310P3", 1024, 1023, 2042),
        ("310B1", 512, 65536, 2010),
    ],
)
def test_runtime_limits(name, streams, events, depth):
    spec = chip(name)
    assert [int(spec[key]) for key in ("max_streams", "max_events", "queue_depth")] == [
        streams,
        events,
        depth,
    ]


def test_only_measured_chips_call_themselves_calibrated():
    calibrated = {name for name in NAMES if chip(name).calibration == "calibrated"}
    assert calibrated == {"Ascend910B1", "Ascend910B2", "Ascend910B3", "Ascend910B4"}


def test_the_first_generation_sku_has_a_name_of_its_own():
    assert chip("910B_gen1").family == "910 first gen" and int(chip("910B_gen1")["fabric_kind"]) == 2


@pytest.mark.parametrize("name", ["310p", "310b", "950", "950PR", "910"])
def test_generations_are_no_chips(name):
    with pytest.raises(ValueError, match=r"refused.*no(t a)? chip|names a (generation|product line)"):
        chip(name)


@pytest.mark.parametrize("alias", ["910B2", "910b2", "ascend910b2", "ASCEND910B2", " Ascend910B2 "])
def test_aliases(alias):
    assert chip(alias) is chip("Ascend910B2")


@pytest.mark.parametrize("name", ["Ascend910B", "910b"])
def test_first_generation_sku_is_refused_with_the_way_out(name):
    with pytest.raises(ValueError, match=r"refused.*first-generation.*Ascend910B2"):
        chip(name)


def test_package_name_points_to_the_die():
    with pytest.raises(ValueError, match=r"two devices.*Ascend910_9392"):
        chip("Ascend910C")


def test_unknown_chip_names_what_there_is():
    with pytest.raises(ValueError, match=r"'H100'.*Ascend910B2.*chips\(\)"):
        chip("H100")
    with pytest.raises(ValueError, match="'family-a2'"):
        chip("family-a2")


def test_spec_is_one_leaf_and_read_only():
    spec = chip("910B2")
    assert len(jax.tree.leaves(spec)) == 1
    assert spec.values.dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        spec.values[0] = 1


def test_replace_is_functional_and_broadcasts():
    spec = chip("910B2")
    other = spec.replace(clock_hz=1e9, cube_cores=4)
    assert float(spec["clock_hz"]) == 1.8e9 and float(other["clock_hz"]) == 1e9 and int(other["cube_cores"]) == 4
    assert isinstance(other.values, np.ndarray)
    batch = spec.replace(clock_hz=np.array([1e9, 2e9]))
    assert batch.values.shape == (2, len(FIELDS))
    np.testing.assert_array_equal(batch["cube_cores"], [24, 24])
    traced = jax.jit(lambda spec, clock: spec.replace(clock_hz=clock)["clock_hz"])(spec, jnp.array([1e9, 2e9]))
    np.testing.assert_array_equal(traced, [1e9, 2e9])
    by_lane = jax.vmap(lambda spec: spec["clock_hz"] * 2)(batch)
    np.testing.assert_array_equal(by_lane, [2e9, 4e9])


def test_gradient_reaches_a_field():
    slope = jax.grad(lambda spec: 1e9 / spec["clock_hz"])(chip("910B2"))
    assert float(slope["clock_hz"]) == pytest.approx(-1e9 / 1.8e9**2, rel=1e-5)
    assert float(slope["cube_cores"]) == 0


def test_unknown_field_names_close_ones():
    with pytest.raises(KeyError, match="clock_hz"):
        chip("910B2")["clock_mhz"]
    with pytest.raises(KeyError, match="hbm_bytes"):
        chip("910B2").replace(hbm_byte=1)


def test_peak_refuses_odd_operands():
    with pytest.raises(ValueError, match="dtype_bytes=8"):
        peak_flops(chip("910B2"), 8)


def _write(path: Path, text: str) -> ChipSpec:
    path.write_text('base = "Ascend910B2"\n' + text, encoding="utf-8")
    return load_chip_file(path)


def test_own_chip_inherits(tmp_path):
    clock = 'clock_hz = { value = 1_000_000_000, source = "mine", certainty = "low" }'
    spec = _write(tmp_path / "Mine.toml", f'calibration = "uncalibrated"\n{clock}')
    assert (spec.name, spec.calibration, float(spec["clock_hz"])) == ("Mine", "uncalibrated", 1e9)
    assert int(spec["cube_cores"]) == 24


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("clock_hz", "0", "above zero"),
        ("clock_hz", "-1", "above zero"),
        ("hbm_bytes_per_s", "nan", "finite"),
        ("hbm_bytes_per_s", "inf", "finite"),
        ("clock_hz", "true", "finite number"),
        ("clock_hz", '"fast"', "finite number"),
        ("hbm_bytes", "24_000_000_001", "float32 holds"),
        ("cube_fp32_share", "1.5", "at most 1"),
        ("clock_mhz", "1800", "close names: clock_hz"),
    ],
)
def test_bad_values_are_named(tmp_path, field, value, rule):
    path = tmp_path / "Bad.toml"
    with pytest.raises(ValueError, match=rule) as error:
        _write(path, f'{field} = {{ value = {value}, source = "test", certainty = "low" }}')
    assert str(path) in str(error.value) and field in str(error.value)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("clock_hz = 1", "a table of value, source and certainty"),
        ('clock_hz = { value = 1, source = "", certainty = "low" }', "where the value is from"),
        ('clock_hz = { value = 1, source = "x", certainty = "sure" }', "high, medium, low"),
        ('calibration = "maybe"', "calibrated or uncalibrated"),
        ("family = 3", "as a string"),
        ("= 1", "not a TOML file"),
    ],
)
def test_bad_files_are_named(tmp_path, text, rule):
    with pytest.raises(ValueError, match=rule) as error:
        _write(tmp_path / "Bad.toml", text)
    assert "Bad.toml" in str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("l1_bytes", "1024", "at least 4096, what the smallest tile takes"),
        ("l0a_bytes", "512", "at least 1024"),
        ("ub_bytes", "512", "at least 1024"),
        ("vector_cores", "24", "at least 48, the vector cores beside all cube cores"),
        ("hbm_bytes", "4096", "one page"),
        ("l2_bytes", "64", "one line"),
    ],
)
def test_values_that_cannot_be_together(tmp_path, field, value, rule):
    with pytest.raises(ValueError, match=rule) as error:
        _write(tmp_path / "Bad.toml", f'{field} = {{ value = {value}, source = "test", certainty = "low" }}')
    assert field in str(error.value)


def test_a_path_is_a_chip_too(tmp_path):
    _write(tmp_path / "Mine.toml", 'calibration = "uncalibrated"')
    assert chip(str(tmp_path / "Mine.toml")).name == "Mine"
    assert chip_sheet(str(tmp_path / "Mine.toml"))[0][:2] == ("cube_cores", 24)
    with pytest.raises(ValueError, match=r"none\.toml: No such file"):
        chip(str(tmp_path / "none.toml"))


def test_missing_field_base_and_cycle(tmp_path):
    path = tmp_path / "Bad.toml"
    path.write_text('family = "x"\ncalibration = "uncalibrated"\n', encoding="utf-8")
    with pytest.raises(ValueError, match="cube_cores is missing"):
        load_chip_file(path)
    path.write_text('base = "nowhere"\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"nowhere\.toml"):
        load_chip_file(path)
    path.write_text('base = "Bad"\n', encoding="utf-8")
    with pytest.raises(ValueError, match="cycle"):
        load_chip_file(path)
    with pytest.raises(FileNotFoundError):
        load_chip_file(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("clock_hz", "1", "from 1e\\+06 to 1e\\+11 Hz"),
        ("hbm_bytes_per_s", "1e30", "from 1e\\+06 to 1e\\+16"),
        ("l2_bytes_per_s", "1_000_000_000", "at least hbm_bytes_per_s"),
        ("fabric_kind", "9", "from 0 to 3"),
        ("cube_macs_per_cycle", "1", "from 16 to 1e\\+06"),
        ("kernel_head_ns", "17_179_869_184", "from 0 to 1e\\+10 ns"),
        ("l1_bytes", "5000", "whole blocks of 32 bytes"),
    ],
)
def test_values_outside_what_chips_have(tmp_path, field, value, rule):
    with pytest.raises(ValueError, match=rule) as error:
        _write(tmp_path / "Bad.toml", f'{field} = {{ value = {value}, source = "test", certainty = "low" }}')
    assert field in str(error.value)


@pytest.mark.parametrize(("field", "value"), [("clock_hz", -1e9), ("clock_hz", 0), ("l1_bytes", np.array([1, -1]))])
def test_replace_refuses_what_no_chip_has(field, value):
    with pytest.raises(ValueError, match=f"field {field} is .*; rule"):
        chip("910B2").replace(**{field: value})


def test_a_file_is_uncalibrated_unless_it_says_so(tmp_path):
    assert _write(tmp_path / "Mine.toml", "").calibration == "uncalibrated"
    assert _write(tmp_path / "Ascend910B2.toml", "").calibration == "uncalibrated"  # its base is the catalogue's
