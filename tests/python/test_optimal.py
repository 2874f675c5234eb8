"""Plans of small random problems against the exact optimum."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path

import pytest

import cutback

REFERENCE = Path(__file__).parents[1] / "reference"


def load_reference(name):
    spec = importlib.util.spec_from_file_location(name, REFERENCE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def small_problem(seed, n_forward):
    """A forward with short and long edges, a backward that reads it in reverse; one value an op."""
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


@pytest.mark.slow
def test_plans_against_the_optimum():
    """Never better than the proven optimum, feasible where it is, and equal in all but few cases:
    the search is a heuristic on a fixed ladder of targets."""
    pytest.importorskip("scipy")
    milp = load_reference("milp")
    judged, missed = 0, []
    for seed in range(8):
        problem = small_problem(seed, 5 + seed % 3)
        whole = cutback.plan(problem).numbers
        for share in (0.9, 0.75, 0.6, 0.5):
            budget = int(share * whole["live_bytes"])
            best = milp.optimum(problem, budget, seconds=30.0)
            try:
                numbers = cutback.plan(problem, budget=budget).numbers
            except cutback.BudgetError:
                assert best.seconds is None, (seed, share, best)
                continue
            assert best.seconds is not None and best.proven, (seed, share, best)
            assert numbers["live_bytes"] <= budget
            extra = (numbers["time_ps"] - best.seconds * 1e12) / numbers["once_ps"]
            assert extra > -1e-6, (seed, share, extra)
            judged += 1
            if extra > 5e-4:
                missed.append((seed, share, extra))
    assert judged >= 12 and len(missed) <= 1, missed
