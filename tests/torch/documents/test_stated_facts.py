"""Tests statements of docs/torch.md, apart from limits, about PyTorch and about plans, that no
other test covers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from agreement import Wrapped, backward_kinds
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.utils.checkpoint import checkpoint

import cutback.torch as ct
from cutback import BudgetError

pytestmark = pytest.mark.torch

_break = torch._dynamo.graph_break
DOCUMENT = Path(__file__).parents[3] / "docs/torch.md"


def _gradients(run: Any, model: nn.Module, *inputs: Any) -> list[Any]:
    torch._dynamo.reset()
    model.zero_grad()
    torch.manual_seed(3)
    out = run(*inputs)
    out.float().square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters())]


# ---- bits ------------------------------------------------------------------------------------


class Tied(nn.Module):
    """Under autocast, for which eager mode casts the table once."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)

    def forward(self, words: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            h = F.linear(self.table(words).tanh(), self.table.weight)
            return F.linear(h.sin() @ self.table.weight, self.table.weight)


def _others() -> dict[str, tuple[nn.Module, Any]]:
    torch.manual_seed(0)

    def larger(self: Any, x: Any) -> Any:
        return F.interpolate(self.conv(x), scale_factor=2, mode="bilinear").sin()

    def dropped(self: Any, x: Any) -> Any:
        return F.dropout(self.linear(x), 0.1).sin()

    return {
        "tied weights under autocast": (Tied(), torch.randint(50, (64,))),
        "GRUCell": (nn.GRUCell(8, 8), torch.randn(4, 8)),
        "bilinear": (Wrapped(larger, conv=nn.Conv2d(2, 2, 3)), torch.randn(2, 2, 8, 8)),
        "dropout in half precision": (
            Wrapped(dropped, linear=nn.Linear(16, 16).bfloat16()), torch.randn(64, 16).bfloat16()
        ),
    }  # fmt: skip


@pytest.mark.very_slow
@pytest.mark.parametrize("name", _others())
def test_where_eager_mode_runs_other_kernels(name: str, same_bits: Callable[..., bool]) -> None:
    """The bits are those of ``aot_eager``."""
    model, x = _others()[name]
    wanted = _gradients(torch.compile(model, backend="aot_eager"), model, x)
    assert not same_bits(_gradients(model, model, x), wanted)
    for budget in (None, "min"):
        assert same_bits(_gradients(ct.compile(model, budget=budget), model, x), wanted)


def test_gradients_of_calls_and_of_results_that_nobody_asks_for(
    same_bits: Callable[..., bool],
) -> None:
    """Gradients of each call are added up first; results that reach no loss have zeros, as with
    ``aot_eager``."""
    xs = [torch.randn(16, 8) for _ in range(3)]
    w = torch.randn(8, 8)

    def step(make: Callable[[Any], Any]) -> list[Any]:
        torch._dynamo.reset()
        a = w.clone().requires_grad_()
        call = make(lambda x: ((x @ a).sin() @ a).cos())
        sum(call(x).square().sum() for x in xs).backward()
        b, c = (torch.ones(4, requires_grad=True) for _ in range(2))
        make(lambda b, c: (b.sin(), c.sin()))(b, c)[0].sum().backward()
        return [a.grad, b.grad, c.grad]

    eager = step(lambda f: f)
    wanted = step(lambda f: torch.compile(f, backend="aot_eager"))
    found = step(lambda f: ct.compile(f, budget="min"))
    assert same_bits(found, wanted) and not same_bits(found[:1], eager[:1])
    assert eager[2] is None and not found[2].any()


def test_masks_inside_of_regions_are_kept_unless_a_counter_draws_them() -> None:
    def layer(linear: Any, x: Any) -> Any:
        return F.dropout(linear(x), 0.3).sin()

    def f(self: Any, x: Any) -> Any:
        for linear in self.layers:
            x = checkpoint(layer, linear, x, use_reentrant=False)
        return x.square().mean()

    model = Wrapped(f, layers=nn.ModuleList(nn.Linear(32, 32) for _ in range(3)))
    saved = []
    for random in ("torch", "counter"):
        torch._dynamo.reset()
        run = ct.compile(model, random=random)
        run(torch.randn(128, 32)).backward()
        saved.append(run.plans[0].numbers["saved_bytes"])
    assert saved[0] - saved[1] == 3 * 128 * 32 - 8  # the seed takes 8 bytes


def test_batch_norms_without_a_weight_run_once(same_bits: Callable[..., bool]) -> None:
    def f(self: Any, x: Any) -> Any:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return x.sum()

    again = {}
    for weight in (True, False):
        torch._dynamo.reset()
        convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        norms = nn.ModuleList(nn.BatchNorm2d(4, affine=weight) for _ in range(4))
        run = ct.compile(Wrapped(f, convs=convs, norms=norms), budget="min")
        run(torch.randn(2, 4, 8, 8)).backward()
        kinds = backward_kinds(run.plans[0])
        again[weight] = any("batch_norm_legit" in kind for kind in kinds)
    assert again == {True: True, False: False}


def test_the_mode_that_makes_pinv_wrong() -> None:
    """Only the first call is affected, with ``aot_eager`` too."""
    torch.manual_seed(0)
    x = torch.randn(3, 3, dtype=torch.cfloat, requires_grad=True)

    def f(x: Any) -> Any:
        return torch.linalg.pinv(x).abs().sum()

    right = f(x)
    for make in (lambda f: torch.compile(f, backend="aot_eager"), ct.compile):
        for check in (True, False):
            torch._dynamo.reset()
            with torch._functorch.config.patch(check_custom_op_aliasing=check):
                run = make(f)
                first, second = run(x), run(x)
            assert torch.allclose(first, right) != check
            assert torch.allclose(second, right)


# ---- what a budget is one of -----------------------------------------------------------------


def _chain(self: Any, x: Any) -> Any:
    x = self.a(x).sin().exp().tanh()
    if self.breaks:
        _break()
    return self.b(x).sin().exp().tanh().sum()


def _layers(breaks: bool) -> nn.Module:
    torch.manual_seed(0)
    model = Wrapped(_chain, a=nn.Linear(16, 16), b=nn.Linear(16, 16))
    model.breaks = breaks
    return model


def _partitioned(budget: Any) -> tuple[ct.Partitioner, Any]:
    partitioner = ct.Partitioner(budget=budget)
    return partitioner, aot_autograd(
        fw_compiler=lambda gm, inputs: make_boxed_func(gm.forward), partition_fn=partitioner
    )


def test_through_a_partitioner() -> None:
    """Each graph has the budget, and larger sizes use the plan of the first size."""
    partitioner, backend = _partitioned(20_000)
    torch.compile(_layers(True), backend=backend)(torch.randn(64, 16)).backward()
    assert [plan.numbers["budget_bytes"] for plan in partitioner.plans] == [20_000] * 2
    assert sum(plan.numbers["live_bytes"] for plan in partitioner.plans) > 20_000
    torch._dynamo.reset()
    partitioner, backend = _partitioned(0.7)
    run = torch.compile(_layers(False), backend=backend, dynamic=True)
    for rows in (64, 128, 256):
        run(torch.randn(rows, 16)).backward()
    assert len(partitioner.plans) == 1


def test_errors_by_name_come_wrapped() -> None:
    run = torch.compile(_layers(False), backend="cutback", options={"budget": 100})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="BudgetError: no plan fits"):
        run(torch.randn(64, 16))


