"""Sums of many elements beside two oracles: NumPy in f64, within a bound that follows from the
order of additions, and the CPU's bits, which docs/cuda.md promises for groups."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cutback as cb
from client import Driver

UNIT = 2.0**-24  # the largest relative error of one f32 operation


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(11).standard_normal(shape).astype(np.float32)


def additions_of_total(n: int) -> int:
    """The most that an element takes part in: 16 in its lane of a leaf of 1,024, 6 over the 64
    lanes, then pairs of leaves and of segments, of which an incomplete tree adds one level each."""
    leaves = math.ceil(n / 1024)
    return 16 + 6 + math.ceil(math.log2(max(leaves, 1))) + 2


def additions_of_columns(rows: int) -> int:
    """No order has more: one after another."""
    return rows


# A sum, the same in f64, how many additions an element takes part in, and the shape.
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
    """Whole numbers are added exactly; sizes at which leaves, segments and pairs begin or end. Each
    element counts for a power of two of its own place, so that none makes up for another."""
    step = cb.compile(lambda x: x.sum(), argnums=None, device="cuda")
    for n in (1, 63, 64, 65, 1023, 1024, 1025, 3072, 65_536, 65_537, 150_000, 200_000):
        x = np.ones(n, np.float32)
        assert float(step(x)) == n
        for k in {0, n // 3, n // 2, n - 1}:
            x[k] += 2.0**20
        assert float(step(x)) == float(x.astype(np.float64).sum()), n
