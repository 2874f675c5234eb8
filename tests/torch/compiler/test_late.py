"""Runs handmade plans whose backward ops run late or repeatedly as eager code: the bits are the
same, and the peaks are the planned ones."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from late import Late
from small_models import CASES, make
from torch import nn

import cutback
import cutback.torch as ct
from cutback.planner.plan import Plan
from cutback.torch.compiler.partition import Partitioner


def changed(plan: Plan, rng: random.Random, again: float) -> Plan:
    """Returns a plan of the same problem in which many backward ops run late, and some
    repeatedly."""
    document, late = copy.deepcopy(plan.document), Late(plan.problem)
    starts = document["backward_starts"]
    steps = late.delays(document["steps"], starts, rng, rng.choice((0.3, 1.0)))
    document["steps"] = late.reruns(steps, starts, rng, again)
    assert document["steps"] != plan.document["steps"]
    document["budget_bytes"] = None
    problem = replace(plan.parts, reruns="all").check()
    return Plan.of(problem.read_plan(json.dumps(document)))


@pytest.fixture
def late_plans(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, float], None]:
    """Provides late_plans(seed, again), which changes every plan made after its call."""
    make_plan = Partitioner._make

    def begin(seed: int, again: float) -> None:
        def make_changed(self: Any, *args: Any, **options: Any) -> Any:
            made = make_plan(self, *args, **options)
            plan = changed(made.plan, random.Random(seed), again)
            return made._replace(plan=plan, schedule=self._schedule(plan))

        monkeypatch.setattr(Partitioner, "_make", make_changed)

    return begin


@pytest.mark.very_slow
@pytest.mark.parametrize("again", [0.0, 0.3])
@pytest.mark.parametrize("name", CASES)
def test_gradients_and_peaks(
    name: str, again: float, ran: Counter[str], train_step: Callable[..., Any],
    same_bits: Callable[..., bool], late_plans: Callable[[int, float], None],
) -> None:  # fmt: skip
    model, inputs = make(name)
    reference = train_step(copy.deepcopy(model), *inputs)
    for seed, budget in enumerate((None, "min")):
        late_plans(seed, again)
        compiled = ct.compile(copy.deepcopy(model), budget=budget)
        found = train_step(compiled, *inputs)
        (plan,) = compiled.plans
        assert train_step(compiled, *inputs).peak_bytes == plan.numbers["live_bytes"]
        assert same_bits(found.loss, reference.loss)
        for key, gradient in reference.gradients.items():
            assert same_bits(found.gradients[f"_orig_mod.{key}"], gradient), (budget, key)
        for key, buffer in reference.buffers.items():
            assert same_bits(found.buffers[f"_orig_mod.{key}"], buffer), (budget, key)
    assert ran == {"forward": 4, "backward": 4}


class Tower(nn.Module):
    """Layers whose gradients are read only at the end, and a leaf that copies its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.norm = nn.LayerNorm(8)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + self.norm(torch.tanh(layer(x)) * self.scale.expand(8))
        return x.square().mean()


def _seen(step: Any, model: nn.Module, x: torch.Tensor) -> tuple[list[Any], list[str]]:
    """Returns the gradients after each of two backwards of one graph, and the order in which leaves
    get them."""
    order: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    loss = step(x)
    gradients = []
    for retain in (True, False):
        loss.backward(retain_graph=retain)
        gradients.append([p.grad.clone() for p in model.parameters()])
    return gradients, order


@pytest.mark.parametrize("again", [pytest.param(0.0, marks=pytest.mark.very_slow), 0.4])
def test_a_second_backward_and_hooks_see_no_change(
    again: float, same_bits: Callable[..., bool], late_plans: Callable[[int, float], None],
    train_step: Callable[..., Any],
) -> None:  # fmt: skip
    torch.manual_seed(0)
    model, x = Tower(), torch.randn(16, 8)
    plain = copy.deepcopy(model)
    expected = _seen(ct.compile(plain), plain, x)
    torch._dynamo.reset()
    late_plans(1, again)
    compiled = ct.compile(model)
    gradients, order = _seen(compiled, model, x)
    assert same_bits(gradients, expected[0]) and order == expected[1]
    (plan,) = compiled.plans
    assert train_step(compiled, x).peak_bytes == plan.numbers["live_bytes"]


class Loop(nn.Module):
    """Iterations that share a weight, whose gradients are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)
        self.out = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = [torch.zeros_like(x[:, 0])]
        for t in range(x.shape[1]):
            hidden.append(torch.tanh(x[:, t] + hidden[-1] @ self.weight))
        return self.out(torch.stack(hidden, 1)).square().mean()


@pytest.mark.very_slow
def test_plans_of_loops_are_smaller_than_without_late_ops(
    train_step: Callable[..., Any], same_bits: Callable[..., bool]
) -> None:
    torch.manual_seed(0)
    model, x = Loop(), torch.randn(16, 6, 64)
    reference = train_step(copy.deepcopy(model), x)
    compiled = ct.compile(model, budget="min")
    found = train_step(compiled, x)
    (plan,) = compiled.plans
    assert plan.parts.reruns == "all"
    narrow = cutback.plan(replace(plan.parts, reruns="forward"), budget="min", device="cpu")
    assert plan.numbers["live_bytes"] < narrow.numbers["live_bytes"]
    assert found.peak_bytes == plan.numbers["live_bytes"]
    assert same_bits(found.loss, reference.loss)
    assert same_bits(found.gradients["_orig_mod.weight"], reference.gradients["weight"])
