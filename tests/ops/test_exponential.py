"""The exponential of numbers at most 0, against NumPy's in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ascend_jax.ops.attention.exponential import exp_below

SMALLEST = np.finfo(np.float32).tiny


# without optimisation nothing is fused to one multiply-add, as on a CPU that has none
@pytest.mark.parametrize("level", [0, 2])
def test_error(level: int) -> None:
    x = np.concatenate([np.linspace(-100, 0, 1_000_003), -np.logspace(-40, 2, 10_007)]).astype(np.float32)
    compiled = jax.jit(exp_below, compiler_options={"xla_backend_optimization_level": level})
    found, right = np.asarray(compiled(x), np.float64), np.exp(x.astype(np.float64))
    normal = right >= SMALLEST
    error = np.abs(found - right)[normal] / right[normal]
    assert error.max() < 1.1e-7
    assert (found[~normal] <= SMALLEST).all()
    assert found.max() == 1


def test_what_is_no_number_and_what_is_far_below() -> None:
    bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00000], np.uint32)  # any NaN, whatever it carries
    assert np.isnan(jax.jit(exp_below)(bits.view(np.float32))).all()
    below = jnp.array([-jnp.inf, -3.4e38, -1e9, -200, -89])
    assert jax.jit(exp_below)(below).tolist() == [0] * 5


def test_derivatives_are_the_exponential() -> None:
    def third(x: jax.Array) -> jax.Array:
        return jax.jvp(jax.jacfwd(jax.grad(exp_below)), (x,), (jnp.float32(1),))[1]

    x = jnp.linspace(-10, 0, 101)
    for of in (jax.grad(exp_below), third):
        np.testing.assert_allclose(jax.vmap(of)(x), np.exp(np.asarray(x, np.float64)), rtol=1e-6)


def test_other_types_are_those_of_jax() -> None:
    x = jnp.linspace(-30, 0, 101).astype(jnp.float16)
    assert exp_below(x).dtype == jnp.float16
    assert (exp_below(x) == jnp.exp(x)).all()
