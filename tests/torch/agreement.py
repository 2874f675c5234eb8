"""Shared helpers for compiled models: under several budgets they must give eager mode's bits."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import cutback.torch as ct

BUDGETS = (None, "min")


class Wrapped(nn.Module):
    """A module made of a function and its parameters."""

    def __init__(self, function: Callable[..., Any], **modules: Any) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def total(output: Any) -> Any:
    """Returns a number that depends on all outputs that can have a gradient."""
    parts = [t for t in torch.utils._pytree.tree_leaves(output) if isinstance(t, torch.Tensor)]
    return sum((t.float() * 0.5).sin().sum() for t in parts if t.requires_grad)


def two_backwards(step: Any, model: nn.Module, *inputs: Any) -> list[torch.Tensor]:
    """Returns the loss, and the gradients after each of two backwards of one graph."""
    loss = step(*inputs)
    found = [loss.detach()]
    for retain in (True, False):
        model.zero_grad()
        loss.backward(retain_graph=retain)
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return found


def run(
    model: nn.Module, call: Any, inputs: tuple[Any, ...], steps: int, loss: Callable[..., Any]
) -> Any:
    """Returns outputs, gradients, buffers and inputs after some steps."""
    torch.manual_seed(11)
    inputs = tuple(
        t.clone().detach().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t
        for t in inputs
    )
    kept = []
    for _ in range(steps):
        output = call(*(t.clone() if isinstance(t, torch.Tensor) else t for t in inputs))
        loss(output).backward()
        kept.append(output)
    return (
        kept,
        {n: p.grad for n, p in model.named_parameters()},
        dict(model.named_buffers()),
        [t.grad for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad],
    )


def agreement(ran: Counter[str], same_bits: Callable[..., bool]) -> Callable[..., list[Any]]:
    """Implements the fixture ``agrees``."""

    def check(
        model: nn.Module,
        *inputs: Any,
        steps: int = 2,
        loss: Callable[..., Any] = total,
        graphs: int = 1,
        budgets: tuple[Any, ...] = BUDGETS,
        **options: Any,
    ) -> list[Any]:
        eager = copy.deepcopy(model)
        expected = run(eager, eager, inputs, steps, loss)
        found = []
        for budget in budgets:
            torch._dynamo.reset()
            ran.clear()
            own = copy.deepcopy(model)
            compiled = ct.compile(own, budget=budget, **options)
            got = run(own, compiled, inputs, steps, loss)
            for what, a, b in zip(
                ("outputs", "gradients", "buffers", "gradients of inputs"),
                got, expected, strict=True,
            ):  # fmt: skip
                assert same_bits(a, b), (budget, what)
            assert ran["forward"] == ran["backward"] == steps * graphs, ran
            assert len(compiled.plans) == graphs
            found.append(compiled)
        return found

    return check


def backward_kinds(plan: Any) -> list[str]:
    """Returns the kinds of operations in a plan's backward."""
    steps, start = plan.document["steps"], plan.document["backward_starts"]
    return [plan.problem["ops"][i]["kind"] for i in steps[start:]]
