"""Policies in PyTorch's terms decide what is recomputed, in our checkpoint and in PyTorch's."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from eager_tools import Calls
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from cutback.torch import MemoryTracker, checkpoint, checkpoint_contexts

pytestmark = pytest.mark.torch
torch.set_num_threads(1)
aten = torch.ops.aten


# The two policies of PyTorch's article on activation checkpointing. They name packets, although
# PyTorch asks for overloads.
products = [aten.mm, aten.bmm, aten.addmm]
compute_intensive_ops = [
    aten.mm,
    aten.convolution,
    aten.convolution_backward,
    aten.bmm,
    aten.addmm,
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_efficient_attention,
    aten._flash_attention_forward,
    aten._efficient_attention_forward,
    aten.upsample_bilinear2d,
    aten._scaled_mm,
]


def no_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if op in products:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def aggressive(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if op in compute_intensive_ops:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def model(x: Any, w: Any, bias: Any, kernel: Any) -> Any:
    """Returns one addmm, one mm, one bmm, one convolution."""
    y = torch.addmm(bias, x, w).sin()
    y = (y @ w).exp()
    y = torch.bmm(y[None], w[None])[0].tanh()
    return F.conv2d(y[None, None], kernel)[0, 0].sin()


@pytest.fixture
def inputs() -> list[Any]:
    torch.manual_seed(0)
    sizes = [(6, 6), (6, 6), (6,), (1, 1, 3, 3)]
    return [(0.3 * torch.randn(size)).requires_grad_() for size in sizes]


def ours(policy: Any) -> Any:
    return functools.partial(checkpoint, policy_fn=policy)


def theirs(policy: Any) -> Any:
    contexts = functools.partial(checkpoint_contexts, policy)
    return functools.partial(torch_checkpoint, use_reentrant=False, context_fn=contexts)


def backward(run: Any, inputs: list[Any]) -> tuple[dict[Any, int], list[Any]]:
    """Returns the ops that the backward runs, and the gradients."""
    out = run(model, *inputs).square().sum()
    with Calls() as calls:
        gradients = torch.autograd.grad(out, inputs)
    return calls.counts, list(gradients)


PRODUCTS = (aten.addmm, aten.mm, aten.bmm, aten.convolution)


def forward_products(run: Any, inputs: list[Any]) -> dict[Any, int]:
    """Returns how many more times than plain autograd the backward ran each product."""
    plain, expected = backward(lambda f, *xs: f(*xs), inputs)
    counts, gradients = backward(run, inputs)
    for a, b in zip(gradients, expected, strict=True):
        assert torch.equal(a, b)
    return {op: counts.get(op, 0) - plain.get(op, 0) for op in PRODUCTS}


@pytest.mark.parametrize("way", [ours, theirs])
def test_products_are_saved(way: Any, inputs: list[Any]) -> None:
    extra = forward_products(way(no_products), inputs)
    assert extra == {aten.addmm: 0, aten.mm: 0, aten.bmm: 0, aten.convolution: 1}
    assert forward_products(way(products), inputs) == extra
    assert forward_products(way([op.default for op in products]), inputs) == extra


@pytest.mark.parametrize("way", [ours, theirs])
def test_compute_intensive_ops_are_saved(way: Any, inputs: list[Any]) -> None:
    extra = forward_products(way(aggressive), inputs)
    assert extra == dict.fromkeys(PRODUCTS, 0)


def test_without_a_policy_all_that_is_needed_runs_again(inputs: list[Any]) -> None:
    extra = forward_products(checkpoint, inputs)
    assert extra[aten.addmm] == extra[aten.mm] == extra[aten.bmm] == 1


def test_the_context_and_the_answers(inputs: list[Any]) -> None:
    """The context and arguments are those of PyTorch; True and False are valid answers."""
    seen = []

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        if op is aten.addmm.default:
            seen.append((ctx.is_recompute, ctx.op_output.shape, [type(a) for a in args]))
            return True
        return False

    extra = forward_products(ours(policy), inputs)
    assert seen == [(False, (6, 6), [torch.Tensor] * 3)]
    assert (extra[aten.addmm], extra[aten.mm]) == (0, 1)


def in_place(x: Any) -> Any:
    y = x + 1
    y.mul_(2)
    return y.sin()


@pytest.mark.parametrize("way", [ours, theirs])
@pytest.mark.parametrize("op", [aten.mul_.Tensor, aten.mul_])
def test_a_mutating_op_is_never_marked(way: Any, op: Any, inputs: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"MUST_SAVE for aten.mul_.Tensor, which writes"):
        way([op])(in_place, inputs[0])
    # no state is left behind
    a = torch.autograd.grad(checkpoint(in_place, inputs[0]).sum(), inputs[0])
    b = torch.autograd.grad(in_place(inputs[0]).sum(), inputs[0])
    assert torch.equal(a[0], b[0])


def test_random_and_mutating_ops_by_a_broad_policy(inputs: list[Any]) -> None:
    """The policy is PREFER_SAVE for everything. PyTorch's own contexts give wrong gradients
    here."""

    def everything(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.PREFER_SAVE

    def f(x: Any) -> Any:
        return F.dropout(x.exp(), 0.4).sin()

    def gradient(run: Any) -> Any:
        torch.manual_seed(1)
        return torch.autograd.grad(run(f, inputs[0]).sum(), inputs[0])[0]

    assert torch.equal(gradient(lambda f, x: f(x)), gradient(ours(everything)))


def test_offload_holds_on_the_host(inputs: list[Any]) -> None:
    def offload(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_CPU_OFFLOAD

    assert forward_products(ours(offload), inputs)[aten.mm] == 0


@pytest.mark.parametrize("by", ["offload", "policy"])
def test_offloaded_values_are_held_on_the_host_alone(inputs: list[Any], by: str) -> None:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_CPU_OFFLOAD if op in products else no_products(ctx, op)

    def f(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = (x @ w).sin().cos()
        return x.sum()

    x, w = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
    (expected,) = torch.autograd.grad(f(x, w), w)
    options = (
        {"policy_fn": no_products, "offload": True} if by == "offload" else {"policy_fn": policy}
    )
    with MemoryTracker() as memory:
        loss = checkpoint(f, x, w, **options)
        held = memory.live_bytes
        assert memory.host_bytes == 3 * x.nbytes
        (found,) = torch.autograd.grad(loss, w)
        del loss
        assert memory.host_bytes == 0
    assert torch.equal(found, expected)
    assert held < x.nbytes  # the device holds almost nothing


def test_offload_in_the_wrong_place(inputs: list[Any]) -> None:
    with pytest.raises(ValueError, match="offload needs policy_fn"):
        checkpoint(model, *inputs, budget="0.5x", offload=True)

    def outer(*args: Any) -> Any:
        return checkpoint(model, *args, policy_fn=no_products, offload=True)

    with pytest.raises(ValueError, match="offload is only for the outermost region"):
        checkpoint(outer, *inputs)


def test_wrong_policies(inputs: list[Any]) -> None:
    with pytest.raises(TypeError, match="neither a function"):
        checkpoint(model, *inputs, policy_fn=3)
    with pytest.raises(TypeError, match=r"'aten\.mm' is not an op"):
        checkpoint(model, *inputs, policy_fn=["aten.mm"])
    with pytest.raises(TypeError, match="neither a function"):
        checkpoint_contexts("mm")
    with pytest.raises(TypeError, match=r"the answer for aten\.\S+ is 'save'"):
        checkpoint(model, *inputs, policy_fn=lambda ctx, op, *a, **k: "save")
