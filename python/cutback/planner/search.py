"""Searches: a plan for one budget, or for several at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import _native, budgets, devices
from ..errors import BudgetError
from .plan import Plan
from .problems import AnyProblem, ready_problem


class Best(NamedTuple):
    """The best plan that a search has so far."""

    bytes: int  # under the budget's measure, before offsets
    extra: float  # time beside running everything once, as a share of that
    gap: float  # time above the lower bound that is known so far, as a share of the bound


Progress = Callable[[float], object] | Callable[[float, Best | None], object]
"""Is told the seconds so far and, if it takes two arguments, the best plan so far; True ends the
search."""


def seconds_of(time_limit: float) -> float:
    """A limit of time as the core takes it; 0: none.

    Raises:
        TypeError, ValueError: not a number of seconds.
    """
    if isinstance(time_limit, bool) or not isinstance(time_limit, (int, float, np.number)):
        raise TypeError(f"time_limit is a number of seconds, not {time_limit!r}")
    if not time_limit >= 0:
        raise ValueError(
            f"time_limit={budgets.short(time_limit)} is not a number of seconds; 0 is no limit"
        )
    return float(min(time_limit, 1e9))  # the core's own "no limit" begins below that


def teller_of(
    progress: Progress | None,
) -> Callable[[float, tuple[int, float, float] | None], object] | None:
    """``progress`` as the core calls it.

    Raises:
        TypeError: not a function.
    """
    if progress is None:
        return None
    if not callable(progress):
        raise TypeError(f"progress is a function of seconds (and the best plan), not {progress!r}")
    tell: Any = progress
    try:
        inspect.signature(tell).bind(0.0, None)
    except TypeError:
        return lambda seconds, best: tell(seconds)
    except ValueError:  # a builtin without a signature
        pass

    def with_best(seconds: float, best: tuple[int, float, float] | None) -> object:
        if best is None:
            return tell(seconds, None)
        size, extra, gap = best
        return tell(seconds, Best(size, extra, gap))

    return with_best


@dataclass(frozen=True)
class Request:
    """What a plan is asked for; the fields are the arguments of :func:`cutback.plan`. Budget and
    preset are checked here, so that a mistake shows before a function is traced.

    Raises:
        ValueError, TypeError: an invalid budget or preset, or arguments that exclude each other.
    """

    measure: str
    _: KW_ONLY
    budget: budgets.Budget = None
    max_extra: float | None = None
    preset: str | None = None
    offload: bool | str = False
    pinned: int | str | None = None
    exact: bool = False
    device: devices.Device | None = None
    time_limit: float = 0.0
    progress: Progress | None = None

    def __post_init__(self) -> None:
        self._bound()
        searched = self.budget is not None or self.max_extra is not None
        budgets.parse_preset(self.preset, self.measure if searched else None)

    def _bound(self) -> budgets.NativeBudget | None:
        parsed = budgets.parse(self.budget, self.measure, self.max_extra)
        return budgets.with_options(parsed, self.offload, self.pinned, self.exact)

    def plan(self, problem: _native.Problem, bound: budgets.NativeBudget | None = None) -> Plan:
        """The plan of a problem.

        Args:
            bound: a budget to use instead of the request's.

        Raises:
            BudgetError: no plan meets the budget; its attributes say what would do.
            ValueError, TypeError: a mistake in the problem.
        """
        if self.pinned is not None and not self.offload and not problem.wants_moves:
            raise budgets.pinned_alone(self.pinned)
        bound = bound or self._bound()
        try:
            answer = problem.plan(
                preset=budgets.parse_preset(self.preset),
                budget=bound,
                device=devices.resolve(self.device),
                time_limit=seconds_of(self.time_limit),
                progress=teller_of(self.progress),
            )
        except BudgetError as error:
            position = budgets.position_of(bound)
            if position is None:
                raise
            raise error.replace(position=position) from None
        return Plan.of(answer)


def plans(
    problem: AnyProblem,
    several: Sequence[budgets.Budget],
    *,
    measure: str = "live",
    preset: str | None = None,
    policy: str | None = None,
    device: devices.Device | None = None,
    time_limit: float = 0.0,
    progress: Progress | None = None,
) -> list[Plan | BudgetError]:
    """A plan for each of ``several`` budgets, in one search: each is what :func:`cutback.plan`
    gives for that budget alone, bit for bit, in a fraction of the time.

    The other arguments are as for :func:`cutback.plan`; ``time_limit`` and ``progress`` are about
    all of it together. A budget that is out of reach has the error in its place.

    Raises:
        ValueError, TypeError: a mistake in the problem or a budget.
    """
    if callable(problem):
        raise TypeError("plans takes a problem: for a function, cutback.plan(f, *args).problem")
    if isinstance(several, (str, bytes)) or not isinstance(several, Iterable):
        raise TypeError(f"several is a list of budgets, not {several!r}")
    several = list(several)
    specs = [budgets.parse(budget, measure) for budget in several]
    without = not specs or None in specs  # a preset is about those
    number = budgets.parse_preset(preset, None if without else measure)
    checked = ready_problem(problem, policy=policy, device=device)
    answers = checked.plans(
        specs,
        preset=number,
        device=devices.resolve(device),
        time_limit=seconds_of(time_limit),
        progress=teller_of(progress),
    )
    return [Plan.of(answer) if isinstance(answer, _native.Plan) else answer for answer in answers]
