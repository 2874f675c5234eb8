"""Compares the measure ``total`` (parameters, buffers, gradients, optimizer states and the step
together) with a measured step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import make
from torch import nn
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, RMSprop

import cutback.torch as ct
from cutback import BudgetError
from cutback.torch.compiler.totals import account

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adam": lambda p: Adam(p, foreach=False),
    "amsgrad": lambda p: AdamW(p, foreach=True, amsgrad=True),
    "sgd": lambda p: SGD(p, 0.1),
    "momentum": lambda p: SGD(p, 0.1, momentum=0.9),
    "rmsprop": lambda p: RMSprop(p),
    "adagrad": lambda p: Adagrad(p, foreach=True),
    "adafactor": lambda p: Adafactor(p, foreach=False),
    "fused": lambda p: AdamW(p, fused=True),
}


class Wide(nn.Module):
    """Has parameters that are much larger than activations, so the optimizer's step is the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        self.register_buffer("scale", torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layers(x) * self.scale).sum()


def train(step: Any, inputs: tuple[Any, ...], optimizer: Any) -> Any:
    optimizer.zero_grad()
    loss = step(*inputs)
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("wide", [pytest.param(False, marks=pytest.mark.very_slow), True])
def test_planned_total_is_the_measured_one(optimizer: str, wide: bool, ran: Counter[str]) -> None:
    torch.manual_seed(0)
    model, inputs = (Wide(), (torch.randn(2, 64),)) if wide else make("resnet")
    trains = OPTIMIZERS[optimizer](model.parameters())
    states = len(trains.state)  # most optimizers make them in their first step
    total = account(model, trains)
    compiled = ct.compile(
        model, budget=None if wide else "0.85x", measure="total", optimizer=trains
    )
    assert len(trains.state) == states  # the rehearsal leaves no states behind
    assert all(p.grad is None for p in model.parameters())
    loss = train(compiled, inputs, trains)
    assert account(model, trains) == total  # the same now that the states exist
    del loss
    with ct.MemoryTracker(model, trains) as memory:
        loss = train(compiled, inputs, trains)
        assert loss.requires_grad  # keeps it alive, because what the step returns counts
    (plan,) = compiled.plans
    numbers = plan.numbers
    assert memory.peak_total_bytes == numbers["total_bytes"]
    assert numbers["total_bytes"] == total.static_bytes + numbers["live_bytes"]
    assert plan.problem["static_bytes"] == total.static_bytes
    if wide and total.step_bytes:
        assert plan.explanation["peak"]["name"] == "optimizer_step"
    if not wide:
        everything = total.static_bytes + numbers["save_all_live_bytes"]
        assert numbers["total_bytes"] <= numbers["budget_bytes"] == int(0.85 * everything)
    assert ran == {"forward": 2, "backward": 2}


def test_gradients_that_are_kept_come_on_top() -> None:
    """Kept gradients add one more set of gradients."""
    torch.manual_seed(0)
    model, inputs = Wide(), (torch.randn(2, 64),)
    trains = SGD(model.parameters(), 0.1)
    compiled = ct.compile(model, measure="total", optimizer=trains)
    for kept in (0, sum(p.nbytes for p in model.parameters())):
        with ct.MemoryTracker(model, trains) as memory:
            loss = compiled(*inputs)
            loss.backward()
            trains.step()
        assert memory.peak_total_bytes == compiled.plans[0].numbers["total_bytes"] + kept


@pytest.mark.very_slow
def test_bits_do_not_depend_on_it(same_bits: Callable[..., bool]) -> None:
    found = []
    for budget in (None, "0.85x"):
        torch._dynamo.reset()
        model, inputs = make("resnet")
        trains = Adam(model.parameters())
        compiled = ct.compile(model, budget=budget, measure="total", optimizer=trains)
        losses = [train(compiled, inputs, trains).detach() for _ in range(3)]
        found.append([losses, list(model.parameters())])
    assert same_bits(*found)


def test_what_is_counted() -> None:
    model = Wide()
    size = sum(p.nbytes for p in model.parameters())
    shared = [*model.parameters(), nn.Parameter(torch.ones(10))]  # one does not belong to the model
    total = account(model, Adam(shared, foreach=False))
    assert total.model_bytes == size + 40 + 256
    assert total.state_bytes == 2 * (size + 40) + 5 * 4  # two moments, and step counts
    assert 64 * 64 * 4 <= total.step_bytes <= 3 * 64 * 64 * 4
    # foreach needs more, fused kernels need nothing; the states are the same
    many = account(model, Adam(model.parameters(), foreach=True))
    fused = account(model, Adam(model.parameters(), fused=True))
    assert many.state_bytes == fused.state_bytes and many.step_bytes >= size > fused.step_bytes == 0
    # states that depend on values, a scheduler, parameters without gradients
    assert account(model, Adafactor(model.parameters())).state_bytes < size
    trains = Adam(model.parameters())
    torch.optim.lr_scheduler.StepLR(trains, 1)
    model.layers[0].requires_grad_(False)
    assert account(model, trains).state_bytes < 2 * size
    assert not trains.state
    # the buffers of a plain function are not visible
    function = account(lambda x: model(x), Adam(model.parameters(), foreach=False))
    assert function.model_bytes == size


