"""A printed bound is never above a plan known for the budget or a smaller one, and each plan has a
bound."""

from __future__ import annotations

import json
import random
from typing import Any

import evaluate
import pytest

import cutback
from bounds import MB, Problem, Step, random_net, recurrence, rerun_before_the_gap
from schedules import random_schedules, random_step

BUDGET = 105_000_000
SHARES = (0.98, 0.9, 0.82, 0.75, 0.68, 0.6, 0.53, 0.46, 0.38, 0.3)
NETS, SOME = 200, 6


def answers(problem: Problem, budgets: list[Any], measure: str) -> list[dict[str, Any]]:
    """Returns the numbers of the plans for all feasible budgets, walked by the referee."""
    found = []
    for plan in cutback.plans(problem, budgets, measure=measure, device="cpu"):
        if isinstance(plan, cutback.Plan):
            evaluate.check_plan(problem, plan.document)
            found.append(dict(plan.numbers))
    return found


def check_bounds(problem: Problem) -> int:
    """Requests plans under several measures and compares the bound of each with all plans within
    its budget. Returns the number of bounds above the time of running everything once."""
    whole = answers(problem, ["1x"], "live")[0]["live_bytes"]
    budgets = [*(int(share * whole) for share in SHARES), "min"]
    asked = [(m, n) for m in ("live", "arena", "total") for n in answers(problem, budgets, m)]
    for measure, numbers in asked:
        fitting = [
            n["time_ps"] for _, n in asked if n[f"{measure}_bytes"] <= numbers["budget_bytes"]
        ]
        assert numbers["lower_bound_ps"] <= min(fitting), (measure, numbers["budget_bytes"])
        assert numbers["gap"] >= 0 and numbers["lower_bound_ps"] >= numbers["once_ps"]
        trivial = numbers["lower_bound_ps"] == numbers["once_ps"] < numbers["time_ps"]
        assert (numbers["bound_class"] == "trivial") == trivial
    return sum(n["lower_bound_ps"] > n["once_ps"] for _, n in asked)


@pytest.mark.parametrize("pads", [0, 20, 45, 200, pytest.param(600, marks=pytest.mark.slow)])
def test_a_rerun_while_its_inputs_are_there(pads: int) -> None:
    problem, steps = rerun_before_the_gap(pads)
    hand = evaluate.evaluate(problem, steps, problem["backward_starts"], "cpu")
    assert hand.peak_bytes <= BUDGET
    (numbers,) = answers(problem, [BUDGET], "live")
    assert numbers["time_ps"] <= hand.time_ps
    assert numbers["time_ps"] <= 1.01 * numbers["once_ps"]
    assert numbers["once_ps"] < numbers["lower_bound_ps"] <= hand.time_ps


@pytest.mark.parametrize("n", [6, pytest.param(12, marks=pytest.mark.very_slow)])
def test_an_unrolled_recurrence(n: int) -> None:
    assert check_bounds(recurrence(n)) > 3


@pytest.mark.parametrize(
    "seed",
    [s if s < SOME else pytest.param(s, marks=pytest.mark.very_slow) for s in range(NETS)],
)
def test_random_nets(seed: int) -> None:
    check_bounds(random_net(seed))


def test_constraint_programming_finds_a_rerun_while_its_inputs_are_there() -> None:
    pytest.importorskip("ortools")
    import cpsat

    problem, _ = rerun_before_the_gap(0)
    (numbers,) = answers(problem, [BUDGET], "live")
    found, _ = cpsat.faster(problem, BUDGET, int(1.01 * numbers["once_ps"]), effort=5)
    assert found is not None
    hand = evaluate.evaluate(problem, *found, "cpu")
    assert hand.peak_bytes <= BUDGET and hand.time_ps < 1.01 * numbers["once_ps"]
    found, complete = cpsat.faster(problem, BUDGET, numbers["lower_bound_ps"], effort=5)
    assert found is None and complete


