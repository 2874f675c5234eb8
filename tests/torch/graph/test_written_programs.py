"""Generated programs that write in the forward, between the passes and in the backward, compared at
each moment with eager PyTorch."""

from __future__ import annotations

from shutil import which
from typing import Any

import pytest

pytest.importorskip("torch")

import written_programs as programs

needs_gcc = pytest.mark.skipif(which("g++") is None, reason="Inductor compiles with g++ on the CPU")
SEEDS = range(100, 106)
MODIFIED = "modified by an inplace operation"


@pytest.mark.parametrize("door", [programs.by_compile, programs.by_checkpoint])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_program_is_wrong(seed: int, door: Any) -> None:
    program = programs.generate(seed)
    expected, _ = programs.eager(program)
    outcome = programs.outcome(program, door, "min", expected)
    assert not outcome.startswith(("differs", "AssertionError", "AttributeError")), program
    if expected is None or outcome == "same":
        return
    if door is programs.by_checkpoint:  # it needs what is written between the passes
        assert MODIFIED in outcome, program
    else:
        assert programs.outcome(program, programs.aot_eager, None, expected) != "same", program


READ_LATE = """\
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, t):
        t.add_(1)
        ctx.t = t.view(-1)[1:]
        return x * t[:1]
    @staticmethod
    def backward(ctx, g):
        ctx.t.zero_()
        return g * 2, None

def program(x, w, n, b, c):
    return F.apply(x * w, n) * n
"""
OLD_VALUE = """\
def program(x, w, n, b, c):
    h = x * w * n[:2].clone().repeat(2)
    n.mul_(h.detach())
    return h
"""

WRITTEN_LATE = """\
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, t):
        ctx.t = t
        return x.sin()
    @staticmethod
    def backward(ctx, g):
        ctx.t.mul_(2)
        return g, None

def program(x, w, n, b, c):
    return F.apply(x * w, n) * n[:2].clone().repeat(2)
"""


@pytest.mark.parametrize(
    ("text", "door"),
    [
        pytest.param(WRITTEN_LATE, programs.by_inductor, marks=needs_gcc),
        (READ_LATE, programs.by_compile),
        (READ_LATE, programs.by_checkpoint_in_compile),
        (OLD_VALUE, programs.by_compile),
        pytest.param(OLD_VALUE, programs.by_inductor, marks=needs_gcc),
        pytest.param(
            OLD_VALUE, programs.by_custom_partitioner, marks=[needs_gcc, pytest.mark.very_slow]
        ),
    ],
)
def test_a_backward_that_reads_an_overwritten_input_is_right(text: str, door: Any) -> None:
    """Views of the input before the write read nothing; Inductor takes clones away."""
    program = programs.Program(0, text, (), False, False)
    expected, _ = programs.eager(program)
    assert programs.outcome(program, door, "min", expected) == "same"
