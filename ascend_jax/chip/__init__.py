"""What a card is made of: the chip catalogue, on-chip memories and the cost formulas."""

from ascend_jax.chip.fields import FIELDS
from ascend_jax.chip.onchip import LEVELS, Buffer, OnChipError, OnChipPlan, place, require
from ascend_jax.chip.spec import ChipSpec, chip, chip_sheet, chips, load_chip_file, peak_flops

__all__ = [
    "FIELDS",
    "LEVELS",
    "Buffer",
    "ChipSpec",
    "OnChipError",
    "OnChipPlan",
    "chip",
    "chip_sheet",
    "chips",
    "load_chip_file",
    "peak_flops",
    "place",
    "require",
]
