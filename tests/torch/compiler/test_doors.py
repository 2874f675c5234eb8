"""Tests all entry points: the backend's name, AOTAutograd, Inductor, and what they refuse."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from shutil import which
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from small_models import make
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

import cutback.torch as ct
from cutback import BudgetError
from cutback.torch import hooks


def f(w: Any, x: Any) -> Any:
    for _ in range(3):
        x = F.dropout(torch.tanh(x @ w), 0.2)
    return x.square().sum()


def inputs() -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(32, 32, requires_grad=True), torch.randn(256, 32)


def gradient(call: Callable[..., Any]) -> Any:
    w, x = inputs()
    torch.manual_seed(5)
    call(w, x).backward()
    return w.grad


@pytest.mark.slow
def test_import_of_the_package_leaves_torch_alone() -> None:
    code = "import sys, cutback; assert 'torch' not in sys.modules; import cutback.torch"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.very_slow
@pytest.mark.skipif(not hooks.own_entries(), reason="before PyTorch 2.13 they share a limit")
@torch._dynamo.config.patch(recompile_limit=3)
def test_many_modules_of_one_forward() -> None:
    """PyTorch limits how often it recompiles a function (eight times by default), and all these
    modules share ``nn.Sequential.forward``."""
    x = torch.randn(64, 8)
    models = [
        nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Tanh()) for _ in range(k)))
        for k in range(3, 3 + torch._dynamo.config.recompile_limit + 1)
    ]
    compiled = [ct.compile(model, budget="0.9x") for model in models]
    for run in compiled:
        run(x).sum().backward()
    assert [len(run.plans) for run in compiled] == [1] * len(models)
    for model in models:
        torch.compile(model, backend="eager", dynamic=False)(x)
    last = models[-1]
    assert ct.trace(lambda x: last(x).sum(), x).document["ops"]
    assert ct.profile(last, x).rows


def test_by_name(ran: Counter[str], same_bits: Callable[..., bool]) -> None:
    plans: list[Any] = []
    compiled = torch.compile(
        f, backend="cutback", options={"budget": "0.7x", "on_plan": plans.append}
    )
    assert same_bits(gradient(compiled), gradient(f))
    assert ran == {"forward": 1, "backward": 1}
    (plan,) = plans
    assert plan.numbers["recomputed"] > 0
    assert plan.numbers["live_bytes"] <= 0.7 * plan.numbers["save_all_live_bytes"]
    for options, text in (
        ({"budgte": 0.7}, "unknown option 'budgte'"),
        ({"optimizer": None}, "optimizer.*cutback.torch.compile"),
        ({"budget": "0.7x", "plans": "x"}, "give plans, or a budget"),
    ):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=text):
            torch.compile(f, backend="cutback", options=options)(*inputs())


SLOWER = [pytest.param(d, marks=pytest.mark.very_slow) for d in ("torch.compile", "module.compile")]


class Broken(nn.Module):
    """Two graphs with Python code between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)))
        self.second = copy.deepcopy(self.first)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        torch._dynamo.graph_break()
        return self.second(y).square().sum()


@pytest.mark.parametrize("door", ["own", *SLOWER])
def test_one_budget_over_graph_breaks_by_every_door(
    door: str, train_step: Callable[..., Any], same_bits: Callable[..., bool]
) -> None:
    x = torch.randn(256, 16)
    model = Broken()
    plain = train_step(model, x)
    plans: list[Any] = []
    compiled: Any
    options = {"budget": "0.6x", "on_plan": plans.append}
    if door == "own":
        compiled = ct.compile(model, budget="0.6x")
    elif door == "torch.compile":
        compiled = torch.compile(model, backend="cutback", options=options)
    else:
        compiled = model
        model.compile(backend="cutback", options=options)
    found = [train_step(compiled, x) for _ in range(4)]
    if door == "own":
        plans = compiled.plans
    numbers = plans[-1].numbers
    assert [op["kind"] for op in plans[-1].problem["ops"]].count("tangent") == 2  # of both graphs
    for step in found:
        assert same_bits(list(step.gradients.values()), list(plain.gradients.values()))
    assert numbers["live_bytes"] <= numbers["budget_bytes"] < plain.peak_bytes
    assert {step.peak_bytes for step in found[1:]} == {found[-1].peak_bytes}
    assert found[-1].peak_bytes <= numbers["live_bytes"]


