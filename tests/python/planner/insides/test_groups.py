"""Random traced programs with random groups and inlinings: the core, both referees and an exact
solver in Python must agree on them."""

from __future__ import annotations

import gzip
import json
import random

import evaluate_traced
import pytest
from both import both
from costs import op_seconds, whole_ps
from evaluate import check_plan
from exact_insides import optimum
from insides import SPEED
from traced_groups import Program, grouped

import cutback
from cutback import _native


def check_referees(program, path):
    """Checks that all three agree on plans of the original graph."""
    path.write_bytes(gzip.compress(json.dumps(program.graph).encode()))
    graph = evaluate_traced.load(path)
    problem = json.loads(_native.Problem.read(json.dumps(program.graph)).to_json())
    for share in (1.0, 0.7, 0.5):
        try:
            plan = cutback.plan(program.graph, budget=f"{share}x", device="a100").document
        except cutback.BudgetError:
            continue
        found = evaluate_traced.evaluate(graph, plan["steps"], plan["backward_starts"])
        own = check_plan(problem, plan, "a100")
        for key in ("peak_bytes", "saved_bytes", "time_ps", "once_ps", "recomputed"):
            assert getattr(own, key) == found[key], (program.graph["name"], share, key)
    return problem


def check_groups(seed, problem):
    """Checks that plans of groups are correct and as fast as possible, and that a bound is never
    above the fastest plan."""
    for op in problem["ops"]:
        op.setdefault("flags", [])
        op["time_ps"] = whole_ps(op_seconds(op, "a100")) // 1000
    judged = taken = 0
    made = grouped(random.Random(seed), problem)
    whole = cutback.plan(made, device=SPEED).numbers["live_bytes"]
    for share in (1.0, 0.8, 0.6, 0.45):
        best = optimum(made, int(share * whole))
        try:
            plan = cutback.plan(made, budget=int(share * whole), device=SPEED)
        except cutback.BudgetError:
            assert best is None, (seed, share)
            continue
        check_plan(made, plan.document, SPEED)
        both(made, plan.document["steps"], plan.document["backward_starts"])
        assert plan.numbers["time_ps"] == best == plan.numbers["lower_bound_ps"], (seed, share)
        judged += 1
        taken += any(isinstance(s, list) and len(s) == 4 for s in plan.document["steps"])
    for measure, budget in (("arena", 1.0), ("arena", 0.7), ("total", 0.8), ("saved", 0.5)):
        try:
            plan = cutback.plan(made, budget=budget, measure=measure, device=SPEED)
        except cutback.BudgetError:
            continue
        check_plan(made, plan.document, SPEED)
        bound = plan.numbers["lower_bound_ps"]
        if measure != "saved":
            assert bound <= optimum(made, plan.numbers["live_bytes"]), (seed, measure, budget)
        assert bound <= plan.numbers["time_ps"], (seed, measure, budget)
    return judged, taken


def check_programs(seeds, path):
    counts = [check_groups(seed, check_referees(Program(seed), path)) for seed in seeds]
    return [sum(column) for column in zip(*counts, strict=True)]


def test_groups_of_random_programs(tmp_path):
    judged, taken = check_programs(range(25), tmp_path / "graph.json.gz")
    assert judged > 40 and taken > 10


@pytest.mark.very_slow
@pytest.mark.parametrize("part", range(8))
def test_groups_of_many_random_programs(part, tmp_path):
    """Checks 2,000 random programs."""
    judged, taken = check_programs(range(5000 + part, 7000, 8), tmp_path / "graph.json.gz")
    assert judged > 400 and taken > 100
