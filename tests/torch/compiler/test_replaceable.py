"""Tests plans that replace others without recompilation by PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch._dynamo.utils import counters

import cutback.torch as ct
from cutback.torch.compiler.replaceable import JointGraph
from cutback.torch.graph.moving import schedule_of

pytestmark = pytest.mark.torch

WIDTH = 16


class Broken(nn.Module):
    """Three graphs with Python code between them."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        pairs = [(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3 * layers)]
        self.parts = nn.ModuleList(
            nn.Sequential(*(m for pair in pairs[k::3] for m in pair)) for k in range(3)
        )

    def forward(self, x: Any) -> Any:
        x = self.parts[0](x).sin()
        torch._dynamo.graph_break()
        x = self.parts[1](x).sigmoid()
        torch._dynamo.graph_break()
        return self.parts[2](x).square()


def gradients(model: nn.Module) -> list[Any]:
    return [p.grad for p in model.parameters()]


def eager(x: Any, steps: int = 1) -> list[Any]:
    model = Broken()
    for _ in range(steps):
        model(x).sum().backward()
    return gradients(model)


def same(found: list[Any], wanted: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def graphs_traced() -> int:
    return int(counters["stats"]["unique_graphs"])


def peak(run: Any, x: Any) -> int:
    with ct.MemoryTracker() as memory:
        run(x).sum().backward()
    return int(memory.peak_bytes)


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the model was split into", UserWarning)
        yield


def by_name(model: nn.Module, budget: Any) -> Any:
    return torch.compile(model, backend="cutback", options={"budget": budget})


@pytest.mark.parametrize("door", [pytest.param(ct.compile, marks=pytest.mark.very_slow), by_name])
def test_the_plan_of_the_whole_step_takes_no_compilation(door: Any) -> None:
    x = torch.randn(64, WIDTH)
    wanted = eager(x)
    model = Broken()
    run = door(model, "0.6x")
    run(x).sum().backward()
    traced, peaks = graphs_traced(), []
    for _ in range(3):
        model.zero_grad()
        peaks.append(peak(run, x))
        assert same(gradients(model), wanted)
    assert graphs_traced() == traced
    assert max(peaks) <= 0.6 * peak(ct.compile(Broken()), x)


@pytest.mark.very_slow
def test_a_backward_that_is_pending_keeps_its_plan() -> None:
    x = torch.randn(64, WIDTH)
    model = Broken()
    run = ct.compile(model, "0.6x")
    run(x).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        losses = [run(x).sum() for _ in range(30)]  # plans are replaced while calls are pending
        model.zero_grad()
        losses.pop(0).backward()  # a call under the first plan
        assert same(gradients(model), eager(x))
        losses.pop().backward()
        losses.pop().backward(retain_graph=True)
        losses.pop(1).backward()
    assert same(gradients(model), eager(x, 4))


@pytest.mark.very_slow
def test_saved_tensors_pass_through_hooks() -> None:
    x = torch.randn(64, WIDTH)
    model = Broken()
    run = ct.compile(model, "0.6x")
    run(x).sum().backward()
    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (t,), lambda packed: packed[0].clone()):
        run(x).sum().backward()
    assert same(gradients(model), eager(x))
    model.zero_grad()
    with torch.autograd.graph.save_on_cpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # on the CPU, offloaded copies count, too
        run(x).sum().backward()
    assert same(gradients(model), eager(x))


def test_a_view_that_only_the_second_plan_saves_is_watched() -> None:
    """The caller overwrites the view between forward and backward."""

    def f(x: Any) -> Any:
        y = x.sin()
        view = y.view(-1)
        torch._dynamo.graph_break()
        return (y.cos() * 2).tanh(), view

    x = torch.randn(64, WIDTH, requires_grad=True)
    run = ct.compile(f, "1x")
    for _ in range(3):
        result, view = run(x)
        view.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            result.sum().backward()


def joint_graphs(run: Any) -> list[JointGraph]:
    (runner,) = run.dynamo_ctx.runners
    found: list[JointGraph] = runner.partitioner.graphs.in_use()
    return found


@pytest.mark.very_slow
def test_any_plan_of_a_graph_can_follow_another_one() -> None:
    """Plans change back and forth, with symbolic sizes."""
    x = torch.randn(64, WIDTH)
    wanted = eager(x)
    model = Broken()
    run = ct.compile(model, "0.9x", dynamic=True)
    run(x).sum().backward()
    for budget in ("smallest", None, "min", "smallest", None):
        for kept in joint_graphs(run):
            problem = kept.graph.problem
            assert kept.follow(schedule_of(cutback_plan(problem, budget).core))
        model.zero_grad()
        run.dynamo_ctx.runners[0].run(x).sum().backward()
        assert same(gradients(model), wanted)


def cutback_plan(problem: Any, budget: Any) -> Any:
    from cutback import budgets
    from cutback.torch.compiler.reference import Searched, plan_of, plan_unbounded

    checked = problem.check()
    if budget is None:
        return plan_of(checked, "cpu")
    return plan_unbounded(Searched(checked), checked, budgets.parse(budget, "live"), "cpu", "live")


@pytest.mark.very_slow
def test_code_that_is_gone_is_forgotten() -> None:
    x = torch.randn(64, WIDTH)
    model = Broken()
    run = ct.compile(model, "0.6x")
    run(x).sum().backward()
    run(x).sum().backward()
    before = joint_graphs(run)
    torch._dynamo.reset()
    model.zero_grad()
    run(x).sum().backward()
    assert same(gradients(model), eager(x))
    after = joint_graphs(run)
    assert len(before) == len(after) == 3 and set(before).isdisjoint(after)


@pytest.mark.very_slow
def test_under_compiled_autograd_the_first_plan_runs() -> None:
    """Compiled autograd traces the backward graph that AOTAutograd got first."""
    from torch._dynamo import compiled_autograd

    x = torch.randn(64, WIDTH)
    model = Broken()
    run = ct.compile(model, "0.6x")
    run(x).sum().backward()
    run(x).sum().backward()
    model.zero_grad()
    traces = compiled_autograd._enable(torch.compile(backend="eager"))
    with traces, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        run(x).sum().backward()
    assert same(gradients(model), eager(x))
