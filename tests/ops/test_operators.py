"""Operators through the card: registry, executors as data, kernels compiled once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj

quick_jit = functools.partial(jax.jit, compiler_options=aj.QUICK_TO_COMPILE)


def plan(chip, inputs, outputs, core_limit, **attributes):
    return aj.ops.Plan(aj.kernel_cost(1000.0, cube_cores=1, vector_cores=1), 0, True)


def register(name, value, **options):
    if name not in aj.ops.names():
        aj.ops.add(aj.ops.Operator(name, value, plan, **options))


register("TestNegate", lambda x: (-x,))
register("TestSquare", lambda x: (x * x,))
register("TestScale", lambda x, *, factor: (x * factor,), scalars=("factor",))


@pytest.fixture(scope="module")
def bench():
    """A card with x = 1 2 3 4 and room for y."""
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 16, max_streams=1, max_events=1, max_commands=8)
    card, x = aj.malloc(card, 16)
    card, y = aj.malloc(card, 16)
    card = aj.upload(card, x, np.arange(1, 5, dtype=np.float32))
    return card, aj.tensor(x, (4,), "float32"), aj.tensor(y, (4,), "float32")


def prepare(card, name, x, y, **attributes):
    card, _, executor = aj.ops.get_workspace_size(card, name, [x], [y], attributes)
    return card, executor


def run(card, executor, y):
    card = aj.synchronize_stream(aj.launch(card, executor, 0, 0), 0)
    card, result = aj.download(card, y.pointer, y.shape, y.dtype)
    aj.raise_if_error(card)
    return np.asarray(result).tolist()


def test_an_executor_runs_its_own_kernel_on_any_card(bench):
    card, x, y = bench
    knows_negate, _ = prepare(card, "TestNegate", x, y)
    _, square = prepare(knows_negate, "TestSquare", x, y)
    for other in (card, knows_negate):
        assert run(other, square, y) == [1, 4, 9, 16]
    _, alone = prepare(card, "TestSquare", x, y)
    assert run(knows_negate, alone, y) == [1, 4, 9, 16]


def test_a_kernel_is_loaded_once(bench):
    card, x, y = bench
    once, first = prepare(card, "TestNegate", x, y)
    twice, second = prepare(once, "TestNegate", y, x)
    assert once.kernels == twice.kernels == (first.kernel,) == (second.kernel,)


def test_scalars_vary_without_a_new_kernel(bench):
    card, x, y = bench
    for factor in (2.0, 0.5, -1.25):
        card, executor = prepare(card, "TestScale", x, y, factor=factor)
        assert run(card, executor, y) == [factor * value for value in (1, 2, 3, 4)]
    assert len(card.kernels) == 1


def test_a_scalar_may_be_traced(bench):
    card, x, y = bench

    @quick_jit
    def program(card, factor):
        card, executor = prepare(card, "TestScale", x, y, factor=factor)
        card = aj.synchronize_stream(aj.launch(card, executor, 0, 0), 0)
        return aj.download(card, y.pointer, y.shape, y.dtype)[1]

    for factor in (3.0, 7.0):
        assert program(card, jnp.float32(factor)).tolist() == [factor * value for value in (1, 2, 3, 4)]
    assert program._cache_size() == 1


def test_the_nth_kernel_compiles_only_itself(bench):
    card, x, y = bench
    traced = []

    def nth(which):
        def value(x):
            traced.append(which)
            return (x + which,)

        return value

    for which in range(3):
        register(f"TestNth{which}", nth(which))
        card, executor = prepare(card, f"TestNth{which}", x, y)
        del traced[:]
        assert run(card, executor, y) == [each + which for each in (1, 2, 3, 4)]
        assert set(traced) == {which}


def test_a_kernel_larger_than_the_bytes_is_refused_and_harms_nobody(bench):
    card, pointer = aj.malloc(bench[0], 4 << 20)
    big = aj.tensor(pointer, (1 << 20,), "float32")
    _, executor = prepare(card, "TestSquare", big, big)

    def program(card):
        card = aj.launch(card, executor, 0, 0)
        return aj.synchronize_stream(card, 0)

    for run_program in (program, quick_jit(program)):
        after = run_program(card)
        assert aj.status(after).code == aj.Code.NO_BYTES_BEHIND


def test_launch_inside_scan(bench):
    card, x, _ = bench
    card, executor = prepare(card, "TestSquare", x, x)

    @quick_jit
    def program(card):
        def body(card, _):
            return aj.synchronize_stream(aj.launch(card, executor, 0, 0), 0), None

        card, _ = jax.lax.scan(body, card, length=3)
        return aj.download(card, x.pointer, x.shape, x.dtype)[1]

    assert program(card).tolist() == [1, 2**8, 3**8, 4**8]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("TestNope", "x", "y", {}), "must be one of"),
        (("TestScale", "x", "y", {}), "factor = missing"),
        (("TestSquare", "x", "half", {}), "output 0.shape = [2]"),
        (("TestSquare", "x", "ints", {}), "output 0.dtype = int32"),
    ],
)
def test_the_first_phase_refuses(bench, arguments, words):
    card, x, y = bench
    tensors = {
        "x": x,
        "y": y,
        "half": aj.tensor(y.pointer, (2,), "float32"),
        "ints": aj.tensor(y.pointer, (4,), "int32"),
    }
    name, source, target, attributes = arguments
    with pytest.raises(aj.ParameterError) as refusal:
        aj.ops.get_workspace_size(card, name, [tensors[source]], [tensors[target]], attributes)
    assert words in str(refusal.value) and refusal.value.code == 161002


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="already registered"):
        aj.ops.add(aj.ops.Operator("TestSquare", lambda x: (x,), plan))
    with pytest.raises(ValueError, match="at most 4"):
        aj.ops.add(aj.ops.Operator("TestMany", lambda x: (x,), plan, scalars=tuple("abcde")))


@pytest.mark.parametrize("dtype", ["int64", ">f4", "complex64", "int4", "object", "datetime64[s]", "no such"])
def test_tensors_of_other_types_are_refused(dtype):
    with pytest.raises(aj.ParameterError, match="dtype"):
        aj.tensor(1 << 15, (4,), dtype)


@pytest.mark.parametrize("carrier", ["vmap", "pmap", "shard_map"])
def test_cards_side_by_side_with_values(bench, carrier):
    card, x, y = bench
    count = jax.device_count() if carrier != "vmap" else 3

    def program(factor):
        one, executor = prepare(card, "TestScale", x, y, factor=factor)
        one = aj.synchronize_stream(aj.launch(one, executor, 0, 0), 0)
        return aj.download(one, y.pointer, y.shape, y.dtype)[1]

    values = jnp.arange(1.0, count + 1)
    if carrier == "shard_map":
        mesh = jax.make_mesh((count,), ("card",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = jax.sharding.PartitionSpec("card")
        side_by_side = jax.shard_map(jax.vmap(program), mesh=mesh, in_specs=spec, out_specs=spec)
        results = quick_jit(side_by_side)(values)
    else:
        results = jax.pmap(program)(values) if carrier == "pmap" else quick_jit(jax.vmap(program))(values)
    np.testing.assert_array_equal(results, np.outer(values, [1, 2, 3, 4]))


def test_signed_zeros_are_different_attributes(bench):
    register("TestFill", lambda x, *, n: (jnp.full_like(x, n),))
    card, x, y = bench
    for n in (0.0, -0.0):
        card, executor = prepare(card, "TestFill", x, y, n=n)
        assert np.signbit(run(card, executor, y)).tolist() == [np.signbit(n)] * 4
    assert len(card.kernels) == 2


def test_scalars_of_every_size_and_kind(bench):
    card, x, y = bench
    for factor in (2**40, -(2**31) - 1, np.int8(3), True, jnp.int32(2)):
        card, executor = prepare(card, "TestScale", x, y, factor=factor)
        assert run(card, executor, y) == [float(np.float32(factor)) * value for value in (1, 2, 3, 4)]
    for wrong in (1j, "two", None, [1, 2]):
        with pytest.raises(aj.ParameterError, match="factor = "):
            prepare(card, "TestScale", x, y, factor=wrong)


def test_wrong_registrations_name_the_operator(bench):
    with pytest.raises(ValueError, match="tuple of names"):
        aj.ops.add(aj.ops.Operator("TestComma", lambda x, *, ab: (x,), plan, scalars="ab"))
    register("TestBare", lambda x: x)
    with pytest.raises(ValueError, match="TestBare: its value function must return a tuple"):
        prepare(*bench[:1], "TestBare", *bench[1:])
    with pytest.raises(aj.ParameterError, match="hashable"):
        prepare(*bench[:1], "TestFill", *bench[1:], n=np.zeros(2))


def test_offsets_of_tensors(bench):
    _, x, _ = bench
    for offset in (2**30, np.int32(2**30), np.int64(2**30)):
        far = aj.tensor(x.pointer, (4,), "float32", offset=offset)
        assert (int(far.skip) << 6) + int(far.offset_bytes) == 2**32
    for wrong in (1.5, 1.0, "1"):
        with pytest.raises(aj.ParameterError, match="whole number of elements"):
            aj.tensor(x.pointer, (4,), "float32", offset=wrong)


def test_an_error_in_a_value_function_comes_through_under_jit(bench):
    def broken(x):
        raise ValueError("broken on purpose")

    register("TestBroken", broken, infer=lambda inputs: {"y": inputs[0]})
    card, x, y = bench
    card, executor = prepare(card, "TestBroken", x, y)

    def program(card):
        return aj.synchronize_stream(aj.launch(card, executor, 0, 0), 0)

    for run_program in (program, quick_jit(program)):
        with pytest.raises(ValueError, match="broken on purpose"):
            run_program(card)
