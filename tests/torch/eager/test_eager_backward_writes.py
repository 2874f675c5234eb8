"""A backward that writes into what it saved: every holder of the tensor sees the write, as with
plain autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import cutback.torch as ct

Write = Callable[[Any, Any], Any]

WRITES: dict[str, Write] = {
    "adds the gradient": lambda t, g: t.add_(g.sum()),
    "a row": lambda t, g: t.view(2, 2)[0].mul_(3),
    "fills": lambda t, g: t.zero_(),
    "copies": lambda t, g: t.copy_(t.cos()),
    "data": lambda t, g: t.data.add_(1),
}
SAVED: dict[str, Callable[[Any], Any]] = {
    "itself": lambda t: t,
    "a view": lambda t: t.view(2, 2),
    "a part": lambda t: t[1:],
    "transposed": lambda t: t.view(2, 2).t(),
}
MADE: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda x: torch.zeros(4),
    "a result": lambda x: x.detach().cos() * 2,
    "written": lambda x: torch.empty(4).fill_(2),
    "a view of a result": lambda x: (x.detach() * 2).view(2, 2).view(4),
}
GIVEN: dict[str, Callable[[Any], Any]] = {
    "itself": lambda t: t,
    "a view": lambda t: t.view(2, 2).t(),
    "in a list": lambda t: [t],
}


def program(write: Write, save: Any, make: Any, give: Any) -> Callable[[Any], Any]:
    class Log(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, log: Any) -> Any:
            ctx.save_for_backward(log)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (t,) = ctx.saved_tensors
            write(t if t.numel() == 4 and t.is_contiguous() else t.flatten()[:1], g)
            t.mul_(2)
            return g * 2, None

    def f(x: Any) -> Any:
        h, log = x.sin().exp(), make(x)
        return Log.apply(h, save(log)).cos(), give(log)

    return f


def seen(f: Callable[[Any], Any], call: Callable[..., Any]) -> list[Any]:
    found = []
    for _ in range(2):  # a region with a budget is planned in the first round
        x = torch.arange(1.0, 5.0).requires_grad_()
        y, log = call(f, x)
        log = log[0] if isinstance(log, list) else log
        found.append(log.clone())
        y.sum().backward()
        found += [log.clone(), x.grad]
    return found


def same(a: list[Any], b: list[Any]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def all_of(*tables: Any) -> list[Any]:
    """Returns every choice of each table with the first choices of the others."""
    first = [next(iter(t)) for t in tables]
    found = [
        pytest.param(*(n if i == k else f for i, f in enumerate(first)), id=f"{k}-{n}")
        for k, t in enumerate(tables)
        for n in t
    ]
    return found


@pytest.mark.parametrize("budget", [None, "min"])
@pytest.mark.parametrize(("write", "save", "make", "give"), all_of(WRITES, SAVED, MADE, GIVEN))
def test_a_write_of_the_backward_is_seen(
    write: str, save: str, make: str, give: str, budget: Any
) -> None:
    f = program(WRITES[write], SAVED[save], MADE[make], GIVEN[give])
    options = {} if budget is None else {"budget": budget}
    got = seen(f, lambda f, x: ct.checkpoint(f, x, **options))
    assert same(got, seen(f, lambda f, x: f(x)))


def test_a_second_backward_says_so() -> None:
    """The first backward has overwritten what the second reads, as with plain autograd."""
    f = program(WRITES["fills"], SAVED["itself"], MADE["zeros"], GIVEN["itself"])
    for call in (f, lambda x: ct.checkpoint(f, x)):
        y, log = call(torch.ones(4, requires_grad=True))
        y.sum().backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        del log


def test_a_tensor_that_the_caller_wrote_is_made_again() -> None:
    """Autograd refuses; a region recomputes the value that was saved."""
    f = program(WRITES["a row"], SAVED["itself"], MADE["zeros"], GIVEN["itself"])
    x = torch.ones(4, requires_grad=True)
    y, log = ct.checkpoint(f, x)
    log.add_(5)
    y.sum().backward()
    assert torch.equal(log, torch.full((4,), 5.0))
    right = torch.ones(4, requires_grad=True)
    f(right)[0].sum().backward()
    assert torch.equal(x.grad, right.grad)


def test_what_nobody_holds_is_still_made_again() -> None:
    """A region does not keep this memory for its backward."""
    held = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            held.append(ctx.saved_tensors[0])
            return g * 2

    x = torch.ones(64, 64, requires_grad=True)
    with ct.MemoryTracker() as memory:
        y = ct.checkpoint(lambda x: Keeps.apply(x.sin().exp()).sum(), x)
        assert memory.live_bytes < x.nbytes
    y.backward()
    assert torch.equal(held[0], x.detach().sin().exp())


OUTSIDE: dict[str, Callable[[Any], Any]] = {
    "itself": lambda n: n,
    "a view": lambda n: n.view(2, 2),
    "a part": lambda n: n[1:],
    "detached": lambda n: n.detach(),
}


class AddsOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, t: Any) -> Any:
        ctx.save_for_backward(t)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (t,) = ctx.saved_tensors
        t.add_(1)
        return g * t.sum(), None


@pytest.mark.parametrize("budget", [None, "min"])
@pytest.mark.parametrize("save", OUTSIDE)
def test_a_backward_may_write_into_an_input_that_reruns_read(save: str, budget: Any) -> None:
    """The reruns read a copy; PyTorch's checkpoint recomputes everything before the write."""
    options = {} if budget is None else {"budget": budget}

    def f(x: Any, n: Any) -> Any:
        h = torch.where(n > 1, x, x.sin()) * (n + 1).cos()
        return AddsOne.apply(h.exp(), OUTSIDE[save](n))

    def run(call: Callable[..., Any]) -> list[Any]:
        n, found = torch.arange(4.0), []
        for _ in range(2):
            x = torch.arange(1.0, 5.0).requires_grad_()
            y = call(f, x, n)
            y.sum().backward()
            found += [y.detach(), x.grad, n.clone()]
        return found

    assert same(run(lambda f, *args: ct.checkpoint(f, *args, **options)), run(lambda f, *a: f(*a)))


