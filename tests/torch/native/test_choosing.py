"""Which kernels run is decided by measurement, once, and kept for the machine and in plan files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import make_fx

import cutback
import cutback.torch as ct
from cutback.torch.native import choosing, decisions
from cutback.torch.native.calls import Group
from cutback.torch.native.choosing import Times, decide
from cutback.torch.native.decisions import Decisions, key_of
from cutback.torch.native.grouping import Kinds
from cutback.torch.native.lowering import lower

NORM = "aten.native_layer_norm.default"


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measures with an empty file for the machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(choosing, "enabled", True)
    monkeypatch.setattr(choosing, "_measured", {})
    monkeypatch.setattr(decisions, "machine", decisions._Machine())


def slow(monkeypatch: pytest.MonkeyPatch, *targets: str) -> list[tuple[str, ...]]:
    """Lets groups take as long as they have nodes, in both kernels, and operations of these names
    much longer in ours. Returns the groups that are measured."""
    asked = []

    def time(nodes: Sequence[fx.Node], kinds: Kinds, group: Group) -> Times:
        names = tuple(str(n.target) for n in nodes)
        asked.append(names)
        return Times(sum(10.0 if n in targets else 0.5 for n in names), float(len(names)))

    monkeypatch.setattr(choosing, "_time", time)
    return asked


def model() -> nn.Module:
    """Returns a product between a norm and a chain."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Sigmoid(), nn.Tanh())


def run(step: Any) -> list[torch.Tensor]:
    """Runs a step and returns its gradients."""
    step.zero_grad()
    step(torch.linspace(-1, 1, 32).view(4, 8)).sum().backward()
    return [p.grad.clone() for p in step.parameters()]


def native(step: Any) -> set[str]:
    """Returns the operations that run in our kernels."""
    return {op for note in step.compiler_notes for group in note.groups for op in group}


def test_a_slow_operation_stays_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the slow operation leaves its group, under every budget and in every process of the
    machine."""
    slow(monkeypatch, NORM)
    step = ct.compile(model(), codegen="native")
    wanted = run(step)
    assert "aten.native_layer_norm" not in native(step)
    assert {"aten.sigmoid", "aten.tanh"} <= native(step)
    foreign = {f.op: f.reason for note in step.compiler_notes for f in note.foreign}
    assert foreign["aten.native_layer_norm"] == "PyTorch's kernel is faster"
    asked = slow(monkeypatch, "aten.sigmoid.default")
    again = ct.compile(model(), codegen="native", budget=0)
    assert all(map(torch.equal, run(again), wanted))
    assert not [g for g in asked if NORM in g]
    monkeypatch.setattr(decisions, "machine", decisions._Machine())  # as in another process
    again = ct.compile(model(), codegen="native")
    assert all(map(torch.equal, run(again), wanted))


def test_decisions_of_a_plan_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Decisions of a plan file take precedence over those of the machine, and damaged ones are
    refused."""
    slow(monkeypatch, NORM)
    step = ct.compile(model(), codegen="native", budget=0.5)
    wanted = run(step)
    step.save_plans(tmp_path / "plans.json")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    slow(monkeypatch, "aten.sigmoid.default")
    again = ct.compile(model(), codegen="native", plans=tmp_path / "plans.json")
    assert all(map(torch.equal, run(again), wanted))
    assert native(again) == native(step)
    document = json.loads((tmp_path / "plans.json").read_text())
    assert any(key.startswith(NORM) and not ours for key, ours in document["kernels"].items())
    document["kernels"] = {"aten.exp": 1}
    (tmp_path / "plans.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="damaged, at TypeError"):
        ct.compile(model(), codegen="native", plans=tmp_path / "plans.json")


def test_giving_up_is_undone_if_it_costs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that is slow alone may stay in a group that is faster with it."""
    graph = make_fx(lambda x: (x.exp().sum(1) * 2).log())(torch.rand(8, 8)).graph

    def time(nodes: Sequence[fx.Node], kinds: Kinds, group: Group) -> Times:
        names = [str(n.target) for n in nodes]
        if len(names) == 4:
            return Times(4.2, 4.0)
        return Times(5.0, 1.5) if "aten.sum.dim_IntList" in names else Times(9.0, 9.0)

    monkeypatch.setattr(choosing, "_time", time)
    made = Decisions()
    decide(graph, made)
    assert set(made.used.values()) == {True} and len(made.used) == 3


def test_exact_groups_run_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both kernels have the same bits, the times of the group decide."""
    monkeypatch.setattr(choosing, "_time", lambda *_: Times(2.0, 1.0))
    x = torch.randn(8, 8)
    gm = make_fx(lambda x: (x + 1) * x)(x)
    made, note = lower(gm, "inference")
    assert not note.groups
    assert {f.reason for f in note.foreign} == {"its group is slower than PyTorch's kernels"}
    assert torch.equal(made(x), (x + 1) * x)


def test_real_times() -> None:
    """Groups are measured, threads are as before, and damaged files are ignored."""
    threads = torch.get_num_threads()
    x = torch.randn(64, 64)
    graph = make_fx(lambda x: (x.exp() * 2).sum(1).sigmoid())(x).graph
    decide(graph, Decisions())
    assert all(t.ours > 0 and t.torch > 0 for t in choosing._measured.values())
    assert choosing._measured and torch.get_num_threads() == threads
    kept = json.loads(decisions.cache_file().read_text())["ours"]
    assert len(kept) == 3
    (exp,) = graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default)
    assert Decisions().get(exp) is kept[key_of(exp)]
    for text in ("{", '{"key": 1}', "[]"):
        decisions.cache_file().write_text(text)
        assert decisions._Machine().get(key_of(exp)) is None


