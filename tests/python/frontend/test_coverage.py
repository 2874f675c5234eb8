"""Compares operations composed of others with NumPy and torch.nn.functional: value and gradient of
each call, in f64 and f32. The table is ``tests/reference/coverage_rows.py``."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from coverage_rows import NUMPY, TORCH, Row, drawn, ours, weighted

import cutback
from cutback import foreign
from cutback.frontend import methods


def torch_twin(row: Row, x: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")

    class Theirs:
        given = staticmethod(lambda v: torch.from_numpy(v).to(a.dtype) if v.dtype.kind == "f"
                             else torch.from_numpy(v))  # fmt: skip

        def __getattr__(self, name: str) -> Any:
            return getattr(torch.nn.functional, name)

    a = torch.tensor(x, requires_grad=True)
    y = row.call(Theirs(), a)
    weighted_sum = (y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)).sum()
    weighted_sum.backward()
    return y.detach().numpy(), a.grad.numpy()


def numeric(row: Row, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns central differences of NumPy's function, fourth order."""
    step = 1e-3
    result = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        parts = []
        for k in (1, -1, 2, -2):
            moved = x.copy()
            moved[at] += k * step
            parts.append(weighted(np.asarray(row.call(np, moved))))
        result[at] = (8 * (parts[0] - parts[1]) - (parts[2] - parts[3])) / (12 * step)
    return result


def near(found: Any, expected: Any, digits: float, what: str) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, what
    largest = max(np.abs(expected).max(initial=0.0), 1e-300)
    np.testing.assert_allclose(
        found.astype(np.float64), expected.astype(np.float64), rtol=0, atol=digits * largest,
        err_msg=what,
    )  # fmt: skip


def check(row: Row, shape: tuple[int, ...], dtype: Any) -> None:
    x = drawn(row, shape, dtype)
    digits = row.digits if dtype == np.float64 else 1e-4
    what = f"{row.name} {shape} {np.dtype(dtype)}"
    value = cutback.compile(lambda x: ours(row, x), argnums=None)(x)
    gradient = None
    if row.oracle == "torch":
        expected, gradient = torch_twin(row, x)
    else:
        expected = row.call(np, x)
    near(value, expected, digits, what)
    if not row.smooth:
        return
    found = cutback.grad(lambda x: weighted(ours(row, x)))(x)
    if gradient is not None:
        near(found, gradient, digits * 10, f"gradient of {what}")
    elif dtype == np.float64:
        near(found, numeric(row, x), 1e-7, f"gradient of {what}")


def ids(rows: list[Row]) -> list[str]:
    return [f"{row.name}-{i}" for i, row in enumerate(rows)]


@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated")
@pytest.mark.parametrize("row", NUMPY, ids=ids(NUMPY))
def test_numpy(row: Row) -> None:
    x = drawn(row, row.shapes[0], np.float64)
    value = cutback.compile(lambda x: ours(row, x), argnums=None)(x)
    near(value, row.call(np, x), row.digits, row.name)


@pytest.mark.very_slow
@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated")
@pytest.mark.parametrize("row", [*NUMPY, *TORCH], ids=ids([*NUMPY, *TORCH]))
def test_every_shape_and_type(row: Row) -> None:
    for shape in row.shapes:
        for dtype in (np.float64, np.float32):
            check(row, shape, dtype)


def test_advice_names_what_exists() -> None:
    """A replacement suggested by an error is a name of the package."""
    advice = [
        *foreign.NOT_BUILT.values(), *methods._OURS.values(), *foreign.WRITE.values(),
        *foreign.WHY.values(),
    ]  # fmt: skip
    for name in sorted(
        {name for text in advice for name in re.findall(r"cutback\.([\w.]+)", text)}
    ):
        found: object = cutback
        for part in name.split("."):
            found = getattr(found, part)


def test_what_is_missing_is_missing() -> None:
    for name in (*foreign.WRITE, *foreign.WHY, *foreign.NOT_BUILT):
        place, _, last = name.rpartition(".")
        assert not hasattr(getattr(cutback, place) if place else cutback, last), name
