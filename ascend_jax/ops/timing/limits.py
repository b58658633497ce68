"""What bounds an operator, in the words that a launched kernel carries."""

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip.pipeline import LIMITS
from ascend_jax.runtime import kernels

_NAMES = {"cube": "cube", "vector": "vector", "launch": "fixed"}  # all other queues, L2 and HBM are memory
_UNITS = np.array([kernels.LIMITS.index(_NAMES.get(name, "memory")) for name in LIMITS], np.int32)


def launched_limit(limit: jax.Array) -> jax.Array:
    """Index into `runtime.kernels.LIMITS` of an index into `chip.pipeline.LIMITS`, int32.

    Example:
        >>> kernels.LIMITS[int(launched_limit(LIMITS.index("mte2")))]
        'memory'
    """
    return jnp.asarray(_UNITS)[limit]
