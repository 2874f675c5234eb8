"""Steps that take different paths through a model with graph breaks.

Graphs that lie on several paths have one schedule, and the step of each path has to keep to the
budget. A plan for one path knows nothing of the others. So each path is planned as if there were no
other; then each graph takes its schedule from the plan of one of its paths (:func:`mixed`), and
what the paths take with these schedules is worked out. Of the choices by which every path keeps to
its budget the fastest is taken, otherwise the one that exceeds it least.
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
"""Paths that are planned together."""

Choice = dict[str, Schedule]
"""One schedule for each graph, by its key."""


def sharing(first: Shown, others: Iterable[Shown]) -> list[Shown]:
    """A path, and those that have a graph in common with it, with one of those, and so on."""
    found, keys = [first], set(first.keys)
    rest = [path for path in others if set(path.keys) != keys]
    while near := [path for path in rest if keys & set(path.keys)]:
        found += near
        rest = [path for path in rest if path not in near]
        keys.update(*(path.keys for path in near))
    return found


def mixed(plans: Sequence[Choice]) -> list[Choice]:
    """Choices made of plans for single paths: in each another path comes first, and a graph takes
    the schedule of the first path that it lies on."""
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
    """The fastest of the choices that exceed no budget; if there is none, the one that exceeds
    budgets least.

    Args:
        excess: bytes over the budget, of the path that exceeds it most.
        time_of: the time of all paths.
    """
    return min(choices, key=lambda choice: (max(0, excess(choice)), time_of(choice)))


def rewritten(plan: Plan, counted: Problem, steps: Steps) -> Plan:
    """A plan for the same question, with other steps. If they take more than its budget, it has
    none.

    Args:
        counted: the problem that the steps are of. The plan's own problem may have one op more, at
            its end: the optimizer's step.
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
