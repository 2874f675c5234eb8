"""Estimates the memory and time of a training step at each batch size, and the largest batch within
a budget, without running anything.

Plans are searched for at a few batch sizes only. Their schedules are valid at all batch sizes, so
at the others they are only evaluated."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import _native, budgets, devices
from ..problem import Problem
from ..schedule import Schedule
from .plan import Plan
from .scaling import FIRST, Family, Forward, structure_of
from .search import plans

POSITIONS = (0.75, 0.5, 0.25)
MOST = 1 << 20
_ROUNDS = 3  # number of searches beyond the largest batch that fits with the plans found so far
_SMALLEST = "smallest"
_CHECKED = 20  # the third batch to trace, if no batch fits


class Figure(NamedTuple):
    """Bytes of a plan at some batch, and the modelled seconds of a step."""

    bytes: int
    """Bytes by the measure of the estimate."""
    seconds: float
    """Time by the cost model."""


class Point(NamedTuple):
    """The memory and time of a step at one batch size."""

    batch: int
    """Number of examples."""
    without_plan: Figure
    """The step without a budget."""
    plans: dict[str, Figure]
    """Figures of plans that save less and less, by their positions at the largest batch. The last
    one, ``"smallest"``, is that of the smallest plan found."""
    within: Figure | None
    """The fastest plan within the budget, or None if no plan found is within it."""

    @property
    def extra(self) -> float:
        """Extra time within the budget, as a share of the time without a plan."""
        if self.within is None or not self.without_plan.seconds:
            return 0.0
        return self.within.seconds / self.without_plan.seconds - 1


class Estimate:
    """The result of :func:`cutback.estimate`.

    >>> def make_step(batch):
    ...     data = np.broadcast_to(np.float32(0), (batch, 4))
    ...     return lambda w, x: cutback.tanh(x @ w).sum(), (np.ones((4, 4), np.float32), data)
    >>> print(cutback.estimate(make_step, "1MiB", most=64))
    """

    def __init__(
        self, points: list[Point], batch: int | None, budget: int | None, measure: str, device: str,
        is_linear: bool | None,
    ) -> None:  # fmt: skip
        self.points = points
        """One point for each batch of the table, in order."""
        self.batch = batch
        """The largest batch found within the budget. None if no batch fits, or without a budget."""
        self.budget_bytes = budget
        self.measure = measure
        self.device = device
        self.is_linear = is_linear
        """True if sizes are linear in the batch; False if they are not, so that each batch was
        traced; None if there is only one batch, which was traced."""

    def point(self, batch: int) -> Point:
        """Returns the point of a batch.

        Raises:
            KeyError: if the table does not contain the batch.
        """
        for point in self.points:
            if point.batch == batch:
                return point
        raise KeyError(batch)

    def document(self) -> dict[str, Any]:
        """Returns the estimate as a document for JSON."""

        def figure(f: Figure | None) -> Any:
            return None if f is None else f._asdict()

        rows = [
            {
                "batch": p.batch,
                "without_plan": figure(p.without_plan),
                "plans": {name: figure(f) for name, f in p.plans.items()},
                "within": figure(p.within),
            }
            for p in self.points
        ]
        names = ("batch", "budget_bytes", "measure", "device", "is_linear")
        return {**{name: getattr(self, name) for name in names}, "points": rows}

    def _headline(self) -> str:
        if self.budget_bytes is None:
            return f"bytes ({self.measure}) and modelled step times on {self.device}"
        size = budgets.text(self.budget_bytes)
        if self.batch is None:
            return f"no batch fits {size} ({self.measure})"
        point = self.point(self.batch)
        assert point.within is not None
        return (
            f"batch {self.batch}: {budgets.text(point.within.bytes)} of {size} ({self.measure}), "
            f"{1e3 * point.within.seconds:.4g} ms per step on {self.device} by the cost model, "
            f"{100 * point.extra:.1f} % more than without a plan"
        )

    def __str__(self) -> str:
        names = max((list(p.plans) for p in self.points), key=len, default=[])
        rows = [["batch", "no plan", *names, "in the budget", "ms", "extra"]]
        for p in self.points:
            within, shown = p.within, p.within or p.without_plan
            rows.append([
                str(p.batch), budgets.text(p.without_plan.bytes),
                *(budgets.text(p.plans[n].bytes) if n in p.plans else "" for n in names),
                budgets.text(within.bytes) if within else "-", f"{1e3 * shown.seconds:.4g}",
                f"{100 * p.extra:.1f} %" if within else "-",
            ])  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ("  ".join(f"{x:>{w}}" for x, w in zip(row, widths, strict=True)) for row in rows)
        lines = [self._headline(), *table]
        if self.is_linear is False:
            lines.append("sizes are not linear in the batch, so each batch was traced")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<cutback.Estimate: {self._headline()}>"


def check_make_step(make_step: Any) -> None:
    """Raises TypeError unless ``make_step`` is a function of the batch size."""
    given = type(make_step).__name__
    if callable(make_step) and not hasattr(make_step, "named_parameters"):
        try:
            signature = inspect.signature(make_step)
        except ValueError:  # it has no signature
            return
        try:
            signature.bind(1)
        except TypeError:
            given = f"{getattr(make_step, '__name__', given)}{signature}"
        else:
            return
    raise TypeError(
        "make_step: expected a function make_step(batch), which returns the step and its "
        f"arguments for a batch size, got {given}"
    )


class Way(NamedTuple):
    """The way to trace and measure a kind of steps."""

    trace: Callable[[int], Problem]
    device: devices.Device | None
    measure: str
    """``"live"``, ``"arena"`` or ``"total"``, which adds parameters and optimizer states."""
    presets: Sequence[str | None]
    """Presets to plan with if there is no budget; the smallest of these plans counts."""
    plain: Callable[[Problem], Problem] = lambda problem: problem
    """Converts the problem of a step with a budget to that of the step without one."""
    forward: Callable[[int], Forward] | None = None
    """Traces only the forward of a batch, if that is cheaper than tracing the step."""

    @property
    def kept(self) -> str:
        """The measure of the step without parameters and optimizer states."""
        return "arena" if self.measure == "arena" else "live"


class _Schedules:
    """Schedules for problems of one structure, each found at some batch."""

    def __init__(self, problem: _native.Problem, plain: _native.Problem, way: Way) -> None:
        row = devices.resolve(way.device)
        found = [
            plain.plan(preset=budgets.parse_preset(preset), device=row) for preset in way.presets
        ]
        saving = min(found, key=lambda plan: plan.numbers["live_bytes"])
        self.saving = saving.steps, saving.backward_starts
        self.named: dict[str, Schedule] = {}
        self.others: list[Schedule] = []

    def name(self, problem: _native.Problem, way: Way) -> None:
        """Searches for the plans of the table's columns, and for the smallest plan if no other
        plan is known."""
        asked = POSITIONS if self.others else (*POSITIONS, _SMALLEST)
        found = dict(_searched(problem, way, asked))
        if _SMALLEST in found:
            self.others = [found.pop(_SMALLEST)]
        self.named = {str(wish): plan for wish, plan in found.items()}

    def add(self, problem: _native.Problem, way: Way, asked: Sequence[budgets.Budget]) -> None:
        """Searches for plans for further budgets."""
        self.others += [schedule for _, schedule in _searched(problem, way, asked)]


def _searched(
    problem: _native.Problem, way: Way, asked: Sequence[budgets.Budget]
) -> list[tuple[budgets.Budget, Schedule]]:
    """Searches for plans, and returns the schedules of the budgets that can be met."""
    answers = plans(problem, asked, measure=way.kept, device=way.device)
    rows = zip(asked, answers, strict=True)
    return [(wish, plan.schedule) for wish, plan in rows if isinstance(plan, Plan)]


class Estimator:
    """Estimates one step at several batch sizes."""

    def __init__(self, way: Way, budget: int | None) -> None:
        self.way, self.budget = way, budget
        self.row = devices.resolve(way.device)
        self.family = Family(way.trace, way.forward)
        self._known: dict[int, Point] = {}
        self._schedules: dict[str, _Schedules] = {}  # by structure

    def _schedules_of(
        self, problem: Problem, checked: _native.Problem, named: bool = False
    ) -> _Schedules:
        """Returns the schedules of the problem's structure, including the smallest one. If
        ``named``, includes those of the table's columns, which are searched for at this batch."""
        structure = structure_of(problem)
        if structure not in self._schedules:
            plain = self._plain(problem, checked)
            self._schedules[structure] = _Schedules(checked, plain, self.way)
        found = self._schedules[structure]
        if named:
            found.name(checked, self.way)
        elif not found.others:
            found.add(checked, self.way, (_SMALLEST,))
        return found

    def _plain(self, problem: Problem, checked: _native.Problem) -> _native.Problem:
        plain = self.way.plain(problem)
        return checked if plain is problem else plain.check()

    def _static(self, problem: Problem) -> int:
        return problem.static_bytes if self.way.measure == "total" else 0

    def point(self, batch: int) -> Point:
        """Returns the memory and time of the step at a batch."""
        if batch not in self._known:
            self._known[batch] = self._point(batch)
        return self._known[batch]

    def _point(self, batch: int) -> Point:
        problem = self.family.problem(batch)
        checked, static = problem.check(), self._static(problem)
        schedules = self._schedules_of(problem, checked)

        def figure(schedule: Any, within: _native.Problem = checked) -> Figure:
            found = within.evaluate(schedule, self.row)
            size = found["arena_bytes"] if self.way.kept == "arena" else found["peak_bytes"]
            return Figure(size + static, found["time_ps"] / 1e12)

        without = figure(schedules.saving, self._plain(problem, checked))
        named = {name: figure(schedule) for name, schedule in schedules.named.items()}
        every = [*named.values(), *map(figure, (schedules.saving, *schedules.others))]
        named[_SMALLEST] = min(every)
        fitting = [f for f in every if self.budget is not None and f.bytes <= self.budget]
        within = min(fitting, key=lambda f: (f.seconds, f.bytes), default=None)
        return Point(batch, without, named, within)

    def fits(self, batch: int) -> bool:
        """Returns True if a plan found so far meets the budget at this batch."""
        return self.point(batch).within is not None

    def _largest(self, low: int, most: int) -> int:
        """Returns the largest batch of at most ``most`` that fits. ``low`` is a batch that fits.
        Assumes that larger batches need more memory.
        """
        high = 2 * low
        while high <= most and self.fits(high):
            low, high = high, 2 * high
        high = min(high, most + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(middle) else (low, middle)
        return low

    def _meets(self, batch: int) -> bool:
        """Searches for a plan that meets the budget at a batch, as compiling the step does. Adds it
        to the schedules, or, if there is none, the smallest plan. Returns True if the budget can
        be met."""
        assert self.budget is not None
        problem = self.family.problem(batch)
        checked, room = problem.check(), self.budget - self._static(problem)
        schedules = self._schedules_of(problem, checked)
        before = len(schedules.others)
        schedules.add(checked, self.way, (max(1, room),))
        met = len(schedules.others) > before
        if not met:
            schedules.add(checked, self.way, (_SMALLEST,))
        self._known.clear()
        return met

    def largest(self, most: int) -> int | None:
        """Returns the largest batch found within the budget. A search at this batch meets the
        budget, and no plan found meets it at the next batch."""
        first = next((n for n in (FIRST, 2, 1) if n <= most and self.fits(n)), None)
        if first is None:
            return None
        batch = self._largest(first, most)
        met = batch
        while met > 1 and not self._meets(met):
            met = max(1, min(met - 1, met * 255 // 256))  # another search found a smaller plan
        for _ in range(_ROUNDS if met == batch else 0):
            if batch == most or not self._meets(batch + 1):
                break
            larger = self._largest(batch + 1, most)
            batch = met = larger if larger == batch + 1 or self._meets(larger) else batch + 1
        return met

    def estimate(self, batches: Sequence[int] | None, most: int) -> Estimate:
        """Returns the whole table."""
        largest = None if self.budget is None else self.largest(most)
        is_alone = self.budget is None and batches is not None and len(set(batches)) == 1
        if is_alone and batches:
            self.family.traced(batches[0])
        elif not self.family.check(largest or _CHECKED):
            self._known.clear()
            largest = None if self.budget is None else self.largest(most)
        if batches is None:
            batches = self._powers(largest, most)
        problem = self.family.problem(largest or max(batches))
        self._schedules_of(problem, problem.check(), named=True)
        self._known.clear()
        points = [self.point(n) for n in sorted({*batches, *([largest] if largest else [])})]
        name = self.row or "cpu"
        if name.startswith("{"):
            name = "this device"
        is_linear = None if is_alone else self.family.is_linear
        return Estimate(points, largest, self.budget, self.way.measure, name, is_linear)

    def _powers(self, largest: int | None, most: int) -> list[int]:
        """Returns the powers of two to list. A batch of 1, which must be traced, is only listed if
        it has been traced already or is the only one."""
        end = min(32 if largest is None else 2 * largest, most)
        least = 1 if end == 1 or self.family.is_traced(1) else 2
        return [1 << k for k in range(21) if least <= 1 << k <= end]


def estimate_with(
    way: Way, budget: int | str | None, batches: Sequence[int] | None, most: int
) -> Estimate:
    """Checks the arguments that all kinds of steps share, and returns the estimate.

    Raises:
        ValueError, TypeError: if one is invalid.
    """
    if way.measure not in ("live", "arena", "total"):
        raise ValueError(f"measure={way.measure!r} is not one of 'live', 'arena', 'total'")
    limit = None if budget is None else budgets.named_bytes("budget", budget)
    if batches is not None and (not batches or any(type(n) is not int or n < 1 for n in batches)):
        raise ValueError(f"batches={batches!r}: expected integers of at least 1")
    if not 1 <= most <= MOST:
        raise ValueError(f"most={most} is not in 1 .. {MOST}")
    return Estimator(way, limit).estimate(batches, most)