@pytest.mark.parametrize(
    "seed",
    [s if s in (0, 4) else pytest.param(s, marks=pytest.mark.very_slow) for s in range(NETS)],
)
def test_plans_by_constraint_programming(seed: int) -> None:
    """At ten budgets of a net, no schedule of the whole class, including reruns in the forward,
    takes less time than the bound. Most searches are complete."""
    pytest.importorskip("ortools")
    import cpsat

    problem = random_net(seed, most=14, views=False)
    (whole,) = answers(problem, ["1x"], "live")
    (least,) = answers(problem, ["min"], "live")
    low, high = least["live_bytes"], whole["live_bytes"]
    budgets = sorted({low + (high - low) * i // 10 for i in range(10)})
    for numbers in answers(problem, budgets, "live"):
        budget, bound = numbers["budget_bytes"], numbers["lower_bound_ps"]
        found, _ = cpsat.faster(problem, budget, bound, effort=1)
        if found is not None:
            schedule = evaluate.evaluate(problem, *found, "cpu")
            assert schedule.peak_bytes <= budget
            assert schedule.time_ps >= bound, budget


def returned_by_the_backward(flags: list[str]) -> Problem:
    """Returns a step whose backward returns ``f1``, which has no other use. So ``f0`` and ``f1``
    may first run there: nothing is saved, and nothing is recomputed."""
    s = Step()
    x = s.add([], 1, flags=("placeholder",), held=("static",))
    a = s.add([x], 4, 10)
    b = s.add([a], 1, 100, held=tuple(flags))
    starts, s.backward = len(s.ops), True
    g = s.add([a], 1, 100)
    return s.problem(starts, [], [g] if flags else [b, g])


def test_a_forward_value_that_the_backward_returns() -> None:
    problem = returned_by_the_backward([])
    hand = evaluate.evaluate(problem, [1, 2, 3], 0, "cpu")
    assert hand.saved_bytes == 0
    for budget in (0, 10**6, "min"):
        (numbers,) = answers(problem, [budget], "saved")
        assert numbers["saved_bytes"] == 0
        assert numbers["time_ps"] == numbers["lower_bound_ps"] == hand.time_ps


def test_memory_held_to_the_end_that_is_made_in_the_backward() -> None:
    problem = returned_by_the_backward(["hold_end"])
    hand = evaluate.evaluate(problem, [1, 2, 3], 0, "cpu")
    assert hand.saved_bytes == 0
    for numbers in answers(problem, [10**6, 4 * 10**6, 5 * 10**6], "saved"):
        assert numbers["lower_bound_ps"] <= hand.time_ps


@pytest.mark.parametrize("returned_by", ["forward", "backward"])
def test_a_result_that_nobody_reads_runs_after_the_last_op(returned_by: str) -> None:
    s = Step()
    x = s.add([], 1, flags=("placeholder",), held=("static",))
    result = s.add([x], 4, 10)
    wide = s.add([x], 40, 100)
    last = s.add([wide], 1, 1)
    starts, s.backward = len(s.ops), True
    g = s.add([last], 30 if returned_by == "forward" else 40, 1)
    gradient = s.add([g], 1, 1)
    if returned_by == "forward":
        problem = s.problem(starts, [result, last], [gradient])
        steps = [2, 3, 1, 4, 5]
    else:
        problem = s.problem(starts, [last], [result, gradient])
        steps = [2, 3, 4, 5, 1]
    hand = evaluate.evaluate(problem, steps, steps.index(4), "cpu")
    for budget in (hand.peak_bytes, "min"):
        (numbers,) = answers(problem, [budget], "live")
        assert numbers["live_bytes"] <= hand.peak_bytes
        assert numbers["time_ps"] == numbers["lower_bound_ps"] == hand.time_ps


def check_random_schedules(seed: int) -> int:
    """Compares bounds on saved bytes with schedules of all kinds, and bounds on the peak with those
    of the class ``ordered``. Returns the number of valid schedules."""
    draw = random.Random(seed)
    problem = random_step(draw)
    valid = 0
    for measure in ("saved", "live"):
        known: dict[int, int] = {}
        for steps, starts in random_schedules(problem, draw, 40, measure == "saved"):
            try:
                hand = evaluate.evaluate(problem, steps, starts, "cpu")
            except evaluate.BrokenPlanError:
                continue
            size = hand.saved_bytes if measure == "saved" else hand.peak_bytes
            known[size] = min(hand.time_ps, known.get(size, hand.time_ps))
            valid += 1
        sizes = sorted(known)
        chosen = sorted({*sizes[:2], *draw.sample(sizes, min(3, len(sizes)))})
        for numbers in answers(problem, [*chosen, "min"], measure):
            budget = numbers["budget_bytes"]
            times = [t for b, t in known.items() if b <= budget]
            assert numbers["lower_bound_ps"] <= min(times, default=numbers["time_ps"]), measure
    return valid


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(s, marks=pytest.mark.very_slow) for s in range(8, 1000, 8))]
)
def test_random_schedules(first: int) -> None:
    assert sum(check_random_schedules(seed) for seed in range(first, first + 8)) > 80


def class_of(problem: Problem, budget: int, steps: list[int], starts: int) -> str:
    """Returns the bound's class of the plan for the budget, after its steps are replaced by others
    that also fit."""
    plan = cutback.plan(problem, budget=budget, measure="live", device="cpu")
    assert plan.numbers["bound_class"] == "ordered"
    hand = evaluate.evaluate(problem, steps, starts, "cpu")
    assert hand.peak_bytes <= budget and hand.time_ps < plan.numbers["lower_bound_ps"]
    document = {**json.loads(plan.to_json()), "steps": steps, "backward_starts": starts}
    del document["decisions"]
    document["numbers"]["lower_bound_ps"] = hand.time_ps
    again = cutback.Plan(json.dumps(plan.problem), json.dumps(document))
    return str(json.loads(again.explain(as_json=True))["numbers"]["bound_class"])


def test_an_op_that_nobody_needs_is_outside_the_class() -> None:
    """The op would begin the backward, so that ``loss`` may be freed before the last op."""
    s = Step()
    x = s.add([], 0, flags=("placeholder",), held=("static",))
    a = s.add([x], 40, 100)
    loss = s.add([a], 1, 50)
    starts, s.backward = len(s.ops), True
    s.add([loss], 1, 5)  # never read
    g = s.add([a], 40, 5, ("random_stateful",))
    problem = s.problem(starts, [loss], [a, g])
    assert class_of(problem, 80 * MB, [1, 2, 3, 4], 2) == "trivial"


def test_held_memory_is_first_made_in_the_forward_in_the_class() -> None:
    s = Step()
    x = s.add([], 0, flags=("placeholder",), held=("static",))
    a = s.add([x], 40, 1)
    c = s.add([x], 0, 1)
    b = s.add([x], 4, 1000)
    s.add([b], 1, 1, held=("hold_end",))
    starts, s.backward = len(s.ops), True
    g = s.add([a, c], 3)
    last = s.add([g, b, c], 1)
    problem = s.problem(starts, [], [last])
    assert class_of(problem, 44 * MB, [1, 2, 5, 3, 4, 2, 6], 2) == "trivial"
