"""Tests regions that write into memory saved by autograd, past its version counters or not.

Plain autograd is the oracle: if it gives gradients, a region gives the same bits; if it refuses, a
region gives the gradients of the saved values, or refuses, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eager_tools import PRODUCTS, assert_same
from torch.utils.checkpoint import CheckpointPolicy

from cutback.torch import checkpoint

pytestmark = pytest.mark.torch

torch.set_num_threads(1)
POLICIES = (
    {}, {"policy_fn": PRODUCTS}, {"budget": "min"}, {"budget": 1.0},
)  # fmt: skip


def matrices() -> tuple[Any, Any, Any]:
    torch.manual_seed(3)
    return torch.randn(4, 4), torch.randn(4, 4) / 2, torch.randn(4, 4)


def steps(f: Callable[..., Any], call: Callable[..., Any]) -> list[Any]:
    """Returns results, gradients and the final arguments of two steps (the second follows a plan,
    if there is a budget)."""
    x, w, b = matrices()
    x.requires_grad_(), w.requires_grad_()
    found = []
    for _ in range(2):
        out = call(f, x, w, b)
        out.sum().backward()
        found += [out.detach(), x.grad.clone(), w.grad.clone()]
        found += [t.detach().clone() for t in (x, w, b)]
    return found


# ---- what plain autograd does not notice: x and w require gradients, b does not ----


def data_of_a_saved_result(x: Any, w: Any, b: Any) -> Any:
    e = (x @ w).sin().exp()
    t = (e * 0.1).tanh()
    e.data.mul_(0.5)
    return e * e.tanh() * t


def data_of_a_saved_operand(x: Any, w: Any, b: Any) -> Any:
    h = x @ w
    y = h.cos() * 2
    z = y * y
    y.data.copy_(h.detach())
    return z * y * h


def data_through_a_view(x: Any, w: Any, b: Any) -> Any:
    h = (x @ w).tanh()
    v = h.t()[1:]
    z = v * v.exp()
    d = h.data
    del h, v
    d.view(-1)[::2].zero_()
    return z * d[1:]


def data_before_it_is_saved(x: Any, w: Any, b: Any) -> Any:
    h = (x @ w).tanh()
    d = h.data  # no effect so far
    z, y = h * x, d * x
    h.data.add_(1)
    return z + y * h


def data_is_read_by_another_op(x: Any, w: Any, b: Any) -> Any:
    """Makes a rerun need the old value, and a saved slot the new one."""
    h = (x @ w).tanh()
    later = ((h * 3).sin() * x).exp()
    h.data.neg_()
    return later * h


def data_of_parameters(x: Any, w: Any, b: Any) -> Any:
    h = ((x @ w).sin() * w).exp()
    w.data.mul_(1.01)
    x.data.t().sub_(0.1)
    return h * (x @ w).tanh()


def data_of_a_buffer(x: Any, w: Any, b: Any) -> Any:
    h = (x * b).sin()
    b.data.mul_(0.9)
    return (h @ w).exp() * b + h * b.data


def a_parameter_gets_other_memory(x: Any, w: Any, b: Any) -> Any:
    h = (x @ w).sin() * w.tanh()
    w.data = w.data * 1.01
    x.data = x.data + 0.5
    return (h @ w).exp() * x.cos()


def a_buffer_gets_other_memory_and_writes_follow(x: Any, w: Any, b: Any) -> Any:
    h = ((x * b).sin() @ w).exp()
    old = b.data
    b.data = b * 2
    old.zero_()
    return h * b


def two_parameters_change_places(x: Any, w: Any, b: Any) -> Any:
    h = (x @ w).sin() * x
    x.data, w.data = w.data, x.data
    return (h @ w).tanh() * x


def set_to_saved_memory(x: Any, w: Any, b: Any) -> Any:
    y = (x @ w).cos().detach() * 1
    other, third = torch.zeros(4, 4), torch.zeros(4, 4)
    other.set_(y)
    z = x * other
    third.set_(y.untyped_storage(), 0, (4, 4), (4, 1))
    z = z * third * w
    y.mul_(2)
    return z.exp() * other.sin()


def set_to_memory_from_outside(x: Any, w: Any, b: Any) -> Any:
    other, third, fourth = torch.empty(0), torch.zeros(4, 4), torch.empty(0)
    other.set_(b)
    z = (x @ w).sin() * other
    third.set_(b.untyped_storage(), 0, b.shape, b.stride())
    fourth.set_(b)
    return (z * third).cos() * fourth * other.exp()


def set_to_memory_from_outside_that_was_read(x: Any, w: Any, b: Any) -> Any:
    other = torch.empty(0)
    z = (x * b).sin() @ w
    other.set_(b)
    return z * other * b.cos()


def set_twice(x: Any, w: Any, b: Any) -> Any:
    other, made = torch.empty(0), (x @ w).sin().detach()
    other.set_(b)
    z = x * other
    other = torch.empty(0)
    other.set_(made)
    other.set_(b)
    return z * other * w


def set_to_memory_from_outside_and_written(x: Any, w: Any, b: Any) -> Any:
    other = torch.empty(0)
    other.set_(b)
    z = (x @ w).sin() * b
    other.mul_(2)
    return z * other * b.tanh()


def twice(x: Any, w: Any, b: Any) -> Any:
    e = (x @ w).exp()
    e.data.mul_(0.5)
    z = e * e.sin()
    e.data.add_(0.25)
    return z * e.tanh()


UNSEEN = [
    data_of_a_saved_result, data_of_a_saved_operand, data_through_a_view, data_before_it_is_saved,
    data_is_read_by_another_op, data_of_parameters, data_of_a_buffer, a_parameter_gets_other_memory,
    a_buffer_gets_other_memory_and_writes_follow, two_parameters_change_places,
    set_to_saved_memory, set_to_memory_from_outside, set_to_memory_from_outside_that_was_read,
    set_twice, set_to_memory_from_outside_and_written, twice,
]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [pytest.param(o, marks=[pytest.mark.very_slow] * (i % 2)) for i, o in enumerate(POLICIES)],
    ids=str,
)
@pytest.mark.parametrize("f", UNSEEN, ids=lambda f: f.__name__)
def test_what_autograd_does_not_see(f: Callable[..., Any], options: dict[str, Any]) -> None:
    plain = steps(f, lambda f, *a: f(*a))
    assert_same(plain, steps(f, lambda f, *a: checkpoint(f, *a, **options)))


# ---- what it refuses ----


def a_saved_result_is_set(x: Any, w: Any, b: Any) -> Any:
    t = (x @ w).tanh()
    with torch.no_grad():
        t.set_(x.cos().detach().clone())
    return t * t


def a_saved_result_is_resized(x: Any, w: Any, b: Any) -> Any:
    t = (x @ w).tanh()
    z = t * t.exp()
    t.detach().resize_(2, 2)
    return z


def a_detached_result_is_written(x: Any, w: Any, b: Any) -> Any:
    e = (x @ w).exp()
    z = e * e.tanh()
    e.detach().add_(1)
    return z * e


def data_and_itself_are_written(x: Any, w: Any, b: Any) -> Any:
    e = (x @ w).exp()
    z = e * e.tanh()
    e.data.mul_(2)
    e.detach().add_(1)
    return z * e


def without_set(x: Any, w: Any, b: Any) -> Any:
    t = (x @ w).tanh()
    t = t - t.detach() + x.cos().detach()
    return t * t


def without_resize(x: Any, w: Any, b: Any) -> Any:
    t = (x @ w).tanh()
    return t * t.exp()


def without_add(x: Any, w: Any, b: Any) -> Any:
    e = (x @ w).exp()
    return e * e.tanh() * (e + 1)


def without_writes(x: Any, w: Any, b: Any) -> Any:
    e = (x @ w).exp()
    return e * e.tanh() * (e + e.detach() + 1)


REFUSED = [
    (a_saved_result_is_set, without_set), (a_saved_result_is_resized, without_resize),
    (a_detached_result_is_written, without_add), (data_and_itself_are_written, without_writes),
]  # fmt: skip


@pytest.mark.parametrize("options", POLICIES, ids=str)
@pytest.mark.parametrize(("f", "same"), REFUSED, ids=lambda f: f.__name__)
def test_what_autograd_refuses(
    f: Callable[..., Any], same: Callable[..., Any], options: dict[str, Any]
) -> None:
    """The oracle is the same function written without in-place writes."""
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        steps(f, lambda f, *a: f(*a))
    try:
        ours = steps(f, lambda f, *a: checkpoint(f, *a, **options))
    except RuntimeError as error:
        # under a plan the saved tensor itself is held
        assert options and "modified by an inplace" in str(error)
        return
    torch.testing.assert_close(steps(same, lambda f, *a: f(*a)), ours, rtol=1e-6, atol=1e-6)


def test_a_write_after_the_region_is_noticed() -> None:
    """Memory is written unseen in the region, and later where autograd sees it."""

    def f(x: Any, w: Any) -> Any:
        e = (x @ w).exp()
        e.data.mul_(0.5)
        return e, e.sin()

    def step(call: Callable[..., Any]) -> None:
        x, w, _ = matrices()
        e, z = call(f, x.requires_grad_(), w)
        with torch.no_grad():
            e.add_(1)
        z.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace"):
        step(lambda f, *a: f(*a))
    with pytest.raises(RuntimeError, match=r"modified by an inplace .*clone it before"):
        step(checkpoint)


def test_parameters_that_are_put_away_until_the_backward() -> None:
    """Sharded training fills parameters for a layer's forward and again for its backward; a region
    keeps the parameter, not its content."""
    x, w, _ = matrices()
    full, w = w.clone(), torch.nn.Parameter(w)

    def f(x: Any) -> Any:
        w.data = full.clone()
        h = ((x @ w).sin() @ w).exp()
        w.data = torch.empty(0)
        return h

    w.data = torch.empty(0)
    x.requires_grad_()
    out = checkpoint(f, x)
    w.data = full.clone()
    out.sum().backward()
    other = x.detach().clone().requires_grad_()
    weight = full.clone().requires_grad_()
    ((other @ weight).sin() @ weight).exp().sum().backward()
    assert_same([other.grad, weight.grad], [x.grad, w.grad])


def test_memory_that_nothing_writes_is_not_held() -> None:
    """Reading ``.data`` costs no memory."""
    x, w, _ = matrices()
    x.requires_grad_()
    storages = []

    def f(x: Any) -> Any:
        for _ in range(5):
            x = (x @ w).tanh()
            storages.append(torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage()))
            assert x.data.isfinite().all()
        return x.sum()

    out = checkpoint(f, x)
    assert all(s.expired() for s in storages)
    out.backward()


def programs(seed: int) -> Callable[..., Any]:
    """Returns a random straight-line program with views, seen and unseen writes."""
    source = torch.Generator().manual_seed(seed)
    code = torch.randint(0, 1 << 16, (14, 3), generator=source).tolist()

    def f(x: Any, w: Any, b: Any) -> Any:
        values = [x, w, b, x.sin()]
        for op, i, j in code:
            a, c = values[i % len(values)], values[-1 - j % len(values)]
            op %= 12
            if op < 6:
                makes: list[Callable[[], Any]] = [
                    lambda a=a, c=c: a @ c / 4, lambda a=a, c=c: a.tanh() * c,
                    lambda a=a: a.t().sigmoid(), lambda a=a: a.view(4, 4),
                    lambda a=a: a.data, lambda a=a: (a * 0.5).exp(),
                ]  # fmt: skip
                values.append(makes[op]())
            elif op == 6:
                a.data.mul_(0.9)
            elif op == 7:
                a.data.t()[1:].add_(0.01)
            elif op == 8:
                a.data.copy_(c.detach().cos())
            elif op == 9:
                a = values[i % 3]
                a.data = (c.detach() * 0.5).clone()
            elif op == 10:
                with torch.no_grad():
                    a.detach().mul_(1.1)
            else:
                values.append(torch.cat([a[:2], c[2:].exp().clamp(max=2)]))
        return (x * w).sum() + sum(v.mean() for v in values[-4:])

    return f


def check_programs(seeds: range) -> int:
    compared = 0
    for seed in seeds:
        f = programs(seed)
        try:
            plain = steps(f, lambda f, *a: f(*a))
        except RuntimeError as error:
            assert "modified by an inplace" in str(error)
            continue
        compared += 1
        for options in ({}, {"policy_fn": PRODUCTS}, {"policy_fn": products_and_exp}):
            ours = steps(f, lambda f, *a: checkpoint(f, *a, **options))  # noqa: B023
            assert_same(plain, ours)
    return compared


def products_and_exp(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    saved = op in (torch.ops.aten.mm.default, torch.ops.aten.exp.default)
    return CheckpointPolicy.PREFER_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


def test_random_programs_that_write() -> None:
    assert check_programs(range(60)) >= 20


@pytest.mark.very_slow
def test_many_random_programs_that_write() -> None:
    assert check_programs(range(1000, 4000)) >= 1000
