"""Tests positions from 0 to 1 as budgets of eager regions: never refused, and within their
bytes."""

from __future__ import annotations

import gc
import itertools
import math
import warnings
from fractions import Fraction
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eager_tools import GPT, ResNet, Tracker, assert_same
from torch import nn

from cutback.torch import MemoryTracker, checkpoint, checkpoint_plan

pytestmark = pytest.mark.torch


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(32, 32), nn.GELU())))

    def forward(self, x: Any) -> Any:
        return self.layers(x).square().mean()


class Recurrent(nn.Module):
    """An LSTM cell over a few steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 16)

    def forward(self, x: Any) -> Any:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return state[0].square().mean()


MODELS: dict[str, Any] = {
    "mlp": lambda: (Perceptron(), torch.randn(64, 32)),
    "lstm": lambda: (Recurrent(), torch.randn(32, 3, 8)),
    "resnet": lambda: (ResNet(layers=3), torch.randn(2, 3, 16, 16)),
    "gpt": lambda: (GPT(2), torch.randint(0, 50, (4, 16))),
}

POSITIONS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@pytest.mark.parametrize(
    "name",
    ["mlp", *(pytest.param(n, marks=pytest.mark.very_slow) for n in ("lstm", "resnet", "gpt"))],
)
def test_positions_of_a_region(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    plans = [checkpoint_plan(model, x, budget=k) for k in POSITIONS]
    _, smallest, everything = plans[0].position
    for k, plan in zip(POSITIONS, plans, strict=True):
        assert plan.position == (k, smallest, everything)
        exact = smallest + math.ceil(Fraction(k) * (everything - smallest))
        assert plan.numbers["budget_bytes"] == exact
        again = checkpoint_plan(model, x, budget=f"{exact}B")
        assert again.document == plan.document, k
    for a, b in itertools.pairwise(plans):
        assert a.numbers["live_bytes"] <= b.numbers["live_bytes"]
        assert a.numbers["time_ps"] >= b.numbers["time_ps"]
    assert str(plans[3]).startswith("0.5: ")


@pytest.mark.very_slow
@pytest.mark.parametrize("name", ["mlp", pytest.param("gpt", marks=pytest.mark.very_slow)])
def test_regions_keep_to_positions(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()

    def step(run: Any) -> tuple[list[Any], int]:
        model.zero_grad(set_to_none=True)
        gc.collect()
        with Tracker() as tracker:
            loss = run(model, x)
            loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters())], tracker.peak

    plain, _ = step(lambda m, x: m(x))
    for k in (0, 0.5, 1):
        limit = checkpoint_plan(model, x, budget=k).numbers["budget_bytes"]
        for run in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of the first run
                ours, peak = step(lambda m, x: checkpoint(m, x, budget=k))  # noqa: B023
            assert_same(plain, ours)
            assert run == 0 or peak <= limit + 8, (k, run)


def test_a_first_run_over_a_position_says_what_that_came_to() -> None:
    torch.manual_seed(0)

    def f(x: Any) -> Any:
        for _ in range(4):
            x = torch.sin(x).mul_(2).exp()
        return x.sum()

    x = torch.randn(1000, requires_grad=True)
    limit = checkpoint_plan(f, x, budget=0.0).numbers["budget_bytes"]
    with warnings.catch_warnings(record=True) as said, MemoryTracker() as memory:
        warnings.simplefilter("always")
        checkpoint(f, x, budget=0.0).backward()
    texts = [str(w.message) for w in said]
    assert memory.peak_bytes <= limit or any("over the budget of 0: " in t for t in texts), texts


def test_true_is_no_position() -> None:
    with pytest.raises(TypeError):
        checkpoint(torch.sin, torch.ones(3, requires_grad=True), budget=True)
