"""Gradients of slices: each element gets the sum of the gradients of the slices that contain it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import cutback


def parts(rng: np.random.Generator, n: int) -> list[slice]:
    """Returns slices of an axis of length n, in any order: a partition, or slices that may
    overlap."""
    cuts = [0, *sorted(rng.choice(np.arange(1, n), 3, replace=False)), n]
    found = [slice(int(a), int(b)) for a, b in itertools.pairwise(cuts)]
    kind = rng.integers(3)
    if kind == 1:
        found = found[1:]
    if kind == 2:
        found += [slice(int(a), int(a) + 3, int(rng.integers(1, 3))) for a in rng.integers(0, n, 3)]
    return [found[k] for k in rng.permutation(len(found))]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_against_sums(dtype: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        shape = tuple(int(n) for n in rng.integers(5, 9, 3))
        x = rng.integers(-3, 4, shape).astype(dtype)
        places: list[Any] = []
        for axis in (0, int(rng.integers(1, 3))):
            places += [(slice(None),) * axis + (part,) for part in parts(rng, shape[axis])]
        weights = [float(w) for w in rng.integers(1, 4, len(places))]

        def loss(x: Any, places: Any = places, weights: Any = weights) -> Any:
            terms = [(x[at] * w).sum() for at, w in zip(places, weights, strict=True)]
            return sum(terms[1:], terms[0]) + (x * 0.5).sum()

        expected = np.full(shape, 0.5, dtype)
        for at, w in zip(places, weights, strict=True):
            expected[at] += w
        np.testing.assert_array_equal(cutback.grad(loss)(x), expected)


def test_an_unrolled_loop_moves_each_slice_once() -> None:
    """The gradients of slices are not padded to the length of the whole sequence."""

    def loss(x: Any) -> Any:
        h = x[0]
        for t in range(1, x.shape[0]):
            h = cutback.tanh(h * x[t])
        return h.sum()

    step = cutback.value_and_grad(loss)
    step(np.ones((12, 40), np.float32))
    text = step.executable.text("program")
    assert text.count("= concat(") == 1
    assert "= pad(" not in text
