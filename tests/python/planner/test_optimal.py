"""Compares plans of small random problems with the exact optimum."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path

import pytest

import cutback

REFERENCE = Path(__file__).parents[2] / "reference"


def load_reference(name):
    spec = importlib.util.spec_from_file_location(name, REFERENCE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


evaluate = load_reference("evaluate")


def small_problem(seed, n_forward):
    """Returns a forward with short and long edges, and a backward that reads it in reverse, with
    one value per op."""
    rng = random.Random(seed)
    ops = [{"flags": ["placeholder"], "in": [], "out": [{"storage": 0}]}]
    storages = [{"bytes": 64, "flags": ["static"]}]

    def add(reads, flags=()):
        storages.append({"bytes": 64 * rng.randint(1, 16)})
        ops.append(
            {
                "name": f"op_{len(ops)}",
                "in": sorted(set(reads)),
                "out": [{"storage": len(storages) - 1}],
                "flags": list(flags),
                "time_ps": 10**6 * rng.randint(1, 20),
            }
        )
        return len(ops) - 1

    forward = []
    for i in range(n_forward):
        near = forward[-1:] or [0]
        far = [rng.choice(forward)] if forward and rng.random() < 0.4 else []
        random_op = ["random_stateful"] if i and rng.random() < 0.1 else []
        forward.append(add(near + far, random_op))
    starts, gradient = len(ops), forward[-1]
    for value in reversed(forward):
        gradient = add([gradient, value, *ops[value]["in"][:1]], ["backward"])
    storages[ops[gradient]["out"][0]["storage"]]["flags"] = ["hold_end"]
    return {
        "format": "cutback.problem",
        "version": 1,
        "backward_starts": starts,
        "forward_outputs": [],
        "backward_outputs": [gradient],
        "storages": storages,
        "ops": ops,
    }


def test_small_plans_are_optimal():
    """A plan equals the result of an exhaustive search, is found whenever one exists, and is
    checked by the referee."""
    exact = load_reference("exact")
    judged = impossible = 0
    for seed in range(24):
        problem = small_problem(seed, 3 + seed % 4)
        whole = cutback.plan(problem).numbers
        for share in (0.95, 0.85, 0.75, 0.6, 0.5, 0.4):
            budget = int(share * whole["live_bytes"])
            best = exact.optimum(problem, budget)
            try:
                plan = cutback.plan(problem, budget=budget)
            except cutback.BudgetError:
                assert best is None, (seed, share, best)
                impossible += 1
                continue
            evaluate.check_plan(problem, plan.document)
            assert plan.numbers["live_bytes"] <= budget
            assert plan.numbers["time_ps"] == best == plan.numbers["lower_bound_ps"], (seed, share)
            judged += 1
    assert judged >= 30 and impossible >= 20, (judged, impossible)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [range(2), pytest.param((*range(2, 8), 103, 111, 114, 127), marks=pytest.mark.very_slow)],
)
def test_plans_against_the_integer_program(seeds):
    """Plans are at least as fast as the integer program, which keeps reruns in program order."""
    pytest.importorskip("scipy")
    milp = load_reference("milp")
    judged = 0
    for seed in seeds:
        problem = small_problem(seed, 5 + seed % 4)
        whole = cutback.plan(problem).numbers
        for share in (0.9, 0.75, 0.6):
            budget = int(share * whole["live_bytes"])
            best = milp.optimum(problem, budget, seconds=30.0)
            if not best.proven or best.seconds is None:
                continue
            plan = cutback.plan(problem, budget=budget)
            evaluate.check_plan(problem, plan.document)
            assert plan.numbers["live_bytes"] <= budget
            extra = (plan.numbers["time_ps"] - best.seconds * 1e12) / plan.numbers["once_ps"]
            assert extra < 1e-5, (seed, share, extra)
            judged += 1
    assert judged >= len(seeds)