def test_an_input_is_copied_only_where_a_function_saved_it() -> None:
    """A copy costs memory: autograd's formulas never write, so they get the input itself."""
    n = torch.arange(4.0)
    x = torch.arange(1.0, 5.0).requires_grad_()
    clones = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.clone.default:
                clones.append(args[0])
            return func(*args, **(kwargs or {}))

    y = ct.checkpoint(lambda x: ((x * n).sin() * n).sum(), x)
    with Count():
        y.backward()
    assert not clones


# static memory that the region overwrites, with reruns that read the old value
OVERWRITTEN: dict[str, Callable[[Any, Any], Any]] = {
    "an input": lambda x, n: ((x + n).sin().exp(), n.mul_(2))[0].cos(),
    "through data": lambda x, n: (AddsOne.apply((x + n).sin(), n), n.data.mul_(0.5))[0].cos(),
    "twice": lambda x, n: ((x + n).sin().exp() * n.mul_(2).cos(), n.add_(1))[0].cos() * (n * 2),
}


@pytest.mark.parametrize("budget", ["min", 10_000])
@pytest.mark.parametrize("name", OVERWRITTEN)
def test_reruns_that_read_what_an_input_held_before_are_planned(name: str, budget: Any) -> None:
    def run(call: Callable[..., Any]) -> list[Any]:
        n, found = torch.arange(1.0, 101.0), []
        for _ in range(2):
            x = torch.linspace(0, 1, 100).requires_grad_()
            y = call(OVERWRITTEN[name], x, n)
            y.sum().backward()
            found += [y.detach(), x.grad, n.clone()]
        return found

    got = run(lambda f, *args: ct.checkpoint(f, *args, budget=budget))
    assert same(got, run(lambda f, *args: f(*args)))
