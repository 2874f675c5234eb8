"""Tests regions under function transforms and forward-mode AD, with and without a budget: the
values are those of the function itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eager_tools import Calls
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from cutback.torch import checkpoint, checkpoint_plan
from cutback.torch.eager.plan import forget_plans

pytestmark = [
    pytest.mark.torch,
    # PyTorch 2.14 warns about its own forward-mode formulas
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning"),
]
aten = torch.ops.aten

BUDGETS: tuple[Any, ...] = (None, "min")


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    forget_plans()
    yield
    forget_plans()


def _region(budget: Any) -> Callable[..., Any]:
    options = {} if budget is None else {"budget": budget}
    return lambda fn, *args: checkpoint(fn, *args, **options)


W = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)) / 2
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def _g(x: Any) -> Any:
    return ((x @ W).sin() * x).tanh()


def _in_place(x: Any) -> Any:
    h = x @ W
    k = h.sin()
    k.mul_(h)
    return k.tanh()


def _dual(f: Any, x: Any) -> Any:
    with forward_ad.dual_level():
        out = f(forward_ad.make_dual(x, torch.ones_like(x)))
        return tuple(t.clone() for t in forward_ad.unpack_dual(out))


def _reverse_over_forward(f: Any, x: Any) -> Any:
    leaf = x.clone().requires_grad_()
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(leaf, torch.ones_like(x)))).tangent
        return torch.autograd.grad(tangent.sum(), leaf)


def _backward_through_vmap(f: Any, x: Any) -> Any:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(vmap(f)(leaf).sum(), leaf)


def _vjp(f: Any, x: Any) -> Any:
    out, back = vjp(f, x)
    return out, *back(torch.ones_like(out))


def _jacobian(strategy: str) -> Any:
    def run(f: Any, x: Any) -> Any:
        return torch.autograd.functional.jacobian(f, x, strategy=strategy, vectorize=True)

    return run


def _scalar(f: Any) -> Any:
    return lambda x: f(x).sum()


TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "vmap": lambda f, x: vmap(f)(x),
    "vmap of vmap": lambda f, x: vmap(vmap(f))(x.expand(2, 3, 4)),
    "vmap, then backward": _backward_through_vmap,
    "grad": lambda f, x: grad(_scalar(f))(x),
    "grad of grad": lambda f, x: grad(lambda y: grad(_scalar(f))(y).sum())(x),
    "vmap of grad": lambda f, x: vmap(grad(_scalar(f)))(x),
    "grad of vmap": lambda f, x: grad(lambda y: vmap(f)(y).sum())(x),
    "vjp": _vjp,
    "jvp": lambda f, x: jvp(f, (x,), (x + 1,)),
    "jvp of jvp": lambda f, x: jvp(lambda y: jvp(f, (y,), (y,))[1], (x,), (x,)),
    "jvp of vmap": lambda f, x: jvp(vmap(f), (x,), (x,)),
    "vmap of jvp": lambda f, x: vmap(lambda r: jvp(f, (r,), (r,))[1])(x),
    "jacrev": lambda f, x: jacrev(f)(x),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "hessian": lambda f, x: hessian(_scalar(f))(x),
    "forward AD": _dual,
    "backward of forward AD": _reverse_over_forward,
    "jacobian": _jacobian("reverse-mode"),
    "forward jacobian": _jacobian("forward-mode"),
}


@pytest.mark.parametrize(
    ("name", "function"),
    [(name, _g) for name in TRANSFORMS] + [("vmap", _in_place), ("forward AD", _in_place)],
)
def test_values_are_those_of_the_function(name: str, function: Any) -> None:
    expected = TRANSFORMS[name](function, X)
    for budget in BUDGETS:
        region = _region(budget)
        for _ in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = TRANSFORMS[name](lambda x, region=region: region(function, x), X)
            torch.testing.assert_close(found, expected, msg=f"{name}, budget={budget!r}")


@pytest.mark.parametrize("inner", ["vmap", "vmap of jvp", "forward AD"])
def test_transforms_inside_a_region(inner: str) -> None:
    """The results are the same as without a region."""

    def f(x: Any) -> Any:
        out = TRANSFORMS[inner](_g, x.sin())
        return (out[1] if isinstance(out, tuple) else out).exp()

    def step(call: Callable[[Any], Any]) -> Any:
        leaf = X.clone().requires_grad_()
        out = call(leaf)
        return out.detach(), *torch.autograd.grad(out.sum(), leaf)

    expected = step(f)
    for budget in BUDGETS:
        region = _region(budget)
        for _ in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = step(lambda x, region=region: region(f, x))
            torch.testing.assert_close(found, expected, msg=f"{inner}, budget={budget!r}")


@pytest.mark.parametrize("budget", BUDGETS)
def test_functional_call_with_per_sample_gradients(budget: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def loss(parameters: Any, x: Any, call: Any) -> Any:
        return call(lambda y: functional_call(net, parameters, (y,)), x).pow(2).sum()

    def each(call: Any) -> Any:
        return vmap(grad(lambda p, x: loss(p, x, call)), in_dims=(None, 0))(parameters, X)

    expected = each(lambda fn, x: fn(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(each(_region(budget)), expected)


@pytest.mark.parametrize(
    ("name", "around"),
    [("vmap", "torch.func.vmap"), ("jvp", "torch.func.jvp"), ("forward AD", "dual_level")],
)
def test_a_region_without_a_plan_says_so_once(name: str, around: str) -> None:
    with pytest.warns(UserWarning, match=f"cannot be planned inside .*{around}") as said:
        for _ in range(3):
            TRANSFORMS[name](lambda x: checkpoint(_g, x, budget="min"), X)
    ours = [w for w in said if "cannot be planned" in str(w.message)]  # PyTorch warns as well
    assert len(ours) == 1 and ours[0].filename == __file__
    with pytest.raises(NotImplementedError, match=f"cannot be planned inside .*{around}"):
        TRANSFORMS[name](lambda x: checkpoint_plan(_g, x, budget="min"), X)
    with pytest.raises(ValueError, match="budget"):  # a mistake is still an error
        TRANSFORMS[name](lambda x: checkpoint(_g, x, budget="lots"), X)


def test_grad_says_that_nothing_runs_again() -> None:
    with pytest.warns(UserWarning, match="saved-tensor hooks inside torch.func.grad") as said:
        grad(lambda x: checkpoint(_g, x, budget="min").sum())(X)
    assert said[0].filename == __file__
    with pytest.raises(ValueError, match="budget"):
        grad(lambda x: checkpoint(_g, x, budget="lots").sum())(X)


def test_a_plan_still_holds_after_a_transform() -> None:
    """Under vmap ops are recomputed, as without a budget."""
    leaf = X.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = vmap(lambda x: checkpoint(_g, x, budget=10**6))(leaf)
    with Calls() as calls:
        out.sum().backward()
    assert calls.counts[aten.sin] == 1
    for _ in range(2):  # watched, then planned: everything fits
        out = checkpoint(_g, leaf, budget=10**6)
        with Calls() as calls:
            out.sum().backward()
    assert aten.sin not in calls.counts
