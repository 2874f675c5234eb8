"""Tests backwards of checkpointed regions that fail, never run, run twice or nest."""

from __future__ import annotations

import functools
import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from eager_tools import PRODUCTS, assert_same, gradients, left

from cutback.torch import checkpoint, checkpoint_plan
from cutback.torch.eager.log import active

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("imports_of_a_first_use")]

torch.set_num_threads(1)


def test_exception_in_the_backward_leaves_nothing(x: Any) -> None:
    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            raise KeyError("stop")

    def f(x: Any) -> Any:
        y = F.dropout(x.sin().exp(), 0.2)
        return (Stop.apply(y) if f.stop else y).cos().exp()  # type: ignore[attr-defined]

    for options in ({}, {"budget": 1.0}):
        run = functools.partial(checkpoint, **options)
        f.stop = False  # type: ignore[attr-defined]
        plain = gradients(f, x)
        for stop in (False, True, True, False, False):
            f.stop = stop  # type: ignore[attr-defined]
            gc.collect()
            if stop:
                with pytest.raises(KeyError):
                    gradients(f, x, run=run)
            else:
                assert_same(plain, gradients(f, x, run=run))
            assert active() is None and torch.is_grad_enabled()
        gc.collect()
        assert not left()


def test_a_region_whose_backward_never_runs_is_freed(x: Any) -> None:
    def f(x: Any) -> Any:
        return F.dropout(x.sin().exp(), 0.3).cos().exp()

    for options in ({}, {"policy_fn": PRODUCTS}, {"budget": 1.0}, {"budget": 1.0}):
        checkpoint(f, x.clone().requires_grad_(), **options)
        assert not left(), options
    checkpoint_plan(f, x.clone().requires_grad_(), budget=1.0)
    assert not left()


def test_a_region_inside_a_backward(x: Any) -> None:
    """While a region's backward runs, another region runs forward and backward."""
    w = torch.randn(6, 6)

    def f(x: Any) -> Any:
        return (x @ w).sin().exp()

    def run(wrap: Any) -> list[Any]:
        class Inside(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                with torch.enable_grad():
                    leaf = x.clone().requires_grad_()
                    (inner,) = torch.autograd.grad(wrap(f, leaf).sum(), leaf)
                return g * inner

        leaf = x.clone().requires_grad_()
        wrap(lambda x: f(Inside.apply(f(x))), leaf).sum().backward()
        return [leaf.grad]

    plain = run(lambda f, x: f(x))
    for options in ({}, {"policy_fn": PRODUCTS}, {"budget": 1.0}, {"budget": 1.0}):
        assert_same(plain, run(functools.partial(checkpoint, **options)))


def test_second_backward(x: Any) -> None:
    leaf = x.clone().requires_grad_()
    out = checkpoint(lambda x: (x @ x).sin().exp().tanh(), leaf).sum()
    (first,) = torch.autograd.grad(out, leaf, retain_graph=True)
    (second,) = torch.autograd.grad(out, leaf)
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_double_backward(x: Any) -> None:
    def hessian(run: Any) -> list[Any]:
        leaf = x.clone().requires_grad_()
        out = run(lambda x: (x @ x).sin().exp() * x.sigmoid(), leaf).sum()
        (g,) = torch.autograd.grad(out, leaf, create_graph=True)
        return [g.detach(), *torch.autograd.grad(g.square().sum(), leaf)]

    assert_same(hessian(lambda f, x: f(x)), hessian(checkpoint))


def test_backward_under_autocast(x: Any) -> None:
    leaf = x.clone().requires_grad_()
    out = checkpoint(lambda x: (x @ x).exp().sin() @ x, leaf).sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out.backward()
    plain = x.clone().requires_grad_()
    out = ((plain @ plain).exp().sin() @ plain).sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out.backward()
    assert torch.equal(leaf.grad, plain.grad)