@pytest.mark.very_slow
@pytest.mark.parametrize(
    "door", [pytest.param("torch.compile", marks=pytest.mark.very_slow), "module.compile"]
)
def test_a_smaller_last_batch_over_graph_breaks_by_name(
    door: str, train_step: Callable[..., Any], same_bits: Callable[..., bool]
) -> None:
    """After one plan covers all graphs, other sizes appear twice per epoch: none of our guards
    fails before the guarded code has run, and the budget holds again."""
    model = Broken()
    compiled: Any = model
    options = {"budget": "0.6x"}
    if door == "torch.compile":
        compiled = torch.compile(model, backend="cutback", options=options)
    plain = copy.deepcopy(model)
    if door == "module.compile":
        model.compile(backend="cutback", options=options)
    last = {}
    for rows in (256, 256, 256, 96) * 2:
        x = torch.randn(rows, 16)
        wanted, found = train_step(plain, x), train_step(compiled, x)
        assert same_bits(list(found.gradients.values()), list(wanted.gradients.values()))
        with torch.no_grad():  # an evaluation between the steps
            assert torch.equal(compiled(x), plain(x))
        last[rows] = found.peak_bytes / wanted.peak_bytes
    assert max(last.values()) < 0.7


def test_saved_plans_by_name(tmp_path: Any, same_bits: Callable[..., bool]) -> None:
    compiled = ct.compile(f, budget="0.7x")
    wanted = gradient(compiled)
    compiled.save_plans(tmp_path / "plans.json")
    torch._dynamo.reset()
    plans: list[Any] = []
    options = {"plans": str(tmp_path / "plans.json"), "on_plan": plans.append}
    assert same_bits(gradient(torch.compile(f, backend="cutback", options=options)), wanted)
    assert plans[-1].document["steps"] == compiled.plans[0].document["steps"]


@pytest.mark.very_slow
def test_exact_uses_the_room(ran: Counter[str], same_bits: Callable[..., bool]) -> None:
    """Without `exact`, the plan is for one of a few fixed targets."""

    def step(**options: Any) -> tuple[Any, Any]:
        model, args = make("gpt")
        compiled = ct.compile(model, **options)
        compiled(*args).backward()
        return [p.grad for p in model.parameters()], compiled.plans[0].numbers

    kept, _ = step()
    _, numbers = step(budget="0.45x")
    own, exact = step(budget="0.45x", exact=True)
    assert exact["time_ps"] < numbers["time_ps"]
    assert exact["live_bytes"] <= exact["budget_bytes"]
    assert same_bits(own, kept) and ran == {"forward": 3, "backward": 3}


def test_a_policy_may_be_a_generator() -> None:
    kept = []
    for policy in (["aten.mm"], (name for name in ["aten.mm"])):
        torch._dynamo.reset()
        compiled = ct.compile(f, policy=policy)
        gradient(compiled)
        kept.append(compiled.plans[0].document["steps"])
    assert kept[0] == kept[1]
    everything = ct.compile(f)
    gradient(everything)
    assert everything.plans[0].document["steps"] != kept[0]


