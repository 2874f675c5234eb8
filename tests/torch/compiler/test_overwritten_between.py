"""If the caller overwrites inputs and results between forward and backward, there is an error as in
eager mode, or the right gradient, never a wrong one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from shutil import which
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from written_programs import by_custom_partitioner, by_partition_fn

import cutback.torch as ct
from cutback.torch.compiler import returned

# emitted when Inductor compiles, but not if the code comes from its cache
pytestmark = pytest.mark.filterwarnings("ignore:Torchinductor does not support code gen.*complex")

needs_gcc = pytest.mark.skipif(which("g++") is None, reason="Inductor compiles with g++ on the CPU")


def by_compile(f: Callable[..., Any], budget: Any) -> Any:
    return ct.compile(f, budget=budget)


def by_inductor(f: Callable[..., Any], budget: Any) -> Any:
    return ct.compile(f, budget=budget, codegen="inductor")


def by_name(f: Callable[..., Any], budget: Any) -> Any:
    return torch.compile(f, backend="cutback", options={"budget": budget})


def by_checkpoint(f: Callable[..., Any], budget: Any) -> Any:
    if budget is None:
        return lambda *args: ct.checkpoint(f, *args)
    return lambda *args: ct.checkpoint(f, *args, budget=budget)


# functions of x [4, 6, 8], whose memory the caller overwrites, and the leaf w [8, 8]
READING: dict[str, Callable[[Any, Any], Any]] = {
    "linear": lambda x, w: F.linear(x, w),
    "product": lambda x, w: x.reshape(-1, 8) @ w,
    "transposed": lambda x, w: x.transpose(0, 1).reshape(24, 8) @ w,
    "batched": lambda x, w: x.permute(1, 0, 2) @ w,
    "slice": lambda x, w: x[1:3, :, 2:].sum(0) @ w[2:],
    "one of a split": lambda x, w: x.split(2)[1].reshape(-1, 8) @ w,
    "flattened": lambda x, w: x.view(-1)[:64].view(8, 8) @ w,
    "itself": lambda x, w: (x * w[0]).sin(),
    "real part": lambda x, w: torch.view_as_complex(x.view(4, 6, 4, 2)).real @ w[:4],
}


def write_input(x: Any, out: Any, rest: Any) -> None:
    x.mul_(2)


def write_view_of_input(x: Any, out: Any, rest: Any) -> None:
    x.view(-1)[::3].add_(1)


def write_result(x: Any, out: Any, rest: Any) -> None:
    with torch.no_grad():
        rest.add_(1)


RESULTS: dict[str, Callable[[Any, Any], Any]] = {
    "a result": lambda x, w: (lambda h: (h.sin(), h))(F.linear(x, w).cos()),
    "what a linear layer returns": lambda x, w: (lambda h: (h.sin().tanh(), h))(F.linear(x, w)),
    "the whole of a part": lambda x, w: (lambda h: (h[1].sin(), h))((x @ w).exp()),
}


def returning(view: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a function that returns the sine of an intermediate, and a view of that
    intermediate."""

    def f(x: Any, w: Any) -> Any:
        h = F.linear(x, w).cos()
        return h.sin(), view(h)

    return f


# the last of several results is overwritten
VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "view": returning(lambda h: h.view(-1)),
    "part": returning(lambda h: h[1]),
    "transposed": returning(lambda h: h.transpose(0, 1)),
    "expanded": returning(lambda h: h.expand(2, 4, 6, 8)[1]),
    "strided": returning(lambda h: h.as_strided((2, 2), (1, 2))),
    "one of a split": returning(lambda h: h.split(2)[0]),
    "detached part": returning(lambda h: h.detach()[1]),
    "detached": returning(lambda h: h.detach()),
    "itself and a part": returning(lambda h: (h, h[1])),
    "two views": returning(lambda h: (h.view(-1), h[2])),
    "all of a split": returning(lambda h: h.split(2)),
    "two detached parts": returning(lambda h: (h.detach()[1], h.detach()[2:])),
    "view of a view": returning(lambda h: h.view(2, 2, 6, 8)[0].transpose(0, 1)),
    "the view that is read": lambda x, w: (lambda h: (h.sin(), h))((x @ w).exp().view(-1)),
    "beside an input's": returning(lambda h: h.unsqueeze(0)),
}


