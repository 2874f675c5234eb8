"""What a careless bridge gets wrong: each case runs compiled, under several budgets, and must give
eager's bits: outputs, gradients, buffers and inputs that it writes into."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import cutback.torch as ct
from cutback import BudgetError
from cutback.torch.compiler import several
from cutback.torch.graph import codegen

BUDGETS = (None, 1.0, "min")


class Wrapped(nn.Module):
    """A function with parameters."""

    def __init__(self, function: Callable[..., Any], **modules: Any) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def total(output: Any) -> Any:
    """A number that depends on all outputs that can have a gradient."""
    parts = [t for t in torch.utils._pytree.tree_leaves(output) if isinstance(t, torch.Tensor)]
    return sum((t.float() * 0.5).sin().sum() for t in parts if t.requires_grad)


def run(
    model: nn.Module, call: Any, inputs: tuple[Any, ...], steps: int, loss: Callable[..., Any]
) -> Any:
    """Outputs, gradients, buffers and inputs after some steps."""
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


@pytest.fixture
def agrees(ran: Counter[str], same_bits: Callable[..., bool]) -> Callable[..., list[Any]]:
    """agrees(model, *inputs): compiled under all budgets, it gives eager's bits. Returns the
    compiled modules."""

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
    """Operations that the backward of a plan runs."""
    steps, start = plan.document["steps"], plan.document["backward_starts"]
    return [plan.problem["ops"][i]["kind"] for i in steps[start:]]


# ---- random numbers ------------------------------------------------------------------------


def test_dropout_is_never_drawn_again(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        for _ in range(3):
            x = F.dropout(torch.sin(x) ** 4, 0.25) * torch.cos(x)
        return x

    x = torch.randn(64, 64, requires_grad=True)
    for compiled in agrees(Wrapped(f), x, budgets=(None, 0.9, 0.7, "min")):
        (plan,) = compiled.plans
        kinds = backward_kinds(plan)
        assert not any(word in kind for kind in kinds for word in ("rand", "bernoulli"))
        assert "aten.native_dropout.default" not in kinds
    assert plan.numbers["recomputed"] > 0
    assert "aten.native_dropout.result" in backward_kinds(plan)


def test_drawn_values_are_kept(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        noise = torch.rand_like(x)
        keep = torch.bernoulli(torch.full_like(x, 0.5))
        y = torch.where(noise > 0.3, x.sin().sin(), x.cos()) * keep
        return (y + torch.randn_like(x) * x).sin()

    for compiled in agrees(Wrapped(f), torch.randn(32, 32, requires_grad=True)):
        for kind in backward_kinds(compiled.plans[0]):
            assert "rand" not in kind and "bernoulli" not in kind


def test_dropout_that_is_off_may_run_again(agrees: Callable[..., Any]) -> None:
    def f(self: Any, q: Any) -> Any:
        for _ in range(3):
            q = torch.sin(F.scaled_dot_product_attention(q, q, q, dropout_p=0.0))
        return q

    q = torch.randn(1, 2, 64, 8, requires_grad=True)
    for compiled in agrees(Wrapped(f), q):
        ops = [op for op in compiled.plans[0].problem["ops"] if "attention" in op["kind"]]
        assert ops and not any("random_stateful" in op["flags"] for op in ops)


def test_dropout_of_everything_and_of_nothing(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        y = F.dropout(x.sin(), 0.0) + F.dropout(x.cos(), 1.0)
        return F.dropout(y, 0.5, training=False).exp()

    agrees(Wrapped(f), torch.randn(8, 8, requires_grad=True))


def test_dropout_inside_attention(agrees: Callable[..., Any]) -> None:
    def f(self: Any, q: Any) -> Any:
        for _ in range(2):
            q = torch.sin(F.scaled_dot_product_attention(q, q, q, dropout_p=0.3))
        return q

    q = torch.randn(1, 2, 32, 8, requires_grad=True)
    for compiled in agrees(Wrapped(f), q):
        draws = [op for op in compiled.plans[0].problem["ops"] if "random_stateful" in op["flags"]]
        assert draws
        kinds = backward_kinds(compiled.plans[0])
        assert not {op["kind"] for op in draws} & set(kinds)


# ---- mutation and aliasing -----------------------------------------------------------------


def test_batch_norm_statistics(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        for _ in range(2):  # the same layer twice: its statistics change in between
            x = F.relu(self.norm(self.conv(x)), inplace=True)
        return x

    model = Wrapped(f, conv=nn.Conv2d(4, 4, 3, padding=1), norm=nn.BatchNorm2d(4))
    for compiled in agrees(model, torch.randn(2, 4, 8, 8), steps=3):
        assert not runs_again(compiled)


def runs_again(compiled: Any) -> list[str]:
    """The batch norms that a plan runs in the backward."""
    kinds = backward_kinds(compiled.plans[0])
    return [kind for kind in kinds if "batch_norm_legit" in kind]


def test_batch_norms_run_again(agrees: Callable[..., Any]) -> None:
    """They read statistics that are overwritten when the forward ends, and move them on."""

    def f(self: Any, x: Any) -> Any:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)), inplace=True)
        return x

    convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
    norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(4))
    *_, smallest = agrees(Wrapped(f, convs=convs, norms=norms), torch.randn(2, 4, 8, 8), steps=3)
    assert runs_again(smallest)


def test_batch_norms_whose_statistics_are_read(agrees: Callable[..., Any]) -> None:
    """A second run makes other statistics: whoever reads them in the backward needs the first's."""

    def f(self: Any, x: Any) -> Any:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)), inplace=True)
        read = sum(norm.running_mean + norm.running_var for norm in self.norms)
        return x * read.sin().reshape(1, -1, 1, 1)

    convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
    norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(4))
    for compiled in agrees(Wrapped(f, convs=convs, norms=norms), torch.randn(2, 4, 8, 8), steps=3):
        assert not runs_again(compiled)


