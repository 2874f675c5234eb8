"""Compares sums of many elements with two oracles: NumPy in f64, within a bound that follows from
the order of additions, and the CPU's bits, which docs/cuda.md promises for groups."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutback as cb
import nvrtc
from cases import LONG, Scope
from client import Driver
from cutback.nn import functional as F

UNIT = 2.0**-24  # the largest relative error of one f32 operation


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(11).standard_normal(shape).astype(np.float32)


def additions_of_total(n: int) -> int:
    """Returns the most additions that an element takes part in: 16 in its lane of a leaf of 1,024,
    6 over the 64 lanes, then pairs of leaves and of segments; an incomplete tree of pairs adds one
    level each."""
    leaves = math.ceil(n / 1024)
    return 16 + 6 + math.ceil(math.log2(max(leaves, 1))) + 2


def additions_of_columns(rows: int) -> int:
    """Returns a bound: no order has more additions one after another."""
    return rows


# A sum, the same in f64, the number of additions that an element takes part in, and the shape.
SUMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], int, tuple[int, ...]]] = {
    "total": (lambda x: x.sum(), lambda x: x.sum(), additions_of_total(200_000), (200_000,)),
    "total of squares": (
        lambda x: (x * x).sum(),
        lambda x: (x * x).sum(),
        additions_of_total(150_001) + 1,
        (150_001,),  # three segments, 19 leaves in the last
    ),
    "mean of rows": (
        lambda x: x.mean(),
        lambda x: x.mean(),
        additions_of_total(70_000) + 1,
        (70, 1000),
    ),
    "columns": (
        lambda x: x.sum(axis=0),
        lambda x: x.sum(axis=0),
        additions_of_columns(1600),
        (1600, 128),
    ),
    "odd columns": (
        lambda x: x.sum(axis=0),
        lambda x: x.sum(axis=0),
        additions_of_columns(300),
        (300, 129),  # the last vector of a row has one element
    ),
    "rows": (
        lambda x: x.sum(axis=1),
        lambda x: x.sum(axis=1),
        additions_of_total(5000),
        (40, 5000),
    ),
    "pieces": (
        lambda x: x.reshape(-1, 64).sum(axis=1),
        lambda x: x.reshape(-1, 64).sum(axis=1),
        7,
        (400, 512),
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_beside_f64_and_the_cpu(gpu: Driver, name: str) -> None:
    f, in_double, additions, shape = SUMS[name]
    x = numbers(*shape)
    found = np.asarray(cb.compile(f, argnums=None, device="cuda")(x))
    # |error| <= k u / (1 - k u) times the same sum of absolute values (Higham 2002, 4.2)
    growth = additions * UNIT / (1 - additions * UNIT)
    bound = growth * in_double(np.abs(x.astype(np.float64)))
    error = np.abs(found - in_double(x.astype(np.float64)))
    assert (error <= bound).all(), (float(error.max()), float(np.max(bound)))
    assert found.tobytes() == np.asarray(cb.compile(f, argnums=None)(x)).tobytes()


def test_every_element_counts_once(gpu: Driver) -> None:
    """Integers are added exactly, at sizes where leaves, segments and pairs begin or end. Each
    element is a power of two of its own position, so errors cannot cancel."""
    step = cb.compile(lambda x: x.sum(), argnums=None, device="cuda")
    for n in (1, 63, 64, 65, 1023, 1024, 1025, 3072, 65_536, 65_537, 150_000, 200_000):
        x = np.ones(n, np.float32)
        assert float(step(x)) == n
        for k in {0, n // 3, n // 2, n - 1}:
            x[k] += 2.0**20
        assert float(step(x)) == float(x.astype(np.float64).sum()), n


# A few results of many elements each, which blocks split into pieces; the last piece is shorter.
PIECES = [(4, 3, 50, 50), (2, 2, 4097, 1)]


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        *((op, dtype) for op in ("sum", "mean", "max", "min") for dtype in ("float32", "float64")),
        *((op, dtype) for op in ("sum", "max") for dtype in ("int32", "int64")),
    ],
)
def test_reductions_in_pieces(gpu: Driver, op: str, dtype: str) -> None:
    for shape in PIECES:
        x = (1000 * numbers(*shape)).astype(dtype)
        step = cb.compile(lambda x: getattr(x, op)(axis=(0, 2, 3)), argnums=None, device="cuda")
        found = np.asarray(step(x))
        expected = getattr(x.astype(np.float64), op)(axis=(0, 2, 3))
        if dtype == "float32" and op in ("sum", "mean"):
            most = getattr(np.abs(x.astype(np.float64)), op)(axis=(0, 2, 3))
            assert (np.abs(found - expected) <= 200 * UNIT * most).all(), shape
        else:
            assert np.allclose(found, expected, rtol=1e-12, atol=0), shape
        assert np.asarray(step(x)).tobytes() == found.tobytes()


def test_extremes_in_pieces_see_only_elements(gpu: Driver) -> None:
    """Threads and pieces without elements do not contribute zeros; a NaN in any piece is the
    result."""
    step = cb.compile(
        lambda x: (x.max(axis=(0, 2)), x.min(axis=(0, 2))), argnums=None, device="cuda"
    )
    x = np.full((3, 2, 4000), -5, np.float32)
    x[:, 1] = 5
    largest, smallest = (np.asarray(a) for a in step(x))
    assert largest.tolist() == smallest.tolist() == [-5, 5]
    x[2, 0, 3999] = np.nan
    largest, smallest = (np.asarray(a) for a in step(x))
    assert np.isnan(largest[0]) and np.isnan(smallest[0])
    assert largest[1] == smallest[1] == 5


@pytest.mark.parametrize("shape", [(8, 3, 20, 20), (5, 2, 1031), (3000, 4), (16, 3, 1, 1)])
def test_batch_norm_in_pieces(gpu: Driver, shape: tuple[int, ...]) -> None:
    """Values, statistics and gradients agree with the CPU in f64 for a mean far from zero, where
    sums of squares would lose all digits."""
    x, g = 1000 + numbers(*shape), numbers(*shape)[::-1].copy()
    channels = shape[1]
    weight, bias = 1 + np.arange(channels, dtype=np.float32), np.ones(channels, np.float32)

    def loss(x: Any, weight: Any, bias: Any, g: Any) -> Any:
        return (F.batch_norm(x, None, None, weight, bias, training=True) * g).sum()

    def values(dtype: str, device: str | None) -> list[Any]:
        step = cb.value_and_grad(loss, argnums=(0, 1, 2), device=device)
        value, gradients = step(*(a.astype(dtype) for a in (x, weight, bias, g)))
        return [np.asarray(value), *(np.asarray(a) for a in gradients)]

    for found, expected in zip(values("float32", "cuda"), values("float64", None), strict=True):
        scale = np.abs(expected).max() + np.abs(x).max() * UNIT * 1000
        assert np.abs(found - expected).max() <= 2e-3 * scale
    for found, expected in zip(values("float64", "cuda"), values("float64", None), strict=True):
        assert np.allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


# More leaves than a segment holds, without an array of 17 million elements

OPTIONS = ("--fmad=false", "--std=c++17", "--device-as-default-execution-space")
TEXTS = Path(__file__).parents[2] / "csrc" / "exec" / "cuda" / "text"
SUM_OF_LEAVES = """#include "prelude.cuh"
extern "C" __global__ void sum_of_leaves(const float *leaf, uint64_t n, float *out) {
    const float sum = pairs_of_warp(leaf, 0, n);
    if (threadIdx.x == 0) out[0] = sum;
}
"""


def pairs(leaves: np.ndarray[Any, Any]) -> np.float32:
    """Adds leaves in the CPU's order: the largest power of two of them in halves, then the rest."""
    if len(leaves) == 1:
        return np.float32(leaves[0])
    first = 1 << (len(leaves) - 1).bit_length() - 1
    return np.float32(pairs(leaves[:first]) + pairs(leaves[first:]))


def test_a_warp_adds_up_any_number_of_leaves(driver: Driver, tmp_path: Path) -> None:
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed (pip install nvidia-cuda-nvrtc)")
    for header in ("stdint.h", "math.h", "string.h"):
        shutil.copy(TEXTS / "device_types.cuh", tmp_path / header)
    places = (f"--include-path={place}" for place in (TEXTS, tmp_path))
    text = nvrtc.compile_to_ptx(SUM_OF_LEAVES, *OPTIONS, *places)
    leaves = numbers(3000)
    for n in (1, 7, 8, 9, 255, 256, 257, 512, 513, 700, 768, 1023, 1024, 1800, 3000):
        with Scope(driver) as m:
            out = m.room(4)
            driver.launch(text, "sum_of_leaves", 1, 32, m.put(leaves[:n]), LONG(n), out)
            assert driver.get(out, np.float32, 1)[0] == pairs(leaves[:n]), n
