"""Tests problems of PyTorch steps: what the planner learns about a graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import make
from torch import nn
from torch._subclasses import FakeTensorMode

import cutback
import cutback.torch as ct
from cutback.cli import main


def ops_of(document: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [op for op in document["ops"] if op["kind"].startswith(kind)]


def weight(*shape: int) -> Any:
    return torch.randn(*shape, requires_grad=True)


def test_storages_bytes_and_work() -> None:
    def f(w: Any, x: Any) -> Any:
        y = x @ w  # [6, 5]
        a, b = y.split([2, 4])
        z = b.transpose(0, 1).expand(3, 5, 4)
        return (z.exp() * a.sum()).to(torch.float64).mean()

    document = ct.trace(f, weight(4, 5), torch.randn(6, 4)).document
    (mm,) = ops_of(document, "aten.mm")[:1]
    storages = document["storages"]
    assert mm["flops"] == 2 * 6 * 4 * 5
    assert mm["bytes"] == 4 * (6 * 4 + 4 * 5 + 6 * 5)
    assert "compute" in mm["flags"] and "backward" not in mm["flags"]
    assert mm["at"].startswith("test_tracing.py:")
    home = mm["out"][0]["storage"]
    assert storages[home]["bytes"] == 4 * 30
    (split,) = ops_of(document, "aten.split_with_sizes.")
    assert split["flags"] == ["view"]
    assert [(o["storage"], o["type"], o["bytes"]) for o in split["out"]] == [
        (home, "f32[2,5]", 40),
        (home, "f32[4,5]", 80),
    ]
    (expand, *_) = ops_of(document, "aten.expand")
    assert expand["out"][0] == {"storage": home, "type": "f32[3,5,4]", "bytes": 240}
    (exp,) = ops_of(document, "aten.exp.")
    assert exp["flags"] == ["fusible"] and storages[exp["out"][0]["storage"]]["bytes"] == 240
    assert {op.get("class") for op in ops_of(document, "aten.mean")} == {"f64"}


def test_operations_of_several_kernels_move_more() -> None:
    def f(w: Any, x: Any) -> Any:
        # PyTorch uses this for attention with a boolean mask; torch 2.14 has one kernel for it
        y = torch.ops.aten._safe_softmax(x @ w @ x.mT, -1) @ x
        return nn.functional.dropout(y, 0.5).square().sum()

    document = ct.trace(f, weight(4, 4), torch.randn(2, 8, 4)).document
    (softmax,) = ops_of(document, "aten._safe_softmax")
    assert softmax["bytes"] == 3 * 2 * 4 * (2 * 8 * 8)
    (result,) = ops_of(document, "aten.native_dropout.result")
    (derivative,) = ops_of(document, "aten.native_dropout_backward")
    assert result["bytes"] == 2 * (4 + 1 + 4) * (2 * 8 * 4)
    assert derivative["bytes"] == 2 * (4 + 1 + 4) * (2 * 8 * 4)


def test_phases_tangents_and_holds() -> None:
    w, x = weight(4, 4), torch.randn(8, 4)
    document = ct.trace(lambda w, x: ((x @ w).tanh(), (w * 2).sum()), w, x).document
    ops, start = document["ops"], document["backward_starts"]
    tangents = ops_of(document, "tangent")
    assert [op["flags"] for op in tangents] == [["backward", "effect"]] * 2
    assert ops.index(tangents[0]) == start
    assert all("backward" not in op["flags"] for op in ops[:start])
    # backward() holds the loss's own tangent, but not the other
    flags = [document["storages"][op["out"][0]["storage"]].get("flags") for op in tangents]
    assert sorted(flags, key=str) == [None, ["hold_end"]] or flags == [None, ["hold_end"]]
    assert document["static_bytes"] == 0
    parameters = ct.trace(nn.Linear(4, 4), x).document
    assert parameters["static_bytes"] == 4 * (16 + 4)
    assert sum("parameter" in op["flags"] for op in parameters["ops"]) == 2


def test_classes_of_operations() -> None:
    def f(w: Any) -> Any:
        noise = torch.rand_like(w)
        return (torch.nn.functional.dropout(w, 0.5) * noise).sum()

    document = ct.trace(f, weight(8)).document
    (rand,) = ops_of(document, "aten.rand_like")
    (dropout,) = ops_of(document, "aten.native_dropout.default")
    (result,) = ops_of(document, "aten.native_dropout.result")
    assert "random_stateful" in rand["flags"] and "random_stateful" in dropout["flags"]
    assert [o["type"] for o in dropout["out"]] == ["bool[8]"]
    assert result["flags"] == ["fusible"] and [o["type"] for o in result["out"]] == ["f32[8]"]


def test_checkpoints_become_wishes() -> None:
    def inner(x: Any) -> Any:
        return x.sin().cos()

    def f(w: Any) -> Any:
        w = torch.utils.checkpoint.checkpoint(inner, w, use_reentrant=False)
        return torch.utils.checkpoint.checkpoint(inner, w, use_reentrant=False).sum()

    document = ct.trace(f, weight(8)).document
    forward = document["ops"][: document["backward_starts"]]
    wishes = [op["out"][0].get("constraint") for op in forward if op["out"]]
    # values passed from one region to the next are saved
    assert wishes == [None, "prefer_recompute", "prefer_save"] + ["prefer_recompute"] * 2 + [None]
    plan = cutback.plan(document)
    assert plan.numbers["recomputed"] == 2


def test_nothing_is_allocated() -> None:
    with FakeTensorMode():
        model, x = nn.Linear(1024, 1024), torch.randn(1 << 24, 1024)
    step = ct.trace(lambda x: model(x).square().mean(), x)
    assert step.plan().numbers["live_bytes"] > 100 << 30
    assert step.device == "cpu"


@pytest.mark.very_slow
def test_files(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model, inputs = make("gpt")
    step = ct.trace(model, *inputs)
    for name in ("step.json", "step.json.gz"):
        step.save(tmp_path / name)
        assert cutback.plan(tmp_path / name, budget="0.6x").document == step.plan("0.6x").document
    assert main(["plan", str(tmp_path / "step.json"), "--budget", "0.6x", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["steps"] == step.plan("0.6x").document["steps"]


@pytest.mark.very_slow
def test_the_traced_problem_is_the_compiled_one(train_step: Callable[..., Any]) -> None:
    model, inputs = make("encoder")
    step = ct.trace(model, *inputs)
    compiled = ct.compile(model, budget="0.7x")
    train_step(compiled, *inputs)
    (plan,) = compiled.plans
    assert plan.problem == {**step.document, "fingerprint": plan.core.fingerprint}
    assert plan.parts == step.problem
    assert plan.document == step.plan("0.7x").document


@pytest.mark.very_slow
def test_what_is_compiled_is_traced_as_it_is() -> None:
    model, inputs = make("encoder")
    document = ct.trace(model, *inputs).document

    def step(x: Any) -> Any:
        return model(x)

    for compiled in (ct.compile(model, 0.5), torch.compile(model), ct.compile(step, 0.5)):
        again = ct.trace(compiled, *inputs).document
        assert [op["kind"] for op in again["ops"]] == [op["kind"] for op in document["ops"]]
    profile = ct.profile(ct.compile(model, 0.5), *inputs, runs=1, warmup=0, link=1e9)
    assert len(profile.rows) == len(document["ops"]) - sum(
        op["kind"] == "placeholder" for op in document["ops"]
    )


def test_what_cannot_be_traced() -> None:
    with pytest.raises(ct.UnsupportedGraphError, match="needs a gradient"):
        ct.trace(lambda x: x * 2, torch.randn(3))
    with pytest.raises(ct.UnsupportedGraphError, match="no operations"):
        ct.trace(lambda x: 3, torch.randn(3))
    with pytest.raises(torch._dynamo.exc.Unsupported):

        def broken(w: Any) -> Any:
            torch._dynamo.graph_break()
            return w.sin().sum()

        ct.trace(broken, weight(3))