@pytest.mark.parametrize("options", [{"affine": False}, {"track_running_stats": False}])
def test_batch_norms_of_other_kinds(agrees: Callable[..., Any], options: dict[str, bool]) -> None:
    def f(self: Any, x: Any) -> Any:
        return F.relu(self.norm(self.conv(F.relu(self.norm(self.conv(x))))))

    norm = nn.BatchNorm2d(4, **options)
    model = Wrapped(f, conv=nn.Conv2d(4, 4, 3, padding=1), norm=norm)
    agrees(model, torch.randn(2, 4, 8, 8), steps=3)


def test_writing_into_buffers(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        y = (x + self.scale).sin().sin()  # reads before the write
        self.scale.mul_(0.9).add_(x.detach().mean())
        return (y * self.scale).exp().sin()

    model = Wrapped(f)
    model.register_buffer("scale", torch.ones(8, 8))
    for compiled in agrees(model, torch.randn(8, 8, requires_grad=True), steps=3):
        (plan,) = compiled.plans
        (copy_back,) = [op for op in plan.problem["ops"] if op["kind"] == "copy_back"]
        assert copy_back["flags"] == ["mutates"]


def test_writing_into_intermediates(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        y = x * 2
        y.add_(1).mul_(0.5)
        y[1:3] = x[0:2].sin()
        z = y.view(-1)
        z[::2].mul_(3)
        return y.exp().cos(), z

    agrees(Wrapped(f), torch.randn(4, 8, requires_grad=True) * 0.1)


def test_writing_into_an_input(ran: Counter[str], same_bits: Callable[..., bool]) -> None:
    def f(w: Any, x: Any) -> Any:
        y = (w + x).sin().sin()  # reads the old value
        x.add_(1)
        return (y * x).sum()

    expected: Any = None
    for call in (f, *(ct.compile(f, budget=b) for b in BUDGETS)):
        w, x = torch.linspace(0, 1, 64, requires_grad=True), torch.linspace(1, 2, 64)
        loss = call(w, x)
        loss.backward()
        expected = expected or (loss.detach(), w.grad, x)
        assert same_bits((loss.detach(), w.grad, x), expected)
    assert ran["forward"] == ran["backward"] == len(BUDGETS)


def test_overwriting_what_the_backward_needs() -> None:
    def f(w: Any, x: Any) -> Any:
        y = w * x
        x.add_(1)
        return y.sum()

    w, x = torch.linspace(0, 1, 64, requires_grad=True), torch.linspace(1, 2, 64)
    for call in (f, ct.compile(f)):
        with pytest.raises(Exception, match="modified by an inplace operation"):
            call(w, x).backward()


def test_aliased_inputs_and_outputs(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        y = torch.tanh(x @ self.layer.weight)
        return y, y.t(), y[1:], x, x.view(-1), self.layer.weight, y.detach()

    model = Wrapped(f, layer=nn.Linear(8, 8, bias=False))
    agrees(model, torch.randn(8, 8, requires_grad=True))


def test_inputs_that_share_memory(ran: Counter[str], same_bits: Callable[..., bool]) -> None:
    def f(a: Any, b: Any, w: Any) -> Any:
        a.mul_(2)  # b sees it
        return (b.exp() * w).sin().sin().sum()

    expected: Any = None
    for call in (f, *(ct.compile(f, budget=b) for b in BUDGETS)):
        base = torch.linspace(0, 1, 32)
        w = torch.linspace(1, 2, 16, requires_grad=True)
        loss = call(base[:24], base[8:24], w)
        loss.backward()
        got = (loss.detach(), w.grad, base)
        expected = expected or got
        assert same_bits(got, expected)
    assert ran["forward"] == ran["backward"] == len(BUDGETS)


# ---- modules -------------------------------------------------------------------------------


def test_double_use_and_missing_gradients(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        y = self.a(torch.tanh(self.a(x)))
        return torch.sigmoid(self.frozen(y))  # self.unused has no gradient

    frozen = nn.Linear(8, 8).requires_grad_(False)
    model = Wrapped(f, a=nn.Linear(8, 8), frozen=frozen, unused=nn.Linear(8, 8))
    (compiled, *_) = agrees(model, torch.randn(16, 8))
    assert model.unused.weight.grad is None
    outputs = compiled.plans[0].problem["backward_outputs"]
    assert len(outputs) == 2  # weight and bias of the one layer


def test_tied_weights(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        return self.b(torch.tanh(self.a(x)))

    model = Wrapped(f, a=nn.Linear(8, 8), b=nn.Linear(8, 8))
    model.b.weight = model.a.weight
    agrees(model, torch.randn(16, 8))


def test_outputs_without_use(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        y = x.sin()
        return y.exp(), y.cos().sum(), (y > 0).sum(), None, 3

    x = torch.randn(16, 8, requires_grad=True)
    agrees(Wrapped(f), x, loss=lambda out: out[1] * 2)


def test_gradients_that_need_no_forward_value(agrees: Callable[..., Any]) -> None:
    x, y = torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)
    agrees(Wrapped(lambda self, x, y: (x + y).sum() + x.mean()), x, y)


def test_no_grad_parts(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        with torch.no_grad():
            target = self.teacher(x).softmax(-1)
            x.abs().max()
        return ((self.student(x).softmax(-1) - target) ** 2).sum()

    agrees(Wrapped(f, teacher=nn.Linear(8, 8), student=nn.Linear(8, 8)), torch.randn(4, 8))


def test_evaluation(ran: Counter[str], same_bits: Callable[..., bool]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).eval()
    compiled = ct.compile(model, budget=0.5)
    x = torch.randn(4, 8)
    with torch.no_grad():
        assert same_bits(compiled(x), model(x))
    assert ran == {"inference": 1} and compiled.plans == []
    compiled.train()
    assert model.training and compiled.training


def test_autocast(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return F.gelu(self.b(F.dropout(F.gelu(self.a(x)), 0.2))).float()

    model = Wrapped(f, a=nn.Linear(16, 64), b=nn.Linear(64, 16))
    for compiled in agrees(model, torch.randn(32, 16)):
        work = {op.get("class", "f32") for op in compiled.plans[0].problem["ops"]}
        assert work >= {"bf16", "f32"}


def test_checkpoints_in_the_model(agrees: Callable[..., Any]) -> None:
    def inner(layer: Any, x: Any) -> Any:
        return torch.sin(torch.tanh(layer(x)))

    def outer(self: Any, x: Any) -> Any:
        x = checkpoint(inner, self.a, x, use_reentrant=False)
        return checkpoint(inner, self.b, F.dropout(x, 0.1), use_reentrant=False)

    def f(self: Any, x: Any) -> Any:
        x = checkpoint(outer, self, x, use_reentrant=False)
        x = checkpoint(outer, self, x, use_reentrant=False)
        return x.exp()

    model = Wrapped(f, a=nn.Linear(16, 16), b=nn.Linear(16, 16))
    plain, *_ = agrees(model, torch.randn(64, 16))
    again = [k for k in backward_kinds(plain.plans[0]) if k == "aten.tanh.default"]
    assert len(again) == 4  # without a budget the model's own checkpoints decide


def test_a_policy(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        return torch.tanh(self.b(torch.tanh(self.a(x)))).exp()

    model = Wrapped(f, a=nn.Linear(16, 16), b=nn.Linear(16, 16))
    asked = []

    def function(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append((op, args[0].shape))
        save = op is torch.ops.aten.addmm.default
        policy = torch.utils.checkpoint.CheckpointPolicy
        return policy.MUST_SAVE if save else policy.PREFER_RECOMPUTE

    def by_packet(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        assert not ctx.is_recompute and ctx.op_output is not None
        policy = torch.utils.checkpoint.CheckpointPolicy
        return policy.MUST_SAVE if op in [torch.ops.aten.addmm] else policy.PREFER_RECOMPUTE

    lists = ["aten.addmm"], [torch.ops.aten.addmm], "dots_saveable"
    for policy in (function, by_packet, *lists):
        (compiled,) = agrees(model, torch.randn(8, 16), budgets=(None,), policy=policy)
        (plan,) = compiled.plans
        kinds = {e.kind: e.decision for e in plan.entries}
        assert kinds["aten.addmm.default"] == "save"
        assert kinds["aten.tanh.default"] == "recompute"
    assert (torch.ops.aten.tanh.default, (8, 16)) in asked


@pytest.mark.parametrize("tagged", [False, True])
def test_custom_op(agrees: Callable[..., Any], tagged: bool) -> None:
    """A function of its arguments may run again; one whose bits may differ runs once."""
    name = "unsteady_cube" if tagged else "cube"
    tags = (torch.Tag.nondeterministic_bitwise,) if tagged else ()

    @torch.library.custom_op(f"cutback_tests::{name}", mutates_args=(), tags=tags)
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3

    cube.register_fake(torch.empty_like)
    cube.register_autograd(
        lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )

    def f(self: Any, x: Any) -> Any:
        return torch.sin(cube(torch.sin(cube(x)))).exp()

    for compiled in agrees(Wrapped(f), torch.randn(32, requires_grad=True)):
        (plan,) = compiled.plans
        ops = [op for op in plan.problem["ops"] if "cube" in op["kind"]]
        assert len(ops) == 2
        assert all(op["flags"] == (["unknown"] if tagged else ["compute"]) for op in ops)
        assert not (tagged and any("cube" in kind for kind in backward_kinds(plan)))


def test_custom_op_that_writes(agrees: Callable[..., Any]) -> None:
    @torch.library.custom_op("cutback_tests::advance", mutates_args=("state",))
    def advance(state: torch.Tensor, x: torch.Tensor) -> None:
        state.mul_(0.9).add_(x)

    def f(self: Any, x: Any) -> Any:
        y = (x + self.state).sin().exp()  # reads the old value
        advance(self.state, x.detach())
        advance(self.state, y.detach())
        return (y * self.state).sin()

    model = Wrapped(f)
    model.register_buffer("state", torch.ones(8, 8))
    for compiled in agrees(model, torch.randn(8, 8, requires_grad=True), steps=3):
        assert not any("advance" in kind for kind in backward_kinds(compiled.plans[0]))


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.exp() * factor

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * x.exp() * ctx.factor * 0.5, None  # not the true gradient, on purpose


def test_autograd_function(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        return Scaled.apply(torch.sin(x), 2.0).sin()

    agrees(Wrapped(f), torch.randn(32, requires_grad=True))


# ---- graphs --------------------------------------------------------------------------------


def test_graph_breaks(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        x = torch.sin(self.a(x)).exp()
        torch._dynamo.graph_break()
        return torch.sin(self.b(F.dropout(x, 0.2))).exp()

    model = Wrapped(f, a=nn.Linear(16, 16), b=nn.Linear(16, 16))
    agrees(model, torch.randn(8, 16), graphs=2, budgets=(None, "min"))


def test_one_budget_over_all_graphs(
    ran: Counter[str], same_bits: Callable[..., bool], train_step: Callable[..., Any]
) -> None:
    def part(layer: Any, x: Any) -> Any:
        return F.dropout(layer(x).sin().exp().sin().cos().exp().tanh(), 0.2)

    def f(self: Any, x: Any) -> Any:
        x = part(self.layers[0], x)
        torch._dynamo.graph_break()
        x = part(self.layers[1], x)
        torch._dynamo.graph_break()
        return part(self.layers[2], x).square().mean()

    model = Wrapped(f, layers=nn.ModuleList(nn.Linear(16, 16) for _ in range(3)))
    x = torch.randn(64, 16)
    plain = train_step(ct.compile(model), x)
    for budget in (0.7, int(0.72 * plain.peak_bytes)):
        torch._dynamo.reset()
        compiled = ct.compile(model, budget=budget)
        train_step(compiled, x)
        assert len(compiled.plans) > 1  # graph by graph, until all have been seen
        ran.clear()
        steps = [train_step(compiled, x) for _ in range(3)]
        assert ran["forward"] == ran["backward"] == 9
        (plan,) = compiled.plans
        numbers = plan.numbers
        assert numbers["recomputed"] > 0
        for step in steps:
            assert step.peak_bytes <= numbers["live_bytes"] <= numbers["budget_bytes"]
            assert same_bits(list(step.gradients.values()), list(plain.gradients.values()))
            assert same_bits(step.loss, plain.loss)
    impossible = ct.compile(model, budget=4 * 64 * 16 * 4)
    with pytest.raises(BudgetError, match="smallest found needs"):
        for _ in range(2):
            train_step(impossible, x)


def test_a_share_that_the_first_graph_cannot_meet(
    ran: Counter[str], train_step: Callable[..., Any]
) -> None:
    """It is a share of all graphs; for a model of one graph it is an error, in every step."""

    def small(self: Any, x: Any) -> Any:
        return self.a(x).square().mean()

    def f(self: Any, x: Any) -> Any:
        y = small(self, x)
        torch._dynamo.graph_break()
        return y + self.b(x).sin().exp().sin().exp().cos().exp().mean()

    x = torch.randn(64, 16)
    model = Wrapped(small, a=nn.Linear(16, 16))
    alone = ct.compile(model, budget=0.7)
    for _ in range(2):
        with pytest.raises(BudgetError, match="smallest found needs"):
            alone(x)
    assert not ran
    with torch.no_grad():
        assert alone(x) == model(x)
    together = ct.compile(Wrapped(f, a=nn.Linear(16, 16), b=nn.Linear(16, 16)), budget=0.7)
    for _ in range(3):
        step = train_step(together, x)
    (plan,) = together.plans
    assert step.peak_bytes <= plan.numbers["live_bytes"] <= plan.numbers["budget_bytes"]


def test_what_pytorch_does_not_compile_is_said(ran: Counter[str]) -> None:
    """PyTorch leaves recurrent layers to eager mode: nothing is planned."""
    model = Wrapped(lambda self, x: self.rnn(x)[0].sum(), rnn=nn.GRU(4, 4))
    x = torch.randn(3, 2, 4)
    step = ct.compile(model, budget="min")
    with pytest.warns(UserWarning, match="nothing was planned.*fullgraph.*nn.GRU") as warned:
        step(x)
        step(x)
    assert len([w for w in warned if "nothing was planned" in str(w.message)]) == 1
    with torch._dynamo.config.patch(allow_rnn=True):
        torch._dynamo.reset()
        step = ct.compile(model, budget="min")
        step(x)
    assert ran["forward"] == len(step.plans) == 1


def test_a_break_inside_a_layer_shares_the_budget(
    ran: Counter[str], same_bits: Callable[..., bool], train_step: Callable[..., Any]
) -> None:
    """One graph runs for each layer, and holds its memory each time."""

    def f(self: Any, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x.square().sum()

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            x = self.linear(x).sin()
            torch._dynamo.graph_break()
            return x.exp().cos().sin().cos()

    model = Wrapped(f, layers=nn.ModuleList(Layer() for _ in range(3)))
    x = torch.randn(512, 16)
    plain = train_step(model, x)
    budget = int(0.79 * plain.peak_bytes)
    compiled = ct.compile(model, budget=budget)
    for _ in range(3):
        found = train_step(compiled, x)
    assert same_bits(list(found.gradients.values()), list(plain.gradients.values()))
    # PyTorch leaves a loop with a break in it to eager mode, and so the square behind it
    assert found.peak_bytes <= budget + x.nbytes
    torch._dynamo.reset()
    compiled = ct.compile(model, budget="min")
    assert torch.equal(compiled(x), model(x)) and ran["forward"] > 3


def test_dynamic_shapes(ran: Counter[str], same_bits: Callable[..., bool]) -> None:
    def f(self: Any, x: Any) -> Any:
        n, d = x.shape
        y = F.dropout(torch.tanh(self.a(x)), 0.2).view(n, 2, d // 2)
        z = y.transpose(1, 2).reshape(n * d // 2, 2).softmax(0) * (n * 0.5)
        return (z.exp() / n).sum()

    for budget in BUDGETS:
        torch._dynamo.reset()
        ran.clear()
        model = Wrapped(f, a=nn.Linear(16, 16))
        compiled = ct.compile(model, budget=budget, dynamic=True)
        x = torch.ones(12, 16)
        with ct.MemoryTracker() as memory:  # the sizes that the plan is made for
            compiled(x).backward()
        assert memory.peak_bytes == compiled.plans[0].numbers["live_bytes"]
        for batch in (12, 5, 33):
            results = []
            for call in (model, compiled):
                model.zero_grad()
                torch.manual_seed(batch)
                x = torch.randn(batch, 16, requires_grad=True)
                loss = call(x)
                loss.backward()
                results.append((loss.detach(), x.grad, model.a.weight.grad))
            assert same_bits(*results), (budget, batch)
        assert ran["forward"] == ran["backward"] == 4
        assert len(compiled.plans) <= 2  # with and without a gradient of the input


def test_a_budget_holds_for_larger_sizes(
    ran: Counter[str], train_step: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A smaller last batch makes PyTorch compile for any size, with a plan for that one."""
    deep = nn.Sequential(*(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16), nn.Tanh())
                           for _ in range(4)))  # fmt: skip
    model = Wrapped(lambda self, x: self.deep(x).sum(), deep=deep)
    batch = torch.randn(96, 16)
    peaks = {
        n: train_step(ct.compile(model, dynamic=False), batch[:n]).peak_bytes for n in (64, 96)
    }
    budget = int(0.7 * peaks[96])
    compiled = ct.compile(model, budget=budget, on_infeasible="error")
    for n in (64, 40, 64, 96):
        ran.clear()
        assert train_step(compiled, batch[:n]).peak_bytes <= budget, n
        assert ran == {"forward": 1, "backward": 1}
    assert len(compiled.plans) == 1 and peaks[64] < peaks[96]
    with pytest.raises(BudgetError, match="smallest found needs"):
        compiled(torch.randn(960, 16))
    monkeypatch.setattr(several, "MOST_GROWTHS", 0)
    torch._dynamo.reset()
    compiled = ct.compile(model, budget=budget, dynamic=True)
    compiled(torch.randn(40, 16))
    with pytest.warns(UserWarning, match="size of 96 was planned as 40"):
        compiled(torch.randn(96, 16))


def test_two_backwards_of_one_graph(ran: Counter[str], same_bits: Callable[..., bool]) -> None:
    w = torch.linspace(0, 1, 64, requires_grad=True)
    loss = ct.compile(lambda w: F.dropout(w.sin().exp(), 0.5).cos().sum(), budget="min")(w)
    (first,) = torch.autograd.grad(loss, w, retain_graph=True)
    (second,) = torch.autograd.grad(loss, w)
    assert same_bits(first, second)
    assert ran == {"forward": 1, "backward": 2}


def test_a_second_backward_after_steps_without() -> None:
    """PyTorch takes a graph that was compiled without donated buffers for one with some."""
    w = torch.linspace(0, 1, 64, requires_grad=True)
    step = ct.compile(lambda w: w.sin().exp().sum(), budget="min")
    step(w).backward()
    loss = step(w)
    loss.backward(retain_graph=True)
    loss.backward()
    assert torch.allclose(w.grad, 3 * w.detach().cos() * w.detach().sin().exp())


def test_outputs_that_are_overwritten_before_the_backward(ran: Counter[str]) -> None:
    """Autograd looks after what was saved, also beside what a Function keeps as an attribute, which
    it does not look after."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.x = x
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * g * ctx.x

    for budget in (None, "min"):
        torch._dynamo.reset()
        step = ct.compile(lambda y, z: (y.exp(), Square.apply(z).sum()), budget=budget)
        y, z = (torch.linspace(-1, 1, 8).requires_grad_() for _ in range(2))
        out, loss = step(y, z)
        with torch.no_grad():
            out.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (out.sum() + loss).backward()
    assert ran["forward"] == 2


def test_gradients_that_are_not_contiguous(ran: Counter[str], same_bits: Any) -> None:
    """Tangents that are transposed, expanded, a slice: AOTAutograd traced contiguous ones."""
    w = torch.randn(8, 6)
    seeds = (torch.randn(6, 8).t(), torch.ones(()).expand(8, 6), torch.randn(8, 12)[:, ::2])
    for budget in BUDGETS:
        compiled = ct.compile(lambda w: w.sin().exp().cos(), budget=budget)
        for seed in seeds:
            found = []
            for call in (lambda w: w.sin().exp().cos(), compiled):
                leaf = w.clone().requires_grad_()
                call(leaf).backward(seed)
                found.append(leaf.grad)
            assert same_bits(*found)
    assert ran["backward"] == 9


def test_hooks(ran: Counter[str], same_bits: Any) -> None:
    """Of tensors inside the compiled part, of modules, of parameters, and around."""

    def train(budget: Any) -> Any:
        seen: list[Any] = []

        def f(self: Any, x: Any) -> Any:
            y = self.layer(x).sin()
            y.register_hook(lambda g: g * 2)
            return y.exp().cos()

        torch.manual_seed(0)
        model = Wrapped(f, layer=nn.Linear(8, 8))
        model.layer.register_forward_hook(lambda m, i, o: o * 0.5)
        model.layer.weight.register_hook(lambda g: g.sign())
        model.layer.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        call = model if budget == "eager" else ct.compile(model, budget=budget)
        x = torch.randn(16, 8, requires_grad=True)
        for _ in range(2):
            out = call(x)
            out.register_hook(lambda g: g + 1)
            out.sum().backward()
        return seen, x.grad, [p.grad for p in model.parameters()]

    expected = train("eager")
    for budget in BUDGETS:
        assert same_bits(train(budget), expected), budget
    assert ran["backward"] == 2 * len(BUDGETS)


def test_boxed_and_unboxed_calls(ran: Counter[str], same_bits: Any) -> None:
    """What AOTAutograd is given takes a list, which it empties; graph modules take arguments."""
    from torch._dynamo.backends.common import aot_autograd

    def f(w: Any, x: Any) -> Any:
        return (w * x).sin().exp().cos().sum()

    w, x = torch.randn(16, requires_grad=True), torch.randn(16)
    (expected,) = torch.autograd.grad(f(w, x), w)

    def unboxed(gm: Any, example_inputs: Any) -> Any:
        return lambda *args: gm(*args)

    backend = aot_autograd(fw_compiler=unboxed, partition_fn=ct.Partitioner(budget="min"))
    with pytest.warns(UserWarning, match="boxed"):
        (found,) = torch.autograd.grad(torch.compile(f, backend=backend)(w, x), w)
    assert same_bits(found, expected)

    lists: list[Any] = []

    def boxed(gm: Any, example_inputs: Any) -> Any:
        run = codegen.compile_boxed(gm)
        assert run._boxed_call

        def call(args: list[Any]) -> Any:
            lists.append(args)
            out = run(args)
            assert args == []
            return out

        call._boxed_call = True
        return call

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=boxed, partition_fn=ct.Partitioner(budget="min"))
    (found,) = torch.autograd.grad(torch.compile(f, backend=backend)(w, x), w)
    assert same_bits(found, expected) and len(lists) == 2


def test_an_exception_leaves_no_state(ran: Counter[str], same_bits: Any) -> None:
    """In the forward, in the backward, and in the planner: the next step is as any other."""

    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            raise KeyError("stop")

    def f(self: Any, i: Any) -> Any:
        return F.dropout(self.table(i).sin().exp(), 0.5).cos().sum()

    model = Wrapped(f, table=nn.Embedding(8, 4))
    good, bad = torch.tensor([1, 2, 7]), torch.tensor([1, 2, 9])
    compiled = ct.compile(model, budget=0.9)

    def gradient(call: Any) -> Any:
        model.zero_grad()
        torch.manual_seed(1)
        with ct.MemoryTracker() as memory:
            call(good).backward()
        return model.table.weight.grad, memory.peak_bytes

    expected, _ = gradient(model)
    _, peak = gradient(compiled)
    for _ in range(2):
        with pytest.raises(IndexError):
            compiled(bad)
        with pytest.raises(KeyError):
            Stop.apply(compiled(good)).backward()
        found, again = gradient(compiled)
        assert same_bits(found, expected) and again == peak
    assert ran["forward"] == 7 and ran["backward"] == 3
    impossible = ct.compile(model, budget=1)
    for _ in range(2):
        with pytest.raises(BudgetError):
            impossible(good)
    assert impossible.plans == []
    assert same_bits(gradient(compiled)[0], expected)


def test_threads_and_calls_inside_calls(ran: Counter[str], same_bits: Any) -> None:
    """Two threads share a compiled module, whose graphs are counted for each call alone; a compiled
    module runs inside another's step, forward and backward."""

    def f(self: Any, x: Any) -> Any:
        return self.b(F.relu(self.a(x)).sin()).exp().cos().sum()

    model = Wrapped(f, a=nn.Linear(16, 16), b=nn.Linear(16, 16))
    x = torch.randn(8, 16)
    expected = torch.autograd.grad(model(x), list(model.parameters()))
    compiled = ct.compile(model, budget=0.9)
    results: list[Any] = []
    together = threading.Barrier(3)

    def train() -> None:
        together.wait()
        try:
            for _ in range(5):
                results.append(torch.autograd.grad(compiled(x), list(model.parameters())))
        except BaseException as error:
            results.append(error)

    threads = [threading.Thread(target=train) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 15 and all(same_bits(r, expected) for r in results), results
    assert ran["forward"] == ran["backward"] == 15

    class Inside(torch.autograd.Function):
        """Runs a step of its own in its backward."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            with torch.enable_grad():
                (inner, *_) = torch.autograd.grad(compiled(x), list(model.parameters()))
            return g * inner.sum()

    w = torch.randn(4, requires_grad=True)
    outer = ct.compile(lambda w: w.sin().exp().cos().sum(), budget="min")
    (plain,) = torch.autograd.grad(w.sin().exp().cos().sum(), w)
    (found,) = torch.autograd.grad(outer(Inside.apply(w)), w)
    assert same_bits(found, plain * expected[0].sum())


def test_a_call_while_another_thread_compiles(ran: Counter[str], same_bits: Any) -> None:
    """Before torch 2.13 PyTorch takes the trace of another thread for one of the caller."""
    traced, called = threading.Semaphore(0), threading.Semaphore(0)

    @torch.library.custom_op("cutback_tests::slow_to_trace", mutates_args=())
    def slow(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @slow.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        traced.release()
        called.acquire(timeout=60)
        return torch.empty_like(x)

    slow.register_autograd(lambda ctx, g: g * 2)
    w = torch.randn(4, requires_grad=True)
    compiled = ct.compile(lambda w: w.sin().exp().sum(), budget="min")
    expected = torch.autograd.grad(compiled(w), w)
    for other in (
        ct.compile(lambda w: slow(w).exp().sum(), budget="min"),
        torch.compile(lambda w: slow(w).cos().sum(), backend="cutback", options={"budget": "min"}),
    ):
        ran.clear()
        thread = threading.Thread(target=lambda f=other: f(w).backward())
        thread.start()
        calls = 0
        while thread.is_alive():
            if traced.acquire(timeout=0.05):
                assert same_bits(torch.autograd.grad(compiled(w), w), expected)
                calls += 1
                called.release()
        assert calls > 1  # Dynamo's own look at the op, and AOTAutograd's trace
        assert ran["forward"] == ran["backward"] == 1 + calls


def test_what_cannot_be_planned_is_an_error(ran: Counter[str]) -> None:
    def sparse_part(w: Any, x: Any) -> Any:
        return torch.sparse.mm(x.to_sparse(), w).sum()

    with pytest.raises(Exception, match=r"(?i)sparse|layout"):
        ct.compile(sparse_part, fullgraph=True)(torch.randn(3, 2, requires_grad=True), torch.eye(3))


def test_second_derivatives_are_refused(ran: Counter[str], same_bits: Any) -> None:
    w = torch.randn(4, requires_grad=True)
    loss = ct.compile(lambda w: (w**3).sum())(w)
    with pytest.raises(ct.UnsupportedGraphError, match=r"create_graph=True.*torch\.checkpoint"):
        torch.autograd.grad(loss, w, create_graph=True, retain_graph=True)
    assert ran["backward"] == 0
    (gradient,) = torch.autograd.grad(loss, w)
    assert same_bits(gradient, 3 * w.detach() ** 2) or torch.allclose(gradient, 3 * w**2)
    # the way out that the text names
    (first,) = torch.autograd.grad(ct.checkpoint(lambda w: (w**3).sum(), w), w, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), w)
    assert torch.allclose(second, 6 * w)


def test_mistakes_in_arguments() -> None:
    for options, error in (
        ({"budget": -1}, ValueError),
        ({"budget": 1.5}, ValueError),
        ({"measure": "total"}, ValueError),
        ({"measure": "arena"}, ValueError),
        ({"codegen": "cutback"}, ValueError),
        ({"policy": "no_such"}, ValueError),
        ({"policy": 3}, TypeError),
        ({"policy": [3]}, TypeError),
        ({"budget": "0.4"}, ValueError),  # bytes, a share?
        ({"budget": "max"}, ValueError),
    ):
        with pytest.raises(error, match=next(iter(options))):
            ct.compile(lambda w: w, **options)
    with pytest.raises(TypeError, match="model=5 is neither a module nor a function"):
        ct.compile(5)