def last(rest: Any) -> Any:
    return rest[-1] if isinstance(rest, (tuple, list)) else rest


def write_last(x: Any, out: Any, rest: Any) -> None:
    with torch.no_grad():
        last(rest).add_(1)


def write_alias(x: Any, out: Any, rest: Any) -> None:
    last(rest).detach()[0].mul_(2)


def gradient(call: Any, write: Any) -> Any:
    torch.manual_seed(0)
    x, w = torch.randn(4, 6, 8), torch.randn(8, 8, requires_grad=True)
    out = call(x, w)
    out, rest = out if isinstance(out, tuple) else (out, None)
    if write is not None:
        write(x, out, rest)
    out.sum().backward()
    return w.grad


def check(f: Callable[..., Any], door: Any, write: Any) -> None:
    right = gradient(f, None)
    for budget in (None, "min"):
        torch._dynamo.reset()
        try:
            got = gradient(door(f, budget), write)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            continue
        torch.testing.assert_close(got, right)


def pairs(cases: Any, often: str) -> list[Any]:
    """Returns all cases with our own code, and the case ``often`` under Inductor; the rest is very
    slow."""
    found = []
    for name in cases:
        for door in (by_compile, by_inductor, by_custom_partitioner):
            marks = [] if door is by_compile else [needs_gcc]
            if door is by_custom_partitioner or (door is by_inductor and name != often):
                marks.append(pytest.mark.very_slow)
            found.append(pytest.param(name, door, marks=marks, id=f"{name}-{door.__name__}"))
    return found


@pytest.mark.parametrize(("name", "door"), pairs(READING, "linear"))
def test_an_input_that_is_overwritten(name: str, door: Any) -> None:
    check(READING[name], door, write_input)


@pytest.mark.very_slow
@pytest.mark.parametrize(("name", "door"), pairs(READING, "linear"))
def test_an_input_that_is_overwritten_in_part(name: str, door: Any) -> None:
    check(READING[name], door, write_view_of_input)


@pytest.mark.parametrize(("name", "door"), pairs(RESULTS, "the whole of a part"))
def test_a_result_that_is_overwritten(name: str, door: Any) -> None:
    check(RESULTS[name], door, write_result)


EAGER_CODE = (by_compile, by_name, by_partition_fn, by_checkpoint)
UNDER_INDUCTOR = (by_inductor, by_custom_partitioner)
QUICK = ("view", "part", "detached part", "itself and a part", "all of a split")


def views() -> list[Any]:
    """Returns some cases with our own code, and one with the other entry points; the rest is very
    slow."""
    found = []
    for name in VIEWS:
        for door in (*EAGER_CODE, *UNDER_INDUCTOR):
            marks = [needs_gcc] if door in UNDER_INDUCTOR else []
            if name not in QUICK or (door is not by_compile and name != "part"):
                marks.append(pytest.mark.very_slow)
            found.append(pytest.param(name, door, marks=marks, id=f"{name}-{door.__name__}"))
    return found


@pytest.mark.parametrize(("name", "door"), views())
def test_a_view_of_an_intermediate_that_is_overwritten(name: str, door: Any) -> None:
    check(VIEWS[name], door, write_last)


@pytest.mark.very_slow
@pytest.mark.parametrize(("name", "door"), views())
def test_a_view_that_is_overwritten_through_another(name: str, door: Any) -> None:
    check(VIEWS[name], door, write_alias)


