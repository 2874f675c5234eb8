"""Plans survive a file, and are refused for a different graph."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn

import cutback.torch as ct


class Net(nn.Module):
    """Dropout between layers, optionally with a graph break in the middle."""

    def __init__(self, breaks: bool = False, activation: Any = torch.tanh) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)
        self.breaks, self.activation = breaks, activation

    def forward(self, x: Any) -> Any:
        x = F.dropout(self.activation(self.a(x)).exp().sin(), 0.2)
        if self.breaks:
            torch._dynamo.graph_break()
        return self.activation(self.b(x)).exp().sin().square().mean()


@pytest.fixture
def x() -> Any:
    torch.manual_seed(0)
    return torch.randn(32, 16)


@pytest.mark.parametrize("name", ["plans.json", "plans.json.gz"])
def test_the_same_plan_in_another_place(
    name: str, x: Any, tmp_path: Path, train_step: Callable[..., Any],
    same_bits: Callable[..., bool], ran: Counter[str],
) -> None:  # fmt: skip
    model = Net()
    planned = ct.compile(copy.deepcopy(model), budget="0.7x")
    with pytest.raises(RuntimeError, match="nothing has been planned yet"):
        planned.save_plans(tmp_path / name)
    first = train_step(planned, x)
    planned.save_plans(tmp_path / name)
    torch._dynamo.reset()
    given = ct.compile(copy.deepcopy(model), plans=tmp_path / name)
    second = train_step(given, x)
    assert second.peak_bytes == first.peak_bytes
    assert same_bits(second.gradients, first.gradients)
    assert ran == {"forward": 2, "backward": 2}
    assert [p.document for p in given.plans] == [p.document for p in planned.plans]
    given.save_plans(tmp_path / "again.json")
    assert (tmp_path / "again.json").stat().st_size > 0


def test_one_plan_over_graphs_with_breaks(
    x: Any, tmp_path: Path, train_step: Callable[..., Any],
    same_bits: Callable[..., bool], ran: Counter[str],
) -> None:  # fmt: skip
    model, path = Net(breaks=True), tmp_path / "plans.json"
    planned = ct.compile(copy.deepcopy(model), budget="0.8x")
    train_step(planned, x)
    planned.save_plans(path)  # after one step: the plan that the second step will follow
    first = train_step(planned, x)
    (plan,) = planned.plans
    torch._dynamo.reset()
    ran.clear()
    given = ct.compile(copy.deepcopy(model), plans=path)
    for _ in range(2):
        second = train_step(given, x)
        assert second.peak_bytes == first.peak_bytes
        assert same_bits(second.gradients, first.gradients)
    assert ran == {"forward": 4, "backward": 4}
    (other,) = given.plans
    assert other.document == plan.document and other.problem == plan.problem


@pytest.mark.parametrize("breaks", [False, True])
def test_plans_that_move_values(
    breaks: bool, tmp_path: Path, train_step: Callable[..., Any],
    same_bits: Callable[..., bool], ran: Counter[str],
) -> None:  # fmt: skip
    torch.manual_seed(0)
    model, path, x = Net(breaks=breaks), tmp_path / "plans.json", torch.randn(2048, 16)
    everything = train_step(ct.compile(copy.deepcopy(model)), x)
    planned = ct.compile(copy.deepcopy(model), budget="0.9x" if breaks else "0.75x", offload="only")
    train_step(planned, x)
    planned.save_plans(path)
    first = train_step(planned, x)
    (plan,) = planned.plans
    assert plan.numbers["out_bytes"] > 0
    torch._dynamo.reset()
    ran.clear()
    given = ct.compile(copy.deepcopy(model), plans=path)
    for _ in range(2):
        second = train_step(given, x)
        assert second.peak_bytes == first.peak_bytes < everything.peak_bytes
        assert same_bits(list(second.gradients.values()), list(everything.gradients.values()))
    parts = 2 if breaks else 1
    assert ran == {"forward": 2 * parts, "backward": 2 * parts}
    (other,) = given.plans
    assert other.document == plan.document and other.problem == plan.problem
    # transfers that do not belong to the plan never run
    good = json.loads(path.read_text())
    g, k = next(
        (g, k)
        for g, graph in enumerate(good["graphs"])
        for k, step in enumerate(graph["steps"])
        if isinstance(step, list) and step[0] == "end"
    )
    for damage, text in ((["end", 10**6, 0], "has not left memory"), (["gone", 0, 0], "damaged")):
        bad = copy.deepcopy(good)
        bad["graphs"][g]["steps"][k] = damage
        path.write_text(json.dumps(bad))
        torch._dynamo.reset()
        with pytest.raises(ValueError, match=text):
            ct.compile(copy.deepcopy(model), plans=path)(x)


def test_inductor_refuses_saved_moves(tmp_path: Path) -> None:
    path, w = tmp_path / "plans.json", torch.randn(512, 512, requires_grad=True)

    def f(w: Any) -> Any:
        for _ in range(8):  # the graph stays the same under Inductor's decompositions
            w = w * w
        return w.sum()

    planned = ct.compile(f, budget="0.8x", offload="only")
    planned(w).backward()
    planned.save_plans(path)
    torch._dynamo.reset()
    with pytest.raises(NotImplementedError, match="Inductor cannot compile plans"):
        ct.compile(f, plans=path, codegen="inductor")(w)


@pytest.mark.very_slow
@pytest.mark.parametrize("breaks", [False, True])
def test_plans_that_count_model_and_optimizer(
    breaks: bool, x: Any, tmp_path: Path, same_bits: Callable[..., bool], ran: Counter[str]
) -> None:
    path = tmp_path / "plans.json"

    def train(steps: int, **options: Any) -> tuple[Any, list[int], list[Any]]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Net(breaks=breaks)
        optimizer = torch.optim.AdamW(model.parameters())
        if "budget" in options:
            options.update(measure="total", optimizer=optimizer)
        compiled, peaks = ct.compile(model, **options), []
        for _ in range(steps):
            torch.manual_seed(1)
            optimizer.zero_grad()
            with ct.MemoryTracker(model, optimizer) as memory:
                compiled(x).backward()
                optimizer.step()
            peaks.append(memory.peak_total_bytes)
        if "budget" in options:
            compiled.save_plans(path)
        return compiled, peaks, [p.detach().clone() for p in model.parameters()]

    planned, first, parameters = train(3, budget="0.93x")
    ran.clear()
    given, second, same = train(3, plans=path)
    assert sum(ran.values()) == (12 if breaks else 6)
    assert second[-1] == first[-1] and same_bits(same, parameters)
    (plan,), (other,) = planned.plans, given.plans
    assert other.document == plan.document and other.problem == plan.problem
    if not breaks:
        assert second[1:] == [plan.numbers["total_bytes"]] * 2  # the first step made the states
    with pytest.raises(ValueError, match=r"optimizer states of [\d,]+ and a step"):
        model = Net(breaks=breaks)
        plain = torch.optim.SGD(model.parameters())
        torch._dynamo.reset()
        ct.compile(model, plans=path, measure="total", optimizer=plain)(x)


def test_plans_of_something_else_are_refused(x: Any, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    planned = ct.compile(Net(), budget="0.7x")
    planned(x)
    planned.save_plans(path)

    def refusal(model: Any, *inputs: Any) -> str:
        torch._dynamo.reset()
        with pytest.raises(ValueError, match="no plan in it is for this graph") as caught:
            ct.compile(model, plans=path)(*inputs)
        return str(caught.value)

    assert "was placeholder f32[32,16], now it is placeholder f32[8,16]" in refusal(Net(), x[:8])
    text = refusal(Net(activation=lambda x: x.relu().relu()), x)
    assert "was aten.tanh.default f32[32,32], now it is aten.relu.default f32[32,32]" in text
    assert "test_saved_plans.py:" in text
    assert " ops, now " in refusal(Net(), x.clone().requires_grad_())
    w = x.clone().requires_grad_()
    planned = ct.compile(lambda w: (w.sin() - w.cos()).sin().sum(), budget=1.0)
    planned(w)
    planned.save_plans(path)

    def other(w: Any) -> Any:  # the same ops on other values
        a, b = w.sin(), w.cos()
        return (b - a).sin().sum()

    assert "they differ in the values they read" in refusal(other, w)


def test_files_that_hold_no_plans(x: Any, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    with pytest.raises(TypeError, match="give plans, or a budget"):
        ct.compile(Net(), budget="0.5x", plans=path)
    with pytest.raises(FileNotFoundError):
        ct.compile(Net(), plans=path)
    for text in ("", "[]", "{}", '{"format": "cutback.plan", "version": 1}', "\0"):
        path.write_text(text)
        with pytest.raises(ValueError, match="not a file of plans"):
            ct.compile(Net(), plans=path)
    planned = ct.compile(Net(), budget="0.7x")
    planned(x)
    planned.save_plans(path)
    good = json.loads(path.read_text())
    for damage in (
        {"graphs": [{}]},
        {"plans": [{"graphs": [5], "plan": {}}]},
        {"plans": [{"graphs": [0]}]},
        {"plans": [{**good["plans"][0], "total": [1]}]},
        {"plans": [{**good["plans"][0], "plan": {**good["plans"][0]["plan"], "device": 3}}]},
        {"graphs": [{**good["graphs"][0], "backward_starts": -1}]},
    ):
        path.write_text(json.dumps({**good, **damage}))
        with pytest.raises(ValueError, match="damaged"):
            ct.compile(Net(), plans=path)
    # steps that do not belong to this graph never run
    for where in (good["plans"][0]["plan"], good["graphs"][0]):
        where["steps"].reverse()
        path.write_text(json.dumps(good))
        where["steps"].reverse()
        torch._dynamo.reset()
        with pytest.raises(ValueError, match="step"):
            ct.compile(Net(), plans=path)(x)


def test_names_in_a_state_around_compiled_modules() -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    parts = nn.Sequential(*(ct.compile(copy.deepcopy(m)) for m in plain))
    theirs = nn.Sequential(*(torch.compile(m, backend="eager") for m in plain))
    assert list(parts.state_dict()) == list(theirs.state_dict())
    for k, state in enumerate((plain, theirs)):  # names without "_orig_mod" are accepted as well
        with torch.no_grad():
            plain[0].weight.fill_(3 + k)
            plain[1].num_batches_tracked.fill_(5 + k)
        assert str(parts.load_state_dict(state.state_dict())) == "<All keys matched successfully>"
        assert (parts[0].weight == 3 + k).all() and parts[1].num_batches_tracked == 5 + k
    with pytest.raises(RuntimeError, match="Unexpected"):
        parts.load_state_dict({**plain.state_dict(), "0.other": torch.ones(1)})
