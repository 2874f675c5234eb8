"""Tests PyTorch's own budgets. Budgets of a region are refused by name, with PyTorch's text if they
are invalid; the budget of all graphs is a position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

import cutback.torch as ct


def f(w: Any, x: Any) -> Any:
    for _ in range(3):
        x = torch.tanh(x @ w)
    return x.square().sum()


def inputs() -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(32, 32, requires_grad=True), torch.randn(256, 32)


def gradient(call: Callable[..., Any]) -> Any:
    w, x = inputs()
    call(w, x).backward()
    return w.grad


@pytest.mark.skipif(
    not hasattr(torch.autograd.graph, "region_activation_memory_budget"), reason="not in torch"
)
@pytest.mark.parametrize("door", ["own", "name", "partition_fn", "trace"])
def test_a_region_with_a_budget_of_pytorchs_is_refused(door: str) -> None:
    """The region's budget is not ignored, because then nothing would show that the region has
    none."""

    def region(w: Any, x: Any) -> Any:
        with torch.autograd.graph.region_activation_memory_budget(0.25):
            return f(w, x)

    def run() -> None:
        if door == "own":
            ct.compile(region, budget="0.7x")(*inputs())
        elif door == "name":
            torch.compile(region, backend="cutback")(*inputs())
        elif door == "partition_fn":
            backend = aot_autograd(
                fw_compiler=lambda gm, args: make_boxed_func(gm.forward),
                partition_fn=ct.Partitioner(budget="0.7x"),
            )
            torch.compile(region, backend=backend)(*inputs())
        else:
            ct.trace(region, *inputs())

    with pytest.raises(
        Exception, match=r"activation memory budget to 0.25 \(at .*test_region_budgets"
    ):
        run()


@pytest.mark.skipif(
    not hasattr(torch.autograd.graph, "region_activation_memory_budget"), reason="not in torch"
)
@pytest.mark.parametrize("backend", ["cutback", "aot_eager_decomp_partition"])
@pytest.mark.parametrize(
    "case", ["different", "a part", "different in a branch", "not in branches"]
)
def test_mistakes_in_budgets_of_regions_are_pytorchs_errors(case: str, backend: str) -> None:
    """The error has the text of PyTorch's partitioner, which runs in the second backend."""
    budget = torch.autograd.graph.region_activation_memory_budget

    def branch(y: Any) -> Any:
        with budget(0.5):
            return y.cos()

    def model(w: Any, x: Any) -> Any:
        with budget(0.25):
            y = (w * x).sin()
            if case == "different in a branch":
                return torch.cond(y.sum() > 0, branch, torch.sin, (y,)).sum()
            chosen = y.sum() > 0
        if case == "different":
            with budget(0.5):
                return y.cos().sum()
        if case == "not in branches":
            y = torch.cond(chosen, torch.cos, torch.sin, (y,))
            with budget(0.25):
                return y.sum()
        return y.cos().sum()

    text = "conflicting budgets" if "different" in case else "must cover the entire forward"
    full = f"torch.autograd.graph.region_activation_memory_budget: {text}"
    w, x = torch.randn(4, requires_grad=True), torch.randn(4)
    with pytest.raises(RuntimeError, match=full):
        torch.compile(model, backend=backend)(w, x)


def test_pytorchs_budget_for_all_graphs(same_bits: Callable[..., bool]) -> None:
    with torch._functorch.config.patch(activation_memory_budget=0.5):
        position = ct.compile(f)
        compiled = ct.compile(f, budget="0.7x")  # the nearer setting wins
        for run in (position, compiled):
            assert same_bits(gradient(run), gradient(f)) and len(run.plans) == 1
    assert position.plans[0].position.position == 0.5 and compiled.plans[0].position is None