def test_as_partition_fn(same_bits: Callable[..., bool]) -> None:
    graphs = []

    def compiler(gm: Any, example_inputs: Any) -> Any:
        graphs.append(gm)
        return make_boxed_func(gm.forward)

    partitioner = ct.Partitioner(budget="min")
    backend = aot_autograd(fw_compiler=compiler, partition_fn=partitioner)
    assert same_bits(gradient(torch.compile(f, backend=backend)), gradient(f))
    (plan,) = partitioner.plans
    start, steps = plan.document["backward_starts"], plan.document["steps"]
    kinds = [plan.problem["ops"][i]["kind"] for i in steps]
    # the graphs run the steps in the plan's order; a dropout result that is remade from its mask is
    # one op
    names = {
        "_operator.getitem": "<built-in function getitem>",
        "aten.native_dropout.result": "<built-in function getitem>",
    }
    for graph, part in zip(graphs, (kinds[:start], kinds[start:]), strict=True):
        calls = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
        planned = [names.get(k, k) for k in part if k != "tangent"]
        if graph is graphs[1]:
            planned = [
                "aten.native_dropout_backward.default" if k == "aten.native_dropout.result"
                else names.get(k, k) for k in part if k != "tangent"
            ]  # fmt: skip
            planned = [k for k in planned if "getitem" not in k]
            calls = [k for k in calls if "getitem" not in k]
        assert calls == planned


@pytest.mark.slow
@pytest.mark.skipif(which("g++") is None, reason="Inductor compiles with g++ on the CPU")
@pytest.mark.parametrize("door", [pytest.param("compile", marks=pytest.mark.very_slow), "config"])
def test_inductor(door: str) -> None:
    graphs: list[list[str]] = []
    look = torch._inductor.config.patch(
        post_grad_custom_post_pass=_Look(graphs), fx_graph_cache=False
    )
    plain = gradient(torch.compile(f))
    torch._dynamo.reset()
    with look, torch._functorch.config.patch(enable_autograd_cache=False):
        if door == "compile":
            compiled = ct.compile(f, budget="0.7x", codegen="inductor")
            found = gradient(compiled)
            (plan,) = compiled.plans
        else:
            partitioner = ct.Partitioner(budget="0.7x")
            with torch._inductor.config.patch(custom_partitioner_fn=partitioner):
                found = gradient(torch.compile(f))
            (plan,) = partitioner.plans
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)
    assert plan.numbers["recomputed"] > 0
    kinds = [op["kind"] for op in plan.problem["ops"]]
    assert any("inductor_seeds" in kind for kind in kinds)
    # seeds are drawn once, in the forward (the graphs before the last two were only inspected, for
    # Inductor's estimate of the peak)
    draws = [sum("inductor_seeds" in call for call in graph) for graph in graphs[-2:]]
    assert len(graphs) % 2 == 0 and sorted(draws) == [0, 1]


class _Look(torch._inductor.custom_graph_pass.CustomGraphPass):
    """Records the operations of every graph that Inductor compiles."""

    def __init__(self, graphs: list[list[str]]) -> None:
        self.graphs = graphs

    def __call__(self, graph: Any) -> None:
        self.graphs.append([str(n.target) for n in graph.nodes])

    def uuid(self) -> None:
        return None


def test_a_compiled_module_looks_like_the_module() -> None:
    model, _ = make("gpt")
    compiled = ct.compile(model, budget="0.5x")
    plain = torch.compile(make("gpt")[0], backend="eager")
    assert isinstance(compiled, torch._dynamo.OptimizedModule) and compiled._orig_mod is model
    assert list(compiled.state_dict()) == list(plain.state_dict())
    for state in (plain.state_dict(), plain._orig_mod.state_dict()):
        for p in model.parameters():
            p.data.zero_()
        compiled.load_state_dict(state)
        assert all(
            torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True)
        )
    with pytest.raises(RuntimeError, match="Missing key"):
        compiled.load_state_dict({})
    assert [n for n, _ in compiled.named_parameters()] == [n for n, _ in plain.named_parameters()]
    assert inspect.signature(compiled.forward) == inspect.signature(model.forward)
    assert set(dir(plain)) <= set(dir(compiled))
    compiled.note = 3  # as for torch.compile, attributes are those of the module
    assert model.note == 3 and "note" not in compiled.__dict__
    assert not compiled.eval().training and not model.training and compiled.train() is compiled
    assert ct.compile(compiled)._orig_mod is model
    assert {id(p) for p in compiled.parameters()} == {id(p) for p in model.parameters()}
    assert compiled.blocks is model.blocks
    with pytest.raises(AttributeError, match="no_such_thing"):
        compiled.no_such_thing  # noqa: B018


