"""Runs research scripts as their authors would write them: losses and gradients equal a PyTorch
twin's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scripts
from nets import Makes
from scripts import Script

import cutback as cb

torch: Any = pytest.importorskip("torch")

SCRIPTS = [
    scripts.gaussian_process, scripts.maml, scripts.graph_attention, scripts.gradient_penalty,
]  # fmt: skip


def tensors(tree: Any) -> Any:
    return cb.tree.map(torch.tensor, tree)


def parameters(tree: Any) -> tuple[Any, list[Any]]:
    found = cb.tree.map(lambda x: x.requires_grad_(), tensors(tree))
    return found, cb.tree.leaves(found)


@pytest.mark.parametrize("make", SCRIPTS, ids=[make.__name__ for make in SCRIPTS])
def test_gradients(make: Callable[[Makes], Script]) -> None:
    script = make(Makes(np.float64))
    value, gradients = cb.value_and_grad(script.loss)(script.params, *script.data)
    params, leaves = parameters(script.params)
    expected = script.twin(torch, params, *tensors(script.data))
    np.testing.assert_allclose(value, expected.item(), rtol=1e-12)
    slopes = torch.autograd.grad(expected, leaves)
    for found, slope in zip(cb.tree.leaves(gradients), slopes, strict=True):
        np.testing.assert_allclose(found, slope, rtol=0, atol=1e-12 * float(slope.abs().max()))


@pytest.mark.parametrize("make", SCRIPTS, ids=[make.__name__ for make in SCRIPTS])
@pytest.mark.parametrize("budget", [None, pytest.param(0.5, marks=pytest.mark.very_slow)])
def test_training(make: Callable[[Makes], Script], budget: float | None) -> None:
    script = make(Makes(np.float32))
    params, leaves = parameters(script.params)
    step = cb.compile(script.loss, optimizer=cb.optim.SGD(lr=1e-2), budget=budget)
    data = tensors(script.data)
    for _ in range(10):
        expected = script.twin(torch, params, *data)
        slopes = torch.autograd.grad(expected, leaves)
        with torch.no_grad():
            for leaf, slope in zip(leaves, slopes, strict=True):
                leaf -= 1e-2 * slope
        found = float(step(script.params, *script.data))
        assert found == pytest.approx(expected.item(), rel=1e-5)
