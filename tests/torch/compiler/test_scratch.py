"""Tests memory that kernels need besides results: the allocator measures two steps, and the next
plan counts it. The oracle is PyTorch's own profiler around a whole step. Convolutional nets have a
separate file (test_conv_nets.py)."""

from __future__ import annotations

import copy
import functools
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.profiler import ProfilerActivity, schedule

import cutback.torch as ct
from cutback.torch.compiler import backends, counted_scratch, scratch

pytestmark = pytest.mark.filterwarnings("error:kernels take scratch")

BATCH_NORM = "aten.native_batch_norm_backward.default"


class Net(nn.Module):
    """Convolutions and batch norms, whose backward holds a second gradient on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24)
        self.conv2, self.norm2 = nn.Conv2d(24, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.pool, self.last = nn.MaxPool2d(2, 2), nn.Linear(32 * 8 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.norm1(self.conv1(x)).relu())
        x = self.pool(self.norm2(self.conv2(x)).relu())
        return self.last(x.flatten(1)).square().mean()


def net() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Net(), torch.randn(16, 3, 33, 33)


def mlp() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(64, 64), nn.Tanh()] * 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x).square().mean()

    return Loss(), torch.randn(256, 64)


profile = functools.partial(
    torch.profiler.profile, activities=[ProfilerActivity.CPU], profile_memory=True
)


def peak_by_profiler(step: Callable[[], Any]) -> int:
    """Returns the peak bytes of a step in PyTorch's profiler."""
    with profile() as p:
        step()
    events = [e for e in p.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def steps(run: Any, x: torch.Tensor, n: int = 1) -> list[torch.Tensor]:
    losses = []
    for _ in range(n):
        run.zero_grad(set_to_none=True)
        loss = run(x)
        loss.backward()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("door", ["compile", "by name"])
def test_scratch_that_no_plan_makes_room_for(door: str, ran: Counter[str]) -> None:
    """After two steps have shown the scratch, there is a warning and the smallest plan, never an
    error."""
    model, x = net()
    plain = copy.deepcopy(model)
    plans: list[Any] = []
    if door == "compile":
        compiled = ct.compile(model, budget="0.8x", on_infeasible="error")
    else:
        options = {"budget": "0.8x", "on_plan": plans.append}
        compiled = torch.compile(model, backend="cutback", options=options)
    losses = steps(compiled, x, 2)
    assert ran == {"forward": 2, "backward": 2}
    first = plans[0] if plans else compiled.plans[0]
    limit = first.numbers["budget_bytes"]
    with pytest.warns(UserWarning, match="kernels take scratch") as told:
        losses += steps(compiled, x)
    losses += steps(compiled, x, 2)  # there are no more warnings
    expected = steps(plain, x, 5)
    assert all(torch.equal(a, b) for a, b in zip(losses, expected, strict=True))
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
    for b, c in zip(model.buffers(), plain.buffers(), strict=True):
        assert torch.equal(b, c)
    model.zero_grad(set_to_none=True)
    by_profiler = peak_by_profiler(lambda: compiled(x).backward())
    (text,) = [str(w.message) for w in told]
    assert f"no plan that counts it meets the budget of 5.19 MiB ({limit} bytes)" in text
    plan = plans[1] if plans else compiled.plans[0]
    assert plan.numbers["live_bytes"] == plan.numbers["budget_bytes"]
    assert plan.numbers["live_bytes"] == pytest.approx(by_profiler, rel=0.02)
    if door == "by name":
        assert len(plans) == 2
        return
    stats = compiled.allocator_stats
    with ct.MemoryTracker() as memory:
        steps(compiled, x)
    assert stats.tensor_bytes == memory.peak_bytes
    assert stats.peak_bytes == pytest.approx(by_profiler, rel=0.02)
    assert stats.scratch_bytes == stats.peak_bytes - stats.tensor_bytes
    largest = 16 * 24 * 33 * 33 * 4
    assert largest <= stats.by_op[BATCH_NORM] < 1.01 * largest
    assert stats.op == BATCH_NORM and [g.phase for g in stats.graphs] == ["forward", "backward"]
    assert stats.graphs[0].peak_bytes < stats.graphs[1].peak_bytes == stats.peak_bytes
    assert f"{BATCH_NORM} takes 1.60 MiB of scratch at the peak" in repr(stats)


class Narrow(nn.Module):
    """Convolutions so narrow that scratch is most of the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv1d(2, 11, 3, padding=1), nn.Conv1d(11, 22, 3, 2, padding=1)
        self.up, self.last = nn.ConvTranspose1d(22, 11, 2, stride=2), nn.Conv1d(22, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x).relu()
        b = self.up(self.down2(a).relu()).relu()
        return self.last(torch.cat([a, b], 1)).square().mean()


def test_a_plan_stays_if_no_other_takes_less_with_scratch() -> None:
    """Without scratch the plan meets the budget; with scratch even the smallest plan may save
    everything, so the plan stays."""
    torch.manual_seed(0)
    model, x = Narrow(), torch.randn(16, 2, 300)
    compiled = ct.compile(model, budget=0.0)
    steps(compiled, x, 2)
    (before,) = compiled.plans
    limit = before.numbers["budget_bytes"]
    with pytest.warns(UserWarning, match=f"budget of .* \\({limit} bytes\\): .* less, so it stays"):
        steps(compiled, x)
    (after,) = compiled.plans
    assert after.core.steps == before.core.steps and after.position == before.position
    assert after.numbers["live_bytes"] > 1.05 * before.position.everything
    assert str(after).startswith("0: ") and ", over its " in str(after).splitlines()[0]
    model.zero_grad(set_to_none=True)
    with ct.MemoryTracker() as memory:
        compiled(x).backward()
    assert memory.peak_bytes <= limit


def test_products_of_matrices_take_none() -> None:
    model, x = mlp()
    compiled = ct.compile(model, budget="0.8x")
    assert compiled.allocator_stats is None
    steps(compiled, x)  # a warning would be an error
    stats = compiled.allocator_stats
    assert stats.tensor_bytes == compiled.plans[0].numbers["live_bytes"]
    assert stats.scratch_bytes < 0.01 * stats.peak_bytes
    model.zero_grad(set_to_none=True)
    by_profiler = peak_by_profiler(lambda: compiled(x).backward())
    assert stats.peak_bytes == pytest.approx(by_profiler, rel=0.01)


def test_a_few_bytes_are_not_worth_a_warning() -> None:
    model = nn.Linear(5, 2)
    compiled = ct.compile(lambda x: model(x).mean(), budget=1.0)
    for _ in range(2):
        compiled(torch.randn(11, 5)).backward()  # a warning would be an error
    stats = compiled.allocator_stats
    (plan,) = compiled.plans
    limit = plan.numbers["budget_bytes"]
    assert plan.position.smallest == plan.position.everything == limit == stats.tensor_bytes
    much = stats._replace(peak_bytes=limit + 2 * counted_scratch.LEAST)
    text = scratch.excess_text(much, limit, "1", backends._in_words(None, plan.position, limit, 1))
    assert "No lower budget leaves that much memory" in text  # all positions are the same


def test_what_it_takes_at_first_is_over_then() -> None:
    """Later steps run the plain code, profiled or not."""
    model, x = mlp()
    compiled = ct.compile(model, budget="0.8x")
    kernels = compiled.dynamo_ctx.runners
    steps(compiled, x)
    (graph,) = [k.partitioner.in_force.kernels for k in kernels]
    assert len(graph._graphs) == 1 and graph._tracker is None and not graph.is_done
    steps(compiled, x)
    assert graph._graphs == [] and graph._tracker is None and graph.is_done
    before = compiled.allocator_stats
    steps(compiled, x, 2)
    assert compiled.allocator_stats is before


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_step_that_raises(phase: str) -> None:
    raises = [phase]

    @torch.library.custom_op(f"cutback_scratch::{phase}", mutates_args=())
    def op(x: torch.Tensor, where: str) -> torch.Tensor:
        if where in raises:
            raises.remove(where)
            raise ArithmeticError(where)
        return x * 2

    op.register_fake(lambda x, where: torch.empty_like(x))
    op.register_autograd(lambda ctx, g: (op(g, "backward"), None))

    def function(x: torch.Tensor) -> torch.Tensor:
        return op(x.sin(), "forward").cos().sum()

    compiled = ct.compile(function, budget="40kB")
    x = torch.randn(1000, requires_grad=True)
    with pytest.raises(ArithmeticError, match=phase):
        compiled(x).backward()
    assert not torch.autograd._profiler_enabled()
    assert compiled.allocator_stats is None
    x.grad = None
    compiled(x).backward()
    assert not torch.autograd._profiler_enabled()
    assert torch.equal(x.grad, -(x.detach().sin() * 2).sin() * 2 * x.detach().cos())
    assert compiled.allocator_stats.tensor_bytes == compiled.plans[0].numbers["live_bytes"]


def test_it_stands_aside_for_the_users_profiler() -> None:
    model, x = net()
    compiled = ct.compile(model, budget="0.8x")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with profile() as p:
            steps(compiled, x)
    assert not any("scratch" in str(w.message) for w in told)
    assert compiled.allocator_stats is None
    names = {e.name for e in p.events()}
    assert "aten::native_batch_norm_backward" in names
    assert not any("cutback" in name for name in names)
    steps(compiled, x, 2)
    assert compiled.allocator_stats.op == BATCH_NORM
    with pytest.warns(UserWarning, match="kernels take scratch"):
        steps(compiled, x)


def test_a_profiler_that_warms_up_keeps_its_events() -> None:
    model, x = mlp()
    compiled = ct.compile(model, budget="0.8x")
    ready: list[set[str]] = []
    with profile(
        schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
        on_trace_ready=lambda p: ready.append({e.name for e in p.events()}),
    ) as p:
        for _ in range(2):
            steps(compiled, x)
            p.step()
    assert compiled.allocator_stats is not None  # measured while the other one warmed up
    (names,) = ready
    assert {"aten::addmm", "aten::tanh"} <= names


def test_without_a_budget_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net()
    for budget in (None, "fastest"):
        compiled = ct.compile(model, budget=budget)
        steps(compiled, x)
        assert compiled.allocator_stats is None
    smallest = ct.compile(model, budget="min")
    steps(smallest, x)  # "min" names no bytes to exceed
    assert smallest.allocator_stats.scratch_bytes > 0
    monkeypatch.setattr(scratch, "_PROFILER", None)  # a PyTorch without the old profiler
    torch._dynamo.reset()
    compiled = ct.compile(model, budget="0.8x")
    steps(compiled, x)
    assert compiled.allocator_stats is None


def peaks_and_plans(compiled: Any, batches: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Returns the allocator's peak of a step with each batch, and the bytes of its plan."""
    found = []
    for x, plan in zip(batches, compiled.plans, strict=True):
        compiled.zero_grad(set_to_none=True)
        peak = peak_by_profiler(lambda x=x: compiled(x).backward())
        found.append((peak, plan.numbers["live_bytes"]))
    return found


@pytest.mark.very_slow
@pytest.mark.parametrize("budget", [0.0, pytest.param("0.9x", marks=pytest.mark.very_slow)])
def test_shapes_that_take_turns(budget: Any, tmp_path: Path) -> None:
    """PyTorch compiles a graph for each shape, and each graph is a whole step. Every plan counts
    scratch, and later shapes also have the whole budget."""
    torch.manual_seed(0)
    model = Narrow()
    plain = copy.deepcopy(model)
    batches = [torch.randn(n, 2, 300) for n in (16, 8, 12)]
    compiled = ct.compile(model, budget=budget, dynamic=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            for x in batches[:2]:
                steps(compiled, x)
        (first, second) = compiled.plans
        steps(compiled, batches[2], 3)
    assert compiled.plans[:2] == [first, second] and len(compiled.plans) == 3
    texts = [str(w.message) for w in told]
    assert len(texts) <= 1 and all("kernels take scratch" in text for text in texts)
    for peak, planned in peaks_and_plans(compiled, batches):
        assert peak <= planned < peak + 2 * counted_scratch.GRAIN
    if budget == 0.0:
        assert all(plan.position is not None for plan in compiled.plans)
    for x in batches:
        assert torch.equal(*(m(x).detach() for m in (compiled, plain)))
    compiled.save_plans(tmp_path / "plans.json")
    again = ct.compile(copy.deepcopy(plain), plans=tmp_path / "plans.json", dynamic=False)
    for x in batches:
        steps(again, x)
    sizes = [plan.numbers["live_bytes"] for plan in compiled.plans]
    assert [plan.numbers["live_bytes"] for plan in again.plans] == sizes


def test_graphs_that_share_a_budget() -> None:
    """With graph breaks the joint plan is measured, with the values that other graphs hold."""
    model, x = mlp()
    layers = model.layers

    def broken(x: torch.Tensor) -> torch.Tensor:
        x = layers[:4](x)
        torch._dynamo.graph_break()
        return layers[4:](x).square().mean()

    compiled = ct.compile(broken, budget="0.9x")
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        compiled(x).backward()
    (plan,) = compiled.plans
    stats = compiled.allocator_stats
    assert [g.phase for g in stats.graphs] == ["forward"] * 2 + ["backward"] * 2
    assert stats.tensor_bytes <= plan.numbers["live_bytes"] < 1.02 * stats.tensor_bytes
    forwards = [g for g in stats.graphs if g.phase == "forward"]
    # the results of the first are still held
    assert forwards[0].tensor_bytes < forwards[1].tensor_bytes


def test_with_the_optimizer_the_rest_of_the_budget_counts() -> None:
    model, x = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = ct.compile(model, budget="0.8x", measure="total", optimizer=optimizer)
    steps(compiled, x, 2)
    plan, stats = compiled.plans[0], compiled.allocator_stats
    assert stats.tensor_bytes <= plan.numbers["live_bytes"]
    assert stats.tensor_bytes + plan.problem["static_bytes"] <= plan.numbers["budget_bytes"]
    with pytest.warns(UserWarning, match="kernels take scratch"):
        steps(compiled, x)
    torch._dynamo.reset()
    roomy = ct.compile(model, budget="1GiB", measure="total", optimizer=optimizer)
    steps(roomy, x)
    assert roomy.allocator_stats.op == BATCH_NORM
    saved = ct.compile(net()[0], budget="0.8x", measure="saved")
    steps(saved, x)  # a budget on saved bytes does not bound the peak
    assert saved.allocator_stats.op == BATCH_NORM


@pytest.mark.very_slow
@pytest.mark.parametrize("budget", ["share", "bytes", "position"])
def test_calls_that_are_pending_together(budget: str) -> None:
    """Values saved by the other call are live while one backward uses its scratch."""
    model, x = net()
    whole = ct.compile(model)
    whole(x).backward()
    one, y = whole.plans[0].numbers["live_bytes"], x.flip(0)
    torch._dynamo.reset()
    asked = {"share": "0.8x", "position": 0.5, "bytes": int(1.5 * one)}[budget]
    compiled = ct.compile(model, budget=asked)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            (compiled(x) + compiled(y)).backward()
    stats = compiled.allocator_stats
    assert [g.phase for g in stats.graphs] == ["forward", "forward", "backward"]
    model.zero_grad(set_to_none=True)
    with ct.MemoryTracker() as memory:
        (compiled(x) + compiled(y)).backward()
    assert stats.tensor_bytes == pytest.approx(memory.peak_bytes, abs=8)  # the sum and its gradient
    said = [str(w.message) for w in told if "scratch" in str(w.message)]
    limit = int(1.5 * one) if budget == "bytes" else compiled.plans[0].shared.limit
    assert len(said) == (stats.peak_bytes > 1.02 * limit and stats.tensor_bytes <= limit)
    if budget == "position":
        assert "the budget is 0.5: " in said[0] and f"({limit} bytes)" in said[0]


@pytest.mark.parametrize("forwards", [3, 20])
def test_forwards_without_a_backward(forwards: int) -> None:
    """Forwards are not steps, however many run."""
    model, x = net()
    compiled = ct.compile(model, budget="0.8x")
    for _ in range(forwards):
        compiled(x + 1)
    assert compiled.allocator_stats is None
    steps(compiled, x)
    stats = compiled.allocator_stats
    assert [g.phase for g in stats.graphs].count("backward") == 1
    with ct.MemoryTracker() as memory:
        steps(compiled, x)
    # if the forward was not measured, its loss is not counted
    assert memory.peak_bytes - 4 * (forwards > 16) == stats.tensor_bytes
