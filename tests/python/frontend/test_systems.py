"""Factorizations, inverses and linear systems (``cutback.linalg``): values of NumPy, gradients by
central differences, and matrices of every shape against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cutback
from cutback import linalg


def matrices(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((*shape, shape[-1]))


def positive(a: Any) -> Any:
    return a @ a.swapaxes(-1, -2) + np.eye(a.shape[-1])


def value(f: Callable[..., Any], *args: Any) -> Any:
    return cutback.compile(f, argnums=None)(*args)


def near(found: Any, expected: Any, digits: float = 1e-12) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0) <= digits * np.abs(expected).max(initial=1e-300)


RIGHT = matrices((4,), 5)
UPPER = np.triu(np.ones((4, 4), bool))
CALLS: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("cholesky", lambda m, a: m.linalg.cholesky(positive(a))),
    ("inv", lambda m, a: m.linalg.inv(a)),
    ("det", lambda m, a: m.linalg.det(a)),
    ("slogdet", lambda m, a: m.linalg.slogdet(a).logabsdet),
    ("sign", lambda m, a: m.linalg.slogdet(a)[0] * a),
    ("solve", lambda m, a: m.linalg.solve(a, RIGHT)),
    ("solve a vector", lambda m, a: m.linalg.solve(a, RIGHT[0])),
    ("negative power", lambda m, a: m.linalg.matrix_power(a, -2)),
]


@pytest.mark.parametrize(("name", "call"), CALLS, ids=[name for name, _ in CALLS])
def test_values_and_gradients(name: str, call: Callable[[Any, Any], Any]) -> None:
    a = matrices((4,))
    found, expected = value(lambda a: call(cutback, a), a), call(np, a)
    near(found, expected)
    weights = np.linspace(0.5, 1.5, expected.size).reshape(expected.shape)
    slope = cutback.grad(lambda a: (call(cutback, a) * weights).sum())(a)
    numeric, h = np.zeros_like(a), 1e-5
    for at in np.ndindex(a.shape):
        moved = np.zeros_like(a)
        moved[at] = h
        numeric[at] = ((call(np, a + moved) - call(np, a - moved)) * weights).sum() / (2 * h)
    near(slope, numeric, 1e-6)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("trans", [0, "T"])
@pytest.mark.parametrize("unit", [True, False])
def test_triangles(lower: bool, trans: Any, unit: bool) -> None:
    a = matrices((5,)) + 4 * np.eye(5)
    b = matrices((5,), 1)
    full = np.tril(a) if lower else np.triu(a)
    if unit:
        np.fill_diagonal(full, 1)
    options = {"trans": trans, "lower": lower, "unit_diagonal": unit}
    found = value(lambda a, b: linalg.solve_triangular(a, b, **options), a, b)
    near(found, np.linalg.solve(full.T if trans else full, b))


@pytest.mark.parametrize("upper", [True, False])
def test_factors_solve(upper: bool) -> None:
    a, b = positive(matrices((5,))), matrices((5,), 1)

    def f(a: Any, b: Any) -> Any:
        factor = linalg.cholesky(a, upper=upper)
        return factor, linalg.cho_solve((factor, not upper), b)

    factor, x = value(f, a, b)
    lower = np.linalg.cholesky(a)
    near(factor, lower.T if upper else lower)
    near(x, np.linalg.solve(a, b))


@settings(max_examples=12)
@given(st.integers(0, 9), st.sampled_from([(), (2,), (2, 3), (0,)]), st.integers(0, 99))
def test_every_shape(n: int, batch: tuple[int, ...], seed: int) -> None:
    a = matrices((*batch, n), seed)
    inverse, sign, log = value(lambda a: (linalg.inv(a), *linalg.slogdet(a)), a)
    assert np.array_equal(sign, np.linalg.slogdet(a)[0])
    digits = 1e-14 * max(np.linalg.cond(a).max(initial=1), 100) if a.size else 0
    near(inverse, np.linalg.inv(a), digits)
    near(np.exp(log), np.abs(np.linalg.det(a)), digits)
    near(value(linalg.cholesky, positive(a)), np.linalg.cholesky(positive(a)))


def test_only_the_lower_triangle_is_read() -> None:
    a = positive(matrices((4,)))
    spoiled = np.where(np.tril(np.ones((4, 4), bool)), a, np.nan)
    near(value(linalg.cholesky, np.where(UPPER & ~np.eye(4, dtype=bool), 7.0, a)),
         np.linalg.cholesky(a))  # fmt: skip
    near(value(lambda a: linalg.solve_triangular(a, RIGHT, lower=True), spoiled),
         np.linalg.solve(np.tril(a), RIGHT))  # fmt: skip


def test_derivatives_of_any_order() -> None:
    x = matrices((3,))
    second = cutback.hessian(lambda x: linalg.slogdet(x).logabsdet)(x)
    inverse = np.linalg.inv(x)
    near(second, -np.einsum("jk,li->ijkl", inverse, inverse))


def test_what_has_no_result() -> None:
    assert np.isnan(value(linalg.cholesky, -np.eye(2))).any()
    assert not np.isfinite(value(linalg.inv, np.ones((2, 2)))).any()
    for singular in (np.zeros((2, 2)), np.ones((3, 3)), np.diag([1.0, 0.0, 2.0])):
        assert value(linalg.det, singular) == 0
        assert value(lambda a: tuple(linalg.slogdet(a)), singular) == (0, -np.inf)


def test_errors() -> None:
    for name in ("cholesky", "inv", "det", "slogdet"):
        call = getattr(linalg, name)
        with pytest.raises(ValueError, match=rf"{name}: expected square matrices, got .*2, 3"):
            value(call, np.ones((2, 3)))
        with pytest.raises(NotImplementedError, match=rf"{name}: .* at most 128 rows, got 129"):
            value(call, np.eye(129))
    for name in ("svd", "qr", "eigh", "lstsq", "pinv"):
        with pytest.raises(AttributeError, match=rf"cutback has no linalg\.{name}: \w"):
            getattr(linalg, name)
    with pytest.raises(ValueError, match=r"solve_triangular: trans='t' must be 0, 1, 2, 'N'"):
        value(lambda a: linalg.solve_triangular(a, a, trans="t"), np.eye(2))
    with pytest.raises(TypeError, match=r"np\.linalg\.svd .*: singular vectors"):
        value(lambda x: np.linalg.svd(x)[1], np.eye(2))
