"""PyTorch's article on activation checkpointing, in Cutback's names.

    python examples/torch_seed_checkpoint.py

The two policies of the article's section on selective checkpointing, as written, and its memory
budget. The policies name packets (``aten.mm``), but PyTorch passes overloads (``aten.mm.default``),
which never match, so with PyTorch they save nothing. The first table counts the matrix products
that the backward recomputes in eager mode; the second sweeps the budget from 1 to 0 in compiled
code. Source: "Current and New Activation Checkpointing Techniques in PyTorch", PyTorch blog, 2025.
Exits with 1 if a product that a policy saves is recomputed, a gradient differs, or a budget is
exceeded.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import cutback.torch

aten = torch.ops.aten

# ---- the article's policies, word for word ---------------------------------------------------


def policy_1() -> Callable[..., Any]:
    """Policy 1: do not recompute matmuls."""
    compute_intensive_ops = [
        aten.mm,
        aten.bmm,
        aten.addmm,
    ]

    def policy_fn(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op in compute_intensive_ops:
            return CheckpointPolicy.MUST_SAVE
        else:
            return CheckpointPolicy.PREFER_RECOMPUTE

    return policy_fn


def policy_2() -> Callable[..., Any]:
    """Policy 2: save anything compute-intensive."""
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

    def policy_fn(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op in compute_intensive_ops:
            return CheckpointPolicy.MUST_SAVE
        else:
            return CheckpointPolicy.PREFER_RECOMPUTE

    return policy_fn


# ---- a layer, and the products of its backward ------------------------------------------------


class Layer(nn.Module):
    """Explicit attention and a perceptron."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Parameter(torch.randn(width, 3 * width) / width**0.5)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, time, width] to the same shape."""
        q, k, v = (self.norm1(x) @ self.qkv).chunk(3, -1)
        x = x + (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1) @ v
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket in (aten.mm, aten.bmm, aten.addmm)
        return func(*args, **(kwargs or {}))


def backward(layer: nn.Module, run: Callable[..., Any], x: torch.Tensor) -> tuple[int, list[Any]]:
    """Returns the products in the backward, and the gradients."""
    layer.zero_grad(set_to_none=True)
    loss = run(layer, x).square().mean()
    with Products() as products:
        loss.backward()
    return products.count, [p.grad for p in layer.parameters()]


def same(a: list[Any], b: list[Any]) -> bool:
    """True if all bits are equal."""
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def selective(layer: nn.Module, x: torch.Tensor) -> bool:
    """Compares the policies through PyTorch's contexts, ours, and our checkpoint."""
    plain, expected = backward(layer, lambda f, x: f(x), x)
    print("matrix products that the backward runs again")
    print(f"{'':14}{'PyTorch':>10}{'contexts':>10}{'checkpoint':>12}")
    rerun = partial(torch_checkpoint, use_reentrant=False)
    good = True
    for name, policy_fn in (("policy 1", policy_1()), ("policy 2", policy_2())):
        ways = (
            partial(rerun, context_fn=partial(create_selective_checkpoint_contexts, policy_fn)),
            partial(rerun, context_fn=partial(cutback.torch.checkpoint_contexts, policy_fn)),
            partial(cutback.torch.checkpoint, policy_fn=policy_fn),
        )
        again = []
        for way in ways:
            products, gradients = backward(layer, way, x)
            again.append(products - plain)
            good &= same(gradients, expected)
        print(f"{name:14}{again[0]:10}{again[1]:10}{again[2]:12}")
        good &= again[1:] == [0, 0]
    return good


def sweep(layer: nn.Module, x: torch.Tensor) -> bool:
    """Sweeps the memory budget, down to the smallest possible. PyTorch's knob is a share of the
    saved bytes; ours is a share of the peak."""
    model = nn.Sequential(*(copy.deepcopy(layer) for _ in range(4)))
    model(x).square().mean().backward()
    expected = [p.grad for p in model.parameters()]
    print("\nbudget    peak KiB   saved KiB   extra time   gradients")
    good, before = True, None
    for budget in ("1.0x", "0.8x", "0.6x", "0.5x", "min"):
        fn = cutback.torch.compile(lambda x: model(x).square().mean(), budget=budget)
        model.zero_grad(set_to_none=True)
        with cutback.torch.MemoryTracker() as memory:
            fn(x).backward()
        (plan,) = fn.plans
        numbers, peak = plan.numbers, memory.peak_bytes
        equal = same([p.grad for p in model.parameters()], expected)
        good &= equal and peak == numbers["live_bytes"]
        good &= budget == "min" or peak <= numbers["budget_bytes"]
        good &= before is None or peak <= before
        before = peak
        extra = numbers["time_ps"] / numbers["once_ps"] - 1
        print(
            f"{budget!s:>6}{peak / 1024:12.1f}{numbers['saved_bytes'] / 1024:12.1f}"
            f"{100 * extra:11.1f} %   {'equal' if equal else 'DIFFERENT'}"
        )
    return good


def main() -> int:
    """Returns both parts."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer, x = Layer(), torch.randn(4, 32, 32)
    good = selective(layer, x)
    good &= sweep(layer, x)
    print("policies and budgets kept" if good else "NOT as promised")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