def test_by_name_nothing_is_said_where_pytorch_gives_up() -> None:
    """No warning is given; warnings are errors here."""
    model = nn.Linear(8, 8)
    for mode in ("compile", "nothing at all"):
        with torch._dynamo.config.patch(recompile_limit=2):
            run = torch.compile(
                lambda x, n: (model(x).tanh() * len(n)).square().mean(),
                backend="cutback", options={"budget": "0.9x"},
            )  # fmt: skip
            for name in ("a", "aa", "aaa", mode):
                run(torch.randn(4, 8), name).backward()
    plans: list[Any] = []
    gru = torch.compile(nn.GRU(4, 4), backend="cutback", options={"on_plan": plans.append})
    gru(torch.randn(3, 2, 4))[0].sum().backward()
    assert not plans


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_left_to_eager_mode(kind: Any) -> None:
    """PyTorch also leaves the rest of the function that calls one."""
    run = ct.compile(kind(4, 4), budget="min")
    with pytest.warns(UserWarning, match="nothing was planned"):
        run(torch.randn(3, 2, 4))[0].sum().backward()
    assert not run.plans
    torch._dynamo.reset()

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inside, self.last = nn.Linear(4, 4), kind(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            x = self.first(x).sin()
            x, _ = self.inside(x)
            return self.last(x).tanh().sum()

    run = ct.compile(Around())
    run(torch.randn(3, 2, 4)).backward()
    (plan,) = run.plans
    kinds = {op["kind"] for op in plan.problem["ops"]}
    assert "aten.sin.default" in kinds and "aten.tanh.default" not in kinds


def test_hooks_that_come_after_the_first_step() -> None:
    for skip in (True, False):
        torch._dynamo.reset()
        model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(2, 4)
        with torch._dynamo.config.patch(skip_nnmodule_hook_guards=skip):
            run = ct.compile(model, budget="min")
            before = run(x)
            model[0].register_forward_hook(lambda module, inputs, output: output * 0)
            assert torch.equal(run(x), before) == skip


def test_calls_that_are_pending_share_the_budget_out() -> None:
    """The plan has the part of a single call."""
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(16, 16), nn.Tanh())))
    run, xs = ct.compile(model, budget=220_000), [torch.randn(512, 16) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            sum(run(x).sum() for x in xs).backward()
    (plan,) = run.plans
    assert plan.numbers["live_bytes"] <= plan.numbers["budget_bytes"] < 220_000


def _written(self: Any, x: Any) -> Any:
    k = self.a(x) * 2
    _break()
    k.add_(1)
    return (self.b(k).tanh() * k).sum()


def _between(self: Any, x: Any) -> Any:
    h = self.a(x).tanh()
    _break()
    h = torch._dynamo.disable(lambda h: h @ self.b.weight)(h)
    return self.b(h).tanh().sum()


@pytest.mark.parametrize("f", [_written, _between])
def test_errors_that_count_too_much_name_no_floor(f: Any) -> None:
    """A graph writes into a value it received; the value passes through eager code."""
    run = ct.compile(Wrapped(f, a=nn.Linear(32, 32), b=nn.Linear(32, 32)), budget=3000)
    with pytest.raises(BudgetError) as caught:
        for _ in range(2):
            run(torch.randn(64, 32)).backward()
    assert caught.value.is_upper_bound and caught.value.floor_bytes is None


# ---- what is left to eager mode -----------------------------------------------------------------


def test_parts_left_to_eager_mode_are_not_measured_with_offload() -> None:
    """Warnings are errors here; without offload there is one."""
    layers = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(24, 24), nn.Tanh())))
    x = torch.randn(64, 24)

    def step(x: Any) -> Any:
        y = layers(x)
        return F.gaussian_nll_loss(y, x, y.exp())

    for offload in (True, False):
        torch._dynamo.reset()
        run = ct.compile(step, budget="0.9x", offload=offload)
        if offload:
            run(x).backward()
        else:
            run(x).backward()
            with pytest.warns(UserWarning, match="parts of the model are not planned"):
                run(x).backward()


