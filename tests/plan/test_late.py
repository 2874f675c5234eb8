"""Problems with `reruns: "all"`: backward ops may run late or repeatedly."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import evaluate
import pytest

import cutback
from bounds import Problem, random_net, recurrence

SHARES = (0.95, 0.8, 0.65, 0.5)
BIG, SMALL = 1 << 20, 1 << 14
RECURRENCE = Path(__file__).parents[1] / "data" / "recurrence_5steps.json"
"""Traced from the `Recurrence` of `deep_nets.py` with five steps."""


def both(problem: Problem, budgets: list[Any]) -> tuple[list[Any], list[Any]]:
    """Returns plans with forward reruns only, and plans with reruns of all ops."""
    fields = {key: value for key, value in problem.items() if key != "fingerprint"}
    every = {**fields, "version": 3, "reruns": "all"}
    forward = cutback.plans({**every, "reruns": "forward"}, budgets, device="cpu")
    found = cutback.plans(every, budgets, device="cpu")
    for plan in found:
        if isinstance(plan, cutback.Plan):
            evaluate.check_plan(every, plan.document)
    return list(forward), list(found)


def sums(n: int) -> Problem:
    """Returns a step in which the gradient of one large value is a sum of `n` large parts, each
    made from a small value that is available early and needed late."""
    ops: list[dict[str, Any]] = []
    storages: list[dict[str, Any]] = []

    def add(name: str, reads: list[int], size: int, *flags: str) -> int:
        static = ["static"] if "placeholder" in flags else []
        storages.append({"bytes": size, "flags": static})
        op = {"name": name, "in": reads, "flags": list(flags), "out": [{"storage": len(ops)}]}
        ops.append(op if static else {**op, "time_ps": 1_000_000})
        return len(ops) - 1

    h = [add("x", [], SMALL, "placeholder")]
    for t in range(n):
        h.append(add(f"h_{t}", [h[-1]], SMALL))
    starts, d, parts = len(ops), add(f"d_{n}", [h[-1]], SMALL, "backward"), []
    for t in reversed(range(n)):
        parts.append(add(f"part_{t}", [d], BIG, "backward"))
        d = add(f"d_{t}", [d, h[t + 1]], SMALL, "backward")
    total = parts[0]
    for t, part in enumerate(parts[1:]):
        total = add(f"sum_{t}", [total, part], BIG, "backward")
    return {
        "format": "cutback.problem", "version": 3, "backward_starts": starts, "ops": ops,
        "storages": storages, "forward_outputs": [h[-1]], "backward_outputs": [d, total],
    }  # fmt: skip


def test_delays_cost_nothing() -> None:
    """Either all parts are live at once, or three of them. The given order needs the former; with
    delays the latter is enough."""
    n = 6
    budget = 3 * BIG + 4 * n * SMALL
    (forward,), (plan,) = both(sums(n), [budget])
    assert isinstance(forward, cutback.BudgetError)
    numbers = plan.numbers
    assert numbers["live_bytes"] <= budget and numbers["recomputed"] == 0
    assert numbers["time_ps"] == numbers["once_ps"] == numbers["lower_bound_ps"]
    text = str(plan.explain())
    assert (
        "part_0, delayed to right before sum_" in text
        and "recompute" not in text.split("value")[-1]
    )


@pytest.mark.parametrize("problem", [recurrence(6), *(random_net(seed) for seed in range(3))])
def test_no_plan_is_worse(problem: Problem) -> None:
    whole = cutback.plan(problem, device="cpu").numbers["save_all_live_bytes"]
    budgets = [*(int(share * whole) for share in SHARES), "min"]
    forward, found = both(problem, budgets)
    fits = [p.numbers for p in [*forward, *found] if isinstance(p, cutback.Plan)]
    for old, new in zip(forward, found, strict=True):
        if isinstance(old, cutback.Plan):
            assert isinstance(new, cutback.Plan)
        if not isinstance(new, cutback.Plan):
            continue
        mine = new.numbers
        asked = mine["budget_bytes"] or 0
        known = [n["time_ps"] for n in fits if n["live_bytes"] <= asked]
        assert mine["lower_bound_ps"] <= min(known)
        if isinstance(old, cutback.Plan) and asked in budgets:
            assert mine["time_ps"] <= old.numbers["time_ps"]
    assert found[-1].numbers["live_bytes"] <= forward[-1].numbers["live_bytes"]
    times = [p.numbers["time_ps"] for p in found[:-1] if isinstance(p, cutback.Plan)]
    assert all(a <= b for a, b in pairwise(times))


def test_sums_of_gradients_wait_together() -> None:
    """Delaying one op of a chain of sums frees nothing, so the plan delays several at once."""
    problem = json.loads(RECURRENCE.read_text())
    whole = cutback.plan(problem, device="cpu").numbers["save_all_live_bytes"]
    plan = cutback.plan(problem, budget=int(0.9 * whole), measure="live", device="cpu")
    assert plan.numbers["time_ps"] == plan.numbers["once_ps"]


@pytest.mark.very_slow
def test_of_the_smallest_plans_the_fastest_is_the_answer() -> None:
    problem = json.loads(RECURRENCE.read_text())
    options: dict[str, Any] = {"measure": "live", "device": "cpu"}
    for most in (0.3, 0.4, 10.0):
        least = cutback.plan(problem, budget="min", max_extra=most, **options).numbers
        same = cutback.plan(problem, budget=least["live_bytes"], **options).numbers
        assert least["time_ps"] <= same["time_ps"]


@pytest.mark.very_slow
@pytest.mark.parametrize(
    ("name", "share", "extra"), [("resnet50_bn", 0.1685, 0.379), ("t5_base", 0.1625, 0.369)]
)
def test_a_budget_just_above_the_smallest_plan(name: str, share: float, extra: float) -> None:
    """The search for the smallest plan descends twice. A budget between the two results takes the
    plan of the first descent, which is faster."""
    path = Path(__file__).parents[1] / "data" / "graphs" / f"{name}.json.gz"
    graph = json.loads(cutback.files.read_text(path))
    whole = cutback.plan(graph, device="a100").numbers["live_bytes"]
    graph.pop("fingerprint", None)
    late = {**graph, "version": 3, "reruns": "all", "over": True}
    numbers = cutback.plan(late, budget=f"{int(share * whole)}B", device="a100").numbers
    assert numbers["time_ps"] / numbers["once_ps"] - 1 <= extra
