"""The chip that a published row is about: chips by name, products by their usual chip."""

import re

from ascend_jax.chip.spec import ChipSpec, chip
from ascend_jax.ops.timing.targets import Target

# Names that stand for a product rather than a chip; a table of a product is predicted for its usual chip.
PRODUCTS = {
    "a2": "Ascend910B2",
    "910b": "Ascend910B2",
    "910bx": "Ascend910B2",
    "a3": "Ascend910_9382",
    "910c": "Ascend910_9382",
    "910": "Ascend910A",
    "950": "Ascend950PR_9589",
    "950pr": "Ascend950PR_9589",
    "950dt": "Ascend950DT_9581",
    "310p": "Ascend310P3",
    "310b": "Ascend310B1",
}
_PACKAGE_DIES = {"910c": 2, "a3": 2}


def find_chip(soc: str) -> ChipSpec:
    """The chip a row is about, from names such as `910B2`, `A2 48 AIV` or `910 first gen`.

    Raises:
        ValueError: No word of the name is a chip or a product.

    Example:
        >>> [find_chip(soc).name for soc in ("910B1 (24 AIC @1.85)", "A2", "910 first gen")]
        ['Ascend910B1', 'Ascend910B2', 'Ascend910A']
    """
    words = [word for word in re.split(r"[\s(),;@]+|-like", soc) if word]
    for word in words:  # a chip by name says more than a product, wherever it stands
        try:
            return chip(word)
        except ValueError:
            continue
    for word in words:
        if _short(word) in PRODUCTS:
            return chip(PRODUCTS[_short(word)])
    raise ValueError(f"soc {soc!r} names no chip; see `ascend-jax chips`")


def _short(word: str) -> str:
    return word.lower().removeprefix("ascend")


def dies(soc: str) -> int:
    """Dies that a row counts together: two for a 910C package, else one."""
    return _PACKAGE_DIES.get(re.split(r"[\s(]", _short(soc))[0], 1)


def cores_of(spec: ChipSpec, target: Target, unit: str = "cube") -> int:
    """Cores of a row, all of the chip if it states none.

    Raises:
        ValueError: More than the chip has.
    """
    there = int(spec[f"{unit}_cores"])
    cores = target.counts.get("cores", there)
    if cores > there:
        raise ValueError(f"column cores is {cores}; {spec.name} has {there} {unit} cores")
    return cores
