"""Tests joined sums of loops: against the formulas in f64, and equal bits under all budgets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutback as cb

STEPS, BATCH, WIDTH = 18, 2, 48


def loop(p: Any, how: str) -> Any:
    """Returns the loss of h = tanh(x[t] @ w + h @ u) after all steps."""
    h = p["h"]
    for t in range(p["x"].shape[how == "across"]):
        x = p["x"][:, t] if how == "across" else p["x"][t]
        w = p["w"].T if how == "turned" else p["w"]
        h = cb.tanh(x @ w + h @ p["u"])
    return (h * h).sum()


def by_formulas(p: Any, how: str) -> tuple[Any, dict[str, Any]]:
    """Returns the loss and its gradients in f64, step by step."""
    q = {name: value.astype(np.float64) for name, value in p.items()}
    x = q["x"].swapaxes(0, 1) if how == "across" else q["x"]
    w = q["w"].T if how == "turned" else q["w"]
    states = [q["h"]]
    for t in range(STEPS):
        states.append(np.tanh(x[t] @ w + states[-1] @ q["u"]))
    dx, dw, du, dh = np.zeros_like(x), np.zeros_like(w), np.zeros_like(q["u"]), 2 * states[-1]
    for t in reversed(range(STEPS)):
        g = dh * (1 - states[t + 1] ** 2)
        dx[t], dh = g @ w.T, g @ q["u"].T
        dw += x[t].T @ g
        du += states[t].T @ g
    gradients = {"x": dx.swapaxes(0, 1) if how == "across" else dx, "u": du, "h": dh}
    gradients["w"] = dw.T if how == "turned" else dw
    return (states[-1] ** 2).sum(), gradients


def arguments(how: str, dtype: Any, steps: int = STEPS) -> dict[str, Any]:
    random = np.random.default_rng(len(how))
    units = 520 if how == "turned" else 48  # so wide that sums of transposed products are faster
    shapes = {
        "x": (BATCH, steps, WIDTH) if how == "across" else (steps, BATCH, WIDTH),
        "w": (units, WIDTH) if how == "turned" else (WIDTH, units),
        "u": (units, units),
        "h": (BATCH, units),
    }
    scale = 1.0 / units**0.5
    return {k: (scale * random.standard_normal(v)).astype(dtype) for k, v in shapes.items()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("how", ["rows", "across", "turned"])
def test_gradients_are_those_of_the_formulas(how: str, dtype: Any) -> None:
    p = arguments(how, dtype)
    loss, gradients = cb.value_and_grad(lambda p: loop(p, how))(p)
    want, want_gradients = by_formulas(p, how)
    tolerance = 1e-5 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(loss, want, rtol=tolerance)
    for name, gradient in want_gradients.items():
        error = np.abs(gradients[name] - gradient).max()
        assert error <= tolerance * np.abs(gradient).max(), name


@pytest.mark.very_slow
@pytest.mark.parametrize("backend", ["cpu", "debug"])
def test_bits_do_not_depend_on_the_budget(backend: str) -> None:
    p = arguments("rows", np.float32, 8)
    results = []
    for budget in (None, "min"):
        step = cb.value_and_grad(lambda p: loop(p, "rows"), budget=budget, backend=backend)
        loss, gradients = step(p)
        results.append([loss, *(gradients[name] for name in sorted(gradients))])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
