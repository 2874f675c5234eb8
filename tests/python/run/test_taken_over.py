"""Tests outputs of pointwise ops in the memory of their inputs: `over=` in programs."""

from __future__ import annotations

import numpy as np
import pytest

import cutback


def loss(w, x):
    y = x @ w
    for _ in range(3):
        y = cutback.sin(y) @ w  # the backward needs the products
    return (y * y).mean()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("options", [{}, {"budget": "min"}, {"budget": "min", "groups": False}])
def test_results_are_those_of_memory_of_their_own(dtype, options):
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal((33, 33)).astype(dtype) for _ in range(2))
    results = []
    for backend in ("ref", "cpu", "debug"):  # `ref` allocates each buffer separately
        step = cutback.value_and_grad(loss, backend=backend, **options)
        value, gradient = step(w, x)
        results.append((np.asarray(value), np.asarray(gradient)))
        assert " over=" in step.executable.text("program")
        if backend == "debug":
            assert step.stats.peak_bytes == step.planned.live_bytes
    (_, twin), cpu, debug = results
    assert [a.tobytes() for a in cpu] == [a.tobytes() for a in debug]
    np.testing.assert_allclose(cpu[1], twin, rtol=1e-2 if dtype == np.float16 else 1e-4, atol=1e-2)