def test_attributes_of_native_steps_name_the_list_of_plans() -> None:
    class Scheduled(nn.Linear):
        plan = "the module's own"

    function, module = ct.compile(f, 0.5), ct.compile(nn.Linear(4, 4), 0.5)
    for step in (function, module):
        for name in ("plan", "report"):
            with pytest.raises(AttributeError, match=rf"no attribute '{name}'.*plans\[0\]"):
                getattr(step, name)
        with pytest.raises(AttributeError, match=r"no attribute 'plants'$"):
            step.plants  # noqa: B018
    assert ct.compile(Scheduled(4, 4), 0.5).plan == "the module's own"
    copied = copy.copy(function)
    assert copied.plans == [] and not hasattr(copied, "plan")


def test_inside_another_compiled_module(ran: Counter[str]) -> None:
    """The inner module becomes part of the surrounding graph and its budget, as with
    ``torch.compile``."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = ct.compile(nn.Linear(4, 4), budget="min")
            self.function = ct.compile(torch.tanh, budget="min")

        def forward(self, x: Any) -> Any:
            return self.function(self.inner(x)).square().sum()

    outer = Outer()
    compiled = ct.compile(outer, budget="min", fullgraph=True)
    compiled(torch.randn(8, 4)).backward()
    assert len(compiled.plans) == 1 and not outer.inner.plans and not outer.function.plans
    assert ran == {"forward": 1, "backward": 1}
    assert list(outer.state_dict()) == ["inner._orig_mod.weight", "inner._orig_mod.bias"]


def test_copies_of_a_compiled_module(same_bits: Callable[..., bool]) -> None:
    """A copy may be an average of a model's weights, or go to another process."""
    x = torch.randn(8, 4)
    compiled = ct.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), budget="min")
    wanted = compiled(x)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert other._orig_mod is not compiled._orig_mod
        assert not other.plans
        found = other(x)
        found.sum().backward()
        assert same_bits(found, wanted) and len(other.plans) == 1
        assert compiled._orig_mod[0].weight.grad is None
        assert other._orig_mod[0].weight.grad is not None
        assert other.plans[0].document == compiled.plans[0].document


def test_keys_for_the_code_cache() -> None:
    keys = {
        ct.Partitioner(budget=b, policy=p).uuid()
        for b in (None, 0.5, "0.5x", "1GiB")
        for p in (None, "dots_saveable", ["aten.mm"])
    }
    assert len(keys) == 12 and None not in keys
    function = lambda ctx, op, *args: None  # noqa: E731
    once = {ct.Partitioner(policy=function).uuid() for _ in range(3)}
    assert len(once) == 3 and not once & keys


def test_a_pytorch_without_a_hook_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks.check()
    monkeypatch.delattr("torch._guards.CompileContext")
    with pytest.raises(ImportError, match=r"CompileContext \(which graphs belong together\)"):
        hooks.check()


