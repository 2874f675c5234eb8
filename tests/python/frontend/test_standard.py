"""Functions with the signatures of the array API standard, against NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cutback

X = np.random.default_rng(0).standard_normal((3, 4))

CALLS: list[Callable[[Any, Any], Any]] = [
    lambda m, x: m.cumulative_sum(x, axis=1, include_initial=True),
    lambda m, x: m.cumulative_prod(x, axis=0),
    lambda m, x: m.cumulative_sum(x[0]),
    lambda m, x: m.diff(x, axis=0, n=2),
    lambda m, x: m.diff(x, prepend=x[:, :1], append=x[:, 1:3]),
    lambda m, x: m.std(x, axis=1, correction=1.0, keepdims=True),
    lambda m, x: m.var(x, axis=0),
    lambda m, x: m.sum(x, axis=0, dtype=m.float32),
    lambda m, x: m.prod(x),
    lambda m, x: m.sort(x, axis=0, stable=True),
    lambda m, x: m.argsort(x, axis=1),
    lambda m, x: m.broadcast_arrays(x, x[0])[1] + m.broadcast_arrays(x[:, :1], x)[0],
    lambda m, x: m.matrix_transpose(x),
    lambda m, x: m.full((2, 3), fill_value=1.5) + m.full_like(x[:2, :3], 2),
    lambda m, x: m.linspace(0, 1, 5, endpoint=False) + m.ones(5, dtype=m.float64),
    lambda m, x: m.eye(3, 4, k=1) + m.zeros_like(x),
    lambda m, x: m.reshape(x, (4, 3), copy=False) + m.astype(m.arange(3), m.float64),
    lambda m, x: m.clip(x, min=-0.5, max=0.5) + x.clip(min=0),
]


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_standard(call: Callable[[Any, Any], Any]) -> None:
    found = cutback.compile(lambda x: call(x.__array_namespace__(), x), argnums=None)(X)
    expected = call(np, X)
    np.testing.assert_allclose(found, expected, rtol=1e-6 if found.dtype == np.float32 else 1e-12)
    assert found.shape == expected.shape and found.dtype == expected.dtype


def test_descending() -> None:
    found = cutback.compile(
        lambda x: x.__array_namespace__().sort(x, axis=1, descending=True), argnums=None
    )(X)
    assert np.array_equal(found, np.sort(X, axis=1)[:, ::-1])


def test_what_the_standard_asks_about_a_library() -> None:
    def look(x: Any) -> Any:
        m = x.__array_namespace__()
        info = m.__array_namespace_info__()
        assert info.default_dtypes()["integral"] == m.int64
        assert set(info.dtypes(kind="real floating")) == {"float32", "float64"}
        assert info.dtypes()["bool"] == m.bool and info.devices() == [info.default_device()]
        assert not info.capabilities()["data-dependent shapes"]
        assert m.can_cast(x, m.float64) and not m.can_cast(m.float64, m.int32)
        with pytest.raises(ValueError, match="device='cuda': arrays are on the device"):
            m.zeros(3, device="cuda")
        with pytest.raises(ValueError, match="cumsum: axis is required for an array of 2 axes"):
            m.cumulative_sum(x)
        return x

    cutback.compile(look, argnums=None)(X)


def test_older_argument_names_say_the_new_ones() -> None:
    options: dict[str, Any]
    for find, options, text in (
        (lambda x: cutback.clip, {"a_min": 0}, r"cutback.clip has no a_min=; write min="),
        (lambda x: cutback.full_like, {"value": 1}, r"full_like has no value=; write fill_value="),
        (lambda x: type(x).std, {"correction": 1}, r"Array.std has no correction=; write ddof="),
    ):
        with pytest.raises(TypeError, match=text):
            cutback.trace(lambda x, find=find, options=options: find(x)(x, **options), X)


METHODS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: np.subtract.outer(a, b[0]),
    lambda a, b: np.multiply.outer(2, a),
    lambda a, b: np.logaddexp.reduce(a, axis=1),
    lambda a, b: np.add.accumulate(a),
    lambda a, b: np.multiply.accumulate(a, axis=1),
]


@pytest.mark.parametrize("call", METHODS, ids=range(len(METHODS)))
def test_methods_of_functions_of_numpy(call: Callable[[Any, Any], Any]) -> None:
    a, b = np.array([[0.5, 2.0], [3.0, -1.0]], np.float32), np.ones((3, 2), np.float32)
    found, expected = cutback.compile(call, argnums=None)(a, b), call(a, b)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)
