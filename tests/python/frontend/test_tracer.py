"""Traced arrays against NumPy: operators, promotion, broadcasting, reductions, shapes."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import cutback
from cutback import dtypes
from cutback.nn import functional as F

ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
CODES = {"bool": "?", "u8": "u1", "i32": "i4", "i64": "i8", "f16": "f2", "f32": "f4", "f64": "f8"}


def both(f, *arrays):
    return cutback.compile(f, argnums=None)(*arrays), f(*arrays)


@pytest.mark.parametrize("op", ARITHMETIC + COMPARISONS)
@pytest.mark.parametrize("dtype", ["u1", "i4", "i8", "f4", "f8"])
def test_operators_agree_with_numpy(op, dtype):
    a = np.array([[1, 2, 3], [4, 5, 6]], dtype)
    b = np.array([3, 2, 1], dtype)
    got, expected = both(op, a, b)
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("scalar", [True, 2, 2.5])
@pytest.mark.parametrize("dtype", list(CODES.values()))
@pytest.mark.parametrize("swap", [False, True])
def test_python_scalars_are_weak(scalar, dtype, swap):
    a = np.ones((2,), dtype)
    if dtype == "?" and scalar is True:
        return  # NumPy adds two bools to a bool; the core has no such sum
    got, expected = both(lambda x: scalar * x if swap else x * scalar, a)
    assert got.dtype == expected.dtype


TWO = ["add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "arctan2", "hypot",
       "floor_divide", "remainder", "copysign", "logaddexp", "greater"]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("module", [cutback, np])
def test_python_scalars_are_weak_in_functions(module, dtype):
    a = np.full(2, 0.5, dtype)
    pairs = [(name, s, swap) for name in TWO for s in (2, 2.5) for swap in (False, True)]

    def results(x, module):
        return [getattr(module, n)(*((s, x) if swap else (x, s))) for n, s, swap in pairs]

    def dtypes_of(x, module):
        return [y.dtype for y in [*results(x, module), module.exp2(x)]]

    found = []
    cutback.trace(lambda x: found.extend(dtypes_of(x, module)) or x, a)
    assert found == dtypes_of(a, np)


def test_python_scalars_are_weak_as_parameters():
    def check(x):
        assert F.prelu(x, 0.25).dtype == "f32"
        assert F.gaussian_nll_loss(x, x, 1.0).dtype == "f32"
        return x

    cutback.trace(check, np.ones(2, np.float32))


@pytest.mark.parametrize("a", list(CODES))
@pytest.mark.parametrize("b", list(CODES))
def test_promotion_is_numpys(a, b):
    assert CODES[dtypes.promote(a, b)] == np.promote_types(CODES[a], CODES[b]).str.lstrip(
        "<|"
    ).replace("b1", "?")


def test_bf16_promotes_as_ml_dtypes_does():
    ml = pytest.importorskip("ml_dtypes")
    for other in ("bool", "u8", "f32", "f64"):
        expected = dtypes.from_numpy(np.promote_types(ml.bfloat16, CODES[other]))
        assert dtypes.promote("bf16", other) == expected
    with pytest.raises(TypeError, match="no common type"):
        dtypes.promote("bf16", "f16")


@settings(max_examples=60)
@given(
    hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4),
    st.sampled_from([operator.add, operator.mul, operator.lt, np.maximum]),
)
def test_broadcasting_is_numpys(shapes, op):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape) for shape in shapes.input_shapes)
    traced = cutback.maximum if op is np.maximum else op
    got = cutback.compile(lambda x, y: traced(x, y), argnums=None)(a, b)
    np.testing.assert_array_equal(got, op(a, b))


@settings(max_examples=40)
@given(hnp.array_shapes(max_dims=3, max_side=4), st.data())
def test_reductions_are_numpys(shape, data):
    a = np.random.default_rng(0).standard_normal(shape)
    name = data.draw(st.sampled_from(["sum", "mean", "max", "min", "var", "std"]))
    axes = st.integers(-len(shape), len(shape) - 1)
    axis = data.draw(
        st.one_of(
            st.none(),
            axes,
            st.lists(axes, max_size=len(shape), unique_by=lambda i: i % len(shape)).map(tuple),
        )
    )
    keepdims = data.draw(st.booleans())
    got, expected = both(lambda x: getattr(x, name)(axis=axis, keepdims=keepdims), a)
    assert np.shape(got) == np.shape(expected)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", list(CODES.values()))
def test_sum_and_mean_types(dtype):
    a = np.ones((3, 2), dtype)
    total, mean = cutback.compile(lambda x: (x.sum(), x.mean(axis=0)), argnums=None)(a)
    expected = a.sum().dtype
    assert total.dtype == (np.dtype("i8") if expected == np.dtype("u8") else expected)
    assert mean.dtype == a.mean(axis=0).dtype
    assert total == 6


UNARY = [
    "exp",
    "log",
    "log1p",
    "sqrt",
    "reciprocal",
    "sin",
    "cos",
    "tanh",
    "floor",
    "square",
    "sign",
    "abs",
    "negative",
]


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["i4", "f2", "f4", "f8"])
def test_unary_functions(name, dtype, run):
    a = np.array([1, 2, 3], dtype)
    if name == "reciprocal" and dtype == "i4":
        return  # NumPy's integer division does not apply
    got, expected = run(getattr(cutback, name), a), getattr(np, name)(a)
    assert got.dtype == (expected.dtype if name != "floor" else a.dtype)
    np.testing.assert_allclose(got, expected, rtol=2e-3 if dtype == "f2" else 1e-5)


def test_powers(run):
    a = np.array([0.5, 2.0, 3.0])
    for p in (-1, -0.5, 0.5, 1, 2, 3, 4, 3.0, 2.5, 0):
        np.testing.assert_allclose(run(lambda x, p=p: x**p, a), a**p, rtol=1e-12)
    np.testing.assert_allclose(run(lambda x: 2.0**x, a), 2.0**a, rtol=1e-12)
    np.testing.assert_array_equal(run(lambda x: x**2, np.array([2, 3])), [4, 9])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((5, 1, 2, 3), (4, 3, 2)),
        ((0, 3), (3, 2)),
        ((2, 0), (0, 2)),
    ],
)
def test_matmul(a, b):
    rng = np.random.default_rng(0)
    got, expected = both(lambda x, y: x @ y, rng.standard_normal(a), rng.standard_normal(b))
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_arrays_of_numpy_meet_traced_ones(run):
    a = np.arange(6.0).reshape(2, 3)
    c = np.array([1.0, 10.0, 100.0])
    np.testing.assert_array_equal(run(lambda x: c + x, a), c + a)
    np.testing.assert_array_equal(run(lambda x: c[:, None] - x.T, a), c[:, None] - a.T)
    np.testing.assert_array_equal(run(lambda x: np.float64(3) / (x + 1), a), 3 / (a + 1))
    np.testing.assert_array_equal(run(lambda x: c < x, a), c < a)
    np.testing.assert_array_equal(run(lambda x: c @ x.T, a), c @ a.T)


def test_constants_are_copied_at_the_trace():
    c = np.ones(3)
    f = cutback.compile(lambda x: x * c, argnums=None)
    np.testing.assert_array_equal(f(np.ones(3)), np.ones(3))
    c[:] = 5
    with pytest.warns(RuntimeWarning, match="has changed since"):
        np.testing.assert_array_equal(f(np.ones(3)), np.ones(3))


def test_shapes(run):
    a = np.arange(24.0).reshape(2, 3, 4)
    for f in (
        lambda x: x.T,
        lambda x: x.reshape(6, -1),
        lambda x: x.reshape((4, 6)),
        lambda x: x.transpose(1, 0, 2).reshape(3, 8),
        lambda x: x.transpose((-1, 0, 1)),
        lambda x: x.swapaxes(0, -1),
        lambda x: x.ravel(),
        lambda x: x[:, None].squeeze(1),
    ):
        np.testing.assert_array_equal(run(f, a), f(a))
    assert len(cutback.trace(lambda x: [len(x), *x], a).result) == 3


def test_joining_and_making(run):
    a, b = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    for f in (
        lambda m, x, y: m.concatenate([x, y]),
        lambda m, x, y: m.concatenate([x, y], axis=-1),
        lambda m, x, y: m.concatenate([x, y], axis=None),
        lambda m, x, y: m.stack([x, y], axis=1),
        lambda m, x, y: m.where(x > y, x, -1.0),
        lambda m, x, y: m.maximum(x, 2) + m.minimum(2.5, y),
        lambda m, x, y: m.clip(x, 1, 3),
        lambda m, x, y: m.tril(x, 1),
        lambda m, x, y: m.pad(x, ((1, 0), (2, 3)), constant_values=7.0),
        lambda m, x, y: m.split(x, 3, axis=1)[1],
        lambda m, x, y: m.split(x, [1, 2], axis=1)[2],
        lambda m, x, y: m.broadcast_to(x[:1], (4, 3)),
        lambda m, x, y: m.expand_dims(x, (0, -1)),
        lambda m, x, y: m.take(x, np.array([1, 0, 1]), axis=1),
        lambda m, x, y: m.take_along_axis(x, np.array([[0, 2], [1, 1]]), axis=1),
        lambda m, x, y: m.take_along_axis(x, np.array([[0, 2], [1, 1]]), axis=-1),
        lambda m, x, y: x + m.arange(3) + m.zeros((2, 1)) + m.ones(3) * m.full((), 2.0),
        lambda m, x, y: m.zeros_like(x) + m.ones_like(x, dtype="f8"),
        lambda m, x, y: m.arange(7, -2, -3) * 1.0,
        lambda m, x, y: x.argmax(axis=1),
        lambda m, x, y: x.argmax(),
    ):
        np.testing.assert_array_equal(run(lambda x, y, f=f: f(cutback, x, y), a, b), f(np, a, b))


def test_logic(run):
    a, b = np.array([True, True, False]), np.array([True, False, False])
    for f in (
        lambda x, y: x & y,
        lambda x, y: x | y,
        lambda x, y: x ^ y,
        lambda x, y: ~x,
        lambda x, y: x & True,
    ):
        np.testing.assert_array_equal(run(f, a, b), f(a, b))


def test_casts(run):
    a = np.array([-1.5, 0.0, 2.7])
    for code in ("f4", "i4", "i8", "?"):
        np.testing.assert_array_equal(run(lambda x, code=code: x.astype(code), a), a.astype(code))


def test_integer_constants_are_checked():
    with pytest.raises(OverflowError, match=r"300 does not fit into u8 \[test_tracer.py:\d+\]"):
        cutback.trace(lambda x: x + 300, np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="53 bits"):
        cutback.trace(lambda x: x + (2**60 + 1), np.zeros(3, np.int64))
