"""Computes what a step takes without a budget, and resolves the budgets that are relative to it:
shares and positions.

Two plans need no search: saving all that the backward reads (the preset ``autograd``), and the cut
of PyTorch's partitioner (``torch-compat``), whose bytes are those that ``aot_eager`` takes. Both
follow the checkpoints in the model. The reference is the plan with the lower peak. If the peaks are
equal, it is the plan that saves less, because other ops run while saved values are held; if these
are equal, too, it is the faster one. So a compiled model takes no more memory than under
``aot_eager``, and no more than with its own checkpoints.

For a budget in bytes, the fastest among these plans and the search's plan is used. Shares and
positions are turned into bytes, so that a position and its bytes have the same plan.

If results may take over memory (``over``), a search may find a plan that is slower or larger than
the one that it finds with nothing taken over. That happens in graphs of few ops, where chance
decides a lot. So in those graphs, if a plan costs much extra time, another one is searched for with
nothing taken over, and the better of the two is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from ... import BudgetError, _native, budgets, devices
from ...planner.plan import Plan
from ...problem import Problem
from ...schedule import bytes_of as measured
from ..graph.taking_over import separate

FASTEST = "fastest"
"""The budget that asks for speed, regardless of memory."""

_PYTORCH = "torch-compat"

Row = devices.Device | None


def _plans(problem: _native.Problem, device: Row) -> list[_native.Plan]:
    """Returns the plans that need no search. If values must move, this leaves out PyTorch's cut,
    which moves nothing."""
    row = devices.resolve(device)
    return [
        problem.plan(preset=budgets.parse_preset(preset), device=row)
        for preset in ((None,) if problem.wants_moves else (None, _PYTORCH))
    ]


def _reference(problem: _native.Problem, device: Row) -> _native.Plan:
    def size(plan: _native.Plan) -> tuple[int, int, int]:
        n = plan.numbers
        return n["live_bytes"], n["saved_bytes"], n["time_ps"]

    return min(_plans(problem, device), key=size)


def preset_of(problem: _native.Problem, device: Row) -> str | None:
    """Returns the preset of the reference, or None for the plan that saves everything."""
    preset = _reference(problem, device).preset
    return preset if preset == _PYTORCH else None


def plan_of(problem: _native.Problem, device: Row) -> Plan:
    """Returns the reference plan for a problem."""
    return Plan.of(_reference(problem, device))


def bytes_of(problem: _native.Problem, device: Row, measure: str) -> int:
    """Returns the bytes that a share is relative to: the smallest peak of the plans that need no
    search."""
    return min(measured(plan.numbers, measure) for plan in _plans(problem, device))


class PositionEnds(NamedTuple):
    """The bytes of positions 0 and 1."""

    smallest: int
    everything: int


Search = Callable[[_native.Problem, budgets.NativeBudget], Plan]
"""Finds the plan of a problem for a budget in bytes, or for a position."""

_FEW_OPS = 100
"""In graphs with more ops, plans are not searched for with nothing taken over, because that doubles
the time. The planner calls searches of fewer ops tiny (``CB_TINY_OPS``): each takes some 50 ms."""

_LITTLE_EXTRA = 10
"""Extra time in percent below which a plan is not searched for again."""


_FAR = 1.02
"""A smallest plan with nothing taken over is about as large as one with memory taken over. If that
one is larger than the budget by this factor, the other is not searched for in a running step."""


class Searched(NamedTuple):
    """The problem, or the two problems, in which plans are searched for."""

    problem: _native.Problem
    apart: _native.Problem | None = None
    """The problem with nothing taken over, or None if it is the same problem."""
    in_both: bool = False
    """True if ``apart`` is searched, too, although a plan of ``problem`` is known."""

    @classmethod
    def of(cls, problem: Problem) -> Searched:
        """Makes the record for a problem."""
        plain = separate(problem)
        if plain is problem:
            return cls(problem.check())
        return cls(problem.check(), plain.check(), has_few_ops(problem))

    @property
    def base(self) -> _native.Problem:
        """Returns the problem that shares and positions are relative to, if there is no policy."""
        return self.apart or self.problem


class Question:
    """A problem to plan under budgets of one measure.

    Args:
        own: the problem with only the model's own constraints; shares and positions are relative to
            it.
        preset: says what may run again, with ``measure="saved"``.
        counted: the problem with measured scratch (:mod:`compiler.counted_scratch`), which plans
            are made for. Shares and positions are those of ``problem``. None means the same
            problem, with nothing else to search in.
    """

    def __init__(
        self,
        problem: _native.Problem,
        own: _native.Problem,
        device: Row,
        measure: str,
        preset: str | None = None,
        counted: Searched | None = None,
    ) -> None:
        self.problem, self.own = problem, own
        self.counted, self.apart, self.in_both = counted or Searched(problem)
        self.device, self.measure, self.preset = device, measure, preset
        self.row = devices.resolve(device)
        self.smallest: Plan | None = None  # found by a search that was refused, with scratch

    @cached_property
    def unsearched(self) -> list[_native.Plan]:
        """Returns the plans that need no search."""
        return _plans(self.counted, self.device)

    @cached_property
    def whole(self) -> int:
        """Returns what the step takes without a budget. Shares are relative to it, and it is
        position 1."""
        if self.own is self.problem:
            return self._smallest_unsearched
        return bytes_of(self.own, self.device, self.measure)

    @cached_property
    def _smallest_unsearched(self) -> int:
        if self._counts_scratch:
            return bytes_of(self.problem, self.device, self.measure)
        return min(measured(plan.numbers, self.measure) for plan in self.unsearched)

    def ends(self) -> PositionEnds:
        """Returns the ends of the positions: the bytes of the smallest plan that costs little extra
        time (at most ``whole``), and ``whole``. If constraints make every plan larger than
        ``whole``, both are the bytes of the smallest plan."""
        preset = budgets.parse_preset(self.preset)
        smallest, _ = self.problem.ends(self._number, preset, self.row)
        return self._ends(smallest)

    def _ends(self, smallest: int) -> PositionEnds:
        if smallest >= self.whole:
            smallest = min(smallest, self._smallest_unsearched)
        return PositionEnds(smallest, max(smallest, self.whole))

    def plan(self, budget: budgets.NativeBudget, search: Search | None = None) -> Plan:
        """Returns the plan for a budget that bounds bytes: a number of bytes, a share or a
        position.

        Args:
            search: replaces the core's search.

        Raises:
            BudgetError: no plan meets the budget. Its shares are relative to what the step takes
                without a budget.
        """
        share = budget[2] if budgets.is_share(budget) else None
        if share is not None:
            budget = budgets.in_bytes(budget, int(share * self.whole))
        try:
            if budgets.is_position(budget):
                return self._plan_at(budget, search)
            return self._fastest(budget, search or self._search)
        except BudgetError as error:
            position = budgets.position_of(budget)
            whole = counted_from(self.whole)
            refused = error.replace(share=share, position=position, **whole)
            refused._smallest_plan = self.smallest
            raise refused from None

    def _plan_at(self, budget: budgets.NativeBudget, search: Search | None) -> Plan:
        """Returns the plan for a position. One search by the core finds the ends and the plan."""
        found = None
        search = search or self._search
        if not self._counts_scratch:
            found = search(self.problem, (budget[0], self.whole, *budget[2:]))
            assert found.position is not None
            ends = self._ends(found.position.smallest)
        else:
            ends = self.ends()
        position = budgets.Position(budget[2], *ends)
        within = budgets.in_bytes(budget, position.limit)
        if found is not None and found.numbers["budget_bytes"] == position.limit:
            plan = self._faster(self._better(found, within, search), within)
        else:
            plan = self._fastest(within, search)
        return Plan.of(plan.core.asked(self._number, position.limit), position=position)

    @property
    def _number(self) -> int:
        return budgets.MEASURES.index(self.measure)

    def _search(self, problem: _native.Problem, budget: budgets.NativeBudget) -> Plan:
        preset = budgets.parse_preset(self.preset)
        if not self._counts_scratch or problem is not self.counted or self.in_both:
            return Plan.of(problem.plan(preset=preset, budget=budget, device=self.row))
        # a step whose scratch exceeds the budget gets the smallest plan: the same search finds it
        several = budget, budgets.parse("smallest", self.measure)
        answers = problem.plans(several, preset=preset, device=self.row, until_met=True)
        if isinstance(answers[0], BudgetError):
            last = answers[-1]
            self.smallest = None if isinstance(last, BudgetError) else Plan.of(last)
            raise answers[0]
        return Plan.of(answers[0])

    @property
    def _counts_scratch(self) -> bool:
        return self.counted is not self.problem

    def _searched(self, budget: budgets.NativeBudget, search: Search) -> Plan:
        """Returns the plan that a search finds.

        Raises:
            BudgetError: no plan meets the budget, with or without memory taken over.
        """
        try:
            found = search(self.counted, budget)
        except BudgetError as error:
            if self.apart is None or error.reason != "budget" or self._is_far(error):
                raise
            try:
                return taking_over(self.counted, search(self.apart, budget))
            except BudgetError:
                raise error from None
        return self._better(found, budget, search)

    def _is_far(self, error: BudgetError) -> bool:
        """True if a plan made again with measured scratch exceeds the budget by so much that a
        search with nothing taken over, which takes as long again, is not worth it."""
        if not self._counts_scratch or error.smallest_bytes is None or error.budget_bytes is None:
            return False
        return error.smallest_bytes > _FAR * error.budget_bytes

    def _better(self, found: Plan, budget: budgets.NativeBudget, search: Search) -> Plan:
        """Returns ``found``, or a faster plan for which nothing has to be taken over.

        Only plans that cost more than a little extra time are compared. A larger budget may have a
        cheaper plan, which is not compared and must not be slower than this one. So if the other
        plan costs too little to be compared, the next smaller ones are tried until one is not."""
        n = found.numbers
        least_ps = n["once_ps"] + n["once_ps"] * _LITTLE_EXTRA // 100
        if self.apart is None or not self.in_both or n["time_ps"] <= least_ps:
            return found
        while True:
            try:
                other = search(self.apart, budget)
            except BudgetError:
                return found
            if other.numbers["time_ps"] >= least_ps:
                break
            budget = budgets.in_bytes(budget, measured(other.numbers, self.measure) - 1)
        is_faster = other.numbers["time_ps"] < n["time_ps"]
        return taking_over(self.counted, other) if is_faster else found

    def _fastest(self, budget: budgets.NativeBudget, search: Search) -> Plan:
        """Returns the fastest plan found that meets a budget in bytes: that of the search, or one
        that needs no search. The search adds runs of single ops, and may not find a plan at the
        peak of a cut of the whole graph.

        Raises:
            BudgetError: no plan meets the budget.
        """
        try:
            found = self._searched(budget, search)
        except BudgetError as error:
            meets = self._unsearched_within(budget) if error.reason == "budget" else []
            if not meets:
                raise
            return Plan.of(meets[0].asked(self._number, budget[1]))
        return self._faster(found, budget)

    def _faster(self, found: Plan, budget: budgets.NativeBudget) -> Plan:
        """Returns ``found``, or a faster plan that needs no search."""
        time = found.numbers["time_ps"]
        if time <= found.numbers["once_ps"]:
            return found
        for plan in self._unsearched_within(budget)[:1]:
            if plan.numbers["time_ps"] < time:
                return Plan.of(plan.asked(self._number, budget[1]))
        return found

    def _unsearched_within(self, budget: budgets.NativeBudget) -> list[_native.Plan]:
        """Returns the plans that need no search and meet a budget in bytes, fastest first."""
        if self.preset is not None:
            return []
        meets = [plan for plan in self.unsearched if _meets(plan, budget, self.measure)]
        return sorted(meets, key=lambda plan: plan.numbers["time_ps"])


def _meets(plan: _native.Plan, budget: budgets.NativeBudget, measure: str) -> bool:
    """True if a plan that needs no search meets all conditions of a budget in bytes."""
    n = plan.numbers
    keeps = budgets.keeps_to_moves(budget, n["recomputed"], n.get("host_bytes", 0))
    return keeps and measured(n, measure) <= budget[1]


def counted_from(whole: int) -> dict[str, int | str]:
    """Makes the shares of a BudgetError relative to the reference, which takes ``whole`` bytes."""
    return {"reference_bytes": whole, "reference": "the step takes without a budget"}


def has_few_ops(problem: Problem) -> bool:
    """True if a search of the problem is so fast that another one is worth it."""
    return sum("placeholder" not in op.flags for op in problem.ops) < _FEW_OPS


def taking_over(problem: _native.Problem, plan: Plan) -> Plan:
    """Converts a plan of a problem with nothing taken over to a plan of the problem itself."""
    document = {**plan.document, "fingerprint": problem.fingerprint}
    return Plan.of(problem.read_plan(json.dumps(document)))


def smaller(problem: _native.Problem, found: Plan, apart: Plan, measure: str) -> Plan:
    """Returns the smaller of two plans, or the faster one if they are equally small.

    Args:
        apart: a plan of the problem with nothing taken over.
    """

    def size(plan: Plan) -> tuple[int, int]:
        return measured(plan.numbers, measure), plan.numbers["time_ps"]

    return min(found, taking_over(problem, apart), key=size)


def plan_unbounded(
    searched: Searched,
    own: _native.Problem,
    budget: budgets.NativeBudget | None,
    device: Row,
    measure: str,
) -> Plan:
    """Returns the smallest plan of a problem, or the plan that only follows its constraints.

    Args:
        own: the problem that shares would be relative to.

    Raises:
        BudgetError: no plan keeps all constraints.
    """
    problem, apart, in_both = searched
    row = devices.resolve(device)
    try:
        found = Plan.of(problem.plan(budget=budget, device=row))
        if apart is None or not in_both or budget is None:
            return found
        return smaller(problem, found, Plan.of(apart.plan(budget=budget, device=row)), measure)
    except BudgetError as error:
        raise error.replace(**counted_from(bytes_of(own, device, measure))) from None
