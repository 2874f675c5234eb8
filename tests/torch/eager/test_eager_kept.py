"""A region under a budget never exceeds it without a warning that has both figures, from its first
run on, as measured by `MemoryTracker`. Saved values never take more than in autograd."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from eager_tools import assert_same
from torch import nn

import cutback
from cutback.torch import MemoryTracker, checkpoint, checkpoint_plan
from cutback.torch.eager import plan as eager_plan

pytestmark = pytest.mark.torch

_SAID = re.compile(r"it may take .*?\((\d+) bytes\), over the budget of .*?\((\d+) bytes\)")


def bits(t: Any) -> Any:
    """Returns the bits, so that NaNs can be compared."""
    return t if t is None else torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def measured(call: Callable[[], Any], leaves: list[Any]) -> tuple[int, list[Any], list[str]]:
    """Returns the peak, gradients and warnings of one step."""
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(1)
    with warnings.catch_warnings(record=True) as said, MemoryTracker() as memory:
        warnings.simplefilter("always")
        loss = call()
        loss = loss if loss.dim() == 0 else loss.abs().sum()
        loss.backward()
        del loss
    return memory.peak_bytes, [bits(leaf.grad) for leaf in leaves], [str(w.message) for w in said]


def check(f: Callable[..., Any], xs: tuple[Any, ...], shares: tuple[Any, ...]) -> int:
    """Runs steps under budgets; returns how many budgets could be met."""
    leaves = [x for x in xs if x.requires_grad]
    if isinstance(f, nn.Module):
        leaves += f.parameters()
    plain, wanted, _ = measured(lambda: f(*xs), leaves)
    met = 0
    for budget in shares:
        eager_plan.forget_plans()  # otherwise warnings of similar regions would not repeat
        try:
            plan = checkpoint_plan(f, *xs, budget=budget)
        except cutback.BudgetError:
            assert budget not in ("min", 1.0)
            continue
        met += 1
        limit = plan.document["budget_bytes"]
        for run in range(3):
            peak, found, said = measured(lambda: checkpoint(f, *xs, budget=budget), leaves)  # noqa: B023
            assert_same(wanted, found)
            if budget == 1.0:
                assert run == 0 or peak <= plain
            figures = [match for text in said for match in [_SAID.search(text)] if match]
            assert len(figures) == len(said) and (run == 0 or not said), said
            if figures:
                assert int(figures[0][2]) == limit
                assert peak <= int(figures[0][1]) + 8, (budget, run)
            elif budget != "min" or run:  # the first run under "min" gives no warning
                assert peak <= limit, (budget, run)
    return met


class TwoConvolutions(nn.Module):
    """Adds one to the other in place, then applies `after`."""

    def __init__(self, after: Callable[[Any], Any]) -> None:
        super().__init__()
        self.c, self.s = nn.Conv2d(8, 16, 1), nn.Conv2d(8, 16, 1)
        self.after = after

    def forward(self, x: Any) -> Any:
        h = self.c(x)
        h += self.s(x)
        return self.after(h).sum()


AFTER: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda h: h,
    "relu": F.relu,
    "relu in place": lambda h: F.relu(h, inplace=True),
    "softmax": lambda h: F.softmax(h, 1).sin(),
    "twice in place": lambda h: h.mul_(2).add_(1).exp(),
    "sigmoid, then in place": lambda h: h.sigmoid().mul(3).add_(h).tanh(),
}


@pytest.mark.parametrize("name", AFTER)
def test_what_is_added_in_place_is_kept_to_or_said(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8, 9, 7).contiguous(memory_format=torch.channels_last)
    assert check(TwoConvolutions(AFTER[name]), (x,), ("min", "0.8x", 1.0)) >= 2


def test_a_first_run_with_values_added_in_place_says_what_it_takes() -> None:
    """The warning names both figures, for a plan as well as for a budget."""
    torch.manual_seed(0)
    model = TwoConvolutions(AFTER["softmax"])
    x = torch.randn(4, 8, 9, 7).contiguous(memory_format=torch.channels_last)
    plan = checkpoint_plan(model, x, budget=1.0)
    leaves = list(model.parameters())
    for how in ({"budget": 1.0}, {"plan": plan}):
        eager_plan.forget_plans()
        peak, _, said = measured(lambda: checkpoint(model, x, **how), leaves)  # noqa: B023
        found = [_SAID.search(text) for text in said]
        assert len(found) == 1 and found[0] is not None
        limit = plan.document["budget_bytes"]
        assert int(found[0][2]) == limit < peak <= int(found[0][1])


COMPLEX: dict[str, Callable[..., Any]] = {
    "itself": lambda z, w: (z * z.conj()).real.sum(),
    "product": lambda z, w: (z.conj().t() @ z).real.sum(),
    "product with another": lambda z, w: (z.conj() @ w).abs().sum(),
    "adjoint": lambda z, w: ((w @ z.mH) @ z).abs().sum(),
    "dot": lambda z, w: torch.vdot(z.flatten(), w.flatten()).abs() + z.abs().sum(),
    "sum": lambda z, w: (z.conj() + z + w.mH).abs().sum(),
    "negative": lambda z, w: (z.conj().imag * z.imag).exp().sum() + w.real.sum(),
    "conjugates of results": lambda z, w: ((z @ w).conj().sin() * w.mH + z).cos().conj().imag.sum(),
    "as real": lambda z, w: torch.view_as_real(z.conj() * z + w).exp().sum(),
    "linear": lambda z, w: F.linear(F.linear(z, w).tanh(), w.conj()).abs().sum(),
    "einsum": lambda z, w: torch.einsum("ij,kj->ik", z, w.conj()).abs().sum() + z.mH.abs().sum(),
    "transform": lambda z, w: torch.fft.ifft(torch.fft.fft(z).conj() * w).real.sum(),
}  # fmt: skip


@pytest.mark.very_slow
@pytest.mark.parametrize("name", COMPLEX)
def test_conjugates_that_kernels_write_out_are_counted(name: str) -> None:
    """Written conjugates are counted in the sum of two gradients, too, if one of these is a lazy
    conjugate."""
    torch.manual_seed(0)
    z, w = (torch.randn(8, 8, dtype=torch.cfloat, requires_grad=True) for _ in range(2))
    assert check(COMPLEX[name], (z, w), ("min", 1.0)) == 2


class Cells(nn.Module):
    """A recurrent cell that writes into parts of its gates, which autograd does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.LSTMCell(9, 12), nn.Linear(12, 1)

    def forward(self, x: Any) -> Any:
        h = c = x.new_zeros(x.shape[1], 12)
        for row in x:
            h, c = self.cell(row, (h, c))
        return self.last(h).pow(2).mean()


def test_what_a_slot_keeps_is_not_copied_by_writes_beside_it() -> None:
    torch.manual_seed(0)
    model, x = Cells(), torch.randn(3, 4, 9)
    plain = measured(lambda: model(x), list(model.parameters()))[0]
    assert check(model, (x,), ("min", 1.0, plain)) == 3
    assert checkpoint_plan(model, x, budget="min").document["budget_bytes"] < plain
