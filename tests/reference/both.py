"""Checks schedules with the core's walk and with the independent evaluator, which must agree."""

from __future__ import annotations

import json
from typing import Any

import pytest
from evaluate import BrokenPlanError, Evaluation, evaluate
from insides import SPEED

from cutback import _native


def both(problem: dict[str, Any], steps: list[Any], starts: int) -> Evaluation:
    """Evaluates a schedule with both evaluators and returns their result, which must be the
    same."""
    document = {"steps": steps, "backward_starts": starts}
    core = json.loads(
        _native.Problem.read(json.dumps(problem)).evaluate_json(
            json.dumps(document), json.dumps(SPEED)
        )
    )
    own = evaluate(problem, steps, starts, SPEED)
    assert core["peak_bytes"] == own.peak_bytes
    assert core["saved_bytes"] == own.saved_bytes
    assert (core["time_ps"], core["once_ps"]) == (own.time_ps, own.once_ps)
    assert core["recomputed"] == own.recomputed
    assert core.get("in_bytes", 0) == own.in_bytes and core.get("out_bytes", 0) == own.out_bytes
    assert core.get("stall_ps", 0) == own.stall_ps
    return own


def refused(problem: dict[str, Any], steps: list[Any], starts: int) -> str:
    """Returns the core's error for a schedule that both evaluators refuse."""
    document = {"steps": steps, "backward_starts": starts}
    with pytest.raises(BrokenPlanError):
        evaluate(problem, steps, starts, SPEED)
    with pytest.raises(ValueError) as error:
        _native.Problem.read(json.dumps(problem)).evaluate_json(
            json.dumps(document), json.dumps(SPEED)
        )
    return str(error.value)
