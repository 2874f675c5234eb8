"""Complex values are planned, saved and recomputed like others."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import cutback.torch as ct


class Mixing(nn.Module):
    """Complex values, parameters and gradients, and conjugates."""

    def __init__(self) -> None:
        super().__init__()
        self.angle = nn.Parameter(torch.randn(33, 2) * 0.1)
        self.mixed = nn.Parameter(torch.randn(33, 33, dtype=torch.complex64) * 0.1)

    def forward(self, x: Any) -> Any:
        for _ in range(3):
            z = torch.fft.rfft(x, norm="ortho") * torch.view_as_complex(self.angle).exp()
            z = z.conj() / (1 + z.abs()) + (self.mixed @ z.unsqueeze(-1)).squeeze(-1)
            x = torch.fft.irfft(z.sin(), n=64) + z.mH.imag.mean()
        return x.sin().sum()


@pytest.mark.very_slow
@pytest.mark.parametrize(
    "budget",
    [*(pytest.param(b, marks=pytest.mark.very_slow) for b in ("fastest", "0.8x")), "min"],
)
def test_complex_values(
    budget: Any,
    ran: Counter[str],
    same_bits: Callable[..., bool],
    train_step: Callable[..., Any],
) -> None:
    """The results have eager mode's bits, and 8 bytes per element."""

    torch.manual_seed(5)
    model = Mixing()
    x = torch.randn(16, 64)
    expected = train_step(copy.deepcopy(model), x)
    compiled = ct.compile(model, budget=budget)
    got = train_step(compiled, x)
    assert same_bits(got.loss, expected.loss)
    assert same_bits(list(got.gradients.values()), list(expected.gradients.values()))
    (plan,) = compiled.plans
    assert got.peak_bytes == plan.numbers["live_bytes"] and ran["backward"] == 1
    assert (plan.numbers["recomputed"] > 0) == (budget != "fastest")
    values = [out for op in plan.problem["ops"] for out in op["out"]]
    assert any(v.get("type") == "c64[16,33]" and v["bytes"] == 16 * 33 * 8 for v in values)
