"""With transfers allowed, the search, its refusals and its explanations agree on what may be
recomputed."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from evaluate import check_plan  # tests/reference

import cutback

sys.path.insert(0, str(Path(__file__).parent))

from test_floor import least_peak
from test_floor import small_problem as floor_problem
from test_optimal import small_problem

ONCE = {"random_stateful", "placeholder", "view", "effect", "unknown"}


def problems():
    """Yields problems with held values, returned ones, views and random ops, and a link fast enough
    for some copies."""
    for seed in range(30):
        yield seed, {**floor_problem(seed), "link_bytes_per_s": 2e7}
        yield 1000 + seed, {**small_problem(seed, 5), "link_bytes_per_s": 1e9}


def ask(problem, budget, offload=True):
    more = {"max_extra": 100} if budget == "min" else {}
    return cutback.plan(problem, budget=budget, device="cpu", offload=offload, **more)


def test_nothing_runs_again_that_may_not():
    moved = again = 0
    for seed, problem in problems():
        for budget in ("0.8x", "min"):
            try:
                plan = ask(problem, budget)
            except cutback.BudgetError:
                continue
            check_plan(problem, plan.document, "cpu")
            runs = Counter(step for step in plan.document["steps"] if isinstance(step, int))
            twice = {op for op, n in runs.items() if n > 1}
            for op in twice:
                flags = set(problem["ops"][op].get("flags", ()))
                assert op < problem["backward_starts"], (seed, op)
                assert not flags & ONCE or flags & ONCE == {"view"}, (seed, op)
            for row in plan.explanation["values"]:
                if row["runs_once"] is None:
                    continue
                assert row["decision"] in ("save", "offload"), (seed, row)
                assert row["op"] not in twice and row["otherwise"] is None, (seed, row)
            moved += bool(plan.offloaded)
            again += bool(twice)
    assert moved >= 10 and again >= 10


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_the_floor_and_the_smallest_plan(seed):
    """The floor is that of plans without transfers; transfers never need more. The bytes that a
    refusal names are enough, and one byte less is not."""
    problem = floor_problem(seed)
    least = least_peak(problem)
    linked = {**problem, "link_bytes_per_s": 2e7}
    smallest = ask(linked, "min").numbers["live_bytes"]
    runs = ask(problem, "min", offload=False)
    assert smallest <= runs.numbers["live_bytes"]
    assert runs.explanation["floor"]["bytes"] <= least <= runs.numbers["live_bytes"]
    with pytest.raises(cutback.BudgetError) as error:
        ask(linked, smallest - 1)
    named = error.value.smallest_bytes
    assert named == smallest
    assert ask(linked, named).numbers["live_bytes"] <= named


def test_a_plan_that_moves_values_may_be_below_the_floor():
    """If a plan moves values, the explanation states the floor for plans without transfers."""
    below = 0
    for _, problem in problems():
        plan = ask(problem, "min")
        floor = plan.explanation["floor"]["bytes"]
        said = "no plan with this order of ops that moves nothing to the host takes less"
        assert (said in plan.explain()) == bool(plan.offloaded)
        if plan.numbers["live_bytes"] < floor:
            assert plan.offloaded
            below += 1
    assert below > 0
