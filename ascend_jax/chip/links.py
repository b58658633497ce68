"""Links: how the devices of a product are joined, and the time of copies and AllReduce between them.

| equation | source |
|---|---|
| copy = latency + bytes / (rate * fabric_copy_efficiency) | ascend-dmi point to point |
| mesh AllReduce = 2 a + 2 (n / p) b | HCCL documents: all p - 1 links at once |
| ring AllReduce = 2 (p - 1) a + 2 (p - 1) / p n b | HCCL documents |
| ReduceScatter, AllGather = half of an AllReduce each | HCCL documents |
| Clos: mesh steps, (p - 1) / p n over all links of a device | a switch joins all links to any peers |
| across servers: ReduceScatter inside + AllReduce of n / p over RoCE + AllGather inside | HCCL documents |
| across the two groups of a first-generation server: the same over PCIe | HPCA 2021 |
| mesh, Clos: + min(n, chunk) / fill rate | the first chunk passes before anything overlaps |

a is `collective_step_ns`, b is 1 / (link rate * `collective_efficiency`). The reduction itself is hidden behind links.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ascend_jax.chip import cost
from ascend_jax.chip.spec import ChipSpec

FABRICS = ("none", "mesh", "ring", "clos")
PATHS = ("fabric", "die", "network", "pcie", "host")


def fabric(spec: ChipSpec) -> str:
    """How the devices of a server are joined, one of FABRICS; concrete specs only.

    Example:
        >>> from ascend_jax.chip import chip
        >>> fabric(chip("Ascend910B2")), fabric(chip("Ascend910_9392"))
        ('mesh', 'clos')
    """
    return FABRICS[int(spec["fabric_kind"])]


def path_between(spec: ChipSpec, source: int, target: int) -> str:
    """Path of a copy between two devices of a server or beyond, by device number; concrete specs only.

    Two dies of one package (A3) are neighbours 2i and 2i + 1; first-generation servers hold two groups of
    `server_devices` cards joined by PCIe; cards without a fabric are taken to sit in one host.

    Raises:
        ValueError: A negative device number, or both are the same.

    Example:
        >>> from ascend_jax.chip import chip
        >>> [path_between(chip("Ascend910_9392"), 0, n) for n in (1, 2, 16)]
        ['die', 'fabric', 'network']
        >>> [path_between(chip("Ascend910A"), 0, n) for n in (3, 4, 8)]
        ['fabric', 'pcie', 'network']
    """
    if min(source, target) < 0 or source == target:
        raise ValueError(f"devices {source}, {target}: two different devices, each at least 0")
    kind, size = fabric(spec), int(spec["server_devices"])
    if kind == "clos" and source // 2 == target // 2:
        return "die"
    if source // size == target // size and kind != "none":
        return "fabric"
    if kind == "none" or (kind == "ring" and source // (2 * size) == target // (2 * size)):
        return "pcie"
    return "network"


def path_rate(spec: ChipSpec, path: str) -> Any:
    """Rate of one copy along a path, one direction, `[...]` float32 bytes/s.

    A mesh gives a pair of devices one link, a Clos all links of a device.

    Raises:
        ValueError: No such path.
    """
    rates = {
        "die": "die_bytes_per_s",
        "network": "network_bytes_per_s",
        "pcie": "pcie_bytes_per_s",
        "host": "h2d_bytes_per_s",
    }
    if path == "host":
        return jnp.asarray(spec["h2d_bytes_per_s"])  # measured, so it holds its own efficiency
    if path in rates:
        return spec[rates[path]] * spec["fabric_copy_efficiency"]
    if path != "fabric":
        raise ValueError(f"no path {path!r}; there are {', '.join(PATHS)}")
    links = jnp.where(spec["fabric_kind"] == FABRICS.index("clos"), spec["fabric_links"], 1.0)
    return links * spec["fabric_link_bytes_per_s"] * spec["fabric_copy_efficiency"]


def path_latency_ns(spec: ChipSpec, path: str) -> Any:
    """Time of the first byte along a path, `[...]` float32 ns.

    Raises:
        ValueError: No such path.
    """
    fields = {
        "die": "die_latency_ns",
        "network": "network_latency_ns",
        "pcie": "copy_latency_ns",
        "host": "copy_latency_ns",
    }
    if path not in PATHS:
        raise ValueError(f"no path {path!r}; there are {', '.join(PATHS)}")
    return spec[fields.get(path, "fabric_latency_ns")]


def copy_between_ns(spec: ChipSpec, nbytes: Any, path: str) -> jax.Array:
    """Time of a copy along a path, `[...]` float32 ns, on an otherwise idle link.

    Example:
        >>> from ascend_jax.chip import chip
        >>> round(float(copy_between_ns(chip("Ascend910B2"), 28e6, "fabric")) / 1e3)
        1025
    """
    return path_latency_ns(spec, path) + cost.copy_ns(spec, nbytes, path_rate(spec, path))


def all_reduce_ns(spec: ChipSpec, nbytes: Any, ranks: Any, *, servers: Any = 1) -> jax.Array:
    """Device time of an AllReduce of `nbytes` a rank, `[...]` float32 ns.

    Args:
        spec: The chip; its `fabric_kind` chooses the algorithm inside a server, as HCCL does.
        nbytes: Bytes of each rank.
        ranks: Ranks of one server; 1 takes no time inside.
        servers: Servers with `ranks` ranks each.

    Example:
        >>> from ascend_jax.chip import chip
        >>> round(float(all_reduce_ns(chip("Ascend910B2"), 128 << 20, 8)) / 1e3)
        1798
    """
    with jax.named_scope("all_reduce"):
        n, p, s = (jnp.asarray(each, jnp.float32) for each in (nbytes, ranks, servers))
        return 2 * half_reduce_ns(spec, n, p, servers=s)


def half_reduce_ns(spec: ChipSpec, nbytes: Any, ranks: Any, *, servers: Any = 1) -> jax.Array:
    """Device time of a ReduceScatter or an AllGather: one of the two phases of an AllReduce.

    Args:
        spec: The chip.
        nbytes: Bytes of the whole buffer, the one that is scattered or gathered; `[...]`.
        ranks: Ranks of one server; 1 takes no time inside.
        servers: Servers with `ranks` ranks each; each rank passes its share of the buffer around them.

    Returns:
        `[...]` float32 ns. No published time backs it; the AllReduce that it is half of has some.

    Example:
        >>> from ascend_jax.chip import chip
        >>> both = 2 * half_reduce_ns(chip("Ascend910B2"), 1 << 20, 8)
        >>> bool(abs(both - all_reduce_ns(chip("Ascend910B2"), 1 << 20, 8)) < 1)
        True
    """
    n, p = jnp.asarray(nbytes, jnp.float32), jnp.asarray(ranks, jnp.float32)
    link = spec["fabric_link_bytes_per_s"] * spec["collective_efficiency"]
    step, share = spec["collective_step_ns"], (p - 1) / jnp.maximum(p, 1)
    chunk = jnp.minimum(n, spec["collective_chunk_bytes"])
    fill = cost.copy_ns(spec, chunk, spec["collective_fill_bytes_per_s"]) / 2
    mesh = step + fill + cost.copy_ns(spec, n / jnp.maximum(p, 1), link)
    ring = (p - 1) * step + cost.copy_ns(spec, share * n, link)
    clos = step + fill + cost.copy_ns(spec, share * n, link * jnp.maximum(spec["fabric_links"], 1))
    kind = spec["fabric_kind"]
    chosen = jnp.where(kind == FABRICS.index("mesh"), mesh, jnp.where(kind == FABRICS.index("clos"), clos, ring))
    return jnp.where(p > 1, chosen, 0.0) + _across_ns(spec, n / jnp.maximum(p, 1), servers)


def _across_ns(spec: ChipSpec, share_bytes: Any, servers: Any) -> jax.Array:
    """ReduceScatter or AllGather of each rank's share around `servers` groups, float32 ns.

    Two groups of a first-generation server meet over PCIe (`path_between`); all else passes the network.
    """
    s = jnp.asarray(servers, jnp.float32)
    is_pcie = (spec["fabric_kind"] == FABRICS.index("ring")) & (s <= 2)
    rate = jnp.where(is_pcie, spec["pcie_bytes_per_s"], spec["network_bytes_per_s"]) * spec["collective_efficiency"]
    moved = (s - 1) / jnp.maximum(s, 1) * share_bytes
    return (s - 1) * spec["collective_step_ns"] + cost.copy_ns(spec, moved, rate)


def blocking_all_reduce_ns(spec: ChipSpec, nbytes: Any, ranks: Any, *, servers: Any = 1) -> jax.Array:
    """AllReduce as host processes see it: events, synchronisation and process start-up included, float32 ns."""
    return spec["collective_host_ns"] + all_reduce_ns(spec, nbytes, ranks, servers=servers)
