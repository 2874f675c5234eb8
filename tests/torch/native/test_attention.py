"""Attention in our kernels, and arguments with gaps between their elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from cutback.torch.graph.codegen import compile_boxed
from cutback.torch.native import calls, table
from cutback.torch.native.lowering import lower

OP = "aten._scaled_dot_product_flash_attention_for_cpu"


def run(f: Any, *inputs: torch.Tensor, **options: Any) -> tuple[Any, Any]:
    """Returns the results of a function in our kernels, and the note."""
    made, note = lower(make_fx(f, tracing_mode="fake")(*inputs), "forward", **options)
    return compile_boxed(made)(list(inputs)), note


def keep(*shape: int) -> torch.Tensor:
    """Returns a mask that hides a third of the keys, and all keys of the third query."""
    mask = torch.rand(shape) < 0.7
    mask[..., 2, :] = False
    return mask


def lengths(b: int, t: int, s: int) -> torch.Tensor:
    """Returns a mask that hides the last keys of each sample, and all keys of the last sample."""
    return torch.arange(s) < torch.tensor([*range(s, s - b + 1, -1), 0])[:, None, None, None]


MASKS: dict[str, Callable[..., torch.Tensor | None]] = {
    "none": lambda *_: None,
    "causal": lambda *_: None,
    "bool": lambda b, h, t, s: keep(t, s),
    "bool of heads": keep,
    "bool of samples": lambda b, h, t, s: lengths(b, t, s).expand(b, 1, t, s),
    "added": lambda b, h, t, s: torch.randn(t, s),
    "added to heads": lambda b, h, t, s: torch.randn(1, h, t, s),
    "hidden": lambda *sizes: torch.randn(sizes).masked_fill(~keep(*sizes), -math.inf),
    "least": lambda b, h, t, s: torch.zeros(t, s).masked_fill(~keep(t, s), -3e38),
}
SIZES = {
    "f32": (torch.float32, 2, 4, 2, 70, 33, 7),
    "f64": (torch.float64, 3, 3, 3, 19, 41, 8),
    "bf16": (torch.bfloat16, 2, 2, 1, 17, 17, 65),
}
"""Type, samples, heads of queries and of keys, queries, keys, and elements of a head."""


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("sizes", SIZES)
def test_attention(sizes: str, name: str) -> None:
    """Results and gradients are at most twice as far from the formula in f64 as PyTorch's. Keys and
    values are parts of one tensor. Rows without a key give zeros."""
    torch.manual_seed(0)
    dtype, b, h, kv, t, s, e = SIZES[sizes]
    mask = MASKS[name](b, h, t, s)
    given = [torch.randn(b, t, h, e), torch.randn(b, s, 2, kv, e), torch.randn(b, t, h, e)]
    given = [x.to(dtype) for x in given]
    if mask is not None:
        given.append(mask if mask.dtype == torch.bool else mask.to(dtype))

    def f(q: torch.Tensor, kv: torch.Tensor, g: torch.Tensor, *mask: torch.Tensor) -> list[Any]:
        parts = [x.transpose(1, 2).detach().requires_grad_() for x in (q, kv[:, :, 0], kv[:, :, 1])]
        y = F.scaled_dot_product_attention(
            *parts, *mask, is_causal=name == "causal", scale=0.3, enable_gqa=True
        )
        return [y, *torch.autograd.grad(y, parts, g.transpose(1, 2))]

    made, note = run(f, *given, everything=True)
    ran = [op for group in note.groups for op in group if "attention" in op]
    assert ran == [OP, f"{OP}_backward"]
    with sdpa_kernel(SDPBackend.MATH):
        exact = f(*(x if x.dtype == torch.bool else x.double() for x in given))
    least = 1e-3 if dtype == torch.bfloat16 else 16 * torch.finfo(dtype).eps
    for ours, theirs, right in zip(made, f(*given), exact, strict=True):
        assert ours.stride() == theirs.stride() and ours.dtype == dtype
        bound = 2 * (theirs.double() - right).abs().max() + least * right.abs().max()
        assert (ours.double() - right).abs().max() <= bound


@pytest.mark.parametrize("causal", [True, False])
def test_causal_attention_is_ours_if_nothing_is_measured(causal: bool) -> None:
    def f(q: torch.Tensor) -> torch.Tensor:
        y = F.scaled_dot_product_attention(q, q, q, is_causal=causal)
        return torch.autograd.grad(y.sum(), q)[0]

    _, note = run(f, torch.randn(1, 2, 5, 8, requires_grad=True))
    reasons = {f.reason for f in note.foreign if f.op.startswith(OP)}
    assert reasons == (set() if causal else {table.FASTER})


def test_wide_heads_stay_pytorchs() -> None:
    q = torch.randn(1, 1, 3, 257, requires_grad=True)
    _, note = run(lambda q: F.scaled_dot_product_attention(q, q, q), q, everything=True)
    assert [f.reason for f in note.foreign] == ["a head has more than 256 elements"]


class Row:
    """Allocates tensors one behind the other."""

    def __init__(self) -> None:
        self.memory, self.used = bytearray(1 << 16), 0

    def __call__(self, shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        count, begin = math.prod(shape), self.used
        self.used += count * dtype.itemsize
        flat = torch.frombuffer(self.memory, dtype=dtype, count=count, offset=begin)
        return flat.as_strided(shape, stride)


def test_arguments_with_gaps_are_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results may be right behind the memory of an argument, which may be placed otherwise than
    planned."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.exp() + 1, x.view(x.shape).sum(0)

    new = Row()
    monkeypatch.setattr(calls, "_FAST", new)
    whole = new((5, 3, 4, 7), (84, 28, 7, 1), torch.float32).copy_(torch.randn(5, 3, 4, 7))
    for part in (whole[:, 2], whole[..., 3:6], whole[2:, :, 1].transpose(0, 2)):
        new.used = whole.nbytes
        made, note = lower(make_fx(f, tracing_mode="fake")(part), "forward", everything=True)
        assert note.foreign == [] and len(note.groups) == 1
        for given in (part, part.clone(), torch.cat((part, part))[: len(part)]):
            torch.testing.assert_close(compile_boxed(made)([given]), f(given))
    steps, note = run(lambda x: x.exp(), whole.unfold(1, 2, 1), everything=True)  # they overlap
    assert note.groups == [] and torch.equal(steps, whole.unfold(1, 2, 1).exp())
