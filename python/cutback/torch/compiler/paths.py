"""Plans steps that take different paths through a model with graph breaks.

A graph on several paths has one schedule, and the step of each path must keep to the budget. A plan
for one path does not consider the others. So each path is first planned as if it were the only one.
Then each graph takes its schedule from the plan of one of its paths (:func:`mixed`), and the memory
of each path with these schedules is computed. The fastest choice in which every path keeps to its
budget is used. If there is none, the choice that exceeds budgets least is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

from ...planner.plan import Plan
from ...problem import Problem
from ...schedule import Schedule as Steps
from ...schedule import bytes_of
from ..graph.moving import Schedule
from .joining import lenient
from .records import Shown

MOST_PATHS = 8
"""Maximum number of paths that are planned together."""

Choice = dict[str, Schedule]
"""Maps each graph's key to its schedule."""


def sharing(first: Shown, others: Iterable[Shown]) -> list[Shown]:
    """Returns a path and all paths connected to it by shared graphs."""
    found, keys = [first], set(first.keys)
    rest = [path for path in others if set(path.keys) != keys]
    while near := [path for path in rest if keys & set(path.keys)]:
        found += near
        rest = [path for path in rest if path not in near]
        keys.update(*(path.keys for path in near))
    return found


def mixed(plans: Sequence[Choice]) -> list[Choice]:
    """Combines plans for single paths into choices. Each choice puts another path first, and a
    graph takes the schedule of the first path that contains it."""
    found: list[Choice] = []
    for first in plans:
        choice = dict(first)
        for plan in plans:
            choice = {**plan, **choice}
        if choice not in found:
            found.append(choice)
    return found


def best(
    choices: Iterable[Choice], excess: Callable[[Choice], int], time_of: Callable[[Choice], int]
) -> Choice:
    """Returns the fastest choice that exceeds no budget, or the one that exceeds budgets least.

    Args:
        excess: returns the largest number of bytes by which a path exceeds its budget.
        time_of: returns the time of all paths.
    """
    return min(choices, key=lambda choice: (max(0, excess(choice)), time_of(choice)))


def rewritten(plan: Plan, counted: Problem, steps: Steps) -> Plan:
    """Returns a plan for the same request with other steps. If they exceed its budget, the new plan
    has no budget.

    Args:
        counted: the problem of the steps. The plan's own problem may have one more op at its end,
            the optimizer's step.
    """
    n = len(counted.ops)
    rows = [step if isinstance(step, int) else [step.action, step.op] for step in steps.steps]
    rows += range(n, len(plan.parts.ops))
    told = ("format", "version", "fingerprint", "device", "preset", "measure", "budget_bytes")
    document = {
        **{name: plan.document[name] for name in told},
        "steps": rows,
        "backward_starts": steps.backward_starts,
    }
    problem = lenient(plan.parts).check()
    read = problem.read_plan(json.dumps(document))
    budget = read.budget_bytes
    if budget is not None and bytes_of(read.numbers, read.measure) > budget:
        return Plan.of(problem.read_plan(json.dumps({**document, "budget_bytes": None})))
    return Plan.of(read, position=plan.position)
