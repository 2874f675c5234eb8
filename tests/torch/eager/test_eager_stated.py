"""Tests limits stated in docs/torch-eager.md that no other test covers, compared with plain
autograd."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eager_tools import Calls, Tracker
from torch import nn

from cutback.torch import checkpoint, checkpoint_plan

pytestmark = pytest.mark.torch
aten = torch.ops.aten


def test_a_long_chain_holds_two_roots_of_its_length() -> None:
    """The chain also holds the value being computed, with its gradients."""
    x, n = torch.randn(256, requires_grad=True), 2500

    def f(x: Any) -> Any:
        for _ in range(n):
            x = x.sin()
        return x.sum()

    with Tracker() as tracker, Calls() as calls:
        checkpoint(f, x).backward()
    assert 3 * n < calls.counts[aten.sin] <= 4 * n  # the forward runs each once
    assert tracker.peak <= (2 * n**0.5 + 4) * x.nbytes


def _step(call: Callable[[Any], Any], write: Callable[[Any], None] | None) -> Any:
    """Returns the gradient of a region's input, which may be overwritten before the backward."""
    x = torch.linspace(-1, 1, 16).requires_grad_()
    out = call(x)
    if write is not None:
        write(x)
    out.sum().backward()
    return x.grad


def _by_data(x: Any) -> None:
    x.data.add_(1)


def _by_numpy(x: Any) -> None:
    x.detach().numpy()[:] += 1


@pytest.mark.parametrize("write", [_by_data, _by_numpy])
def test_writes_between_region_and_backward_that_nobody_sees(write: Any) -> None:
    """Plain autograd reads the new content, and so does a region."""

    def f(x: Any) -> Any:
        return x * x.detach()

    plain = _step(f, write)
    assert torch.equal(_step(lambda x: checkpoint(f, x), write), plain)
    assert not torch.equal(plain, _step(f, None))


def test_a_saved_result_that_is_given_other_memory() -> None:
    """The value that was saved is used."""

    def f(x: Any, other: bool) -> Any:
        h = x.exp()
        out = h * h.sin()
        if other:
            h.data = torch.zeros(16)
        return out

    for options in ({}, {"policy_fn": [aten.exp]}):
        found = _step(lambda x: checkpoint(f, x, True, **options), None)  # noqa: B023
        assert torch.equal(found, _step(lambda x: f(x, False), None))


def test_functional_transforms_and_compiled_code(recwarn: pytest.WarningsRecorder) -> None:
    x = torch.randn(4, 4)

    def f(x: Any) -> Any:
        return (x.sin() @ x).exp()

    def region(x: Any) -> Any:
        return checkpoint(f, x)

    with pytest.warns(UserWarning, match="without recomputation"):
        gradient = torch.func.grad(lambda x: region(x).sum())(x)
    assert torch.equal(gradient, torch.func.grad(lambda x: f(x).sum())(x))
    jacobian = torch.autograd.functional.jacobian
    assert torch.equal(jacobian(region, x), jacobian(f, x))
    xs = torch.randn(3, 4, 4)
    assert torch.allclose(torch.vmap(region)(xs), torch.vmap(f)(xs))
    compiled = torch.compile(f, backend="aot_eager")
    leaf = x.clone().requires_grad_()
    out = checkpoint(compiled, leaf)
    with Calls() as calls:
        out.sum().backward()
    assert calls.counts[aten.sin] == 1  # it ran eagerly, and is recomputed


class Keeps(torch.autograd.Function):
    """Keeps a tensor as an attribute."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.kept = x.sin()
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g.repeat(20)[: g.numel()] * ctx.kept


def test_functions_hold_what_they_keep_and_are_not_called_for_a_plan() -> None:
    """The plan therefore does not know the temporaries of their backward."""
    x = torch.randn(1024, requires_grad=True)

    def f(x: Any) -> Any:
        return Keeps.apply(x.sin()).sum()

    plan = checkpoint_plan(f, x, budget=1.0)
    for _ in range(2):
        with Tracker() as tracker:
            loss = checkpoint(f, x, budget=1.0)
            held = tracker.live
            loss.backward()
    assert held >= x.nbytes
    assert tracker.peak > plan.document["budget_bytes"] + 10 * x.nbytes


def test_two_backwards_and_backwards_of_some_results_hold_more() -> None:
    torch.manual_seed(0)
    trunk = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(48, 48), nn.Tanh())))
    u, v, x = nn.Linear(48, 48), nn.Linear(48, 48), torch.randn(192, 48)

    def f(x: Any) -> Any:
        h = trunk(x)
        return u(h).square().mean(), v(h).tanh().mean()

    limit = checkpoint_plan(f, x, budget="min").document["budget_bytes"]

    def peak(run: Callable[[Any, Any], None]) -> int:
        for module in (trunk, u, v):
            module.zero_grad()
        with Tracker() as tracker:
            run(*checkpoint(f, x, budget=limit))
        return tracker.peak

    def together(a: Any, b: Any) -> None:
        (a + b).backward()

    def apart(a: Any, b: Any) -> None:
        a.backward(retain_graph=True)
        b.backward()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peak(together)
        assert peak(together) <= limit + 16 < peak(apart)


def test_a_region_that_does_something_else_says_so() -> None:
    w, layers = torch.randn(32, 32), [3]

    def f(x: Any) -> Any:
        for _ in range(layers[0]):
            x = (x @ w).tanh().sin()
        return x.sum()

    def gradient(call: Any) -> Any:
        x = torch.ones(32, 32, requires_grad=True)
        call(x).backward()
        return x.grad

    for _ in range(2):
        gradient(lambda x: checkpoint(f, x, budget="min"))
    layers[0] = 5
    with pytest.warns(UserWarning, match="continued without a plan"):
        found = gradient(lambda x: checkpoint(f, x, budget="min"))
    assert torch.equal(found, gradient(f))
