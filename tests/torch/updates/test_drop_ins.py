"""Tests updates inside the backward by the optimizers of ``cutback.torch.optim``: the bits of their
separate step, and what their ``step`` takes in addition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from one_layer import Net
from torch import nn

import cutback.torch as ct
import cutback.torch.optim as ours
from cutback.torch.updates import SeparateStepError


def compiled_with(model: nn.Module, trains: Any, updates: str) -> Any:
    """Returns the model; its optimizer is given only if it steps inside the backward."""
    if updates == "after":
        return ct.compile(model)
    return ct.compile(model, optimizer=trains, updates=updates)


class Matrices(nn.Module):
    """Two matrices of one shape, as Muon steps them together, in any type."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(16, 8, dtype=dtype))
        self.second = nn.Parameter(torch.randn(16, 8, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x @ self.first).tanh() * (x @ self.second)).float().square().mean()


def descent(p: Any, g: Any, m: Any, *, lr: float = 0.1, beta: float = 0.9) -> tuple[Any, Any]:
    """Steps by a formula that a user might write."""
    m = beta * m + g
    return p - lr * m, m


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ours.__all__ if name != "foreach"},
    "SGD, momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "SGD, noise": ("SGD", {"lr": 0.1, "half": "stochastic", "seed": 3}),
    "AdamW, master": ("AdamW", {"half": "master", "weight_decay": 0.1}),
    "AdamW, remainder": ("AdamW", {"half": "remainder", "amsgrad": True}),
    "AdamW, noise": ("AdamW", {"half": "stochastic"}),
    "RMSprop, centered": ("RMSprop", {"centered": True, "momentum": 0.5}),
    "formula": ("foreach", {}),
}


def trained(case: str, updates: str, steps: int) -> tuple[Any, ...]:
    """Returns the compiled model, the optimizer, and losses, parameters and states."""
    name, options = CASES[case]
    torch.manual_seed(0)
    model = Matrices(torch.bfloat16 if "half" in options else torch.float32)
    kind: Any = ours.foreach(descent) if name == "foreach" else getattr(ours, name)
    trains = kind([*model.parameters()], **options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(trains, 0.9)
    compiled = compiled_with(model, trains, updates)
    losses = []
    for k in range(steps):
        torch.manual_seed(k)
        trains.zero_grad()
        loss = compiled(torch.randn(4, 16).to(model.first.dtype))
        loss.backward()
        trains.step()
        schedule.step()
        losses.append(loss.detach())
    states = [sorted(state.items()) for state in trains.state.values()]
    return compiled, trains, (losses, list(model.parameters()), states)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case == "AdamW, noise" else pytest.mark.very_slow)
        for case in CASES
    ],
)
def test_the_bits_of_the_separate_step(case: str, same_bits: Callable[..., bool]) -> None:
    steps = 3 if case == "AdamW, noise" else 20
    (_, _, after), (compiled, trains, inside) = (
        trained(case, updates, steps) for updates in ("after", "inside")
    )
    assert compiled.updates_inside and compiled.updates_reason == ""
    assert same_bits(after, inside)
    assert trains.why_torch is None
    assert all(p.grad is None for group in trains.param_groups for p in group["params"])


def case_of(**options: Any) -> tuple[Any, Any, Any]:
    """Returns a model of one layer, its optimizer, and its loss, with updates inside."""
    torch.manual_seed(0)
    model, x = Net(), torch.randn(4, 8)
    trains = ours.AdamW(model.parameters(), **options)
    compiled = compiled_with(model, trains, "inside")
    return model, trains, lambda: compiled(x)


def test_a_state_continues_after_loading(same_bits: Callable[..., bool]) -> None:
    found = []
    for updates in ("after", "inside"):
        torch.manual_seed(0)
        model, x = Net(), torch.randn(4, 8)
        trains = ours.AdamW(model.parameters(), lr=0.1)
        compiled = compiled_with(model, trains, updates)
        for _ in range(2):
            compiled(x).backward()
            trains.step()
            trains.zero_grad()
            trains.load_state_dict(trains.state_dict())
        found.append([list(model.parameters()), trains.state_dict()["state"]])
    assert same_bits(*found) and compiled.updates_inside


def test_arguments_of_a_step_that_need_all_gradients() -> None:
    model, trains, loss = case_of()
    loss().backward()
    before = model.layer.weight.detach().clone()
    with pytest.raises(SeparateStepError, match=r"optimizer.step\(max_norm=...\) comes too late"):
        trains.step(max_norm=1.0)
    assert torch.equal(model.layer.weight, before)


def test_a_closure_of_a_step_that_clips(same_bits: Callable[..., bool]) -> None:
    found = []
    for updates in ("after", "inside"):
        torch.manual_seed(0)
        model, x = Net(), torch.randn(4, 8)
        trains = ours.AdamW(model.parameters(), lr=0.1)
        compiled = compiled_with(model, trains, updates)

        def closure(step: Any = compiled, x: Any = x) -> Any:
            loss = step(x)
            loss.backward()
            return loss

        trains.step(closure, max_norm=0.01)
        found.append(list(model.parameters()))
    assert same_bits(*found)
    assert compiled.updates_reason == "optimizer.step(max_norm=...) is a separate step"


class Own(ours.SGD):
    """Has a step of its own."""

    def step(self, *args: Any, **options: Any) -> Any:
        """Steps twice."""
        super().step(*args, **options)
        return super().step(*args, **options)


def averaged(parameters: Any) -> Any:
    """Returns ScheduleFreeAdamW in eval mode, where parameters are averages."""
    trains = ours.ScheduleFreeAdamW(parameters)
    trains.eval()
    return trains


@pytest.mark.parametrize(
    ("make", "dtype", "reason"),
    [
        (lambda p: Own(p, 0.1), torch.float32, "Own has a step() of its own"),
        (lambda p: ours.Adam(p, capturable=True), torch.float32, "asks for differentiable=True"),
        (lambda p: ours.SGD(p, 0.1), torch.bfloat16, "PyTorch's own code steps SGD, because a"),
        (averaged, torch.float32, "is in eval mode, where parameters are averages"),
    ],
)
def test_optimizers_that_need_a_separate_step(make: Any, dtype: Any, reason: str) -> None:
    model = Matrices(dtype)
    compiled = compiled_with(model, make(model.parameters()), "inside")
    assert not compiled.updates_inside
    assert reason in compiled.updates_reason
