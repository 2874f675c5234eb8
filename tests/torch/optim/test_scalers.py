"""Overflow under ``GradScaler``: a drop-in skips the same steps as PyTorch's optimizer, and
schedules wait."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import cutback.torch.optim as ours

NAMES = [name for name in ours.__all__ if name != "foreach"]
IN_TORCH = [name for name in NAMES if hasattr(torch.optim, name)]
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def units(x, y):
    """Returns the largest difference, in ulps of the largest number."""
    largest = y.abs().max()
    unit = torch.nextafter(largest, largest.new_tensor(float("inf"))) - largest
    return float((x - y).abs().max() / unit)


def train(optimizer, params, clip, steps=8):
    """Returns which steps a front end sees skipped, and the learning rate after each."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    calls, rows = [], []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for t in range(steps):
        before = len(calls)
        for i, p in enumerate(params):
            g = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * t + i))
            p.grad = g * scaler.scale(torch.ones(())).item()
        if t in (0, 3, 4):
            params[-1].grad[0] = float("inf") if t else float("nan")
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(params, 0.1)
        scaler.step(optimizer)
        scaler.update()
        skipped = len(calls) == before
        if not skipped:
            schedule.step()
        rows.append((skipped, optimizer.param_groups[0]["lr"], scaler.get_scale()))
    return rows


def parameters(name):
    shapes = [(8, 4), (4, 3)] if name in ("Muon", "NorMuon") else [(8, 4), (5,)]
    g = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=g)) for shape in shapes]


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(
    ("name", "fused"), [(name, None) for name in IN_TORCH] + [(name, True) for name in FUSED]
)
def test_skips_and_learning_rates_are_those_of_pytorch(name, fused, clip):
    options = {"lr": 0.25} | ({"fused": True} if fused else {})
    params = parameters(name)
    others = copy.deepcopy(params)
    optimizer = getattr(ours, name)(params, **options)
    other = getattr(torch.optim, name)(others, lr=0.25)
    assert not getattr(optimizer, "_step_supports_amp_scaling", False)
    rows = train(optimizer, params, clip)
    assert rows == train(other, others, clip)
    assert [row[0] for row in rows] == [t in (0, 3, 4) for t in range(8)]
    if name != "Muon":  # PyTorch's Muon uses bf16
        assert max(units(p.detach(), q.detach()) for p, q in zip(params, others, strict=True)) <= 8


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(IN_TORCH)))
def test_optimizers_of_our_own_skip_alike(name):
    params = parameters(name)
    rows = train(getattr(ours, name)(params, lr=0.25), params, False)
    assert [row[0] for row in rows] == [t in (0, 3, 4) for t in range(8)]
    assert rows[-1][1] == 0.25 * 0.5**5 and all(p.isfinite().all() for p in params)


def test_a_scaler_that_asks_the_step_is_minded():
    """The test sets the attributes that PyTorch's fused classes read."""
    p = nn.Parameter(torch.ones(2))
    optimizer = ours.SGD([p], lr=1.0)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(0.0)
    p.grad = torch.full((2,), 2.0)
    optimizer.step()
    assert p.tolist() == [0.5, 0.5] and p.grad.tolist() == [2.0, 2.0]
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert optimizer.outcome.skipped and p.tolist() == [0.5, 0.5]
