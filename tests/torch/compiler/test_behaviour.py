"""Tests values and modules that a careless bridge gets wrong. Each case is compiled under several
budgets and must give eager mode's bits: outputs, gradients, buffers and inputs that it writes
into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from agreement import BUDGETS, Wrapped, backward_kinds
from torch import nn
from torch.utils.checkpoint import checkpoint

import cutback.torch as ct

# ---- random numbers ------------------------------------------------------------------------


def test_dropout_is_never_drawn_again(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        for _ in range(3):
            x = F.dropout(torch.sin(x) ** 4, 0.25) * torch.cos(x)
        return x

    x = torch.randn(64, 64, requires_grad=True)
    for compiled in agrees(Wrapped(f), x, budgets=(None, "0.9x", "0.7x", "min")):
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
    """Returns the batch norms in a plan's backward."""
    kinds = backward_kinds(compiled.plans[0])
    return [kind for kind in kinds if "batch_norm_legit" in kind]


def test_batch_norms_run_again(agrees: Callable[..., Any]) -> None:
    """Running statistics are overwritten at the end of the forward, and must be updated only
    once."""

    def f(self: Any, x: Any) -> Any:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)), inplace=True)
        return x

    convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
    norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(4))
    *_, smallest = agrees(Wrapped(f, convs=convs, norms=norms), torch.randn(2, 4, 8, 8), steps=3)
    assert runs_again(smallest)


def test_batch_norms_whose_statistics_are_read(agrees: Callable[..., Any]) -> None:
    """A second run would return other statistics, so readers in the backward need those of the
    first."""

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
        a.mul_(2)  # b shares its memory
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
    assert len(outputs) == 2  # weight and bias of the single layer


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
    compiled = ct.compile(model, budget="0.5x")
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
    assert len(again) == 4  # without a budget the model's own checkpoints apply


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
    """A pure function of its arguments may be recomputed. An op whose bits may differ runs once."""
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
        return gradient * x.exp() * ctx.factor * 0.5, None  # deliberately not the true gradient


def test_autograd_function(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        return Scaled.apply(torch.sin(x), 2.0).sin()

    agrees(Wrapped(f), torch.randn(32, requires_grad=True))
