"""Compares the schedule-free optimizer on tensors with the one on arrays."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import cutback as cb
from cutback.torch import optim

SHAPES = [(5, 3), (3,)]


def both() -> tuple[list[Any], list[torch.nn.Parameter]]:
    rng = np.random.default_rng(0)
    ours = [rng.standard_normal(shape, np.float32) for shape in SHAPES]
    return ours, [torch.nn.Parameter(torch.tensor(x)) for x in ours]


def gradients(t: int) -> list[Any]:
    rng = np.random.default_rng(t)
    return [rng.standard_normal(shape, np.float32) for shape in SHAPES]


def stepped(optimizer: Any, params: list[torch.nn.Parameter], steps: range) -> None:
    for t in steps:
        for p, g in zip(params, gradients(t), strict=True):
            p.grad = torch.tensor(g)
        optimizer.step()


OPTIONS = {"lr": 0.1, "betas": (0.8, 0.99), "weight_decay": 0.01, "warmup_steps": 3}


def test_it_steps_as_that_of_arrays() -> None:
    ours, params = both()
    arrays = cb.optim.ScheduleFreeAdamW(**OPTIONS)  # type: ignore[arg-type]
    tensors = optim.ScheduleFreeAdamW(params, **OPTIONS)
    for t in range(8):
        arrays.step(ours, gradients(t))
    stepped(tensors, params, range(8))
    for x, p in zip(ours, params, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), x)
    arrays.eval(ours)
    tensors.eval()
    tensors.eval()  # a second call changes nothing
    for x, p in zip(ours, params, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-6)
    with pytest.raises(RuntimeError, match=r"call optimizer.train\(\) before"):
        tensors.step()
    tensors.train()
    for x, p in zip(ours, params, strict=True):
        assert np.abs(p.detach().numpy() - x).max() > 1e-4  # these are y, ours are x
    stepped(tensors, params, range(8, 10))


def test_averages_have_a_lower_loss_than_the_last_iterate() -> None:
    torch.manual_seed(0)
    target = torch.randn(20)
    p = torch.nn.Parameter(torch.zeros(20))
    optimizer = optim.ScheduleFreeAdamW([p], lr=0.3)
    for _ in range(200):
        p.grad = p.detach() - target + torch.randn(20)
        optimizer.step()
    z = optimizer.state[p]["z"]
    optimizer.eval()
    assert (p - target).norm() < 0.5 * (z - target).norm()


def test_a_state_goes_on_in_another_optimizer() -> None:
    _, params = both()
    optimizer = optim.ScheduleFreeAdamW(params, **OPTIONS)
    stepped(optimizer, params, range(5))
    optimizer.eval()
    kept, values = copy.deepcopy(optimizer.state_dict()), [p.detach().clone() for p in params]
    optimizer.train()
    stepped(optimizer, params, range(5, 8))
    others = [torch.nn.Parameter(x) for x in values]
    resumed = optim.ScheduleFreeAdamW(others, **OPTIONS)
    resumed.load_state_dict(kept)
    with pytest.raises(RuntimeError, match="train"):
        resumed.step()
    resumed.train()
    stepped(resumed, others, range(5, 8))
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)