def part(door: Any) -> tuple[Any, Any, Any]:
    """Returns a compiled function's sum, the returned part of an intermediate, and the leaf."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, w = torch.randn(4, 6, 8), torch.randn(8, 8, requires_grad=True)
    out, rest = door(VIEWS["part"], None)(x, w)
    return out.sum(), rest, w


def test_the_error_names_the_output_and_the_way_out() -> None:
    total, rest, w = part(by_compile)
    with torch.no_grad():
        rest.add_(1).mul_(2)
    with pytest.raises(
        RuntimeError, match=r"output 1 .* shape \[6, 8\].*version 2; expected version 0.*clone"
    ):
        total.backward()
    assert w.grad is None


@pytest.mark.parametrize("door", [by_compile, by_partition_fn])
def test_a_view_that_is_overwritten_where_autograd_sees_it(door: Any) -> None:
    """The write itself must succeed; autograd would refuse it for views made inside a Function."""
    _, rest, w = part(door)
    rest.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        rest.sum().backward()
    assert w.grad is None


def test_a_view_that_is_overwritten_after_its_backward_is_no_error() -> None:
    total, rest, w = part(by_compile)
    total.backward(retain_graph=True)
    total.backward()
    with torch.no_grad():
        rest.add_(1)
    right, _, leaf = part(lambda f, budget: f)
    right.backward()
    torch.testing.assert_close(w.grad, 2 * leaf.grad)


def test_a_view_that_is_overwritten_between_two_backwards() -> None:
    total, rest, w = part(by_compile)
    total.backward(retain_graph=True)
    first = w.grad.clone()
    with torch.no_grad():
        rest.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()
    assert torch.equal(w.grad, first)


def test_a_write_that_eager_mode_does_not_notice_is_no_error() -> None:
    total, rest, _ = part(by_compile)
    rest.data.add_(1)
    total.backward()


def test_a_view_whose_memory_is_not_saved_may_be_overwritten() -> None:
    def f(x: Any, w: Any) -> Any:
        h = F.linear(x, w)
        return h * 2, h[1]

    right = gradient(f, None)
    for door in (by_compile, by_name, by_partition_fn):
        torch._dynamo.reset()
        torch.testing.assert_close(gradient(door(f, None), write_last), right)


def test_a_view_of_what_replaces_an_input_may_be_overwritten() -> None:
    """PyTorch copies the new value into the input and returns a view of the input."""

    def f(x: Any, w: Any) -> Any:
        x.mul_(2)
        return (w[0] * x).sin(), x.view(-1)

    def backward(call: Any) -> Any:
        torch._dynamo.reset()
        return gradient(call, write_last)

    torch.testing.assert_close(
        backward(by_compile(f, None)), backward(torch.compile(f, backend="aot_eager"))
    )


def test_what_watches_a_view_holds_no_memory() -> None:
    tensor = torch.zeros(1000)
    (_, shape, counter, version), *_ = [returned._witness(0, tensor)]
    assert shape == (1000,) and counter.untyped_storage().nbytes() == 0
    tensor.view(-1)[3] = 1
    assert counter._version == tensor._version == version + 1
    total, rest, _ = part(by_compile)
    memory = weakref.ref(rest.untyped_storage())
    assert memory() is not None
    total.backward()
    del rest
    gc.collect()
    assert memory() is None and total.grad_fn is not None


def test_nothing_is_watched_where_no_saved_view_is_returned(monkeypatch: Any) -> None:
    seen = []
    monkeypatch.setattr(returned, "_witness", lambda *args: seen.append(args))
    for f in (RESULTS["a result"], READING["linear"], READING["slice"]):
        torch._dynamo.reset()
        gradient(by_compile(f, None), None)
    assert not seen


@needs_gcc
def test_an_input_that_the_caller_leaves_alone_is_no_error() -> None:
    """Watching each saved view changes no result."""
    for f in (READING["linear"], READING["slice"]):
        torch._dynamo.reset()
        got = gradient(by_inductor(f, "min"), None)
        torch.testing.assert_close(got, gradient(f, None))
