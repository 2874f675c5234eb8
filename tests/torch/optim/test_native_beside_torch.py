"""Compares optimizers of compiled steps with torch.optim, over 100 steps on the same gradients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import cutback

STEPS = 100
SGD = [
    {"momentum": momentum, "dampening": dampening, "weight_decay": decay, "nesterov": nesterov,
     "maximize": maximize}
    for momentum, dampening, decay, nesterov, maximize in itertools.product(
        (0.0, 0.9), (0.0, 0.25), (0.0, 0.05), (False, True), (False, True))
    if not nesterov or (momentum and not dampening)
]  # fmt: skip
ADAMW = [{}, {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}]


def furthest(ours, theirs, options, dtype):
    """Returns the largest difference of a parameter after each step, in ulps of the largest value.
    The gradient of ``(p * x).sum()`` is x, to the bit."""
    rng = np.random.default_rng(0)
    params = {"a": rng.standard_normal((6, 5)).astype(dtype), "b": np.ones(3, dtype)}
    tensors = {name: torch.tensor(p, requires_grad=True) for name, p in params.items()}
    step = cutback.compile(
        lambda p, x: sum((p[k] * x[k]).sum() for k in p), optimizer=ours(**options)
    )
    optimizer = theirs(tensors.values(), **options)
    worst = 0.0
    for _ in range(STEPS):
        x = {name: rng.standard_normal(p.shape).astype(dtype) for name, p in params.items()}
        step(params, x)
        for name, tensor in tensors.items():
            tensor.grad = torch.from_numpy(x[name])
        optimizer.step()
        for name, tensor in tensors.items():
            there = tensor.detach().numpy()
            unit = np.spacing(np.abs(there).max())
            worst = max(worst, float(np.abs(params[name] - there).max() / unit))
    return worst


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("options", SGD)
def test_sgd(options, dtype):
    """PyTorch multiplies and adds with one rounding if the processor can; our code rounds twice."""
    assert furthest(cutback.optim.SGD, torch.optim.SGD, {"lr": 0.1, **options}, dtype) <= 8


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("options", ADAMW)
def test_adamw(options, dtype):
    assert furthest(cutback.optim.AdamW, torch.optim.AdamW, options, dtype) <= 8
