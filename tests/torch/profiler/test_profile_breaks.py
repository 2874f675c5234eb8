"""Profiles steps with graph breaks: there is one problem for all graphs, which compile splits."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import cutback
import cutback.torch as ct
from cutback.torch.graph.moving import schedule_of
from cutback.torch.profiler.stepping import Program


class Broken(nn.Module):
    """Three graphs: two have statistics and dropout, and two share a layer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
        self.norm = nn.BatchNorm1d(width)
        self.second = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.2), nn.Tanh())
        self.calls = 0

    def forward(self, x: Any) -> Any:
        x = self.norm(self.first(x).sin())
        torch._dynamo.graph_break()
        x = self.second(self.second(x).exp())
        torch._dynamo.graph_break()
        return self.second[0](x).square().mean()


def make() -> tuple[Broken, Any]:
    torch.manual_seed(0)
    return Broken(), torch.randn(64, 16)


@cache
def profiled() -> Any:
    """Returns one profile for all tests that only read it."""
    model, x = make()
    return ct.profile(model, x, runs=2, link=1e9)


def given_times(profile: Any) -> Any:
    """Returns the same profile with times that do not depend on the machine."""
    given = copy.copy(profile)
    given.rows = [row._replace(seconds=1e-5 + 1e-9 * row.bytes) for row in profile.rows]
    return given


def outputs(profile: Any, plan: Any) -> list[Any]:
    """Returns the results of a plan in the profiler's run."""
    program = Program(profile.captured.under(plan), schedule_of(plan.core))
    with program.quiet():
        torch.manual_seed(7)
        return program.run()


def test_all_graphs_are_one_problem() -> None:
    profile = profiled()
    model, x = make()
    plan = profile.step.plan("fastest")
    assert len(profile.graphs) == 3
    assert profile.timeline() == plan.timeline()
    assert profile.peak_bytes == plan.numbers["live_bytes"]
    # forwards in order, backwards in reverse
    runs = [row.name.rpartition("@")[2] for row in profile.rows]
    order = [g for k, g in enumerate(runs) if k == 0 or runs[k - 1] != g]
    assert order == ["0", "1", "2", "1", "0"]
    phases = [row.phase for row in profile.rows]
    assert phases == sorted(phases, key=("forward", "backward").index)
    # each tensor of the caller counts once, and values passed between graphs count where they are
    # made
    given = [v for v in profile.values if v.made < 0]
    own = [*model.parameters(), *model.buffers(), x]
    assert sum(v.bytes for v in given) == sum(t.nbytes for t in own)
    parameters = sum(p.nbytes for p in model.parameters())
    assert profile.peak.by_category["parameter"] == parameters
    columns = profile.by_category()
    for k, row in enumerate(profile.rows):
        total = row.live_bytes + sum(v.bytes for v in given)
        assert sum(column[k] for column in columns.values()) == total
    # the backward of the second graph reads a value of the first
    (handed,) = [v for v in profile.values if v.name.startswith("_native_batch_norm")
                 and v.type == "f32[64,16]" and v.made >= 0]  # fmt: skip
    assert handed.category == "activation" and handed.name.endswith("@0")
    assert profile.rows[handed.forward.last].name.endswith("@1")
    assert profile.rows[handed.backward.first].name.endswith("@1")
    assert "in 3 graphs" in str(profile)


def test_reruns_and_rewritten_graphs(same_bits: Callable[[Any, Any], bool]) -> None:
    profile = given_times(profiled())
    whole = cutback.plan(profile.problem())
    expected = outputs(profile, whole)
    small = cutback.plan(profile.problem(), budget="min")
    moving = cutback.plan(profile.problem(swap=True), budget="0.75x", offload="only")
    assert small.numbers["recomputed"] > 0 < moving.numbers["out_bytes"]
    for plan in (small, moving):
        again = profile.rerun(plan, runs=1, warmup=0)
        assert again.timeline() == plan.timeline()
        assert again.peak_bytes == plan.numbers["live_bytes"] < profile.peak_bytes
        assert same_bits(outputs(profile, plan), expected)
        for g in range(3):
            forward, backward = profile.rewrite(plan, graph=g)
            assert len(forward.graph.nodes) > 3 < len(backward.graph.nodes)
    with pytest.raises(ValueError, match="graph=3: the step has 3"):
        profile.rewrite(whole, graph=3)


@pytest.mark.parametrize(
    ("budget", "options"),
    [(0.85, {}), pytest.param(0.8, {"offload": "only"}, marks=pytest.mark.very_slow)],
)
def test_compile_gives_each_graph_its_times(
    budget: float,
    options: dict[str, Any],
    tmp_path: Any,
    train_step: Callable[..., Any],
    same_bits: Callable[[Any, Any], bool],
    ran: Counter[str],
) -> None:
    profile = given_times(profiled())
    profile.save(tmp_path / "profile.json")
    loaded = ct.load_profile(tmp_path / "profile.json")
    assert loaded.to_dict() == profile.to_dict() and str(loaded) == str(profile)
    model, x = make()
    twin = ct.compile(copy.deepcopy(model))
    expected = [train_step(twin, x) for _ in range(2)]
    problem = profile.problem(swap=bool(options))
    plan = cutback.plan(problem, budget=budget, **options)
    given = tmp_path / "profile.json" if options else profile
    ran.clear()
    step = ct.compile(copy.deepcopy(model), budget, dynamic=False, profile=given, **options)
    for before in expected:
        found = train_step(step, x)
        assert torch.equal(found.loss, before.loss)
        assert same_bits(list(found.gradients.values()), list(before.gradients.values()))
        assert same_bits(list(found.buffers.values()), list(before.buffers.values()))
    assert ran == {"forward": 6, "backward": 6}
    (joint,) = step.plans
    times = {op["name"]: op.get("time_ps") for op in joint.problem["ops"]}
    for op in plan.problem["ops"]:  # only compile knows which placeholders are passed on
        assert op["kind"] == "placeholder" or times[op["name"]] == op["time_ps"]
    whole = "save_all_live_bytes"
    assert joint.numbers[whole] <= plan.numbers[whole]
    assert joint.numbers["live_bytes"] <= joint.numbers["budget_bytes"]
    assert found.peak_bytes <= plan.numbers["live_bytes"]


