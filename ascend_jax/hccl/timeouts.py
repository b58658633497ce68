"""How long a rank waits for the others before it gives up."""

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.hccl.communicator import CommConfig
from ascend_jax.hccl.root_info import CONNECT_EXTRA_S

S = 1_000_000_000
STEP_S = 68  # 910 and 310P count HCCL_EXEC_TIMEOUT in units of this
FOREVER = 0


def exec_timeout_s(chip: ChipSpec, seconds: int) -> int:
    """Return the effective ``HCCL_EXEC_TIMEOUT``: as given from A2 on, 0 = for ever; whole 68 s before.

    >>> from ascend_jax.chip import chip
    >>> exec_timeout_s(chip("Ascend910B2"), 600), exec_timeout_s(chip("Ascend910A"), 600)
    (600, 544)
    """
    if not chip.name.startswith(("Ascend910A", "Ascend910Pro", "Ascend910Premium", "Ascend310")):
        return seconds
    return max(seconds // STEP_S * STEP_S, STEP_S)


def timeout_ns(chip: ChipSpec, config: CommConfig, *, is_first: bool) -> int:
    """Return how long a call waits for its ranks; 0 for ever. The first one of a communicator links up."""
    if is_first:
        return (config.connect_timeout_s + CONNECT_EXTRA_S) * S
    return exec_timeout_s(chip, config.exec_timeout_s) * S
