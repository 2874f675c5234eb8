"""Inverse functions and division with a remainder, against NumPy's in extended precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutback

RNG = np.random.default_rng(0)
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5]
WIDE = np.concatenate([RNG.standard_normal(500) * 10.0 ** RNG.integers(-10, 10, 500), SPECIAL])
UNIT = np.concatenate([RNG.uniform(-1, 1, 500), [1, -1, 0, -0.0, 1 - 1e-9, 1e-9 - 1, 1.5]])
ABOVE = np.concatenate([1 + 10.0 ** RNG.uniform(-12, 30, 500), [1, np.inf, 0.5]])
CASES = {
    "arctan": WIDE, "arcsinh": WIDE, "cbrt": WIDE, "arcsin": UNIT, "arccos": UNIT,
    "arccosh": ABOVE,
}  # fmt: skip


def run(f: Any, *arrays: np.ndarray[Any, Any]) -> Any:
    return cutback.compile(f, argnums=None)(*arrays)


def units_off(found: Any, expected: Any) -> float:
    """Returns the largest distance in units of the last place; NaNs must agree."""
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    same = (found == expected) | np.isnan(expected)
    assert np.array_equal(
        np.signbit(found)[~np.isnan(found)], np.signbit(expected)[~np.isnan(found)]
    )
    with np.errstate(invalid="ignore"):
        away = np.abs(found - expected) / np.spacing(np.abs(expected))
    return float(np.where(same, 0.0, away).max())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", CASES)
def test_within_four_units(name: str, dtype: Any) -> None:
    x = CASES[name].astype(dtype)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x.astype(np.longdouble)).astype(dtype)
    assert units_off(run(getattr(cutback, name), x), expected) <= 4


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_angles(dtype: Any) -> None:
    axes = np.array([0.0, -0.0, np.inf, -np.inf, 1.0, -2.0])
    y = np.concatenate([RNG.permutation(WIDE), np.repeat(axes, 6)]).astype(dtype)
    x = np.concatenate([WIDE, np.tile(axes, 6)]).astype(dtype)
    expected = np.arctan2(y.astype(np.longdouble), x).astype(dtype)
    assert units_off(run(cutback.arctan2, y, x), expected) <= 4


@pytest.mark.parametrize("name", ["remainder", "fmod", "floor_divide"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int32, np.uint8])
def test_division_is_exact(name: str, dtype: Any) -> None:
    if np.dtype(dtype).kind == "f":
        x = (RNG.standard_normal(500) * 10.0 ** RNG.integers(-3, 4, 500)).astype(dtype)
        y = RNG.standard_normal(500).astype(dtype)
        x[:200] = y[:200] * RNG.integers(-50, 50, 200).astype(dtype)
    else:
        bounds = np.iinfo(dtype)
        x, y = RNG.integers(bounds.min, bounds.max, (2, 500), dtype=dtype, endpoint=True)
        y[:200] = RNG.integers(0, 10, 200)
        y[200:300] = x[200:300] // 7
        x[:20], x[20:40] = bounds.max, bounds.min
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, y)
    found = run(getattr(cutback, name), x, y)
    assert found.dtype == expected.dtype
    # NumPy rounds the quotient of f32 once more
    tolerance = 1e-6 if name == "floor_divide" and dtype == np.float32 else 0
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=0)


def test_operators_and_functions_of_numpy() -> None:
    x, i = np.array([3.5, -1.25]), np.array([7, -7])

    def all_of(x: Any, i: Any) -> Any:
        of_numpy = [np.mod(x, 2), np.floor_divide(i, 2), np.arctan2(x, 1.0), np.cbrt(x)]
        return [x % 2, 5.5 % x, x // 2, 7 // x, divmod(x, 2)[1], i % 3, i // -3, *of_numpy]

    for found, expected in zip(run(all_of, x, i), all_of(x, i), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-15)


def test_gradients() -> None:
    x, y = np.array([5.3, -5.3]), np.array([2.0, 0.75])
    by_x, by_y = cutback.grad(lambda x, y: (x % y).sum(), argnums=(0, 1))(x, y)
    assert by_x.tolist() == [1.0, 1.0] and by_y.tolist() == (-np.floor(x / y)).tolist()
    by_y, by_x = cutback.grad(lambda y, x: cutback.arctan2(y, x).sum(), argnums=(0, 1))(y, x)
    np.testing.assert_allclose([by_y, by_x], np.array([x, -y]) / (x * x + y * y), rtol=1e-15)
    second = cutback.grad(lambda x: cutback.grad(lambda x: cutback.arctan(x).sum())(x).sum())(x)
    np.testing.assert_allclose(second, -2 * x / (1 + x * x) ** 2, rtol=1e-14)
    each = cutback.vmap(cutback.grad(cutback.arcsinh))(x)
    np.testing.assert_allclose(each, 1 / np.sqrt(1 + x * x), rtol=1e-15)


def test_half_precision_is_computed_in_f32() -> None:
    x = np.linspace(-3, 3, 50).astype(np.float16)
    assert np.array_equal(run(cutback.arctan, x), np.arctan(x))
    assert np.array_equal(run(lambda x: x % np.float16(0.7), x), x % np.float16(0.7))
