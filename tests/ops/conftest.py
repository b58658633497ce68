"""Attention kernels of these tests compile with little optimisation: they are small, and compiling is the work."""

import pytest

import ascend_jax as aj
from ascend_jax.ops import attention_score
from ascend_jax.ops.attention import kernel
from ascend_jax.ops.attention.backward import backward
from ascend_jax.runtime.edge import compiled

QUICK = aj.QUICK_TO_COMPILE | {"xla_backend_optimization_level": 0}


@pytest.fixture(scope="session", autouse=True)
def _kernels_compile_quickly():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_compiled", compiled(kernel._attend, QUICK, static_argnums=7))
        for module in (kernel, attention_score):
            patch.setattr(module, "compiled_backward", compiled(backward, QUICK, static_argnums=7))
        yield
