"""Tests groups that reduce an inner axis, so that their rows are strided in memory, next to each
other. They give the bits of the same ops run one by one, for any number of threads, and NumPy's
values in f64."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import cutback
from cutback.nn import functional as F


def softmax(x: Any) -> Any:
    y = F.softmax(x, 1)
    return (y * y).mean()


def rms(x: Any) -> Any:
    y = x * cutback.rsqrt((x * x).mean(1, keepdims=True) + 1e-5)
    return (y * cutback.cos(x)).sum()


def standardized(x: Any) -> Any:
    d = x - x.mean(1, keepdims=True)
    return (d / cutback.sqrt((d * d).mean(1, keepdims=True) + 1e-5) * x).mean(1).sum()


def extremes(x: Any) -> Any:
    return (x.max(1) * x.min(1)).sum() + (x - x.min(1, keepdims=True)).sum(1).mean()


def dropped(x: Any) -> Any:
    y = F.dropout(x, 0.25)
    return ((y * y).sum(1, keepdims=True) * y).mean()


def log_softmax(x: Any) -> Any:
    return (F.log_softmax(x, 1) * x).sum()


def weighted(x: Any) -> Any:
    """Computes weights per line, per row of lines, and for both, sums of lines, and two totals."""
    shape = x.shape[:2] + (1,) * (x.ndim - 2)
    line, row = x.mean(tuple(range(2, x.ndim)), keepdims=True), x.max((1, 2), keepdims=True)
    y = (x * line + row) * cutback.cos(line) - cutback.broadcast_to(line * row, x.shape)
    d = y - y.mean(1, keepdims=True)
    return (d * d).mean() + (d * x).sum(tuple(range(2, x.ndim))).reshape(shape).sum() * x.sum()


LOSSES = [softmax, log_softmax, rms, standardized, extremes, dropped, weighted]
SHAPES = [
    (4, 8, 64),
    (3, 37, 128),
    (2, 300, 72),  # runs of rows, and lanes left over
    (2, 5, 4104),  # strips of lanes
    (3, 130, 77),
    (2, 1024, 65),
    (2, 6, 16, 5, 13),
    (70, 9, 33),  # leaves that tasks share
    (2, 4, 24),
    (6, 300, 16),  # bands of lines, the last one not full, and several blocks
    (5, 128, 4),
    (3, 2600, 12),
    (2, 11, 49),
]
DTYPES = ["float32", "float64", "bfloat16", "float16"]


def normal(shape: tuple[int, ...], dtype: str) -> Any:
    x = np.random.default_rng(len(shape)).standard_normal(shape)
    if dtype != "bfloat16":
        return x.astype(dtype)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return x.astype(ml_dtypes.bfloat16)


def bits(loss: Any, x: Any, backend: str = "cpu") -> tuple[Any, list[bytes]]:
    step = cutback.value_and_grad(loss, backend=backend)
    value, gradient = step(x)
    return step, [np.asarray(value).tobytes(), np.asarray(gradient).tobytes()]


@pytest.mark.skipif("CUTBACK_TEST_BACKEND" in os.environ, reason="looks at the code of the cpu")
@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", DTYPES)
def test_groups_have_the_bits_of_single_ops(loss: Any, dtype: str) -> None:
    for shape in SHAPES:
        x = normal(shape, dtype)
        step, grouped = bits(loss, x)
        assert grouped == bits(loss, x, "debug")[1], shape
        cuts_draws = loss is dropped and np.prod(shape[2:]) % 8 > 0
        if not cuts_draws:
            assert "side by side" in step.code(), shape


def test_bits_do_not_depend_on_threads() -> None:
    x = normal((7, 260, 199), "float32")
    before = cutback.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 5):
            cutback.set_num_threads(threads)
            found.append([bits(loss, x)[1] for loss in LOSSES])
        assert found[0] == found[1] == found[2]
    finally:
        cutback.set_num_threads(before)


def test_values_are_those_of_numpy() -> None:
    x = normal((5, 40, 96), "float32")
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    y = e / e.sum(1, keepdims=True)
    value, gradient = cutback.value_and_grad(lambda x: (F.softmax(x, 1) ** 2).mean())(x)
    g = 2 * y / y.size
    expected = y * (g - (g * y).sum(1, keepdims=True))
    assert abs(value - (y * y).mean()) < 1e-6 * (y * y).mean()
    assert np.abs(gradient - expected).max() < 2e-6 * np.abs(expected).max()


def test_softmax_of_infinite_and_large_numbers() -> None:
    """A row of -inf or with +inf is NaN, and large numbers do not overflow, as along the last
    axis."""
    x = normal((2, 6, 64), "float32") * 1e4
    x[0, 2] = -np.inf
    x[0, :, 3] = -np.inf
    x[1, 4, 5] = np.inf
    x[1, 1, 7] = np.nan
    across = cutback.compile(lambda x: F.softmax(x, 1), argnums=None)(x)
    along = cutback.compile(lambda x: F.softmax(x), argnums=None)(
        np.ascontiguousarray(x.swapaxes(1, 2))
    ).swapaxes(1, 2)
    np.testing.assert_allclose(across, along, rtol=1e-6, atol=1e-30)


def test_softmax_is_one_group_without_memory() -> None:
    x = normal((4, 16, 64), "float32")
    step = cutback.value_and_grad(lambda x: (F.softmax(x, 1) ** 2).mean())
    step(x)
    text = step.executable.text("program")
    assert text.count("group ") == 1
    assert "group 0 [4x16x64]:" in text
