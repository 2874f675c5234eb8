"""Gradients of a checkpointed region have the bits of plain ones, whatever the region does."""

from __future__ import annotations

import functools
import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from eager_tools import PRODUCTS, Calls, Cube, assert_same, check, gradients, left
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from cutback.torch import checkpoint
from cutback.torch.eager.log import active
from cutback.torch.eager.values import Value

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("imports_of_a_first_use")]

torch.set_num_threads(1)
aten = torch.ops.aten


def save_all(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    return CheckpointPolicy.PREFER_SAVE


def test_keywords_and_several_results(x: Any) -> None:
    def f(a: Any, *, b: Any, scale: float) -> tuple[Any, dict[str, Any]]:
        return a.sin() * scale, {"c": (a @ b).tanh()}

    def total(run: Any) -> list[Any]:
        a, b = x.clone().requires_grad_(), x.t().clone().requires_grad_()
        first, rest = run(f, a, b=b, scale=2.0)
        (first * rest["c"]).sum().backward()
        return [a.grad, b.grad]

    assert_same(total(lambda f, *a, **k: f(*a, **k)), total(checkpoint))


def test_long_chain_costs_a_few_runs(x: Any) -> None:
    def f(x: Any) -> Any:
        for _ in range(3000):
            x = x.sin()
        return x

    check(f, x, policies=(None,))
    leaf = x.clone().requires_grad_()
    out = checkpoint(f, leaf).sum()
    with Calls() as calls:
        out.backward()
    assert 0 < calls.counts[aten.sin] <= 3 * 3000


def test_views_and_aliases(x: Any) -> None:
    def f(x: Any) -> Any:
        y = x.exp()
        v, w = y.view(-1), y.t()
        rows = w.unbind(0)
        parts = v.split(9)
        z = torch.cat([rows[0] * rows[1], parts[1].sin(), v[::2].cos(), v.detach().tanh()])
        return z.square() * y[0, 0]

    check(f, x)


def test_output_is_input_or_view(x: Any) -> None:
    check(lambda x: x, x)
    check(lambda x: x.exp().t()[1:].sigmoid().t(), x)
    check(lambda x: x.view(-1), x)


def test_in_place_on_saved_values(x: Any) -> None:
    def f(x: Any) -> Any:
        y = x * 2
        z = y + 1  # reads y, saves nothing
        e = z.exp()
        y.mul_(3)
        y.sigmoid_()
        z.relu_()
        return (e * z * y).tanh_() + y.sin()

    check(f, x)


def test_in_place_on_views_and_inputs(x: Any) -> None:
    def f(x: Any) -> Any:
        y = x.clone()
        y[1].mul_(2)
        y[:, 2] = y[:, 3].exp()
        y.t().add_(1)
        buffer = torch.zeros(6, 6)
        buffer[2:] += y[2:].sin()
        torch.add(buffer.detach(), 1, out=torch.empty(6, 6))
        return (buffer * y).cos() * y.exp()

    check(f, x)


def test_old_values_of_an_overwritten_tensor(x: Any) -> None:
    """A value read before a write is recomputed from the tensor as it was at that time."""
    state = torch.ones(6, 6)

    def f(x: Any) -> Any:
        a = (x + state).exp()
        state.mul_(2)
        b = (x * 3 + state).exp()
        state.fill_(7)
        h = x @ x  # saved under a policy
        c = (h + 1).exp()
        h.zero_()
        return a + b + c

    def run(f: Any, x: Any, policy: Any) -> Any:
        state.fill_(1)
        return checkpoint(f, x, policy_fn=policy)

    state.fill_(1)
    plain = gradients(f, x)
    for policy in (None, PRODUCTS):
        assert_same(plain, gradients(f, x, run=lambda f, x: run(f, x, policy)))  # noqa: B023


def test_value_modified_afterwards_is_an_error(x: Any) -> None:
    leaf = x.clone().requires_grad_()
    noise = torch.rand(6, 6)
    out = checkpoint(lambda x: (x * noise).exp(), leaf)
    noise.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace .* version 1; expected"):
        out.sum().backward()
    held = checkpoint(lambda x: torch.mm(x, x), leaf, policy_fn=[aten.mm])
    out = held.exp()
    assert torch.equal(torch.autograd.grad(out.sum(), leaf)[0], torch.autograd.grad(
        torch.mm(leaf, leaf).exp().sum(), leaf)[0])  # fmt: skip


def test_saved_value_overwritten_inside(x: Any) -> None:
    """Plain autograd refuses; a region uses the old value or refuses as well."""

    def f(x: Any, copy: bool = False) -> Any:
        y = x.detach().cos()
        z = x * (y.clone() if copy else y)
        y.add_(1)
        return z

    with pytest.raises(RuntimeError, match="modified by an inplace"):
        gradients(f, x)
    assert_same(gradients(lambda x: f(x, True), x), gradients(f, x, run=checkpoint))

    def g(x: Any) -> Any:
        y = x.exp()  # saved, and recomputed
        z = y.add(0)
        y.sigmoid_()  # saves its own result, which is then overwritten
        y.mul_(2)
        return y + z

    with pytest.raises(RuntimeError, match="modified by an inplace"):
        gradients(g, x)
    with pytest.raises(RuntimeError, match="at version 2; expected version 1"):
        gradients(g, x, run=checkpoint)


def test_held_result_overwritten_outside_is_an_error(x: Any) -> None:
    def f(x: Any) -> tuple[Any, Any]:
        h = x @ x
        return h, (h + 1).exp()

    leaf = x.clone().requires_grad_()
    h, e = checkpoint(f, leaf, policy_fn=[aten.mm])
    with torch.no_grad():
        h.zero_()
    with pytest.raises(RuntimeError, match="clone it before it is modified"):
        e.sum().backward()


def test_dropout_mask_is_held_as_bytes() -> None:
    x = torch.randn(64, 64, requires_grad=True)

    def f(x: Any) -> Any:
        return F.dropout(x.sin(), 0.25).exp()

    plain = gradients(f, x)
    assert_same(plain, gradients(f, x, run=checkpoint))
    out = checkpoint(f, x)
    # exp saved its result; the graph before it ends at the mask
    slot = out.grad_fn.__class__.__name__
    assert slot == "ExpBackward0"
    mul = out.grad_fn.next_functions[0][0]
    assert mul.__class__.__name__ == "MulBackward0"
    kept = [v for v in left() if type(v) is Value and v.tensor is not None]
    masks = [v.tensor for v in kept if v.version < 0]
    assert [m.dtype for m in masks] == [torch.bool]
    assert not any(v.tensor.nbytes == 4 * 64 * 64 and v.tensor is not x for v in kept)


def test_what_only_looks_like_dropout_noise() -> None:
    """The result is only partly random, or is written to again, or is read as something else."""
    x = torch.randn(32, 32)

    def f(x: Any) -> Any:
        a = torch.full((32, 32), 3.0)
        a[:16].bernoulli_(0.5).div_(0.5)
        x = (x * a).sin()
        b = torch.empty(32, 32).bernoulli_(0.5)
        b[:4].div_(0.25)
        x = (x * b).exp()
        c = torch.empty(32, 32).bernoulli_(0.5).div_(0.5)
        c += 1
        x = (x * c).sin()
        d = torch.empty(32, 32).bernoulli_(0.5).div_(0.5).t()
        x = (x * d).exp() * d.contiguous().view(torch.int32).sign()
        e = torch.empty(32, 32).bernoulli_(0.5).div_(2)
        return (x * e).sin() * e

    check(f, x)


def test_random_ops_run_once(x: Any) -> None:
    def f(x: Any) -> Any:
        y = x * torch.rand_like(x) + torch.randn(6, 6).mul_(0.5)
        z = F.rrelu(y, training=True).sin()
        i = torch.randperm(6)
        return F.alpha_dropout(z[i], 0.3).exp() * torch.bernoulli(y.sigmoid())

    check(f, x)
    check(lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5), x)


