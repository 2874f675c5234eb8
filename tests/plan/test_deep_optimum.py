"""Compares plans with late and repeated backward ops with the optimum over that class, by
best-first search and by constraint programming."""

from __future__ import annotations

from typing import Any

import pytest
from evaluate import check_plan

import cutback

pytest.importorskip("ortools")
pytest.importorskip("torch")

import best_first
import deep_nets
import deep_optimum

DEVICE = "cpu"
SHARES = (0.02, 0.2, 0.4, 0.6, 0.8)
"""Budgets, between the smallest plan and saving everything."""
CLOSE = 0.005  # of the step's time
STATES = 600_000  # number of states that the search may visit
SECONDS = 60  # time limit of the program
OPEN = {
    ("attention", 0.02), ("attention", 0.2), ("recurrence", 0.02), ("recurrence", 0.2),
    ("recurrence", 0.4), ("unet", 0.02),
}  # fmt: skip
"""Budgets that the search leaves open, or at which it finds a faster schedule."""
needs_compiler = pytest.mark.skipif(best_first.compiler() is None, reason="needs a C compiler")


def plans(problem: dict[str, Any]) -> list[Any]:
    """Returns a plan for each budget."""
    whole = cutback.plan(problem, device=DEVICE).numbers["live_bytes"]
    least = cutback.plan(
        problem, budget="min", max_extra=10.0, measure="live", device=DEVICE
    ).numbers["live_bytes"]
    budgets = [int(least + share * (whole - least)) for share in SHARES]
    return list(cutback.plans(problem, budgets, measure="live", device=DEVICE))


def asked(plan: Any) -> int:
    """Returns the picoseconds that a better plan must stay below."""
    numbers = plan.numbers
    return int(numbers["time_ps"] - int(CLOSE * numbers["once_ps"]))


@pytest.mark.very_slow
def test_plans_are_schedules_of_the_program() -> None:
    """The program accepts every plan as a schedule, so its proofs apply to all plans."""
    counted = 0
    for name in deep_nets.NETS:
        problem = deep_nets.traced(name)
        for plan in plans(problem):
            check_plan(problem, plan.document, DEVICE)
            numbers = plan.numbers
            time = deep_optimum.time_of(
                problem, numbers["live_bytes"], plan.document["steps"], DEVICE
            )
            if time is not None:
                assert time == pytest.approx(numbers["time_ps"], rel=1e-6), (name, numbers)
                counted += 1
    assert counted > len(deep_nets.NETS) * len(SHARES) / 2


@pytest.mark.very_slow
@needs_compiler
def test_no_other_schedule_is_faster() -> None:
    left = set()
    for name in deep_nets.NETS:
        problem = deep_nets.traced(name)
        for share, plan in zip(SHARES, plans(problem), strict=True):
            budget = plan.numbers["budget_bytes"]
            best = best_first.best(problem, budget, asked(plan), DEVICE, STATES)
            if best.ended or best.ps is not None:
                left.add((name, share))
    assert left <= OPEN


@pytest.mark.very_slow
@needs_compiler
def test_both_oracles_agree() -> None:
    """The program does not beat what the search proves, and the search finds what it is asked
    for."""
    problem = deep_nets.traced("residual")
    for plan in plans(problem)[-2:]:
        time, budget = plan.numbers["time_ps"], plan.numbers["budget_bytes"]
        best = best_first.best(problem, budget, time + 1, DEVICE, STATES)
        assert best.ps == best.bound_ps == time
        found = deep_optimum.faster(problem, budget, time, DEVICE, SECONDS)
        assert not found.steps


@pytest.mark.very_slow
def test_an_exact_search_of_a_loop_takes_the_usual_effort() -> None:
    """With a share of it, the search finds 17.7 % of extra time."""
    problem = deep_nets.traced("recurrence")
    whole = cutback.plan(problem, device=DEVICE).numbers["live_bytes"]
    plan = cutback.plan(
        problem, budget=int(0.67 * whole), exact=True, measure="live", device=DEVICE
    )
    check_plan(problem, plan.document, DEVICE)
    assert plan.numbers["time_ps"] < 1.13 * plan.numbers["once_ps"]