@pytest.mark.very_slow
@pytest.mark.slow
def test_what_works_with_another_pytorch() -> None:
    """If PyTorch lacks something that planned graphs need, the model runs in eager mode."""
    code = """
import torch, torch._dynamo.backends.common
import torch._functorch._aot_autograd.descriptors as descriptors
del descriptors.InputMutationAOTOutput
import cutback.torch as ct
x = torch.ones(3, requires_grad=True)
with ct.MemoryTracker():
    ct.checkpoint(lambda x: x.sin().exp(), x).sum().backward()
assert x.grad is not None
for name in ("compile", "Partitioner", "trace"):
    try:
        getattr(ct, name)
    except ImportError as error:
        assert "InputMutationAOTOutput" in str(error) and "MemoryTracker do" in str(error), error
    else:
        raise AssertionError(name)
assert not hasattr(ct, "nonsense")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.very_slow
@pytest.mark.skipif(which("g++") is None, reason="Inductor compiles with g++ on the CPU")
def test_every_budget_has_its_plan_in_spite_of_caches() -> None:
    for share in (0.9, 0.7, 0.9):
        torch._dynamo.reset()
        compiled = ct.compile(f, budget=f"{share}x", codegen="inductor")
        gradient(compiled)
        (plan,), (note,) = compiled.plans, compiled.compiler_notes
        assert note.limit_bytes == int(share * plan.numbers["save_all_live_bytes"])


def test_steps_that_pytorch_no_longer_compiles_are_said() -> None:
    """At its limit of recompilations, PyTorch runs the original function, without a plan."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)

    def loss(x: Any, mode: str) -> Any:
        return (layer(x).tanh() * len(mode)).square().mean()

    x = torch.randn(4, 8)
    with torch._dynamo.config.patch(recompile_limit=2):
        step = ct.compile(loss, budget="0.9x")
        for mode in ("a", "aa", "a", "aa"):
            step(x, mode).backward()
        with pytest.warns(UserWarning, match="no longer compiles .*loss.*recompile_limit"):
            found = step(x, "aaa")
        assert torch.equal(found, loss(x, "aaa"))
        step(x, "aaaa").backward()  # a second warning would be an error
        step(x, "a").backward()  # already compiled code still runs
    assert len(step.plans) == 2


@pytest.mark.very_slow
@pytest.mark.parametrize("loss", ["gaussian_nll_loss", "corrcoef"])
@pytest.mark.parametrize("budget", ["0.9x", "min"])
def test_parts_left_to_eager_mode_are_said(loss: str, budget: Any) -> None:
    """The forwards of these losses break the graph in the middle."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(24, 24), nn.Tanh())))
    x = torch.randn(64, 24)

    def step(x: Any) -> Any:
        y = layers(x)
        if loss == "corrcoef":
            return torch.corrcoef(y).square().mean()
        return F.gaussian_nll_loss(y, x, y.exp())

    compiled = ct.compile(step, budget=budget)
    with pytest.warns(UserWarning, match="parts of the model are not planned.*forward alone holds"):
        for _ in range(3):
            compiled(x).backward()


def test_eager_parts_whose_memory_is_there_in_the_backward_are_said() -> None:
    """The forward stays within the budget, but the backward exceeds it because of what eager layers
    saved. If there is no warning, the budget was met."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(6)))
    layers[2].register_forward_hook(lambda *_: None)
    layers[3].register_full_backward_hook(lambda *_: None)
    x = torch.randn(256, 32, requires_grad=True)
    with ct.MemoryTracker() as whole:
        layers(x).sin().square().sum().backward()
    told = 0
    for share in (0.7, 0.9, 1.0, 1.5):
        budget = int(share * whole.peak_bytes)
        layers.zero_grad(set_to_none=True)
        x.grad = None
        torch._dynamo.reset()
        step = ct.compile(lambda x: layers(x).sin().square().sum(), budget=budget)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(3):
                x.grad = None
                layers.zero_grad(set_to_none=True)
                with ct.MemoryTracker() as memory:
                    step(x).backward()
        over = [w for w in said if "are not planned, and it is over" in str(w.message)]
        assert over or memory.peak_bytes <= budget, share
        told += len(over)
    assert 0 < told < 4


def test_a_share_of_what_was_compiled_names_what_was_not() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(32, 32), nn.Tanh())))
    layers[6].register_full_backward_hook(lambda *_: None)
    step = ct.compile(lambda x: layers(x).sum(), budget="0.01x")
    with pytest.raises(BudgetError, match=r" 1% of .*left to eager mode hold .* more") as told:
        for _ in range(2):
            step(torch.randn(64, 32)).backward()
    assert told.value.share == 0.01 and told.value.unplanned_bytes > 0
    whole = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(32, 32), nn.Tanh())))
    with pytest.raises(BudgetError) as told:
        ct.compile(whole, budget="0.01x")(torch.randn(64, 32)).sum().backward()
    assert "eager" not in str(told.value) and told.value.unplanned_bytes is None