def test_regions_inside_regions(x: Any) -> None:
    w = torch.randn(6, 6)

    def inner(x: Any) -> Any:
        return (x @ w).sin().exp()

    def f(x: Any) -> Any:
        y = checkpoint(inner, x, policy_fn=PRODUCTS)
        return checkpoint(lambda y: checkpoint(inner, y).tanh(), y) * y

    check(f, x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_with_torch_checkpoint(x: Any, reentrant: bool) -> None:
    w = torch.randn(6, 6)

    def inner(x: Any) -> Any:
        return (F.dropout(x, 0.2) @ w).sin().exp()

    def theirs(f: Any, *args: Any) -> Any:
        return torch_checkpoint(f, *args, use_reentrant=reentrant)

    plain = gradients(lambda x: inner(inner(x)), x)
    assert_same(plain, gradients(lambda x: checkpoint(lambda x: inner(theirs(inner, x)), x), x))
    assert_same(plain, gradients(lambda x: theirs(lambda x: inner(checkpoint(inner, x)), x), x))


def test_saved_tensor_hooks_around_and_inside(x: Any) -> None:
    def f(x: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            y = x.sin().exp()
        return (y @ y).tanh()

    def around(f: Any, x: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return checkpoint(f, x).exp()

    check(f, x)
    assert_same(gradients(lambda x: f(x).exp(), x), gradients(f, x, run=around))


def test_tensor_and_module_hooks(x: Any) -> None:
    layer = nn.Linear(6, 6)

    def run(wrap: Any) -> list[Any]:
        seen: list[Any] = []
        handle = layer.register_full_backward_hook(lambda m, i, o: seen.append(o[0].clone()))
        leaf = x.clone().requires_grad_()
        layer.zero_grad()

        def f(x: Any) -> Any:
            y = layer(x.sin())
            y.register_hook(lambda g: g * 2)
            return y.exp()

        wrap(f, leaf).sum().backward()
        handle.remove()
        return [leaf.grad, *(p.grad.clone() for p in layer.parameters()), *seen]

    assert_same(run(lambda f, x: f(x)), run(checkpoint))


@torch.library.custom_op("cutback_tests::scaled_sin", mutates_args=())
def scaled_sin(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x.sin() * scale


@torch.library.custom_op("cutback_tests::bump", mutates_args=("x",))
def bump(x: torch.Tensor) -> None:
    x.add_(1)


def _scaled_sin_backward(ctx: Any, grad: Any) -> tuple[Any, None]:
    (y,) = ctx.saved_tensors
    return grad * y, None


def _scaled_sin_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output)


scaled_sin.register_autograd(_scaled_sin_backward, setup_context=_scaled_sin_setup)


def test_custom_ops_are_held_unless_a_policy_insists(x: Any) -> None:
    def f(x: Any) -> Any:
        y = scaled_sin(x.exp(), 2.0)
        state = torch.zeros(6, 6)
        bump(state)
        return (y + state).sigmoid()

    check(f, x)

    def insist(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        return CheckpointPolicy.MUST_RECOMPUTE

    for policy_fn, runs in ((None, 0), (insist, 1)):
        leaf = x.clone().requires_grad_()
        out = checkpoint(f, leaf, policy_fn=policy_fn).sum()
        with Calls() as calls:
            out.backward()
        assert calls.counts.get(torch.ops.cutback_tests.scaled_sin, 0) == runs


def test_autograd_function(x: Any) -> None:
    check(lambda x: Cube.apply(x.sin()).exp(), x)


def test_parts_without_gradient(x: Any) -> None:
    def f(x: Any, unused: Any) -> Any:
        with torch.no_grad():
            mask = (x.sin() @ x) > 0
            scale = x.abs().max().item()
        y = x.exp()
        with torch.enable_grad():
            z = y.detach().cos()
        return torch.where(mask, y * z, y) / scale

    check(f, x, x)
    with torch.no_grad():
        assert not checkpoint(f, x, x).requires_grad
    assert not checkpoint(f, x, x).requires_grad


def test_missing_gradients_unused_outputs_and_double_use(x: Any) -> None:
    layer, unused = nn.Linear(6, 6), nn.Linear(6, 6)
    parameters = [*layer.parameters(), *unused.parameters()]

    def f(x: Any) -> tuple[Any, ...]:
        y = layer(layer(x.sin()).tanh())  # used twice
        unused(x)
        return y.exp(), y.cos(), (y > 0).sum(), None, 3, y.detach()

    def run(wrap: Any) -> list[Any]:
        leaf = x.clone().requires_grad_()
        _, cosine, *_ = wrap(f, leaf)
        return list(torch.autograd.grad(cosine.sum(), [leaf, *parameters], allow_unused=True))

    plain = run(lambda f, x: f(x))
    assert plain[3] is None and plain[4] is None
    for options in ({}, {"policy_fn": PRODUCTS}, {"budget": 1.0}, {"budget": 1.0}):
        assert_same(plain, run(functools.partial(checkpoint, **options)))


def test_gradients_that_are_not_contiguous(x: Any) -> None:
    w = torch.randn(6, 6)
    seeds = (torch.randn(6, 6).t(), torch.ones(()).expand(6, 6), torch.randn(6, 12)[:, ::2])

    def f(x: Any) -> Any:
        return (x.sin() @ w).exp().cos()

    for seed in seeds:
        found = []
        for options in (None, {}, {"policy_fn": PRODUCTS}, {"budget": 1.0}, {"budget": 1.0}):
            leaf = x.clone().requires_grad_()
            out = f(leaf) if options is None else checkpoint(f, leaf, **options)
            out.backward(seed)
            found.append([leaf.grad])
        for other in found[1:]:
            assert_same(found[0], other)


def test_two_batch_sizes_in_turn(x: Any) -> None:
    """Each size has its own plan, which the other never follows."""
    w = torch.randn(6, 6)

    def f(x: Any) -> Any:
        for _ in range(3):
            x = F.dropout((x @ w).tanh().sin(), 0.2)
        return x

    for rows in (6, 3, 6):
        plain = gradients(f, x[:rows])
        assert_same(plain, gradients(f, x[:rows], run=functools.partial(checkpoint, budget="0.9x")))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_complex_and_sparse(x: Any) -> None:
    def f(x: Any) -> Any:
        z = torch.fft.fft(x)
        w = (z.conj() * z.exp()).real + z.imag.neg().sin() + z.conj().imag
        return w @ torch.view_as_real(z).sum(-1).exp()

    check(f, x)
    i = torch.tensor([[0, 1, 5], [2, 0, 3]])

    def g(x: Any) -> Any:
        sparse = torch.sparse_coo_tensor(i, x[0, :3].exp(), (6, 6))
        return torch.sparse.mm(sparse, x.sin()).exp()

    check(g, x)


def test_zero_size_and_scalars(x: Any) -> None:
    check(lambda x: torch.cat([x[:0].exp(), (x * x.new_tensor(3.0)).sin()]) ** 3, x)


def test_exception_leaves_nothing(x: Any) -> None:
    parameter = nn.Parameter(x.clone())

    def f(x: Any) -> Any:
        checkpoint(lambda x: (x * parameter).exp(), x)
        raise KeyError("stop")

    gc.collect()
    with pytest.raises(KeyError):
        checkpoint(f, x)
    assert active() is None
    assert not parameter.untyped_storage().__dict__
    checkpoint(lambda x: (x * parameter).exp(), x).sum().backward()
    assert not parameter.untyped_storage().__dict__


def test_factories_keep_their_dtype(x: Any) -> None:
    leaf = x.double().requires_grad_()
    torch.set_default_dtype(torch.float64)
    try:
        out = checkpoint(
            lambda x: (x * torch.arange(6.0).reciprocal().add(1)[1:].sum()).exp(), leaf
        )
    finally:
        torch.set_default_dtype(torch.float32)
    out.sum().backward()
    assert leaf.grad.dtype == torch.float64
    scale = torch.arange(6.0, dtype=torch.float64).reciprocal().add(1)[1:].sum()
    assert torch.equal(leaf.grad, (x.double() * scale).exp() * scale)


def test_gradients_are_those_of_many_random_programs() -> None:
    """Random straight-line programs with views, writes and random ops."""
    for seed in range(30):
        program = torch.Generator().manual_seed(seed)

        def pick(n: int, program: Any = program) -> int:
            return int(torch.randint(0, n, (1,), generator=program))

        code = [(pick(10), pick(8), pick(8)) for _ in range(25)]

        def f(x: Any, y: Any, code: Any = code) -> Any:
            values = [x, y, x.sin()]
            for op, i, j in code:
                a, b = values[i % len(values)], values[-1 - j % len(values)]
                if op == 0:
                    c = a @ b / 4
                elif op == 1:
                    c = a.tanh() * b
                elif op == 2:
                    c = a.t().sigmoid()
                elif op == 3:
                    c = F.dropout(a, 0.3)
                elif op == 4:
                    c = (a + b).tanh_()
                elif op == 5:
                    c = (a - b).mul_(0.5)  # saved by nobody, so it may be overwritten later
                    c = c.add(1)
                elif op == 6:
                    c = torch.cat([a[:3], b[3:].exp().clamp(max=2)])
                elif op == 7:
                    c = (a * 0.5).t().contiguous().relu_()
                elif op == 8:
                    c = a.clone()
                    c[pick(1) : 3] = b[3:].cos()
                else:
                    c = F.layer_norm(a, (6,)) + b.unsqueeze(0)[0]
                values.append(c)
            return sum(v.mean() for v in values[-4:])

        torch.manual_seed(seed)
        x, y = torch.randn(6, 6), torch.randn(6, 6)
        check(f, x, y, policies=(None, PRODUCTS, save_all))
