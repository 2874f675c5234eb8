"""Searches for a plan: for one budget, or for several at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import _native, budgets, devices, terminal
from ..errors import BudgetError
from .plan import Plan
from .problems import AnyProblem, ready_problem


class Best(NamedTuple):
    """The best plan of a search so far."""

    bytes: int  # in the budget's measure, before offsets are assigned
    extra: float  # extra time, relative to running everything once
    gap: float  # time above the current lower bound, relative to the bound
    budget: int = 0  # index of the budget that the plan is for


Progress = Callable[[float], object] | Callable[[float, Best | None], object]
"""Callback that receives the elapsed seconds and, if it takes two arguments, the best plan so far.
Returning True ends the search."""


def seconds_of(time_limit: float) -> float:
    """Checks a time limit in seconds; 0 means no limit.

    Raises:
        TypeError, ValueError: if it is not a number of at least 0.
    """
    if isinstance(time_limit, bool) or not isinstance(time_limit, (int, float, np.number)):
        raise TypeError(f"time_limit must be a number of seconds, not {time_limit!r}")
    if not time_limit >= 0:
        raise ValueError(
            f"time_limit={budgets.short(time_limit)} must be at least 0 seconds; 0 means no limit"
        )
    return float(min(time_limit, 1e9))  # for the core, a time this long is no limit


NativeProgress = Callable[[float, tuple[int, float, float, int] | None], object]


def teller_of(progress: Progress | None) -> NativeProgress | None:
    """Adapts ``progress`` to the signature with which the core calls it.

    Raises:
        TypeError: if it is not callable.
    """
    if progress is None:
        return None
    if not callable(progress):
        raise TypeError(
            f"progress must be a function of the seconds (and the best plan), not {progress!r}"
        )
    tell: Any = progress
    try:
        inspect.signature(tell).bind(0.0, None)
    except TypeError:
        return lambda seconds, best: tell(seconds)
    except ValueError:  # a builtin without a signature
        pass

    def with_best(seconds: float, best: tuple[int, float, float, int] | None) -> object:
        return tell(seconds, None if best is None else Best(*best))

    return with_best


@contextmanager
def told(progress: Progress | None, several: int = 1) -> Iterator[NativeProgress | None]:
    """Yields the progress callback for a search over ``several`` budgets. If the caller gives none,
    a terminal or notebook shows searches that take over a second, and Ctrl-C accepts the best plan.

    Raises:
        TypeError: if ``progress`` is not callable.
    """
    if progress is not None or not terminal.is_watched():
        yield teller_of(progress)
        return
    with terminal.interruptible(several, after=1.0, only_shown=True) as shown:
        yield teller_of(shown)


@dataclass(frozen=True)
class Request:
    """A request for a plan; its fields are the arguments of :func:`cutback.plan`. Budget and preset
    are checked on construction, so that mistakes are reported before a function is traced.

    Raises:
        ValueError, TypeError: if the budget or preset is invalid, or arguments contradict each
            other.
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
        """Plans a problem.

        Args:
            problem: the problem.
            bound: a budget to use instead of the request's.

        Raises:
            BudgetError: if no plan meets the budget; its attributes give the smallest budget that
                works.
            ValueError, TypeError: if the problem is invalid.
        """
        if self.pinned is not None and not self.offload and not problem.wants_moves:
            raise budgets.pinned_alone(self.pinned)
        bound = bound or self._bound()
        try:
            with told(self.progress) as progress:
                answer = problem.plan(
                    preset=budgets.parse_preset(self.preset),
                    budget=bound,
                    device=devices.resolve(self.device),
                    time_limit=seconds_of(self.time_limit),
                    progress=progress,
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
    """Plans a problem for ``several`` budgets in one search. Each plan is identical to that of
    :func:`cutback.plan` for the same budget, but the search takes a fraction of the time.

    ``measure``, ``preset``, ``policy`` and ``device`` are as for :func:`cutback.plan`;
    ``time_limit`` (seconds) and ``progress`` apply to the whole search.

    Returns:
        For each budget a plan, or a :class:`BudgetError` if the budget cannot be met.

    Raises:
        ValueError, TypeError: if the problem or a budget is invalid.

    >>> small, large = cutback.plans(problem, [0.0, 1.0])
    >>> small.numbers["arena_bytes"] <= large.numbers["arena_bytes"]
    True
    """
    if callable(problem):
        raise TypeError(
            "plans needs a problem; for a function, pass cutback.plan(f, *args).problem"
        )
    if isinstance(several, (str, bytes)) or not isinstance(several, Iterable):
        raise TypeError(f"several must be a list of budgets, not {several!r}")
    several = list(several)
    specs = [budgets.parse(budget, measure) for budget in several]
    without = not specs or None in specs  # a preset only applies without a budget
    number = budgets.parse_preset(preset, None if without else measure)
    checked = ready_problem(problem, policy=policy, device=device)
    with told(progress, len(specs)) as telling:
        answers = checked.plans(
            specs,
            preset=number,
            device=devices.resolve(device),
            time_limit=seconds_of(time_limit),
            progress=telling,
        )
    return [Plan.of(answer) if isinstance(answer, _native.Plan) else answer for answer in answers]
