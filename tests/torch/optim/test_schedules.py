"""Compares ``cutback.optim.schedules`` with PyTorch's schedulers and optax's formulas."""

from __future__ import annotations

import math
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler as theirs

import cutback as cb
from cutback.optim import schedules as ours

LR, STEPS = 0.3, 60


def rates_of_torch(make: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR calls step(0) of its schedulers
        scheduler = make(optimizer)
        found = []
        for _ in range(STEPS):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return found


PAIRS = {
    "cosine": (lambda o: theirs.CosineAnnealingLR(o, 40, 0.01),
               ours.CosineAnnealingLR(LR, 40, 0.01)),
    "restarts": (lambda o: theirs.CosineAnnealingWarmRestarts(o, 8, 2, 0.02),
                 ours.CosineAnnealingWarmRestarts(LR, 8, 2, 0.02)),
    "linear": (lambda o: theirs.LinearLR(o, 0.2, 0.9, 12), ours.LinearLR(LR, 0.2, 0.9, 12)),
    "constant": (lambda o: theirs.ConstantLR(o, 0.5, 7), ours.ConstantLR(LR, 0.5, 7)),
    "polynomial": (lambda o: theirs.PolynomialLR(o, 30, 2.0), ours.PolynomialLR(LR, 30, 2.0)),
    "step": (lambda o: theirs.StepLR(o, 9, 0.5), ours.StepLR(LR, 9, 0.5)),
    "steps": (lambda o: theirs.MultiStepLR(o, [5, 5, 30], 0.5),
              ours.MultiStepLR(LR, [5, 5, 30], 0.5)),
    "exponential": (lambda o: theirs.ExponentialLR(o, 0.95), ours.ExponentialLR(LR, 0.95)),
    "one cycle": (lambda o: theirs.OneCycleLR(o, 0.5, STEPS + 1),
                  ours.OneCycleLR(0.5, STEPS + 1)),
    "one cycle on lines": (lambda o: theirs.OneCycleLR(o, 0.5, STEPS + 1, pct_start=0.4,
                                                       anneal_strategy="linear"),
                           ours.OneCycleLR(0.5, STEPS + 1, 0.4, "linear")),
    "lambda": (lambda o: theirs.LambdaLR(o, lambda t: 1 / (1 + t)),
               ours.LambdaLR(LR, lambda t: 1 / (1 + t))),
    "in turn": (lambda o: theirs.SequentialLR(
                    o, [theirs.LinearLR(o, 0.1, 1.0, 10), theirs.CosineAnnealingLR(o, 50)], [10]),
                ours.SequentialLR(
                    [ours.LinearLR(LR, 0.1, 1.0, 10), ours.CosineAnnealingLR(LR, 50)], [10])),
    "chained": (lambda o: theirs.ChainedScheduler(
                    [theirs.LinearLR(o, 0.1, 1.0, 10), theirs.ExponentialLR(o, 0.97)]),
                ours.ChainedScheduler(
                    LR, [ours.LinearLR(LR, 0.1, 1.0, 10), ours.ExponentialLR(LR, 0.97)])),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_rates_are_those_of_pytorch(name: str) -> None:
    make, schedule = PAIRS[name]
    found = [schedule(t) for t in range(STEPS)]
    np.testing.assert_allclose(found, rates_of_torch(make), rtol=1e-9, atol=1e-12)


def cosine(t: int, steps: int) -> float:
    return (1 + math.cos(math.pi * min(t, steps) / steps)) / 2


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        (ours.constant_schedule(0.2), lambda t: 0.2),
        (ours.linear_schedule(1.0, 0.1, 10, 5), lambda t: 1 - 0.09 * min(max(t - 5, 0), 10)),
        (ours.cosine_decay_schedule(0.5, 20, 0.1, 2.0),
         lambda t: 0.5 * (0.9 * cosine(t, 20) ** 2 + 0.1)),
        (ours.exponential_decay(1.0, 10, 0.5, 4), lambda t: 0.5 ** (max(t - 4, 0) / 10)),
        (ours.exponential_decay(1.0, 10, 0.5, end_value=0.2),
         lambda t: max(0.5 ** (t / 10), 0.2)),
        (ours.exponential_decay(1.0, 10, 0.5, staircase=True), lambda t: 0.5 ** (t // 10)),
        (ours.piecewise_constant_schedule(1.0, {5: 0.1, 20: 2.0}),
         lambda t: 1.0 if t < 5 else 0.1 if t < 20 else 0.2),
        (ours.warmup_cosine_decay_schedule(0.0, 0.4, 10, 50, 0.04),
         lambda t: 0.04 * t if t < 10 else 0.4 * (0.9 * cosine(t - 10, 40) + 0.1)),
        (ours.cosine_onecycle_schedule(40, 0.5, 0.25),
         lambda t: 0.02 + 0.48 * (1 - cosine(t, 10)) if t < 10
         else 2e-6 + (0.5 - 2e-6) * cosine(t - 10, 30)),
        (ours.linear_onecycle_schedule(20, 1.0, 0.25, 0.5, 10.0, 10.0),
         lambda t: float(np.interp(t, [0, 5, 10, 20], [0.1, 1.0, 0.1, 0.01]))),
    ],
)  # fmt: skip
def test_rates_are_those_of_the_formula(schedule: Any, formula: Any) -> None:
    found = [schedule(t) for t in range(STEPS)]
    np.testing.assert_allclose(found, [formula(t) for t in range(STEPS)], rtol=1e-12, atol=1e-15)
    assert pickle.loads(pickle.dumps(schedule))(7) == schedule(7)


def test_a_compiled_step_follows_a_schedule() -> None:
    rate = ours.linear_schedule(1.0, 0.0, 4)
    params = np.zeros(3, np.float32)
    step = cb.compile(lambda p: p.sum(), optimizer=cb.optim.SGD(lr=rate))
    for _ in range(6):
        step(params)
    np.testing.assert_allclose(params, -(1 + 0.75 + 0.5 + 0.25), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ours.cosine_decay_schedule(1.0, 0), "decay_steps=0"),
        (lambda: ours.StepLR(1.0, 2.5), "2.5"),  # type: ignore[arg-type]
        (
            lambda: ours.join_schedules([ours.constant_schedule(1.0)], [3]),
            "1 schedules need 0 boundaries, got 1",
        ),
        (lambda: ours.MultiStepLR(1.0, [3, 2]), "in order"),
        (lambda: ours.warmup_cosine_decay_schedule(0.0, 1.0, 10, 10), "above warmup_steps=10"),
        (lambda: ours.OneCycleLR(1.0, 10, anneal_strategy="up"), "'up'"),
        (lambda: ours.ChainedScheduler(0.0, []), "must not be 0"),
    ],
)
def test_mistakes(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()
