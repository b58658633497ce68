"""Links and AllReduce against hand-written sums and published times."""

import numpy as np
import pytest

from ascend_jax.chip import chip, links

A2, A3, FIRST, PLAIN = (chip(name) for name in ("Ascend910B2", "Ascend910_9392", "Ascend910A", "Ascend310P3"))


def test_fabrics():
    assert [links.fabric(spec) for spec in (A2, A3, FIRST, PLAIN)] == ["mesh", "clos", "ring", "none"]
    assert float(links.path_rate(A2, "fabric")) / 1e9 == pytest.approx(28 * 0.976)
    assert float(links.path_rate(A3, "fabric")) / 1e9 == pytest.approx(7 * 28 * 0.976)
    assert float(links.path_rate(A2, "host")) / 1e9 == pytest.approx(24.926)
    assert float(links.path_rate(A2, "network")) / 1e9 == pytest.approx(25 * 0.976)
    assert float(links.path_latency_ns(A3, "die")) == 218


@pytest.mark.parametrize(
    ("spec", "pair", "path"),
    [
        (A2, (0, 7), "fabric"),
        (A2, (0, 8), "network"),
        (A3, (2, 3), "die"),
        (A3, (3, 4), "fabric"),
        (A3, (0, 16), "network"),
        (FIRST, (1, 2), "fabric"),
        (FIRST, (3, 4), "pcie"),
        (FIRST, (7, 8), "network"),
        (PLAIN, (0, 1), "pcie"),
    ],
)
def test_path_between(spec, pair, path):
    assert links.path_between(spec, *pair) == links.path_between(spec, *pair[::-1]) == path


def test_copy_time():
    assert float(links.copy_between_ns(A2, 1 << 20, "fabric")) == pytest.approx(
        500 + (1 << 20) / (28 * 0.976), rel=1e-5
    )


PUBLISHED = {16384: 15.19, 262144: 21.47, 2097152: 65.01, 8388608: 170.19, 33554432: 496.23, 134217728: 1800.39}


@pytest.mark.parametrize("nbytes", PUBLISHED)
def test_mesh_all_reduce_against_the_published_fit(nbytes):
    assert float(links.all_reduce_ns(A2, nbytes, 8)) / 1e3 == pytest.approx(PUBLISHED[nbytes], rel=0.03)


def test_forms_by_hand():
    n, link = 1e9, 28e9 * 0.69
    fill = 1e9 * min(n, 4 << 20) / 9e10
    mesh = 2 * 7400 + 1e9 * 2 * n / 4 / link + fill
    assert float(links.all_reduce_ns(A2, n, 4)) == pytest.approx(mesh, rel=1e-5)
    clos = 2 * 7400 + 1e9 * 2 * 15 / 16 * n / (7 * link) + fill
    assert float(links.all_reduce_ns(A3, n, 16)) == pytest.approx(clos, rel=1e-5)
    ring = 6 * 7400 + 1e9 * 1.5 * n / (30e9 * 0.69)
    assert float(links.all_reduce_ns(FIRST, n, 4)) == pytest.approx(ring, rel=1e-5)
    across = 2 * 7400 + 1e9 * (n / 4) / (25e9 * 0.69)
    assert float(links.all_reduce_ns(A2, n, 4, servers=2)) == pytest.approx(mesh + across, rel=1e-5)
    assert float(links.all_reduce_ns(A2, n, 1)) == 0
    host = float(links.blocking_all_reduce_ns(FIRST, n, 4))
    assert host == pytest.approx(ring + float(FIRST["collective_host_ns"]), rel=1e-5)


def test_more_bytes_never_take_less():
    times = links.all_reduce_ns(A2, 2.0 ** np.arange(10, 31), 8)
    assert (np.diff(times) > 0).all()


def test_bad_devices_and_paths():
    with pytest.raises(ValueError, match="two different devices"):
        links.path_between(A2, 1, 1)
    with pytest.raises(ValueError, match="no path 'wifi'"):
        links.path_rate(A2, "wifi")
    with pytest.raises(ValueError, match="no path 'wifi'"):
        links.path_latency_ns(A2, "wifi")
