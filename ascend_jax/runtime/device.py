"""What a program can ask about its card."""

import numpy as np

from ascend_jax.runtime.commands import host_stream
from ascend_jax.runtime.layout import Stream
from ascend_jax.runtime.memory import mem_get_info
from ascend_jax.runtime.state import CardState


def device_info(card: CardState) -> dict[str, int | str]:
    """Return the card's identity and sizes; host-side, for one card.

    Keys follow ``aclrtGetDeviceInfo`` and ``aclrtGetSocName`` in plain words: soc_name, cube_cores, vector_cores,
    clock_hz, hbm_bytes, hbm_free_bytes, l2_bytes, l1_bytes, l0a_bytes, l0b_bytes, l0c_bytes, ub_bytes, streams_free and
    calibration ("calibrated" where published measurements back the times of this chip).

    >>> import ascend_jax as aj
    >>> info = aj.device_info(aj.init(aj.chip("Ascend910B4"), hbm_backing_bytes=0))
    >>> info["soc_name"], info["cube_cores"], info["hbm_bytes"] >> 30
    ('Ascend910B4', 20, 32)
    """
    free_bytes, _ = mem_get_info(card)
    memories = ("hbm", "l2", "l1", "l0a", "l0b", "l0c", "ub")
    sizes = ("cube_cores", "vector_cores", "clock_hz", *(f"{memory}_bytes" for memory in memories))
    alive = int(np.asarray(card.streams)[: host_stream(card), Stream.ALIVE].sum())
    return {
        "soc_name": card.chip.name,
        "calibration": card.chip.calibration,
        **{name: int(card.chip[name]) for name in sizes},
        "hbm_free_bytes": free_bytes,
        "streams_free": min(host_stream(card), int(card.chip["max_streams"])) - alive,
    }
