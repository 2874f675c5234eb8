"""Makes plans that repeat collectives, and compares them with those of other processes."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import replace

from ... import BudgetError
from ...problem import Problem
from ..graph.importer import Imported
from ..graph.moving import Move, Schedule
from . import agreement
from .options import Agreed, Made, Target, smallest
from .partition import Partitioner
from .saved_plans import fingerprint


def repeats(problem: Problem, schedule: Schedule) -> bool:
    """True if a schedule runs a collective more than once."""
    runs = [s for s in schedule.steps if not isinstance(s, Move)]
    collectives = [op for op in runs if "collective" in problem.ops[op].flags]
    return len(set(collectives)) < len(collectives)


def _mark(problem: Problem, schedule: Schedule) -> str:
    """Returns a hash of a graph and its plan that is the same in all processes."""
    text = f"{fingerprint(problem)} {list(schedule.steps)} {schedule.backward_starts}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def settle(graph: Imported, plan: Callable[[], Agreed], may: bool) -> Agreed | None:
    """Returns the plan of a graph if it repeats collectives and all processes have the same plan.
    All processes must call this to compare their plans.

    Args:
        graph: a graph whose problem allows collectives to run again.
        plan: makes the plan.
        may: False if plans of this graph must not repeat anything.

    Raises:
        PlansDifferError: see :func:`agreement.agree`.
    """
    may = may and agreement.may_repeat(graph.groups)
    if not may and not agreement.in_force(graph.groups):
        return None
    made, mark = None, "none"
    try:
        if may:
            made = plan()
            mark = _mark(graph.problem, made.made.schedule)
    finally:  # also after an error, so that the others do not wait
        again = made is not None and repeats(graph.problem, made.made.schedule)
        agreed = agreement.agree(graph.groups, mark, again)
    return made if agreed and again else None


def follow(graph: Imported, schedule: Schedule) -> Imported:
    """Returns the graph once all processes follow the same plan from a file that repeats
    collectives. Raises PlansDifferError if they do not.
    """
    mark = _mark(graph.problem, schedule)
    if not agreement.agree(graph.groups, mark, repeats(graph.problem, schedule)):
        raise agreement.PlansDifferError(
            "the plan in the file runs collectives again, but not all processes of the group have "
            "it: give all of them the same plans, or make plans with collective_again=False"
        )
    return graph


class RepeatingPartitioner(Partitioner):
    """A partitioner whose plans may run collectives again."""

    @property
    def _may_repeat_collectives(self) -> bool:
        """True if the current graph may run collectives again, provided that all processes
        agree."""
        return False

    def _repeats_from_file(self, problem: Problem) -> Schedule | None:
        """Returns a file's schedule for a problem in which collectives may run again, or None."""
        return None

    def _with_collectives(self, graph: Imported) -> Imported:
        """Returns the graph with a problem in which collectives may run again, if a plan repeats
        some of them and all processes have that plan."""
        if not graph.groups:
            return graph
        again = graph._replace(problem=replace(graph.problem, collective_again=True))
        if self.has_plans:
            schedule = self._repeats_from_file(again.problem)
            return graph if schedule is None else self._hand_on(follow(again, schedule))
        target = self._target
        may = graph.may_gather_again and target.budget is not None and self._may_repeat_collectives
        plan = functools.partial(self._plan_repeating, again, target)
        self.at_hand.agreed = settle(again, plan, may)
        return graph if self.at_hand.agreed is None else self._hand_on(again)

    def _hand_on(self, graph: Imported) -> Imported:
        """Makes a graph the current one."""
        self.at_hand.sized.graph = graph
        return graph

    def _plan_repeating(self, graph: Imported, target: Target) -> Agreed:
        """Returns a plan of the graph in which collectives may run again."""
        try:
            made = super()._make(graph.problem, target, self._own(graph, target))
        except BudgetError:
            target = smallest(target.measure)
            made = super()._make(graph.problem, target)
        return Agreed(graph.problem, target, made)

    def _make(
        self,
        problem: Problem,
        target: Target,
        own: Problem | None = None,
        counted: Problem | None = None,
    ) -> Made:
        """Makes a plan like :meth:`Partitioner._make`. Only the plan that all processes agreed on
        repeats collectives."""
        agreed = self.at_hand.agreed
        if agreed is not None and agreed.is_for(problem, target):
            return agreed.made
        return super()._make(_once(problem), target, own and _once(own), counted and _once(counted))


def _once(problem: Problem) -> Problem:
    """Returns the problem in which collectives run only once."""
    return replace(problem, collective_again=False) if problem.collective_again else problem
