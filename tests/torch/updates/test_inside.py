"""Tests updates inside the backward of a compiled model: the bits of the separate step, the planned
peak, and the memory that it saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import make
from torch import nn
from torch.optim import SGD, Adam, AdamW

import cutback.torch as ct
from cutback.torch.updates import formulas

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: SGD(p, 0.1),
    "decayed": lambda p: SGD(p, 0.1, weight_decay=0.1, maximize=True),
    "momentum": lambda p: SGD(p, 0.1, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "nesterov": lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: Adam(p, weight_decay=0.1),
    "amsgrad": lambda p: Adam(p, amsgrad=True, maximize=True),
    "adamw": lambda p: AdamW(p, weight_decay=0.1),
    "fused": lambda p: AdamW(p, fused=True),
    "foreach": lambda p: AdamW(p, foreach=True, amsgrad=True),
    "foreach sgd": lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=True),
}


class Wide(nn.Module):
    """Parameters that are much larger than activations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def case(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return (Wide(), (torch.randn(2, 64),)) if name == "wide" else make(name)


def trained(
    name: str, optimizer: str, updates: str, budget: Any = None, steps: int = 3
) -> tuple[Any, ...]:
    """Returns the compiled model, the optimizer, and losses, parameters and states."""
    model, inputs = case(name)
    trains = OPTIMIZERS[optimizer](model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(trains, 1, 0.5)
    options = {} if updates == "after" else {"optimizer": trains, "updates": updates}
    compiled: Any = ct.compile(model, budget=budget, **options)
    losses = []
    torch.manual_seed(7)
    for _ in range(steps):
        trains.zero_grad()
        loss = compiled(*inputs)
        loss.backward()
        trains.step()
        schedule.step()
        losses.append(loss.detach())
    states = [sorted(state.items()) for state in trains.state.values()]
    return compiled, trains, (losses, list(model.parameters()), states)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_formulas_are_those_of_pytorch(optimizer: str) -> None:
    trains = OPTIMIZERS[optimizer]([nn.Parameter(torch.ones(2))])
    trains.param_groups[0]["fused"] = False
    assert formulas.agree(trains, trains.param_groups[0])


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(name, marks=[] if name == "nesterov" else pytest.mark.very_slow)
        for name in OPTIMIZERS
    ],
)
def test_the_bits_of_the_separate_step(optimizer: str, same_bits: Callable[..., bool]) -> None:
    (_, _, after), (compiled, trains, inside) = (
        trained("wide", optimizer, updates) for updates in ("after", "inside")
    )
    assert compiled.updates_inside and compiled.updates_reason == ""
    assert same_bits(after, inside)
    assert all(p.grad is None for group in trains.param_groups for p in group["params"])


@pytest.mark.very_slow
@pytest.mark.parametrize(("name", "budget"), [("gpt", None), ("gpt", "smallest"), ("resnet", None)])
def test_the_planned_peak_is_the_measured_one(
    name: str, budget: Any, same_bits: Callable[..., bool]
) -> None:
    found = {updates: trained(name, "adamw", updates, budget) for updates in ("after", "inside")}
    assert same_bits(found["after"][2], found["inside"][2])
    peaks = []
    for updates, (compiled, trains, _) in found.items():
        _, inputs = case(name)
        trains.zero_grad()
        with ct.MemoryTracker() as memory:
            loss = compiled(*inputs)
            loss.backward()
        (plan,) = compiled.plans
        assert memory.peak_bytes == plan.numbers["live_bytes"], updates
        peaks.append(memory.peak_bytes)
        trains.step()
    assert peaks[1] < peaks[0] if budget == "smallest" else peaks[1] <= peaks[0]


def test_the_gradients_never_exist_together() -> None:
    model, inputs = case("wide")
    trains = AdamW(model.parameters())
    compiled = ct.compile(model, measure="total", optimizer=trains, updates="inside")
    for _ in range(2):
        with ct.MemoryTracker(model, trains) as memory:
            compiled(*inputs).backward()
            trains.step()
        (plan,) = compiled.plans
    assert memory.peak_total_bytes == plan.numbers["total_bytes"]  # fused or not, no scratch
    static = plan.problem["static_bytes"]
    assert plan.numbers["total_bytes"] < static + 1.5 * model.layers[0].weight.nbytes


