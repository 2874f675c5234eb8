"""Generated programs that write in the forward, between the passes and in the backward, compared
with eager PyTorch at each moment."""

from __future__ import annotations

from dataclasses import replace
from shutil import which
from typing import Any

import pytest

pytest.importorskip("torch")

import written_programs as programs

needs_gcc = pytest.mark.skipif(which("g++") is None, reason="Inductor compiles with g++ on the CPU")
SEEDS = range(100, 106)
MODIFIED = "modified by an inplace operation"


@pytest.mark.parametrize("door", [programs.by_compile, programs.by_checkpoint])
@pytest.mark.parametrize(
    "seed", [s if s < 103 else pytest.param(s, marks=pytest.mark.very_slow) for s in SEEDS]
)
def test_no_program_is_wrong(seed: int, door: Any) -> None:
    program = programs.generate(seed)
    expected, _ = programs.eager(program)
    outcome = programs.outcome(program, door, "min", expected)
    assert not outcome.startswith(("differs", "AssertionError", "AttributeError")), program
    if expected is None or outcome == "same":
        return
    # the backward needs a tensor that was overwritten between the passes
    if door is programs.by_checkpoint:
        assert MODIFIED in outcome, program
    else:
        assert programs.outcome(program, programs.aot_eager, None, expected) != "same", program


def verdict(program: Any, door: Any) -> str:
    """Returns ``""``, or what is wrong with the outcome of an entry point."""
    expected, _ = programs.eager(program)
    outcome = programs.outcome(program, door, "min", expected)
    if outcome in ("same", "taken"):
        return ""
    if outcome.startswith(("AssertionError", "AttributeError")):
        return "internal error"
    reference = programs.REFERENCES.get(door, programs.aot_eager)
    other = programs.outcome(program, reference, None, expected)
    if outcome.startswith("differs"):
        # a second backward does not see writes of the first into an intermediate (docs/torch.md)
        once = replace(program, again=False)
        own_copy = "ctx.t = t.clone()" in program.text or "t = t * 2" in program.text
        if program.again and own_copy and door is not programs.by_checkpoint:
            return verdict(once, door)
        return "" if other.startswith("differs") else "wrong"
    return "refused" if other == "same" else ""


@pytest.mark.very_slow
@pytest.mark.parametrize("start", range(0, 300, 50))
@pytest.mark.parametrize("door", programs.DOORS)
def test_no_program_of_many_is_wrong_or_refused(door: Any, start: int) -> None:
    """Wrong: differs from eager mode although PyTorch's own way is right or refuses. Refused:
    although PyTorch's own way is right."""
    found: dict[str, list[int]] = {}
    for seed in range(start, start + 50):
        found.setdefault(verdict(programs.generate(seed), door), []).append(seed)
    found.pop("", None)
    counts = {kind: len(seeds) for kind, seeds in found.items()}
    assert not found, f"{counts} of 50: {found}"


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
        pytest.param(OLD_VALUE, programs.by_inductor, marks=[needs_gcc, pytest.mark.very_slow]),
        pytest.param(
            OLD_VALUE, programs.by_custom_partitioner, marks=[needs_gcc, pytest.mark.very_slow]
        ),
    ],
)
def test_a_backward_that_reads_an_overwritten_input_is_right(text: str, door: Any) -> None:
    """Views of the input made before the write do not read it; Inductor removes clones."""
    program = programs.Program(0, text, (), False, False)
    expected, _ = programs.eager(program)
    assert programs.outcome(program, door, "min", expected) == "same"


STAGES = {
    "a row": "n[0].mul_(2); k = n.clone(); n[1].mul_(2); return x * w * k",
    "returned": "n[0].mul_(2); k = n.clone(); n[1].mul_(2); return x * w, k",
    "then all": "n[0].mul_(2); k = n.clone(); n.mul_(2); return x * w * k",
    "rows by index": "n[c.new_tensor([0, 1])] = x.detach()[:2]; k = n.clone(); n[2].mul_(2); "
    "return x * w * k",
    "added": "i = c.new_tensor([0, 1]); n.index_add_(0, i, x.detach()[:2]); k = n.clone(); "
    "n.index_add_(0, i, x.detach()[:2]); return x * w * k",
    "diagonal": "b.diagonal().mul_(2); k = b.clone().view(4); b[1].mul_(2); return x * w * k",
    "read in part": "b[:, 1].mul_(2); k = b.clone()[1]; b[1, 1].mul_(3); "
    "return ((x * w).view(2, 2) * k).view(4)",
}


@needs_gcc
@pytest.mark.parametrize(
    ("name", "door"),
    [
        pytest.param(
            name,
            door,
            marks=[] if name == "a row" and door is programs.by_inductor else pytest.mark.very_slow,
        )
        for name in STAGES
        for door in programs.INDUCTOR
    ],
)
def test_a_copy_between_two_writes_is_one_under_inductor(name: str, door: Any) -> None:
    """Inductor writes twice into the input's memory, and mistook that for the copy."""
    lines = "\n    ".join(STAGES[name].split("; "))
    program = programs.Program(0, f"def program(x, w, n, b, c):\n    {lines}\n", (), False, False)
    expected, error = programs.eager(program)
    assert not error
    assert programs.outcome(program, door, "min", expected) == "same"


WRITES_ITS_OWN = """\
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, t):
        ctx.t = t.clone()
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        ctx.t.copy_(ctx.t.sin())
        return g + ctx.t, None

def program(x, w, n, b, c):
    return F.apply(x * w, n)
"""


def test_what_a_backward_writes_into_an_intermediate_is_not_there_in_the_next() -> None:
    """A second backward through a compiled graph starts from what the forward made, as with every
    backend of torch.compile; in a region it sees what the first wrote, as in eager mode."""
    program = programs.Program(0, WRITES_ITS_OWN, (), False, True)
    expected, _ = programs.eager(program)
    compiled = programs.run(program, programs.aot_eager(program.function(), None))
    assert programs.outcome(program, programs.by_compile, "min", compiled) == "same"
    assert programs.outcome(program, programs.by_checkpoint, "min", expected) == "same"
    assert not programs.same(compiled, expected, False)
