"""Tests Python floats that change between calls: PyTorch rewrites the ops that take them into ops
that are not marked as forward or backward."""

from __future__ import annotations

from collections.abc import Iterator
from shutil import which
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import written_programs as programs

import cutback.torch as ct

needs_gcc = pytest.mark.skipif(which("g++") is None, reason="Inductor compiles with g++ on the CPU")

SCALE = """\
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, t, s):
        ctx.save_for_backward(t)
        ctx.s = s
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        t, = ctx.saved_tensors
        {write}
        return {gradient}, None, None
"""
RIGHT = {
    "last op": "return (x * w).sin() * s",
    "two results": "h = x * w * s; return h.sin() + s, h",
    "all of it": "return x * w / s, w - s",
    "an input is written": "h = x + w; x.mul_(2); return h * s + x",
    "an input is written by it": "n.mul_(s); return x * w * n",
    "a counter": "h = x * w * s; n.add_(s); return h",
    "powers": "return (x.abs() + w) ** s",
    "no gradient": "with torch.no_grad(): k = n * s\n    return x * w + k, k",
    "a Function": "h = x * w * s; return Scale.apply(h, n, s) * s",
    "overwritten by the caller": "n.mul_(s); return Scale.apply(x * w * s, n, s) + s",
}


def function(text: str, write: str = "pass", gradient: str = "g * t * ctx.s") -> Any:
    body = text.replace("; ", "\n    ")
    source = SCALE.format(write=write, gradient=gradient)
    source += f"\ndef program(x, w, n, s):\n    {body}\n"
    return programs.Program(0, source, (), False, False).function()


def run(call: Any) -> list[Any]:
    """Returns results, inputs and gradients of three steps, each with a different float."""
    seen = []
    for s in (1.37, 0.5, 2.25):
        x, w = torch.arange(1.0, 5.0), torch.arange(4.0, 0.0, -1).requires_grad_()
        n = torch.arange(2.0, 6.0) / 4
        out = call(x, w, n, s)
        out = out if isinstance(out, tuple) else (out,)
        seen.append([t.detach().clone() for t in (*out, x, n)])
        sum((t * torch.arange(1.0, 5.0)).sum() for t in out if t.requires_grad).backward()
        seen.append([t.detach().clone() for t in (*out, x, n, w.grad)])
    return seen


@pytest.fixture(autouse=True)
def dynamic() -> Iterator[None]:
    """Makes sizes and floats inputs of all graphs."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(assume_static_by_default=False):
        yield


DOORS = [
    programs.by_compile,
    programs.by_partition_fn,
    pytest.param(programs.by_inductor, marks=[needs_gcc, pytest.mark.very_slow]),
    pytest.param(programs.by_custom_partitioner, marks=[needs_gcc, pytest.mark.very_slow]),
]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", RIGHT)
def test_ops_on_floats(name: str, door: Any) -> None:
    expected = run(function(RIGHT[name]))
    got = run(door(function(RIGHT[name]), "min"))
    assert programs.same(got, expected, bits=False)


def test_a_float_that_changes_after_the_first_call() -> None:
    """When the float changes, PyTorch compiles again, with the float as an input."""
    f = function("return (x * w).sin() * s")
    with torch._dynamo.config.patch(assume_static_by_default=True):
        assert programs.same(run(ct.compile(f, budget="min")), run(f), bits=False)


@pytest.mark.parametrize("door", DOORS)
def test_a_backward_that_writes_by_a_float(door: Any) -> None:
    """If the op on a float is the first of the backward, it cannot be distinguished from the
    forward's last."""
    text = "t = torch.ones(4) * s; h = Scale.apply(x * w, t, s); return h, t"
    f = function(text, write="t.mul_(ctx.s)", gradient="g")
    with pytest.raises(Exception, match=r"the backward writes|forward returns it"):
        run(door(f, "min"))


@pytest.mark.parametrize(
    "text",
    [
        "h = x * w * s; return Scale.apply(h, n, s) * s",
        "h = x * w * s; return Scale.apply(h, n.view(2, 2).t()[0], s) * s",
        "h = x * w * s; return Scale.apply(h, torch.ones(4), s) * s",
    ],
)
def test_what_is_not_returned_may_be_written_by_a_float(text: str) -> None:
    f = function(text, write="t.mul_(ctx.s)", gradient="g")
    got = run(programs.by_compile(f, "min"))
    assert programs.same(got, run(f), bits=False)
