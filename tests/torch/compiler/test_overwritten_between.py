"""Inputs and results that the caller overwrites between forward and backward: an error, as in eager
mode, or the right gradient; never another one."""

from __future__ import annotations

from collections.abc import Callable
from shutil import which
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch._inductor import config

import cutback.torch as ct

needs_gcc = pytest.mark.skipif(which("g++") is None, reason="Inductor compiles with g++ on the CPU")


def by_compile(f: Callable[..., Any], budget: Any) -> Any:
    return ct.compile(f, budget=budget)


def by_inductor(f: Callable[..., Any], budget: Any) -> Any:
    return ct.compile(f, budget=budget, codegen="inductor")


def by_custom_partitioner(f: Callable[..., Any], budget: Any) -> Any:
    partitioner = ct.Partitioner(budget=budget)

    def call(*args: Any) -> Any:
        with config.patch(custom_partitioner_fn=partitioner):
            return compiled(*args)

    compiled = torch.compile(f)
    return call


# of x [4, 6, 8], whose memory the caller overwrites, and w [8, 8], the leaf
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
    """All cases with our own code, one of them under Inductor; the rest is for later."""
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


@needs_gcc
def test_an_input_that_the_caller_leaves_alone_is_no_error() -> None:
    """A witness beside each saved view changes nothing."""
    for f in (READING["linear"], READING["slice"]):
        torch._dynamo.reset()
        got = gradient(by_inductor(f, "min"), None)
        torch.testing.assert_close(got, gradient(f, None))
