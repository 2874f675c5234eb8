"""Trains small models for fifty steps with ``codegen="native"`` and with PyTorch's kernels."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import small_models

import cutback.torch as ct

MODELS = ("gpt", "resnet", "unet", "encoder")


def losses(case: Any, codegen: str) -> list[float]:
    """Returns the losses of fifty steps of SGD."""
    model, inputs = copy.deepcopy(case)
    step = ct.compile(model, codegen=codegen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for seed in range(50):
        torch.manual_seed(seed)
        optimizer.zero_grad()
        loss = step(*inputs)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.very_slow
@pytest.mark.parametrize("name", MODELS)
def test_fifty_losses(name: str) -> None:
    """Losses stay within 1e-4 of those of PyTorch's kernels, and training makes progress."""
    case = small_models.make(name)
    ours, theirs = (losses(case, codegen) for codegen in ("native", "eager"))
    assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-4)
    assert abs(theirs[-1] - theirs[0]) > 1e-4