def test_several_graphs_count_it_once(ran: Counter[str]) -> None:
    class Two(Wide):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layers(x)
            torch._dynamo.graph_break()
            return self.layers(x).sum()

    torch.manual_seed(0)
    model, x = Two(), torch.randn(512, 64)
    trains = Adam(model.parameters(), foreach=False)
    compiled = ct.compile(model, budget="2MB", measure="total", optimizer=trains)
    for _ in range(3):
        with ct.MemoryTracker(model, trains) as memory:
            train(compiled, (x,), trains)
    (plan,) = compiled.plans
    total = account(model, trains)
    assert plan.problem["static_bytes"] == total.static_bytes
    assert [op["name"] for op in plan.problem["ops"]].count("optimizer_step") == 1
    assert memory.peak_total_bytes <= plan.numbers["total_bytes"] <= 2_000_000
    assert ran["backward"] == 6


@pytest.mark.very_slow
def test_traced() -> None:
    model, inputs = make("resnet")
    trains = Adam(model.parameters())
    step = ct.trace(model, *inputs, optimizer=trains)
    total = account(model, trains)
    plan = step.plan("0.9x", measure="total")
    numbers = plan.numbers
    assert numbers["total_bytes"] == total.static_bytes + numbers["live_bytes"]
    assert numbers["total_bytes"] <= 0.9 * (total.static_bytes + numbers["save_all_live_bytes"])
    with pytest.raises(BudgetError) as told:
        step.plan(total.static_bytes, measure="total")
    assert told.value.measure == "total"
    assert told.value.smallest_bytes > told.value.budget_bytes == total.static_bytes


def test_wrong_use() -> None:
    model = Wide()
    trains = Adam(model.parameters())
    with pytest.raises(ValueError, match=r"measure='total'.*optimizer="):
        ct.compile(model, budget="0.5x", measure="total")
    with pytest.raises(ValueError, match=r"measure='live'.*optimizer"):
        ct.compile(model, budget="0.5x", optimizer=trains)
    with pytest.raises(TypeError, match=r"is not a torch\.optim\.Optimizer"):
        ct.compile(model, measure="total", optimizer="adam")
    with pytest.raises(ValueError, match=r"none of the 4 parameters.*model's 4"):
        ct.compile(model, measure="total", optimizer=Adam(Wide().parameters()))
    lbfgs = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ValueError, match="a step of LBFGS cannot be rehearsed"):
        ct.compile(model, measure="total", optimizer=lbfgs)


def test_an_optimizer_in_a_wrapper() -> None:
    """Front ends return optimizers that forward everything to an inner one."""

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        @property
        def param_groups(self) -> Any:
            return self.optimizer.param_groups

        @param_groups.setter
        def param_groups(self, groups: Any) -> None:
            self.optimizer.param_groups = groups

        def step(self, closure: Any = None) -> Any:
            return self.optimizer.step(closure)

    module, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8)
    inner = torch.optim.AdamW(module.parameters())
    wanted = ct.trace(lambda x: module(x).sum(), x, optimizer=inner).plan(measure="total")
    found = ct.trace(lambda x: module(x).sum(), x, optimizer=Wrapper(inner)).plan(measure="total")
    assert found.numbers == wanted.numbers
    held = [p for group in inner.param_groups for p in group["params"]]
    assert [id(p) for p in held] == [id(p) for p in module.parameters()] and not inner.state


def test_equal_optimizers_are_rehearsed_once() -> None:
    known: dict[str, tuple[int, int]] = {}
    once = OPTIMIZERS.keys() - {"adagrad"}  # it has states from the start
    for name, make_optimizer in OPTIMIZERS.items():
        model = Wide()
        for _ in range(2):
            optimizer = make_optimizer(model.parameters())
            assert account(model, optimizer, known) == account(model, optimizer), name
    assert len(known) == len(once)

    model = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 64))
    other = Adam(model.parameters(), foreach=False)
    assert account(model, other, known) == account(model, other)  # other shapes
    assert len(known) == len(once) + 1

    model(torch.randn(2, 64)).sum().backward()
    other.step()
    held: dict[str, tuple[int, int]] = {}
    for unclear in (other, Adam(model.parameters(), lr=torch.tensor(0.1), foreach=False)):
        assert account(model, unclear, held) == account(model, unclear) and not held


@pytest.mark.parametrize("half", ["master", "stochastic", "remainder"])
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_a_step_in_16_bits_is_rehearsed(kind: str, half: str) -> None:
    """The states counted are those that steps make."""
    model = nn.Linear(8, 8).bfloat16()
    options = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(ct.optim, kind)(model.parameters(), lr=0.1, half=half, **options)
    counted = account(model, optimizer)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    states = [x for state in optimizer.state.values() for x in state.values()]
    assert counted.state_bytes == sum(x.nbytes for x in states if isinstance(x, torch.Tensor))
