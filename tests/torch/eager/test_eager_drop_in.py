"""Tests ``checkpoint`` in place of ``torch.utils.checkpoint.checkpoint``, with the same
arguments."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eager_tools import Calls, assert_same, first_use, left
from torch import nn
from torch.utils import checkpoint as torchs

from cutback.torch import checkpoint, checkpoint_contexts, checkpoint_sequential

aten = torch.ops.aten


def step(run: Any, w: Any, x: Any) -> list[Any]:
    w = w.detach().requires_grad_()
    torch.manual_seed(3)

    def region(w: Any, x: Any, *, scale: float) -> Any:
        return torch.dropout((x @ w).sin() * scale, 0.3, True) @ w

    out = run(region, w, x, scale=2.0).square().sum()
    out.backward()
    return [out.detach(), w.grad]


@pytest.fixture
def given() -> Any:
    torch.manual_seed(0)
    return torch.randn(16, 16), torch.randn(8, 16)


def test_every_argument_of_pytorchs_is_known() -> None:
    theirs = inspect.signature(torchs.checkpoint).parameters
    ours = inspect.signature(checkpoint).parameters
    assert set(theirs) - {"function"} <= set(ours)
    assert all(ours[k].default == p.default for k, p in theirs.items()
               if k not in ("function", "context_fn") and p.kind is p.KEYWORD_ONLY)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"use_reentrant": False},
        {"use_reentrant": True},
        {"use_reentrant": False, "preserve_rng_state": False},
        {"determinism_check": "none", "debug": False, "early_stop": True},
        {"context_fn": torchs.noop_context_fn},
        {"budget": "min", "use_reentrant": False},
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_changes_nothing(given: Any, options: dict[str, Any]) -> None:
    plain = step(lambda f, *a, **k: f(*a, **k), *given)
    assert_same(step(functools.partial(checkpoint, **options), *given), plain)


@pytest.mark.parametrize(
    "contexts", [torchs.create_selective_checkpoint_contexts, checkpoint_contexts]
)
def test_contexts_of_a_policy_are_its_policy(given: Any, contexts: Any) -> None:
    """Values that the policy saves are not recomputed."""

    def products(options: dict[str, Any]) -> int:
        w = given[0].clone().requires_grad_()
        out = checkpoint(lambda w: ((w @ w).sin() @ w).sin().sum(), w, **options)
        with Calls() as calls:
            out.backward()
        return calls.counts[aten.mm]

    saved = {"context_fn": functools.partial(contexts, [aten.mm.default])}
    assert products({}) == 4 + 2 and products(saved) == 4
    assert_same(
        step(functools.partial(checkpoint, **saved), *given),
        step(lambda f, *a, **k: f(*a, **k), *given),
    )
    with pytest.raises(ValueError, match="context_fn already has a policy"):
        checkpoint(torch.sin, given[0], policy_fn=[aten.mm], **saved)


def test_a_context_around_the_forward(given: Any) -> None:
    seen = []

    @contextlib.contextmanager
    def note(name: str) -> Iterator[None]:
        seen.append(name)
        yield
        seen.append(f"{name} ends")

    run = functools.partial(checkpoint, context_fn=lambda: (note("in"), contextlib.nullcontext()))
    assert_same(step(run, *given), step(lambda f, *a, **k: f(*a, **k), *given))
    assert seen == ["in", "in ends"]
    with pytest.raises(ValueError, match=r"second context \(_GeneratorContextManager\)"):
        checkpoint(torch.sin, given[0], context_fn=lambda: (note("in"), note("again")))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"debug": True}, ValueError, "two runs"),
        ({"early_stop": False}, ValueError, "early_stop=False"),
        ({"determinism_check": "shape"}, ValueError, "not one of default, none"),
        ({"use_reentrant": "no"}, TypeError, "use_reentrant='no'"),
        ({"preserve_rng_state": None}, TypeError, "preserve_rng_state=None"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_refused(given: Any, options: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        checkpoint(torch.sin, given[0], **options)


@pytest.mark.parametrize("segments", [1, 2, 3, 5])
def test_sequential(given: Any, segments: int) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 16), nn.Sigmoid()
    )

    def found(run: Any) -> list[Any]:
        model.zero_grad()
        torch.manual_seed(2)
        out = run(given[1]).square().sum()
        out.backward()
        return [out.detach(), *(p.grad for p in model.parameters())]

    plain = found(model)
    assert_same(found(lambda x: checkpoint_sequential(model, segments, x)), plain)
    assert_same(
        found(lambda x: checkpoint_sequential(list(model), segments, x, use_reentrant=False)), plain
    )


def test_sequential_refuses_what_it_cannot_cut(given: Any) -> None:
    with pytest.raises(TypeError, match=r"segments=2.0 must be an int"):
        checkpoint_sequential([torch.sin, torch.cos], 2.0, torch.ones(2))
    with pytest.raises(ValueError, match="segments=3: for 2 functions"):
        checkpoint_sequential([torch.sin, torch.cos], 3, given[0])


class Keeps(torch.autograd.Function):
    """Inspects the object it saved."""

    found: Any = None

    @staticmethod
    def forward(ctx: Any, x: Any, b: Any) -> Any:
        ctx.save_for_backward(b)
        return x * b

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        Keeps.found = ctx.saved_tensors[0]
        return grad * ctx.saved_tensors[0], None


@pytest.mark.parametrize(
    "options", [{}, {"budget": "min"}, {"policy_fn": [aten.mul]}], ids=["all", "budget", "policy"]
)
def test_a_saved_object_is_the_object(given: Any, options: Any) -> None:
    first_use()
    x = given[1].clone().requires_grad_()
    b = torch.randn(8, 16)
    b.note = "mine"
    for _ in range(2):
        out = checkpoint(lambda x, b: Keeps.apply(x.sin(), b), x, b, **options)
        out.sum().backward()
        assert Keeps.found is b and Keeps.found.note == "mine"
    Keeps.found = None
    del out
    assert not left()


# ---- PyTorch 2.14 ----------------------------------------------------------------------------


def test_a_decorator(same_bits: Callable[..., bool]) -> None:
    @checkpoint(use_reentrant=False)
    def f(x: Any, scale: float = 1.0) -> Any:
        """Doc."""
        return (x * scale).sin().exp()

    class Block(torch.nn.Module):
        @checkpoint(budget="min")
        def forward(self, x: Any) -> Any:
            return x.sin().exp() * 2

    assert (f.__name__, f.__doc__) == ("f", "Doc.")
    x = torch.ones(4, requires_grad=True)
    for call, right in (
        (lambda: f(x, scale=2.0), lambda: (x * 2.0).sin().exp()),
        (lambda: Block()(x), lambda: x.sin().exp() * 2),
    ):
        gradients = [torch.autograd.grad(c().sum(), x)[0] for c in (call, right)]
        assert same_bits(*gradients)
    with pytest.raises(TypeError, match="leave out all positional arguments to decorate"):
        checkpoint(None, x)
    with pytest.raises(TypeError, match="can only decorate a function, not a Tensor"):
        checkpoint(budget="min")(x)
    with pytest.raises(ValueError, match="debug=True"):
        checkpoint(debug=True)


def test_hooks_around_a_region_can_be_asked_for() -> None:
    x = torch.ones(4, requires_grad=True)
    for respect in (None, False, True):
        y = checkpoint(torch.sin, x, use_reentrant=False, respect_saved_tensors_hooks=respect)
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], x.detach().cos())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        checkpoint(torch.sin, x, respect_saved_tensors_hooks=False)
        with pytest.raises(ValueError, match="offload=True holds them on the host"):
            checkpoint(torch.sin, x, respect_saved_tensors_hooks=True)
    with pytest.raises(TypeError, match="respect_saved_tensors_hooks"):
        checkpoint(torch.sin, x, respect_saved_tensors_hooks="yes")
