"""Generated programs that write in the forward, between the passes and in the backward, compared at
each moment with eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import written_programs as programs

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
