"""Computes what graphs and calls take together, and finds plans with which they meet one budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ... import budgets
from ...problem import Problem
from .. import amounts
from ..graph import moving
from ..graph.moving import Schedule
from ..graph.taking_over import separate
from . import paths, reference, together
from .counted_scratch import Rows, with_scratch
from .joining import Common, join, lenient
from .options import Options, Target
from .records import CompiledGraph, Shown, Steps
from .reference import PositionEnds
from .together import Choice, Make, Together


@dataclass(frozen=True)
class SharedBudget:
    """A model's budget over graphs that are pending together."""

    options: Options
    row: str
    """The row of the device table for times."""
    make: Make
    graphs: dict[str, CompiledGraph]
    steps: Steps
    scratch: Mapping[str, Rows] = field(default_factory=dict)
    """Measured scratch that counts towards what graphs hold together, by the key of a graph."""

    def own_of(self, keys: list[str], common: Common | None = None) -> Problem | None:
        """Returns the joint problem that a share is relative to, or None if it is that of the
        graphs as they are."""
        if self.options.policy is None:
            return None
        owns = [self.graphs[key].own or self.graphs[key].problem for key in keys]
        return join(owns, common)[0]

    def held(
        self,
        pattern: Together,
        schedules: dict[str, Schedule],
        later: Mapping[str, Schedule] | None = None,
    ) -> tuple[int, int]:
        """Returns the bytes that graphs hold together under these schedules, and the budget for
        them.

        Args:
            later: schedules of all runs of a graph except its first.
        """
        target = self.options.target
        shown = self.steps.shown_for(pattern)
        joined, order = self.counted(shown)
        assert target.budget is not None
        first = {key: run for run, key in reversed(list(enumerate(shown.keys)))}
        after = {**schedules, **(later or {})}
        runs = [(schedules if first[k] == r else after)[k] for r, k in enumerate(shown.keys)]
        held = together.bytes_of(joined, order, runs, target.measure)
        loss = self.steps.left.loss
        if loss and not target.is_relative and target.measure != "saved":
            held = max(held, together.bytes_of(joined, order, runs, "saved") + loss)
        held += self._static_bytes
        if not target.is_relative:
            return held + self.steps.beside_of(pattern), target.budget[1]
        part = target.budget[2]
        if target.is_share:
            return held, int(part * self._whole(pattern))
        # there is no limit: allow what the smallest plans take
        at_least = int(part * self._whole(pattern))
        if held <= at_least:
            return held, at_least
        return held, budgets.limit(part, *self.ends(pattern))

    def named(self, pattern: Together, limit: int) -> str:
        """Returns the budget of a pattern as text, for a limit in bytes."""
        return f"{amounts.name_of(limit, self._position(pattern))} ({limit} bytes)"

    def _position(self, pattern: Together) -> budgets.Position | None:
        target = self.options.target
        if target.budget is None or not target.is_position:
            return None
        return budgets.Position(target.budget[2], *self.ends(pattern))

    def shared(self, pattern: Together, held: int, limit: int) -> budgets.Shared:
        """Returns what the first line of each plan of a pattern says about all calls."""
        calls = sum(pattern.values())
        return budgets.Shared(calls, held, limit, self._position(pattern))

    def held_now(
        self, pattern: Together, later: Mapping[str, Schedule] | None = None
    ) -> tuple[int, int]:
        """Like :meth:`held`, under the schedules of the plans in force."""
        return self.held(pattern, {key: self.graphs[key].schedule for key in pattern}, later)

    def ends(self, pattern: Together) -> PositionEnds:
        """Returns the ends of the positions of calls that are pending together.

        If each graph runs once, one plan can cover all of them, and the smallest plan is that of
        the joint problem. If a graph runs several times, all its runs have the same schedule, so
        the lower end is what the runs hold together under the smallest plans of the single graphs.
        """
        key = frozenset(pattern.items())
        if key not in self.steps.ends:
            self.steps.ends[key] = self._ends(pattern)
        return self.steps.ends[key]

    def _ends(self, pattern: Together) -> PositionEnds:
        shown, measure = self.steps.shown_for(pattern), self.options.target.measure
        joined, order = self._join(shown)
        whole = self._whole(pattern)
        if self.is_path(pattern):
            own = self.own_of(shown.keys, shown.common)
            counted = "saved" if measure == "saved" else "live"
            checked, plain = joined.check(), separate(own or joined)
            base = checked if plain is joined else plain.check()
            smallest = reference.Question(checked, base, self.row, counted).ends().smallest
        else:
            problems = {key: self.graphs[key].problem for key in pattern}
            free = self._without_budget
            choices = [
                together.without_budget(self.make, problems, free),
                *together.small_choices(self.make, problems, free),
            ]
            smallest = min(
                together.bytes_of(joined, order, [c[k].schedule for k in shown.keys], measure)
                for c in choices
            )
        smallest += self._static_bytes
        return PositionEnds(smallest, max(smallest, whole))

    @property
    def _static_bytes(self) -> int:
        return 0 if self.options.total is None else self.options.total.static_bytes

    def is_path(self, pattern: Together) -> bool:
        """True if each graph runs once, so that one plan can cover all of them."""
        frames = Counter(self.graphs[key].frame for key in pattern.elements())
        return max(frames.values()) == 1

    def _join(self, shown: Shown) -> tuple[Problem, list[tuple[int, int]]]:
        joined, order = join([self.graphs[key].problem for key in shown.keys], shown.common)
        if self.options.offload or joined.wants_moves:
            joined = moving.with_link(joined, self.row)
        return joined, order

    def counted(self, shown: Shown) -> tuple[Problem, list[tuple[int, int]]]:
        """Returns the joint problem of graphs with measured scratch, and what each of its ops
        stands for."""
        joined, order = self._join(shown)
        if any(self.scratch.get(key) for key in shown.keys):
            rows = [(self.graphs[key].problem, self.scratch.get(key, ())) for key in shown.keys]
            counted = join([with_scratch(*row) for row in rows], shown.common)[0]
            joined = replace(counted, link_bytes_per_s=joined.link_bytes_per_s)
        return joined, order

    def _whole(self, pattern: Together) -> int:
        """Returns the bytes that calls which are pending together take without a budget; their
        shares and positions are relative to it."""
        key = frozenset(pattern.items())
        if key not in self.steps.wholes:
            shown = self.steps.shown_for(pattern)
            counted = self._count_whole(shown, *self._join(shown))
            self.steps.wholes[key] = counted + self._static_bytes
        return self.steps.wholes[key]

    def _count_whole(self, shown: Shown, joined: Problem, order: list[tuple[int, int]]) -> int:
        target = self.options.target
        own = self.own_of(shown.keys, shown.common)
        measure = "saved" if target.measure == "saved" else "live"
        whole = reference.bytes_of(separate(own or joined).check(), self.row, measure)
        if own is not None or self.options.total is not None or target.fastest:
            return whole
        problems = {key: self.graphs[key].problem for key in shown.keys}
        plans = together.without_budget(self.make, problems, self._without_budget)
        schedules = [plans[key].schedule for key in shown.keys]
        return max(whole, together.bytes_of(joined, order, schedules, target.measure))

    @property
    def _without_budget(self) -> Target:
        return Target(None, self.options.target.measure, self.options.target.fastest)

    def excess(self, schedules: dict[str, Schedule], patterns: Sequence[Together]) -> int:
        """Returns the largest number of bytes by which a pattern exceeds its budget."""
        rows = [self.held(pattern, schedules) for pattern in patterns]
        return max(held - limit for held, limit in rows)

    def best(self, choices: list[paths.Choice], patterns: Sequence[Together]) -> paths.Choice:
        """Returns the fastest schedules for the graphs of paths under which each path keeps to its
        budget."""

        def time_of(choice: paths.Choice) -> int:
            return sum(self._time_of_path(pattern, choice) for pattern in patterns)

        return paths.best(choices, lambda choice: self.excess(choice, patterns), time_of)

    def _time_of_path(self, pattern: Together, schedules: dict[str, Schedule]) -> int:
        shown = self.steps.shown_for(pattern)
        joined, order = self.counted(shown)
        steps = together.steps_of([schedules[key] for key in shown.keys], order, joined)
        return lenient(joined).check().evaluate(steps, self.row)["time_ps"]

    def over(self, choice: Choice) -> tuple[int, int, int, int]:
        """Returns how far plans exceed the budget, the bytes they hold and may hold, and the number
        of calls."""
        schedules = {key: made.schedule for key, made in choice.items()}
        rows = [(*self.held(p, schedules), sum(p.values())) for p in self.steps.together]
        return max((held - limit, held, limit, n) for held, limit, n in rows)

    def _time_of(self, choice: Choice) -> int:
        """Returns the time of the calls that are pending together, in ps."""
        runs = sum(self.steps.together, Counter[str]())
        return sum(runs[key] * int(made.plan.numbers["time_ps"]) for key, made in choice.items())

    def choose(self, problems: dict[str, Problem]) -> Choice:
        """Returns a plan for each graph such that the calls meet the budget together, or else the
        plans that exceed it least."""
        return together.choose(
            self.make, problems, self._without_budget,
            lambda choice: self.over(choice)[0], self._time_of,
        )  # fmt: skip

    def smallest_exactly_known(self) -> bool:
        """True if a step has shown everything that the graphs of each pattern share."""
        shown = [self.steps.shown_for(p).common for p in self.steps.together]
        return all(common is not None and common.exact for common in shown)


def size_of(problem: Problem) -> int:
    """Returns the bytes of a graph that runs without a plan."""
    order = [(0, i) for i in range(len(problem.ops))]
    return together.bytes_of(problem, order, [together.save_all(problem)], "live")


def saved_by(graph: CompiledGraph) -> int:
    """Returns the bytes that a graph holds between its forward and its backward."""
    order = [(0, i) for i in range(len(graph.problem.ops))]
    return together.bytes_of(graph.problem, order, [graph.schedule], "saved")


def bytes_in(budget: budgets.NativeBudget | None) -> int | None:
    """Returns the budget in bytes, or None if it is not given in bytes."""
    return budget[1] if budget is not None and budget[0] == budgets.BOUNDS[0] else None
