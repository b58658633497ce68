"""What a card is made of: the chip catalogue, on-chip memories and the cost formulas."""

from ascend_jax.chip.fields import FIELDS
from ascend_jax.chip.onchip import LEVELS, Buffer, OnChipError, OnChipPlan, place, require
from ascend_jax.chip.spec import ChipSpec, chip, chip_sheet, chips, load_chip_file, peak_flops
from ascend_jax.chip.tensors import (
    CoreMemory,
    GlobalTensor,
    LocalBuffer,
    LocalTensor,
    alloc_local,
    core_memory,
    free_local,
)

__all__ = [
    "FIELDS",
    "LEVELS",
    "Buffer",
    "ChipSpec",
    "CoreMemory",
    "GlobalTensor",
    "LocalBuffer",
    "LocalTensor",
    "OnChipError",
    "OnChipPlan",
    "alloc_local",
    "chip",
    "chip_sheet",
    "chips",
    "core_memory",
    "free_local",
    "load_chip_file",
    "peak_flops",
    "place",
    "require",
]
