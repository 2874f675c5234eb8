"""Helpers for tests of eager regions: models called with one argument, counters of bytes and of
ops, and bitwise comparison."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import small_models
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cutback.torch import checkpoint
from cutback.torch.eager.log import active
from cutback.torch.eager.values import Node, Value

aten = torch.ops.aten
PRODUCTS = [aten.mm, aten.addmm, aten.bmm, aten.convolution]


class Tracker(TorchDispatchMode):
    """Counts the bytes of live storages made by ops; shares no code with MemoryTracker."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Returns True: if two threads leave modes without it in turn, PyTorch can no longer
        compile."""
        return True

    def _freed(self, n: int) -> None:
        self.live -= n

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                if "_tracked" not in storage.__dict__:
                    storage.__dict__["_tracked"] = True
                    self.live += storage.nbytes()
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(storage, self._freed, storage.nbytes())
        return out


class Calls(TorchDispatchMode):
    """Counts ops by packet."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[Any, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        self.counts[packet] = self.counts.get(packet, 0) + 1
        return func(*args, **(kwargs or {}))


class Cube(torch.autograd.Function):
    """Saves an input and an intermediate."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x * x
        ctx.save_for_backward(x, y)
        return y * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, y = ctx.saved_tensors
        return grad * (y + 2 * x * x)


class GPT(small_models.GPT):
    """Predicts its own tokens."""

    def __init__(self, layers: int = 3, p: float = 0.0) -> None:
        super().__init__(layers, dropout=p)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(tokens, tokens)


class ResNet(nn.Module):
    """Has batch norm of both kinds, an activation in place, and a sum in place."""

    def __init__(self, c: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(c, c, 3, padding=1),
                nn.BatchNorm2d(c),
                nn.ReLU(inplace=True),
                nn.Conv2d(c, c, 3, padding=1),
                nn.BatchNorm2d(c, momentum=None),
            )
            for _ in range(layers)
        )

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for layer in self.layers:
            y = layer(x)
            y += x
            x = F.relu(y)
        return x.mean((2, 3)).square().mean()


def assert_same(a: list[Any], b: list[Any]) -> None:
    """Asserts equal bits."""
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert (x is None and y is None) or torch.equal(x, y)


def gradients(f: Callable[..., Any], *inputs: Any, run: Any = None) -> list[Any]:
    """Returns output and gradients of new leaves."""
    torch.manual_seed(5)
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs]
    out = f(*leaves) if run is None else run(f, *leaves)
    out.abs().sum().backward()
    return [out.detach(), *(t.grad for t in leaves)]


def check(f: Callable[..., Any], *inputs: Any, policies: Any = (None, PRODUCTS)) -> None:
    """Checks that a region is bitwise equal to plain autograd, with no state left behind."""
    plain = gradients(f, *inputs)
    for policy in policies:
        run = functools.partial(checkpoint, policy_fn=policy)
        ours = gradients(f, *inputs, run=run)
        assert_same(plain, ours)
    assert active() is None


def left() -> list[Any]:
    """Returns logs that are still alive."""
    return [v for v in gc.get_objects() if type(v) in (Value, Node)]


def first_use() -> None:
    """Runs lazy imports of torch, which keep the frames of their first caller alive."""
    x = torch.ones(2, requires_grad=True)
    checkpoint(lambda x: (x + torch.ones(2)).exp(), x).sum().backward()
    left()
