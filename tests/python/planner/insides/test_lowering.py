"""Lowers plans of groups to programs. A program runs what was planned, to the byte and to the
bit."""

from __future__ import annotations

import json
from itertools import product

import pytest
from evaluate import check_plan
from exact_insides import optimum
from grouped_graphs import ROW, Drawn, draw_groups, draw_inlinings, run, with_times
from insides import SPEED
from slices import slice_of

from cutback import BudgetError, budgets


def stated(problem, step):
    """Returns (bytes of the outputs, scratch) of a step, as stated in the problem."""
    op, made, taken = step, None, []
    if isinstance(step, list):
        op, made, taken = step[1], step[2], step[3] if len(step) == 4 else []
    row = problem["ops"][op]
    made = range(len(row["out"])) if made is None else made
    written = sum(problem["storages"][row["out"][k]["storage"]]["bytes"] for k in made)
    scratch = row.get("workspace", 0)
    if row.get("inside"):
        members, _ = slice_of(row, made)
        scratch += sum(row["inside"][m].get("workspace", 0) for m in members)
    for x in problem.get("inlinings", []):
        if x["op"] == op and x["value"] in taken:
            scratch += x.get("workspace", 0)
    return written, scratch


def check_program(drawn, step, want):
    """Checks one step of a compiled graph with groups, under one budget."""
    problem, plan = json.loads(step.text("problem")), json.loads(step.text("plan"))
    check_plan(problem, plan, SPEED)
    kernels = json.loads(step.text("kernels"))
    for key in ("arena_bytes", "live_bytes"):
        assert kernels[key] == plan["numbers"][key]
    assert len(kernels["groups"]) == len(plan["steps"])
    assert kernels["backward_starts"] == plan["backward_starts"]
    for t, (group, planned) in enumerate(zip(kernels["groups"], plan["steps"], strict=True)):
        written, scratch = stated(problem, planned)
        assert (group["written_bytes"], group["scratch_bytes"]) == (written, scratch), t
        assert set(group["steps"]) == {t} and group["end"]["reason"] == "plan"
    bits, peak = run(step)
    assert bits == want and peak == plan["numbers"]["arena_bytes"]
    again = drawn.compile(
        groups=drawn.asked, plan_json=json.dumps(plan), backend="debug", device=ROW
    )
    bits, peak = run(again)
    assert bits == want and peak == plan["numbers"]["live_bytes"]
    return problem, plan


def keeps_order(problem, plan):
    """True if each op of the backward runs once, in base order, and no op is only inlined."""
    ops = (s[1] if isinstance(s, list) else s for s in plan["steps"])
    backward = [op for op in ops if op >= problem["backward_starts"]]
    return backward == list(range(problem["backward_starts"], len(problem["ops"])))


def check_graph(seed, most):
    """Plans one graph under several budgets. Counts programs; those in which a step makes some
    outputs only; those in which a step inlines a value; and those that are as fast as any plan with
    the backward in order."""
    drawn = Drawn(seed, most)
    single = drawn.compile()
    want, _ = run(single)
    p = json.loads(single.text("problem"))
    groups, inlinings = draw_groups(drawn, p), draw_inlinings(drawn, p)
    drawn.asked = json.dumps({"groups": groups, "inlinings": inlinings})
    counts = [0, 0, 0, 0]
    for measure, share in [("arena", None), *product(("arena", "live"), (0.9, 0.7, 0.5))]:
        budget = None if share is None else budgets.parse(f"{share}x", measure)
        try:
            step = drawn.compile(groups=drawn.asked, budget=budget, device=ROW)
        except BudgetError:
            continue
        problem, plan = check_program(drawn, step, want)
        numbers = plan["numbers"]
        best = optimum(with_times(problem), numbers["live_bytes"])
        if keeps_order(problem, plan):
            assert best <= numbers["time_ps"], (seed, measure, share)
        best = numbers["time_ps"] if best is None else best  # only late ops need so little
        assert numbers["lower_bound_ps"] <= best, (seed, measure, share)
        steps = [s for s in plan["steps"] if isinstance(s, list)]
        counts[0] += 1
        counts[1] += any(len(s[2]) < len(problem["ops"][s[1]]["out"]) for s in steps)
        counts[2] += any(len(s) == 4 for s in steps)
        counts[3] += numbers["time_ps"] <= best
    return counts


def check_graphs(seeds, most=5):
    return [sum(column) for column in zip(*(check_graph(s, most) for s in seeds), strict=True)]


def test_what_was_planned_in_groups_is_what_runs():
    programs, partial, taking, fastest = check_graphs(range(18))
    assert programs > 50 and partial > 7 and taking > 15 and fastest > 25


@pytest.mark.very_slow
def test_a_graph_with_many_schedules():
    """Trying all schedules takes a minute."""
    assert check_graph(18, 5)[0] > 0


@pytest.mark.very_slow
@pytest.mark.parametrize("part", range(8))
def test_what_was_planned_in_many_groups_is_what_runs(part):
    """Checks 2,000 graphs."""
    programs, partial, taking, fastest = check_graphs(range(1000 + part, 3000, 8))
    assert programs > 600 and partial > 80 and taking > 200 and fastest > 500


@pytest.mark.very_slow
@pytest.mark.parametrize("part", range(4))
def test_larger_graphs_in_groups(part):
    """These graphs are too large to try all schedules; all other checks apply."""
    for seed in range(100 + part, 400, 4):
        drawn = Drawn(seed, 30)
        single = drawn.compile()
        want, _ = run(single)
        p = json.loads(single.text("problem"))
        groups = draw_groups(drawn, p)
        drawn.asked = json.dumps({"groups": groups, "inlinings": draw_inlinings(drawn, p)})
        for share in (None, 0.8, 0.5):
            budget = None if share is None else budgets.parse(f"{share}x", "arena")
            try:
                step = drawn.compile(groups=drawn.asked, budget=budget, device=ROW)
            except BudgetError:
                continue
            check_program(drawn, step, want)
