"""Higher-order operators in eager regions: each is one op, whose results are held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.while_loop import while_loop
from torch.testing._internal.two_tensor import TwoTensor

import cutback.torch as ct


def branch(x: Any, w: Any) -> Any:
    h = (x * w).sin()
    y = torch.cond(x.sum() > 0, lambda a, b: (a @ b).sin(), lambda a, b: a * b, (h, w))
    return (h.mul(2) * y).exp().sin()


def rows(x: Any, w: Any) -> Any:
    return map_rows(lambda row, w: (row * w).sin(), x.sin(), w).exp().sin()


def scan(x: Any, w: Any) -> Any:
    return associative_scan(lambda a, b: a * b, (x * w).sin(), 0, combine_mode="generic").exp()


def loop(x: Any, w: Any) -> Any:
    more, body = lambda i, h: i < 3, lambda i, h: (i + 1, h.sin())
    return (while_loop(more, body, (torch.tensor(0), x.clone()))[1] * w).sin().exp()


@pytest.mark.filterwarnings("default")  # about the operators themselves
@pytest.mark.parametrize("fn", [branch, rows, scan, loop], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("budget", [None, "min"])
def test_gradients_are_those_without_a_region(fn: Callable[..., Any], budget: Any) -> None:
    x, w = torch.rand(4, 4), torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
    (right,) = torch.autograd.grad(fn(x, w).sum(), w)
    options = {} if budget is None else {"budget": budget}
    for _ in range(3):
        (got,) = torch.autograd.grad(ct.checkpoint(fn, x, w, **options).sum(), w)
        assert torch.equal(got, right)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("budget", [None, "min"])
def test_a_branch_that_writes_into_its_operand_is_refused(budget: Any) -> None:
    """Values computed from the operand later would have been recomputed from its old content."""
    x, w = torch.rand(4, 4), torch.ones(4, 4, requires_grad=True)

    def fn(x: Any, w: Any) -> Any:
        h = x.clone()
        with torch.no_grad():
            z = torch.cond(x.sum() > 0, lambda a: a.mul_(2).sin(), lambda a: a.cos(), (h,))
        return (h.sin() * w).exp() * z

    options = {} if budget is None else {"budget": budget}
    with pytest.raises(NotImplementedError, match="cond writes into one of its arguments"):
        ct.checkpoint(fn, x, w, **options)
    assert ct.checkpoint(torch.sin, w).grad_fn is not None  # no state is left behind


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("compile_", [lambda f: torch.compile(f, backend="aot_eager"), ct.compile])
def test_a_region_in_what_is_compiled_runs_outside_of_the_graphs(compile_: Any) -> None:
    """Dynamo used to trace our own code, and failed on gradients that are tensor subclasses."""
    modes = []

    def region(a: Any, w: Any) -> Any:
        modes.append(torch.compiler.is_dynamo_compiling())
        return (a * w).sin().exp()

    step = compile_(lambda x, w: ct.checkpoint(region, x.sin(), w).cos())
    w = torch.linspace(-1, 1, 4, requires_grad=True)
    x = TwoTensor(torch.ones(4), torch.full((4,), 2.0))
    for _ in range(3):
        step(x, w).sum().backward()
    assert modes == [False] * 3
    (right,) = torch.autograd.grad(region(x.sin(), w).cos().sum(), w)
    assert torch.allclose(w.grad.a, 3 * right.a) and torch.allclose(w.grad.b, 3 * right.b)
