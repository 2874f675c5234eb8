"""Results that occupy more memory than their shapes suggest: plans count what kernels allocate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cutback.torch as ct
from cutback.torch.graph import storages

Case = tuple[nn.Module, tuple[torch.Tensor, ...]]


class _Of(nn.Module):
    """A function of parameters and inputs, followed by a sum of squares."""

    def __init__(self, f: Callable[..., Any], *parameters: torch.Tensor) -> None:
        super().__init__()
        self.f = f
        self.p = nn.ParameterList([nn.Parameter(p) for p in parameters])

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.f(*self.p, *inputs).square().sum()


class _Layers(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().sum()


def _rows() -> Case:
    def f(w: Any, x: Any) -> Any:
        h = (x @ w).sin()
        o = torch.empty(4, *h.shape)
        for k in range(4):
            o[k] = h * (k + 1)
        return o.cos()

    return _Of(f, torch.randn(32, 32)), (torch.randn(25, 32),)


def _rotary() -> Case:
    def f(w: Any, x: Any) -> Any:
        h = x @ w
        o, n = torch.zeros_like(h), h.shape[-1] // 2
        o[..., :n] = -h[..., n:]
        o[..., n:] = h[..., :n]
        return h * o.cos()

    return _Of(f, torch.randn(32, 32)), (torch.randn(25, 32),)


def _circular_convolutions() -> Case:
    def layer() -> nn.Module:
        return nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")

    return _Layers(layer(), nn.SiLU(), layer()), (torch.randn(4, 8, 12, 12),)


def _circular_padding() -> Case:
    def f(w: Any, x: Any) -> Any:
        return F.pad(x * w, (2, 2), mode="circular").sin()

    return _Of(f, torch.randn(8, 16, 33)), (torch.randn(8, 16, 33),)


def _transform(name: str, **options: Any) -> Callable[[], Case]:
    def case() -> Case:
        def f(w: Any, x: Any) -> Any:
            z = getattr(torch.fft, name)((x * w).sin(), **options)
            return torch.view_as_real(z.resolve_conj()).cos()

        return _Of(f, torch.randn(7, 16, 33)), (torch.randn(7, 16, 33),)

    case.__name__ = "_".join([name, *map(str, options.values())])
    return case


def _fold() -> Case:
    layers = nn.Conv2d(4, 4, 1), nn.Unfold(3, padding=1), nn.Tanh(), nn.Fold((16, 16), 3, padding=1)
    return _Layers(*layers, nn.Sigmoid()), (torch.randn(4, 4, 16, 16),)


def _fold_of_one() -> Case:
    def f(w: Any, x: Any) -> Any:
        return F.fold((x * w).sin(), (12, 12), 3, dilation=2).cos()

    return _Of(f, torch.randn(36, 64)), (torch.randn(36, 64),)


def _unfold_less() -> Case:
    """Makes patches that skip most of the image, so the result is smaller than the argument."""

    def f(w: Any, x: Any) -> Any:
        return F.unfold((x * w).sin(), 1, stride=3).cos()

    return _Of(f, torch.randn(4, 3, 24, 24)), (torch.randn(4, 3, 24, 24),)


def _pieces_of_pieces() -> Case:
    """Copies a tensor that is part of a copy, which owns the whole memory."""

    def f(w: Any, x: Any) -> Any:
        h = (x @ w).sin()
        o = torch.zeros(3, 2, *h.shape)
        o[1][0] = h
        o[2, 1, 3:7] = h[:4].cos()
        return o.sin()

    return _Of(f, torch.randn(32, 32)), (torch.randn(25, 32),)


CASES = (
    _rows, _rotary, _circular_convolutions, _circular_padding, _transform("rfft", dim=0),
    _transform("rfft", dim=1), _transform("rfftn"), _transform("rfft2"), _transform("ihfft"),
    _transform("ihfft", dim=0), _fold, _fold_of_one, _unfold_less, _pieces_of_pieces,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.lstrip("_"))
@pytest.mark.parametrize("budget", [pytest.param(None, marks=pytest.mark.very_slow), "min"])
def test_what_kernels_allocate_is_counted(case: Any, budget: Any, train_step: Any) -> None:
    torch.manual_seed(0)
    model, inputs = case()
    model(*inputs).backward()
    plain = [p.grad.clone() for p in model.parameters()]
    compiled = ct.compile(model, budget=budget, fullgraph=True)
    train_step(compiled, *inputs)  # nothing runs in eager mode, so there is no warning
    measured = train_step(compiled, *inputs)
    (plan,) = compiled.plans
    assert measured.peak_bytes == plan.numbers["live_bytes"]
    for gradient, expected in zip(measured.gradients.values(), plain, strict=True):
        torch.testing.assert_close(gradient, expected)


def test_what_no_rule_knows_is_said(monkeypatch: pytest.MonkeyPatch, train_step: Any) -> None:
    """A kernel that allocates more than the rules know is not mistaken for an eager part."""
    monkeypatch.delitem(storages.RULES, torch.ops.aten.col2im.default)
    model, inputs = _fold_of_one()
    compiled = ct.compile(model, budget="min", fullgraph=True)
    with pytest.warns(UserWarning, match="more memory than PyTorch's shape functions") as told:
        for _ in range(4):
            train_step(compiled, *inputs)
    assert len(told) == 1 and "eager" not in str(told[0].message)
