"""The arguments of a partitioner. They are fixed when it is made."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ... import budgets
from ...planner.plan import Plan
from ...planner.problems import Times
from ...problem import Problem
from ..graph.moving import Schedule
from ..graph.statistics import Statistics
from .totals import Total
from .wishes import Policy, may_offload

if TYPE_CHECKING:
    from ..updates import Inside

Measured = Statistics | Times | str | os.PathLike[str]
"""Measured times: a profile, a mapping from op to seconds, or the path of a file with either."""

MEASURES = ("live", "saved", "total")


@dataclass(frozen=True)
class Target:
    """The target of one plan. It is passed to the planning functions."""

    budget: budgets.NativeBudget | None
    measure: str
    """The measure that the budget bounds, one of :data:`MEASURES`."""
    fastest: bool = False
    """Without a budget: True minimizes only time, instead of using no more memory than PyTorch."""

    @property
    def is_share(self) -> bool:
        """True if the budget is a share of what the step takes without one."""
        return budgets.is_share(self.budget)

    @property
    def is_position(self) -> bool:
        """True if the budget is a position between the smallest plan and saving everything."""
        return budgets.is_position(self.budget)

    @property
    def is_relative(self) -> bool:
        """True if the bytes of the budget depend on the graph."""
        return self.is_share or self.is_position

    @property
    def is_bound(self) -> bool:
        """True if the budget bounds bytes (``"min"`` and ``"smallest"`` do not)."""
        return budgets.is_bound(self.budget)


def smallest(measure: str) -> Target:
    """Returns the target of the smallest plan, however slow."""
    return Target(budgets.parse("smallest", measure), measure)


def modest(measure: str) -> Target:
    """Returns the target of the smallest plan that costs little extra time (``"min"``)."""
    return Target(budgets.parse("min", measure), measure)


def everything(measure: str) -> Target:
    """Returns the target of the plan that saves everything."""
    return Target(None, measure, fastest=True)


def fallback(wish: str, measure: str) -> Target:
    """Returns the target that ``on_infeasible`` asks for instead of an error."""
    if wish == "warn":
        return everything(measure)
    return modest(measure) if wish == "min" else smallest(measure)


class Made(NamedTuple):
    """A plan and its schedule for the graph."""

    plan: Plan
    schedule: Schedule


class Agreed(NamedTuple):
    """A plan that repeats collectives and that all processes follow."""

    problem: Problem
    target: Target
    """The target that it was planned for."""
    made: Made

    def is_for(self, problem: Problem, target: Target) -> bool:
        """True if it is the plan of this problem for this target."""
        return self.problem is problem and self.target == target


@dataclass(frozen=True)
class Options:
    """The arguments of a :class:`Partitioner`, checked."""

    target: Target
    policy: Policy
    device: str | None
    on_plan: Callable[[Plan], object] | None
    offload: bool | str
    total: Total | None
    profile: Statistics | None
    times: Times | None
    random: str
    cse: bool
    collective_again: bool = True
    """True if plans may repeat collectives, provided that all processes have the same plan."""
    network_bytes_per_s: float | None = None
    """None means the default of :func:`graph.gathers.rate_of`."""
    on_infeasible: str | None = None
    """One of :data:`budgets.INFEASIBLE`. None means an error for a :class:`Partitioner`; for a
    whole model, an error in the first step and ``"smallest"`` afterwards."""
    pool: bool = False
    """True places the memory of a step in one segment of the allocator (:mod:`graph.segment`)."""

    updates: Inside | None = None
    """Steps parameters inside the backward."""
    packed: bool = False
    """True allows masks and indices to be kept packed (:mod:`graph.packing`)."""
    slices: bool = False
    """True runs chains of rows in pieces (:mod:`graph.slices`)."""

    @property
    def not_packed(self) -> str | None:
        """Returns the option that keeps all values from being packed, or None. Policies say for
        every value whether it is saved, measured times do not include packing, values on their way
        to the host are not packed, and a segment is laid out without packing."""
        given = {
            "policy": self.policy is not None,
            "offload": self.may_move,
            "pool": self.pool,
            "profile": self.times is not None,
        }
        return next((name for name, is_given in given.items() if is_given), None)

    @property
    def may_move(self) -> bool:
        """True if values may move to the host."""
        return bool(self.offload) or may_offload(self.policy)


def check_infeasible(wish: str | None) -> str | None:
    """Checks ``on_infeasible``.

    Raises:
        ValueError: ``wish`` is not one of :data:`budgets.INFEASIBLE`.
    """
    if wish is not None:
        budgets.choice("on_infeasible", wish, budgets.INFEASIBLE)
    return wish


@dataclass(frozen=True)
class Door:
    """Properties of the code that is made from the planned graphs."""

    same_kernels: bool = False
    """True if a rerun uses the same separate kernels as the first run."""
    inductor: bool = False
    """True if Inductor compiles the graphs. It cannot run moves."""
    watches_views: bool = False
    """True if a backend of ours detects writes to returned views (:mod:`compiler.returned`)."""
    native: bool = False
    """True if groups of nodes run in our kernels (:mod:`native`)."""
    takes_over: bool = False
    """True if results may take over the memory of inputs (:mod:`graph.taking_over`)."""


def slices_unsupported(codegen: str) -> NotImplementedError:
    """Returns the error for slices with a code generator other than ``"eager"``."""
    return NotImplementedError(
        f"slices=True with codegen={codegen!r}: pieces run with PyTorch's kernels only. Use "
        "codegen='eager', or leave out slices="
    )


def check_slices(slices: bool, profile: Measured | None) -> None:
    """Raises ValueError if slices and measured times are used together."""
    if slices and profile is not None:
        raise ValueError(
            "slices=True with profile=: a profile has the times of whole operations, but not of "
            "their pieces. Leave out one of them"
        )


def check_rate(rate: float | None) -> float | None:
    """Checks ``network_bytes_per_s``.

    Raises:
        ValueError, TypeError: ``rate`` is not a positive number.
    """
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, (int, float)):
        raise TypeError(f"network_bytes_per_s={rate!r}: it must be bytes per second, or None")
    if not 0 < rate < math.inf:
        raise ValueError(f"network_bytes_per_s={rate!r}: it must be finite and larger than 0")
    return float(rate)


def check_measure(measure: str, total: Total | None) -> None:
    """Checks that an optimizer is given if, and only if, the measure counts one.

    Raises:
        ValueError: the two do not go together, or the measure does not exist.
    """
    if measure not in MEASURES:
        raise ValueError(
            f"measure={measure!r}: for PyTorch it must be one of {', '.join(MEASURES)}. 'arena' is "
            "not available, because PyTorch's allocator chooses the offsets"
        )
    if total is not None and measure != "total":
        raise ValueError(
            f"measure={measure!r}: an optimizer counts only under measure='total'; use that, "
            "or leave the optimizer out"
        )
    if total is None and measure == "total":
        raise ValueError(
            "measure='total' needs an optimizer, which the graph does not show: "
            "cutback.torch.compile(model, measure='total', optimizer=...)"
        )