def test_pytorch_is_measured_as_it_runs() -> None:
    """PyTorch compiles with its dispatcher in Python, which would slow down its kernels only."""
    with enable_python_dispatcher(), choosing._one_thread():
        assert "PythonDispatcher" not in str(torch._C._dispatch_tls_local_include_set())


def test_clear_differences_are_measured_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that take longer than a measurement run twice if one is much slower."""
    monkeypatch.setattr(choosing, "_SECONDS", 0.0)
    calls = []

    def call(name: str, loops: int) -> None:
        calls.append(name)
        sum(range(loops))

    with choosing._one_thread():
        times = choosing._seconds(lambda: call("ours", 200_000), lambda: call("torch", 1_000))
        assert times.is_slower and calls == ["ours", "torch"] * 2


def test_arguments_of_all_layouts() -> None:
    """Expanded, transposed, empty and integer arguments are measured, and what cannot be measured
    counts as equal."""
    x, row, flags = torch.randn(6, 8), torch.randn(8).expand(6, 8), torch.ones(8, 6).bool().t()

    def f(x: torch.Tensor, row: torch.Tensor, flags: torch.Tensor) -> torch.Tensor:
        return torch.where(flags, x.exp() * row, 0.0).sum(0)

    decide(make_fx(f)(x, row, flags).graph, Decisions())
    assert choosing._measured and all(t.ours > 0 for t in choosing._measured.values())
    choosing._measured.clear()
    decide(make_fx(lambda x: x.exp().sigmoid())(x[:0]).graph, Decisions())
    assert choosing._measured

    def fail(*_: Any) -> Times:
        raise RuntimeError("not with these values")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "_seconds", fail)
        made = Decisions()
        decide(make_fx(lambda x: x.sigmoid().log())(torch.rand(5, 7)).graph, made)
    assert list(made.used.values()) == [True, True]


def test_threads_come_back_when_other_threads_have_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of threads cannot change while a step runs."""
    set_to, busy = cutback.set_num_threads, 3

    def tried(number: int) -> None:
        nonlocal busy
        if number != 1 and busy > 0:
            busy -= 1
            raise RuntimeError("a step is running")
        set_to(number)

    before = cutback.get_num_threads()
    try:
        set_to(2)
        monkeypatch.setattr(choosing, "set_num_threads", tried)
        with choosing._one_thread():
            assert cutback.get_num_threads() == 1
        assert cutback.get_num_threads() == 2 and busy == 0
        busy = 10**9
        monkeypatch.setattr(choosing, "_WAITS", 2)
        with pytest.warns(UserWarning, match=r"set_num_threads\(2\)"), choosing._one_thread():
            pass
    finally:
        set_to(before)


def test_decisions_stay_in_their_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = decisions._Machine()
    machine.add({"a": True})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert machine.add({"b": True}) == {"b": True}
    assert machine.get("a") is None


def test_the_first_decision_holds() -> None:
    """If two processes decide at the same time, the decision that is written first holds."""
    first, second = decisions._Machine(), decisions._Machine()
    assert second.get("a") is None
    assert first.add({"a": True, "b": False}) == {"a": True, "b": False}
    assert second.add({"a": False, "c": True}) == {"a": True, "c": True}


def test_processes_that_decide_together_agree() -> None:
    """The decisions that each process gets are those that are in the file at the end."""

    def decide(ours: bool) -> list[dict[str, bool]]:
        machine = decisions._Machine()  # as in a process of its own
        return [machine.add({f"op {i}": ours, f"{ours} {i}": ours}) for i in range(40)]

    with ThreadPoolExecutor(4) as pool:
        told = [made for of in pool.map(decide, (True, False) * 2) for made in of]
    kept = json.loads(decisions.cache_file().read_text())["ours"]
    assert len(kept) == 3 * 40
    assert all(kept[key] is ours for made in told for key, ours in made.items())


def test_keys() -> None:
    """Keys distinguish shapes, strides, dtypes and numbers, and nothing else."""

    def key(f: Any, *given: torch.Tensor) -> str:
        graph = make_fx(f)(*given).graph
        return key_of([n for n in graph.nodes if n.op == "call_function"][-1])

    x = torch.randn(4, 6)
    assert key(torch.tanh, x) == "aten.tanh.default(f32[4,6])"
    keys = [
        key(torch.tanh, x), key(torch.tanh, x.double()), key(torch.tanh, torch.randn(6, 4).t()),
        key(torch.sigmoid, x), key(lambda x: x.softmax(-1), x), key(lambda x: x.softmax(0), x),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert key(torch.tanh, x) == key(lambda y: torch.tanh(y), x * 2)
