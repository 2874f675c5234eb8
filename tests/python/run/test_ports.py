"""Trains typical nets at position 0.5, half way between the smallest plan and saving everything:
perceptrons like the README's, and ports from PyTorch of an LSTM, a ResNet and a transformer with
rotary embeddings. The measured peak is within the bytes of the position."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import nets
import numpy as np
import pytest
from nets import Makes, Net

import cutback as cb
from cutback.nn import functional as F


def lstm(m: Makes, time: int) -> Net:
    return nets.lstm(m, width=32, hidden=32, time=time, batch=16)


def resnet(m: Makes, side: int) -> Net:
    return nets.resnet(m, side=side, batch=16)


def rope(m: Makes, time: int) -> Net:
    return nets.rope(m, nets.Rope(words=96, width=64, time=time))


@pytest.mark.very_slow
@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lstm, 4),
        (resnet, 8),
        (rope, 16),
        pytest.param(lstm, 64, marks=pytest.mark.very_slow),
        pytest.param(resnet, 32, marks=pytest.mark.very_slow),
        pytest.param(rope, 64, marks=pytest.mark.very_slow),
    ],
)
def test_in_the_middle(make: Callable[[Makes, int], Net], size: int) -> None:
    check(make(Makes(np.float32), size), steps=8)


PERCEPTRONS = [
    (2, 128, 128), (3, 128, 128), (4, 256, 128), (6, 256, 128), (8, 256, 128), (12, 1024, 128),
    (6, 2048, 64),
]  # fmt: skip


@pytest.mark.parametrize(("layers", "batch", "width"), PERCEPTRONS)
def test_perceptrons_in_the_middle(layers: int, batch: int, width: int) -> None:
    m = Makes(np.float32)
    params = [(m.he(width, width), m.zeros(width)) for _ in range(layers)]

    def loss(xp: Any, params: Any, x: Any) -> Any:
        for w, b in params:
            x = F.relu(x @ w + b)
        return (x * x).mean()

    check(Net(params, (m.normal(batch, width),), loss), steps=2, saves=layers > 3)


def check(net: Net, steps: int, saves: bool = True) -> None:
    """Trains at position 0.5. If not ``saves``, the gradients make up the peak, whatever is
    saved."""
    step = cb.compile(partial(net.loss, cb), budget=0.5, optimizer=cb.optim.AdamW(lr=1e-2))
    losses = [float(step(net.params, *net.data)) for _ in range(steps)]
    assert losses[-1] < losses[0]
    position = step.plan.position
    assert position.position == 0.5 and position.smallest <= position.everything
    assert position.smallest < position.everything or not saves
    assert step.stats.peak_bytes == step.planned.arena_bytes <= position.limit
    assert step.plan.numbers["budget_bytes"] == position.limit


@pytest.mark.skipif(
    "CUTBACK_TEST_BACKEND" in os.environ, reason="about a CPU, which updates inside"
)
def test_a_budget_below_the_gradients_is_met_by_updates_inside() -> None:
    """The gradients of two large matrices are never needed at the same time."""
    m = Makes(np.float32)
    made, x = [m.he(128, 128), m.he(128, 128)], m.normal(16, 128)

    def loss(params: Any, x: Any) -> Any:
        first, second = params
        return ((F.relu(x @ first) @ second - x) ** 2).mean()

    found = []
    for budget in (None, "0.6x"):
        params = [w.copy() for w in made]
        step = cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-2), budget=budget)
        losses = [float(step(params, x)) for _ in range(4)]
        found.append((losses, [w.tobytes() for w in params]))
    assert found[0] == found[1]
    assert step.updates_inside
    assert step.stats.peak_bytes <= step.planned.budget_bytes < sum(w.nbytes for w in made)
    with pytest.raises(cb.BudgetError) as refused:
        cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-2), budget="0.1x")(made, x)
    least = refused.value
    assert least.smallest_bytes < sum(w.nbytes for w in made)
    for budget in (least.smallest_bytes, f"{least.smallest_share}x"):
        step = cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-2), budget=budget)
        assert float(step([w.copy() for w in made], x)) == losses[0]
        assert step.updates_inside and step.planned.arena_bytes <= step.planned.budget_bytes
