"""Tests a loss that is computed outside of a compiled model: the bound on its memory, and the
warning if that is over the budget."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F

import cutback.torch as ct
from cutback.torch.compiler import losses

ROWS, WORDS = 256, 100
FULL = ROWS * WORDS * 4
TARGET = torch.arange(ROWS) % WORDS
ONES = torch.ones(ROWS, WORDS)

KINDS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    # the gradient received, the result kept, the gradient made
    "cross_entropy": (lambda x: F.cross_entropy(x, TARGET), 3 * FULL),
    # a few elements that are repeated, until the product below the loss makes a gradient of them
    "sum": (lambda x: x.sum(), FULL),
    # the input kept, the gradient made, and the array kept with the loss
    "mse_loss": (lambda x: F.mse_loss(x, ONES), 3 * FULL),
    # the gradient received, the input kept, the gradient made
    "l1_loss": (lambda x: F.l1_loss(x, ONES), 3 * FULL),
    "squares": (lambda x: x.square().mean(), 3 * FULL),
    # the input and two temporary arrays of the forward
    "bce_with_logits": (lambda x: F.binary_cross_entropy_with_logits(x, ONES), 3 * FULL),
    # the gradient of the mean, and that of the product below the loss
    "mean of a view": (lambda x: x.t().reshape(-1).mean(), 2 * FULL),
    # the result kept and the gradient made; the one received is repeated
    "exp": (lambda x: x.exp().sum(), 2 * FULL),
    # the gradient of the cast is of half the size
    "half": (lambda x: F.cross_entropy(x.half().float(), TARGET), 3 * FULL),
}


def peak_of(loss: Callable[[torch.Tensor], torch.Tensor]) -> tuple[int, int]:
    """Returns the bound of a loss, and the measured peak of the loss and its backward."""
    x = torch.randn(ROWS, WORDS, requires_grad=True)
    found: list[int] = []
    with ct.MemoryTracker() as memory:
        result = x * 1
        assert result.grad_fn is not None
        result.grad_fn.register_prehook(
            lambda gradients: found.append(losses.least_bytes(losses.losses_of_backward(), FULL))
        )
        value = loss(result)
        del result
        value.backward()
    return found[0], memory.peak_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_of_a_loss(kind: str) -> None:
    loss, expected = KINDS[kind]
    least, peak = peak_of(loss)
    assert expected <= least <= peak
    assert least <= expected + 1024


def test_a_backward_begun_by_grad() -> None:
    x = torch.randn(ROWS, WORDS, requires_grad=True)
    result = x * 1
    assert result.grad_fn is not None
    found: list[Any] = []
    result.grad_fn.register_prehook(lambda gradients: found.extend(losses.losses_of_backward()))
    loss = result.exp().sum()
    torch.autograd.grad(loss, x)
    assert len(found) == 1
    assert found[0] is loss
    assert losses.losses_of_backward() == []


class Step(nn.Module):
    """A model with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), TARGET)


def said_by(step: Callable[[], torch.Tensor]) -> tuple[list[str], int]:
    """Returns the warnings and the peak of three steps."""
    most = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            with ct.MemoryTracker() as memory:
                step().backward()
            most = max(most, memory.peak_bytes)
    return [str(w.message) for w in caught], most


@pytest.mark.very_slow
def test_a_loss_outside_is_said_once_and_a_loss_inside_is_not() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, WORDS)), torch.randn(ROWS, 8)
    outside = ct.compile(model, budget=0.5)
    said, peak = said_by(lambda: F.cross_entropy(outside(x), TARGET))
    assert len(said) == 1
    assert said[0].startswith("the loss is computed outside of the compiled model")
    taken = int(said[0].split(" bytes)")[0].split("(")[-1])
    limit = outside.plans[0].numbers["budget_bytes"]
    assert limit is not None
    assert limit < taken <= peak
    assert "budget of 0.5: " in said[0]
    model.zero_grad(set_to_none=True)
    inside = ct.compile(Step(model), budget=0.5)
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        with ct.MemoryTracker() as memory:
            inside(x).backward()
    limit = inside.plans[0].numbers["budget_bytes"]
    assert limit is not None
    assert memory.peak_bytes <= limit
