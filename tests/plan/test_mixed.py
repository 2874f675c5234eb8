"""Tests problems that mix all features of format 3: memory reuse, saved memory that is kept, late
and repeated backward ops, copies to the host, groups and inlinings."""

from __future__ import annotations

import random
from typing import Any

import pytest
from both import both, refused
from evaluate import BrokenPlanError, Evaluation, check_plan, evaluate
from insides import SPEED, Dice
from late import Late, is_run, op_of
from over import list_over

import cutback
from bounds import random_net

Problem = dict[str, Any]
DEVICE = {**SPEED, "link_bytes_per_s": 1e12}


def mixed(seed: int, groups: bool) -> Problem:
    """Returns a small random problem with two kinds of sizes, lists of reusable inputs and a
    link."""
    rng = random.Random(seed)
    problem = Dice(seed, 7, inlines=seed % 3 == 0).document if groups else random_net(seed, 9)
    for storage in problem["storages"]:
        if "static" not in storage.get("flags", ()):
            storage["bytes"] = rng.choice([256, 512])
    for op in problem["ops"]:
        if "placeholder" not in op["flags"]:
            op |= {"workspace": rng.choice([0, 0, 0, 64]), "time_ps": rng.randint(1, 600)}
    fields = {"reruns": "all", "keep_saved": rng.random() < 0.7}
    fields["link_bytes_per_s"] = rng.choice([1e11, 1e12, 1e13])
    return {**list_over(problem, rng), **fields}


class Moved:
    """The steps of a schedule, into which copies to the host and back are inserted."""

    def __init__(self, problem: Problem, steps: list[Any], starts: int) -> None:
        self.late, self.steps, self.starts = Late(problem), list(steps), starts

    def insert(self, at: int, step: Any) -> None:
        self.steps.insert(at, step)
        self.starts += at < self.starts

    def runs(self, op: int) -> tuple[int, list[int]]:
        """Returns the op's first run, and the later runs that read it."""
        at = [t for t, step in enumerate(self.steps) if is_run(step)]
        made = next(t for t in at if op_of(self.steps[t]) == op)
        return made, [t for t in at if t > made and op in self.late.reads(self.steps[t])]

    def move(self, op: int, rng: random.Random) -> None:
        """Moves the op's values to the host, and back before a reader. This may break a rule."""
        made, reads = self.runs(op)
        if not reads:
            return
        back = rng.choice(reads)
        gone = rng.choice([made, *(t for t in reads if t < back)])
        sent = rng.randint(gone + 1, back)
        self.insert(sent, ["in", op])
        if rng.random() < 0.3:
            self.insert(rng.randint(gone + 1, sent), ["wait", op])
        self.insert(gone + 1, ["out", op])


def with_moves(
    problem: Problem, steps: list[Any], starts: int, rng: random.Random
) -> tuple[list[Any], int]:
    """Returns the schedule with copies of some values to the host and back."""
    moved = Moved(problem, steps, starts)
    ops = [op_of(s) for s in steps if is_run(s)]
    movable = [i for i in ops if not problem["ops"][i].get("inside")]
    for op in rng.sample(movable, min(len(movable), rng.randint(1, 3))):
        moved.move(op, rng)
    return moved.steps, moved.starts


def judged(problem: Problem, steps: list[Any], starts: int) -> Evaluation | None:
    """Returns both evaluators' result, or None if both refuse the schedule."""
    try:
        evaluate(problem, steps, starts, SPEED)
    except BrokenPlanError:
        refused(problem, steps, starts)
        return None
    return both(problem, steps, starts)


def check_schedules(problem: Problem, seed: int) -> dict[str, int]:
    """Checks that both evaluators agree about random schedules. Returns what valid ones did."""
    rng, late, did = random.Random(seed), Late(problem), {"taken": 0, "moved": 0, "kept": 0}
    for preset in ("autograd", "recompute_all"):
        plan = cutback.plan(problem, preset=preset, device=DEVICE).document
        steps, starts = plan["steps"], plan["backward_starts"]
        judged(problem, steps, starts)
        for _ in range(3):
            changed = late.delays(steps, starts, rng, rng.choice((0.0, 0.5)))
            changed = late.reruns(changed, starts, rng, 0.3)
            changed, first = with_moves(problem, changed, starts, rng)
            own = judged(problem, changed, first)
            apart = judged({**problem, "keep_saved": False}, changed, first)
            if own is not None and apart is not None:
                did["moved"] += own.in_bytes > 0
                did["taken"] += len(own.over)
                did["kept"] += own.over != apart.over
    return did


def check_plans(problem: Problem) -> int:
    """Checks that the evaluator confirms plans with copies. Returns the number of such plans."""
    moved = 0
    for budget, offload in ((0.3, True), ("min", True), ("min", "only")):
        plan = cutback.plan(problem, budget=budget, offload=offload, device=DEVICE)
        check_plan(problem, plan.document, DEVICE)
        moved += bool(plan.offloaded)
    return moved


def check(seeds: range, planned: range) -> None:
    did = [check_schedules(mixed(seed, groups), seed) for seed in seeds for groups in (True, False)]
    for key in ("taken", "moved", "kept"):
        assert sum(d[key] for d in did) > 0, key
    assert sum(check_plans(mixed(seed, False)) for seed in planned) > 0


def test_evaluators_and_searches_agree() -> None:
    check(range(10), range(2))


@pytest.mark.very_slow
@pytest.mark.parametrize("first", range(100, 400, 50))
def test_evaluators_and_searches_agree_on_more(first: int) -> None:
    check(range(first, first + 50), range(first, first + 50))