class Wide(torch.autograd.Function):
    """A function whose backward makes large intermediates."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g.repeat(1, 200)[:, : g.shape[1]] * 2


def test_what_the_backward_of_eager_parts_makes_is_not_counted() -> None:
    """A warning says so once."""
    first, last, x = nn.Linear(32, 32), nn.Linear(32, 32), torch.randn(64, 32)
    between = torch._dynamo.disable(Wide.apply)
    run = ct.compile(lambda x: last(between(first(x).tanh())).square().mean(), budget=120_000)
    with pytest.warns(match="their backward takes") as said:
        for _ in range(4):
            with ct.MemoryTracker() as memory:
                run(x).backward()
            assert memory.peak_bytes > 10 * 120_000
    assert len(said) == 1


# ---- what is refused -------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:invoke_subgraph traced multiple backward graphs")
def test_nested_compiled_regions() -> None:
    """A region that runs once is part of the surrounding graph."""

    @torch.compiler.nested_compile_region
    def part(x: Any, w: Any) -> Any:
        return (x @ w).sin()

    w = torch.randn(8, 8, requires_grad=True)

    def step(runs: int, budget: Any) -> Any:
        def f(x: Any) -> Any:
            for _ in range(runs):
                x = part(x, w)
            return x.sum()

        torch._dynamo.reset()
        run = ct.compile(f, budget=budget)
        run(torch.randn(4, 8)).backward()
        return run.plans

    for budget in (None, "min"):
        assert len(step(1, budget)) == 1
        with pytest.raises(ct.UnsupportedGraphError, match="nested_compile_region"):
            step(3, budget)


def test_profiles_do_not_go_with_inductor() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), torch.randn(4, 8)
    profile = ct.profile(model, x, runs=1, link=1e9)
    with pytest.raises(Exception, match=r"another graph|[Ii]nductor"):
        ct.compile(model, budget="0.9x", codegen="inductor", profile=profile, dynamic=False)(x)


def _spoilt(how: str) -> Callable[[Any], None]:
    """Returns a function that changes a graph as if ``aot_autograd`` had not made it, or had made
    it with other settings."""
    from torch._functorch._aot_autograd import descriptors as d

    def spoil(gm: Any) -> None:
        nodes = list(gm.graph.nodes)
        output = nodes[-1]
        (sin,) = [n for n in nodes if n.target is torch.ops.aten.sin.default]
        made = output.args[0]
        overwritten = d.InputMutationAOTOutput(d.PlainAOTInput(99))
        if how == "no value":
            del sin.meta["val"]
        elif how == "an object":
            sin.meta["val"] = object()
        elif how == "sparse":
            sin.meta["val"] = torch.eye(2).to_sparse()
        elif how == "random numbers":
            nodes[0].name = "fwd_seed_0"
        elif how == "a gradient":
            output.args = (([next(g for g in made[1:] if g is not None), *made[1:]]),)
        elif how == "no descriptor":
            output.meta["desc"] = [None, *output.meta["desc"][1:]]
        elif how == "no input":
            output.meta["desc"] = [overwritten, *output.meta["desc"][1:]]
        else:
            part = d.SubclassGetAttrAOTOutput(overwritten, "a")
            output.meta["desc"] = [part, *output.meta["desc"][1:]]

    return spoil


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no value", "does not say what it returns"),
        ("an object", "neither a tensor nor a number"),
        ("sparse", "a tensor of layout torch.sparse_coo"),
        ("random numbers", "functionalised random numbers"),
        ("a gradient", "depends on a gradient, but the forward"),
        ("no descriptor", "no descriptors"),
        ("no input", "which is not an input of the graph"),
        ("a subclass", "a, which is not an input of the graph"),
    ],
)
def test_graphs_that_are_refused(how: str, said: str) -> None:
    def partition(gm: Any, inputs: Any, **options: Any) -> Any:
        _spoilt(how)(gm)
        return ct.Partitioner(policy="everything_saveable")(gm, inputs, **options)

    backend = aot_autograd(
        fw_compiler=lambda gm, inputs: make_boxed_func(gm.forward), partition_fn=partition
    )
    with pytest.raises(Exception, match=f"UnsupportedGraphError.*{said}"):
        torch.compile(lambda x: x.sin().square().sum(), backend=backend)(
            torch.ones(4, requires_grad=True)
        )


def test_what_hooks_of_parameters_allocate_is_not_counted() -> None:
    model, x = nn.Sequential(nn.Linear(32, 32), nn.Tanh()), torch.randn(16, 32)
    model[0].weight.register_hook(lambda g: g.repeat(50, 1)[:32] * 1)
    run = ct.compile(model, budget=100_000)
    with ct.MemoryTracker() as memory:
        run(x).sum().backward()
    assert run.plans[0].numbers["live_bytes"] < 100_000 < memory.peak_bytes


class Experts(nn.Module):
    """Each row goes to one of four experts."""

    def __init__(self, most: int | None) -> None:
        super().__init__()
        self.most, self.router = most, nn.Linear(32, 4)
        self.up = nn.ModuleList([nn.Linear(32, 64) for _ in range(4)])
        self.down = nn.ModuleList([nn.Linear(64, 32) for _ in range(4)])

    def forward(self, x: Any) -> Any:
        top, gate = self.router(x).argmax(-1), self.router(x).softmax(-1)
        out = torch.zeros_like(x)
        for i in range(4):
            rows = torch.where(top == i)[0]
            if self.most is not None:
                torch._check(rows.numel() <= self.most)
            made = self.down[i](F.gelu(self.up[i](x[rows]))) * gate[rows, i : i + 1]
            out = out.index_add(0, rows, made)
        return out


class TwoLayersOfExperts(nn.Module):
    def __init__(self, most: int | None) -> None:
        super().__init__()
        self.a, self.b = Experts(most), Experts(most)

    def forward(self, x: Any) -> Any:
        return (x + self.a(x) + self.b(x)).square().mean()


@pytest.mark.very_slow
def test_a_stated_bound_on_the_rows_of_experts_counts() -> None:
    found = {}
    for most in (None, 192):
        torch._dynamo.reset()
        torch.manual_seed(0)
        step = ct.compile(TwoLayersOfExperts(most), budget=0.5)
        x = torch.randn(512, 32)
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            for _ in range(2):
                with ct.MemoryTracker() as memory:
                    step(x).backward()
        found[most] = step.plans[0].numbers["live_bytes"], memory.peak_bytes
    text = " ".join(DOCUMENT.read_text().split())
    for planned, taken in found.values():
        assert taken <= planned
        assert f"planned {planned:,}" in text
        assert f"taken {taken:,}" in text
