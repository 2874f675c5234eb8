"""Memory and random numbers of single calls of native groups."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import cutback.torch as ct
from cutback.torch.graph import draws
from cutback.torch.graph.codegen import compile_boxed
from cutback.torch.native.calls import call_of, compile_group
from cutback.torch.native.grouping import Kinds
from cutback.torch.native.lowering import NativeNote, lower


def flags_of(address: int) -> set[str]:
    """Returns the flags of the mapping of this process that contains an address."""
    inside = False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first, *rest = line.split()
            if "-" in first:
                begin, end = (int(n, 16) for n in first.split("-"))
                inside = begin <= address < end
            elif inside and first == "VmFlags:":
                return set(rest)
    return set()


@pytest.mark.skipif(
    not os.path.exists("/sys/kernel/mm/transparent_hugepage"), reason="needs huge pages"
)
def test_large_results_are_in_huge_pages() -> None:
    for count, large in ((1 << 21, True), (1 << 15, False)):
        x = torch.ones(count)
        made, _ = lower(make_fx(lambda x: x.exp().tanh(), tracing_mode="fake")(x), "forward")
        y = compile_boxed(made)([x])
        assert ("hg" in flags_of(y.data_ptr() + y.nbytes // 2)) is large
        assert torch.equal(y, y[:1].expand(count))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_around_a_kept_axis(dtype: torch.dtype, channels_last: bool) -> None:
    """A sum over all axes but the channels runs in one pass with the operations before it if the
    planes are rows in memory."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(8, 3, 32, 32).to(dtype).to(memory_format=layout)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sigmoid() * x
        return y.sum((0, 2, 3)), y.exp().mean((0, 2, 3), keepdim=True)

    kinds = Kinds(make_fx(f, tracing_mode="fake")(x).graph, True)
    group, _ = compile_group([n for n in kinds.order if n in kinds.own], kinds, None)
    if not channels_last:
        assert group.step.run_bytes < x.numel() * 4  # no array of the size of x in f32
    for made, exact in zip(call_of(group, [False])(x), f(x.double()), strict=True):
        assert made.shape == exact.shape and made.dtype == dtype
        eps = torch.finfo(dtype).eps * 32  # y is rounded to the type
        assert (made.double() - exact).abs().max() <= eps * exact.abs().max()


def test_trackers_see_results_and_scratch() -> None:
    """Results are allocated without dispatch, unless a mode such as a tracker is active."""
    x = torch.randn(64, 256)
    kinds = Kinds(make_fx(lambda x: x.exp().sum(0), tracing_mode="fake")(x).graph, True)
    group, _ = compile_group([n for n in kinds.order if n in kinds.own], kinds, None)
    call = call_of(group, [False])
    with ct.MemoryTracker() as memory:
        result = call(x)
    assert group.step.run_bytes > 0
    assert memory.peak_bytes == result.nbytes + group.step.run_bytes
    assert torch.equal(result, call(x))


class Dropouts(nn.Module):
    """Two dropouts, one on memory whose axes are in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(F.gelu(self.a(x)), 0.3)
        z = F.dropout((self.b(y) * 2).transpose(0, 1).exp(), 0.1)
        return (z + x.transpose(0, 1)).square().mean()


def test_masks_are_drawn_in_groups() -> None:
    """Groups draw the masks of `random="counter"`: the same as PyTorch's graph draws, and the same
    bits under every budget."""
    torch.manual_seed(0)
    model, x = Dropouts(), torch.randn(15, 12)
    losses, grads, drawn = [], [], []
    for options in (
        {"codegen": "eager"},
        {"codegen": "native"},
        {"codegen": "native", "budget": 0.0, "on_infeasible": "smallest"},
    ):
        step = ct.compile(model, random="counter", **options)
        model.zero_grad()
        torch.manual_seed(1)
        loss = step(x)
        loss.backward()
        losses.append(loss.detach())
        grads.append([p.grad.clone() for p in model.parameters()])
        notes = [n for n in step.compiler_notes if isinstance(n, NativeNote)]
        drawn.append(sum(g.count("cutback.keep_mask") for n in notes for g in n.groups))
    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(grads[1], grads[0])
    assert torch.equal(losses[1], losses[2]) and all(map(torch.equal, grads[1], grads[2]))
    assert drawn[0] == 0 and min(drawn[1:]) >= 2


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_a_mask_in_a_group_has_the_bits_of_the_operator(mode: str) -> None:
    cpu = torch.device("cpu")
    for shape, p in (((3, 5, 7), 0.1), ((2, 41), 0.75), ((0, 4), 0.5)):

        def f(seed: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return draws.KEEP_MASK(seed, 3, list(x.shape), p, cpu) * x  # noqa: B023

        given = [torch.tensor([2**62 + 17]), torch.ones(shape)]
        made, note = lower(make_fx(f, tracing_mode=mode)(*given), "forward", everything=True)
        assert note.groups == [("cutback.keep_mask", "aten.mul.Tensor")]
        assert torch.equal(compile_boxed(made)(list(given)), f(*given))