def test_a_call_is_not_measured_against_the_plan_of_another_size() -> None:
    """Large and small batches alternate, with graphs of their own: the plan in force is for the
    small ones when a large one returns, and nothing runs in eager mode."""
    torch.manual_seed(0)
    first = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(32, 32), nn.Tanh())))
    last = copy.deepcopy(first)

    def loss(x: Any) -> Any:
        x = first(x)
        torch._dynamo.graph_break()
        return last(x).square().mean()

    step = ct.compile(loss, budget=1, dynamic=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="parts of the model are not planned")
        for batch in (64, 16, 64):
            step(torch.randn(batch, 32)).backward()
    assert len(step.plans) == 1 and step.plans[0].position is not None


class Between(nn.Module):
    """Two compiled parts with a part in between that PyTorch runs in eager mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 32)
        self.middle = nn.Sequential(nn.Linear(32, 1024), nn.Linear(1024, 32))

    @torch._dynamo.disable
    def between(self, x: Any) -> Any:
        return self.middle(x)

    def forward(self, x: Any) -> Any:
        return self.last(self.between(self.first(x).tanh()).tanh()).square().mean()


@pytest.mark.parametrize("door", ["module", "function"])
@pytest.mark.parametrize("budget", [150_000, "min"])
def test_gradients_of_eager_parts_count(door: str, budget: Any) -> None:
    """The gradients count for a function, too, which shows no parameters."""
    torch.manual_seed(0)
    model = Between()
    step = ct.compile(model if door == "module" else lambda x: model(x), budget=budget)
    figures, over = [], 0
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        with warnings.catch_warnings(record=True) as said, ct.MemoryTracker() as memory:
            warnings.simplefilter("always")
            step(torch.randn(16, 32)).backward()
        text = " ".join(str(w.message) for w in said)
        figures += re.findall(r"the step may take .*?\((\d+) bytes\)", text)
        over += text.count("parts of the model are not planned")
    assert over == 1 and memory.peak_bytes > 200_000
    assert all(int(figure) >= memory.peak_bytes for figure in figures)
    assert len(figures) == (budget != "min")  # with "min" only the forward is over


@pytest.mark.parametrize("odd", ["no", 0, 1, [], 0.5])
def test_what_is_true_or_false_takes_nothing_else(odd: Any) -> None:
    """A string that counted as True would do the opposite of what it says."""
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    calls: dict[str, Callable[[], Any]] = {
        "cse": lambda: ct.compile(model, cse=odd),
        "exact": lambda: ct.compile(model, budget="0.5x", exact=odd),
        "fullgraph": lambda: ct.compile(model, fullgraph=odd),
        "dynamic": lambda: ct.compile(model, dynamic=odd),
        "cse=": lambda: ct.Partitioner(cse=odd),
        "cse=.": lambda: ct.trace(model, x, cse=odd),
        "dynamic=": lambda: ct.trace(model, x, dynamic=odd),
        "offload": lambda: ct.checkpoint(model, x, policy_fn=[torch.ops.aten.mm], offload=odd),
        "swap": lambda: ct.mutwo.select(None, swap=odd),
        "use_reentrant": lambda: ct.checkpoint(model, x, use_reentrant=odd),
        "early_stop": lambda: ct.checkpoint(model, x, early_stop=odd),
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=name.rstrip("=.") + "=.* neither True nor False"):
            call()
    for wish in ("measure", "codegen", "random", "on_infeasible"):
        with pytest.raises((TypeError, ValueError), match=f"{wish}="):
            ct.compile(model, 0.5, **{wish: odd})
    if odd != 0:  # 0 equals False
        with pytest.raises((TypeError, ValueError), match="offload="):
            ct.compile(model, 0.5, offload=odd)
    with pytest.raises((torch._dynamo.exc.BackendCompilerFailed, TypeError), match="cse="):
        torch.compile(model, backend="cutback", options={"cse": odd})(x).sum().backward()