def test_by_name_each_graph_gets_its_times() -> None:
    profile = given_times(profiled())
    model, x = make()
    plans: list[Any] = []
    options = {"budget": "min", "profile": profile, "on_plan": plans.append}
    step = torch.compile(model, backend="cutback", dynamic=False, options=options)
    step(x).backward()
    assert len(plans) == 3
    for plan, signature in zip(plans, profile.graphs, strict=True):
        times = profile.times_of(signature)
        given = {op["name"]: op.get("time_ps") for op in plan.problem["ops"]}
        assert times and all(given[name] == round(1e12 * times[name]) for name in times)


@pytest.mark.very_slow
def test_selections(
    train_step: Callable[..., Any], same_bits: Callable[[Any, Any], bool], ran: Counter[str]
) -> None:
    profile = given_times(profiled())
    model, x = make()
    expected = train_step(ct.compile(copy.deepcopy(model)), x)
    for swap in (False, True):
        torch._dynamo.reset()
        ran.clear()
        selection = ct.mutwo.select(profile, "0.4x", swap=swap)
        chosen = {c.name for c in selection.chosen("swap" if swap else "recompute")}
        assert {name[-2:] for name in chosen} & {"@0", "@1"} and all("@" in n for n in chosen)
        step = ct.compile(copy.deepcopy(model), policy=selection, profile=profile, dynamic=False)
        found = train_step(step, x)
        assert ran == {"forward": 3, "backward": 3}
        assert same_bits(list(found.gradients.values()), list(expected.gradients.values()))
        assert len(step.plans) == 3
        done = {
            f"{entry.name}@{g}"
            for g, plan in enumerate(step.plans)
            for entry in (plan.offloaded if swap else plan.recomputed)
        }
        assert chosen <= done


def test_state_is_as_before(same_bits: Callable[[Any, Any], bool]) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: Any, fails: bool = False) -> Any:
            self.seen.add_(x)
            y = (self.w * x).sin() * torch.rand(4)
            torch._dynamo.graph_break()
            x.mul_(2)
            outside.add_(1)
            y = (y * self.seen * x * outside).sum() * torch.rand(4)
            torch._dynamo.graph_break()
            if fails:
                raise RuntimeError("the step failed")
            return y.sum()

    outside = torch.ones(4)
    model, x = Counts(), torch.arange(4.0)

    def state() -> Any:
        tensors = [*model.parameters(), *model.buffers(), x, outside]
        return [t.detach().clone() for t in tensors], torch.get_rng_state(), model.w.grad

    before = state()
    optimizer = torch.optim.Adam(model.parameters())
    profile = ct.profile(model, x, runs=2, link=1e9, optimizer=optimizer)
    assert same_bits(before, state()) and not optimizer.state
    n = sum(row.phase != "optimizer" for row in profile.rows)
    assert len(profile.graphs) == 3
    assert profile.timeline()[:n] == profile.step.plan("fastest").timeline()
    with pytest.raises(RuntimeError, match="the step failed"):
        ct.profile(model, x, True)
    assert same_bits(before, state())


def test_an_optimizer_sees_each_parameter_once() -> None:
    model, x = make()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    profile = ct.profile(model, x, runs=1, link=1e9, optimizer=optimizer)
    own, count = sum(p.nbytes for p in model.parameters()), len(list(model.parameters()))
    assert profile.peak.by_category["optimizer state"] == 2 * own + 4 * count


@pytest.mark.very_slow
def test_no_compiled_code_is_left() -> None:
    model, x = make()
    with torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(3):
            ct.profile(model, x, runs=1, link=1e9)


def test_parts_without_a_gradient() -> None:
    def f(w: Any, x: Any) -> Any:
        y = x.sin()  # a graph without a backward
        torch._dynamo.graph_break()
        return (w * y).cos().sum()

    profile = ct.profile(f, torch.ones(4, requires_grad=True), torch.ones(4), runs=1, link=1e9)
    assert len(profile.graphs) == 1 and not any("@" in row.name for row in profile.rows)
    assert profile.timeline() == profile.step.plan("fastest").timeline()
    with pytest.raises(ct.UnsupportedGraphError, match="needs a gradient"):
        ct.profile(f, torch.ones(4), torch.ones(4))


def test_mistakes() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(8))

        def forward(self, x: Any) -> Any:
            x = x * self.w
            torch._dynamo.graph_break()
            return x.sin()

    twice = nn.Sequential(Layer(), Layer())
    with pytest.raises(ct.UnsupportedGraphError, match="runs several times"):
        ct.profile(twice, torch.ones(8))
    profile = profiled()
    other, x = Broken(8), torch.randn(64, 8)
    with pytest.raises(ValueError, match="the step belongs to another graph"):
        ct.compile(other, dynamic=False, profile=profile)(x)
    with pytest.raises(ValueError, match="under this selection belongs to another graph"):
        ct.compile(other, dynamic=False, policy=ct.mutwo.select(profile))(x)
