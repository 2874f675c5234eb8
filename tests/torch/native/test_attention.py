"""Attention in our kernels, and arguments with gaps between their elements."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from cutback.torch.graph.codegen import compile_boxed
from cutback.torch.native import calls, table
from cutback.torch.native.lowering import lower

OP = "aten._scaled_dot_product_flash_attention_for_cpu"


def run(f: Any, *inputs: torch.Tensor, **options: Any) -> tuple[Any, Any]:
    """Returns the results of a function in our kernels, and the note."""
    made, note = lower(make_fx(f, tracing_mode="fake")(*inputs), "forward", **options)
    return compile_boxed(made)(list(inputs)), note


@pytest.mark.parametrize(
    ("dtype", "causal", "has_mask"),
    [(torch.float32, True, False), (torch.float64, False, True), (torch.bfloat16, False, False)],
)
def test_attention(dtype: torch.dtype, causal: bool, has_mask: bool) -> None:
    """Results and gradients are at most twice as far from those in f64 as PyTorch's. Queries, keys
    and values are parts of one tensor."""
    torch.manual_seed(0)
    given = [torch.randn(2, 19, 3, 4, 8), torch.randn(2, 19, 4, 8)]
    given = [t.to(dtype) for t in (*given, *([torch.randn(1, 4, 19, 19)] if has_mask else []))]

    def f(x: torch.Tensor, g: torch.Tensor, *mask: torch.Tensor) -> list[torch.Tensor]:
        parts = [x[:, :, i].transpose(1, 2).detach().requires_grad_() for i in range(3)]
        y = F.scaled_dot_product_attention(*parts, *mask, is_causal=causal, scale=0.3)
        return [y, *torch.autograd.grad(y, parts, g.transpose(1, 2))]

    made, note = run(f, *given, everything=True)
    assert [op for group in note.groups for op in group] == [OP, f"{OP}_backward"]
    expected, exact = f(*given), f(*(t.double() for t in given))
    for ours, theirs, right in zip(made, expected, exact, strict=True):
        assert ours.stride() == theirs.stride() and ours.dtype == dtype
        least = 8 * torch.finfo(dtype).eps if dtype != torch.bfloat16 else 1e-3
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