TOTALS: dict[str, Callable[[Any], Any]] = {
    **{name: OPTIMIZERS[name] for name in ("momentum", "amsgrad", "adamw", "fused")},
    "our adam": lambda p: ct.optim.Adam(p, weight_decay=0.1),
    "our momentum": lambda p: ct.optim.SGD(p, 0.1, momentum=0.9),
    "our half": lambda p: ct.optim.AdamW(p, half="master"),
}
HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.very_slow
@pytest.mark.filterwarnings("ignore:cutback.torch.optim")  # 16-bit types without half=
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES], ids=str)
@pytest.mark.parametrize("optimizer", TOTALS)
@pytest.mark.parametrize("budget", [None, "smallest"])
def test_the_planned_total_holds_in_every_step(optimizer: str, dtype: Any, budget: Any) -> None:
    model, inputs = case("wide")
    model, inputs = model.to(dtype), tuple(x.to(dtype) for x in inputs)
    trains = TOTALS[optimizer](model.parameters())
    options = {"measure": "total", "optimizer": trains, "updates": "inside"}
    step: Any = ct.compile(model, budget=budget, **options)
    peaks = []
    for _ in range(3):
        trains.zero_grad()
        with ct.MemoryTracker(model, trains) as memory:
            step(*inputs).backward()
            trains.step()
        peaks.append(memory.peak_total_bytes)
    (plan,) = step.plans
    assert max(peaks) <= plan.numbers["total_bytes"]
    inside = "our" not in optimizer or (dtype in HALVES) == (optimizer == "our half")
    if inside:
        assert step.updates_inside and peaks[-1] == plan.numbers["total_bytes"]


def test_a_formula_that_differs_from_pytorch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(p: Any, g: Any, state: Any, group: Any) -> None:
        formulas.sgd(p, g, state, {**group, "lr": group["lr"] * 1.0001})

    model, inputs = case("wide")
    monkeypatch.setitem(formulas.FORMULAS, SGD, other)
    trains = SGD(model.parameters(), 0.123)
    compiled = ct.compile(model, optimizer=trains, updates="inside")
    assert "is stepped differently by torch" in compiled.updates_reason
    compiled(*inputs).backward()
    assert all(p.grad is not None for p in model.parameters())


class Broken(nn.Module):
    """Two graphs. ``tied``: both read the same parameters."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.second = self.first if tied else nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).tanh()
        torch._dynamo.graph_break()
        return self.second(x).square().mean()


@pytest.mark.very_slow
@pytest.mark.parametrize("tied", [False, True])
def test_several_graphs(tied: bool, same_bits: Callable[..., bool]) -> None:
    found = []
    for updates in ("after", "inside"):
        torch.manual_seed(0)
        model = Broken(tied)
        trains = AdamW(model.parameters())
        options = {} if updates == "after" else {"optimizer": trains, "updates": updates}
        compiled: Any = ct.compile(model, budget="16KiB", **options)
        losses = []
        for _ in range(3):
            trains.zero_grad()
            loss = compiled(torch.ones(8, 32))
            loss.backward()
            trains.step()
            losses.append(loss.detach())
        found.append([losses, list(model.parameters())])
    assert same_bits(*found)
    assert compiled.updates_inside == (not tied)
    assert ("gets another gradient" in compiled.updates_reason) == tied


def test_a_closure_runs_the_backward(same_bits: Callable[..., bool]) -> None:
    found = []
    for updates in ("after", "inside"):
        model, inputs = case("wide")
        trains = SGD(model.parameters(), 0.1)
        options = {} if updates == "after" else {"optimizer": trains, "updates": updates}
        compiled: Any = ct.compile(model, **options)

        def closure(step: Any = compiled, trains: Any = trains, inputs: Any = inputs) -> Any:
            trains.zero_grad()
            loss = step(*inputs)
            loss.backward()
            return loss

        losses = [trains.step(closure).detach() for _ in range(2)]
        found.append([losses, list(model.parameters())])
    assert same_bits(*found) and compiled.updates_inside
