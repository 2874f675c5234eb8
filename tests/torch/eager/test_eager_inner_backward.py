"""Tests regions that run a backward inside, and regions with tensors that a plan cannot count: they
give the gradients of plain autograd, or an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import cutback.torch as ct


def energy_and_force(m: Any, x: Any) -> Any:
    e = m(x).sum()
    (force,) = torch.autograd.grad(e, x, create_graph=True)
    return e + force.pow(2).sum()


def gradients_as_data(m: Any, x: Any) -> Any:
    (force,) = torch.autograd.grad(m(x).sum(), x, retain_graph=True)
    return (m(x) * force.norm(dim=1, keepdim=True)).sum()


def inner_step(m: Any, x: Any) -> Any:
    z = x.detach().requires_grad_()
    m(z).pow(2).sum().backward(inputs=[z])
    return m(x + 0.1 * z.grad).sum()


def twice(m: Any, x: Any) -> Any:
    (first,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    return (first * second).sum()


CASES = [energy_and_force, gradients_as_data, inner_step, twice]


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("budget", [None, pytest.param(1.0, marks=pytest.mark.very_slow), "min"])
def test_a_backward_inside(fn: Callable[..., Any], budget: Any) -> None:
    torch.manual_seed(0)
    m = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    x = torch.randn(6, 4, requires_grad=True)

    def gradients(call: Any) -> list[Any]:
        for t in (*m.parameters(), x):
            t.grad = None
        call().backward()
        return [t.grad.clone() for t in (*m.parameters(), x) if t.grad is not None]

    right = gradients(lambda: fn(m, x))
    options = {} if budget is None else {"budget": budget}
    for _ in range(3):
        got = gradients(lambda: ct.checkpoint(fn, m, x, **options))
        assert len(got) == len(right)
        assert all(map(torch.equal, got, right))


def jagged(x: Any) -> Any:
    return torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 1, 4])).sin().values()


def nested(x: Any) -> Any:
    pair = torch.nested.as_nested_tensor([x[:2].clone(), x[2:].clone()])
    return pair.sin().to_padded_tensor(0.0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("fn", [jagged, nested], ids=lambda fn: fn.__name__)
def test_tensors_that_no_plan_can_count(fn: Callable[..., Any]) -> None:
    x = torch.randn(4, 2, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"budget: aten\..* Leave the budget out"):
        ct.checkpoint(fn, x, budget="min")
    ct.checkpoint(fn, x).sum().backward()
    assert torch.equal(x.grad, x.detach().cos())
