"""Compiles steps; if a budget can only be met with updates inside the backward, uses them. Errors
say whether slices would meet the budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..run.compiling import CompileOptions
from ..run.executable import Executable
from .tracing import Traced

if TYPE_CHECKING:
    from ..errors import BudgetError


def _smaller(after: BudgetError, inside: BudgetError) -> BudgetError:
    """Returns the error for updates after the backward, with the size of the smallest plan of both
    ways, so that a budget of that size can be met."""
    known, least = after.smallest_bytes, inside.smallest_bytes
    if inside.reason != "budget" or least is None or (known is not None and known <= least):
        return after
    facts = ("smallest_bytes", "op", "location", "held_bytes")
    floors = {"floor_bytes": None, "floor_op": None}  # they count gradients
    return after.replace(**{name: getattr(inside, name) for name in facts}, **floors)


LARGEST_SLICED = 3000
"""The maximum number of operations of a step whose refusal says whether slices meet the budget,
which takes one more search."""


def _with_slices(traced: Traced, options: CompileOptions, error: BudgetError) -> BudgetError:
    """Returns the refusal, with the bytes of the step with slices if they meet the budget."""
    if options.slices or options.plan is not None or error.budget_bytes is None:
        return error
    if options.measure not in ("arena", "live"):
        return error
    whole = options._replace(decisions=None, budget=None, groups=False)
    cut = whole._replace(slices=True)
    within = cut._replace(budget=error.budget_bytes, groups=options.groups)
    graph, wrt = traced.graph, traced.wrt_positions
    try:
        n_op = len(Executable(graph, wrt, **whole._asdict()).plan.parts.ops)
        if n_op > LARGEST_SLICED:
            return error
        if len(Executable(graph, wrt, **cut._asdict()).plan.parts.ops) == n_op:
            return error
        run = Executable(graph, wrt, **within._asdict())
    except (ValueError, NotImplementedError):  # what the user asked for is what failed
        return error
    size = run.planned.arena_bytes if options.measure == "arena" else run.planned.live_bytes
    return error.replace(sliced_bytes=size)


def _whole(traced: Traced, options: CompileOptions, error: BudgetError) -> BudgetError:
    """Returns the refusal with the smallest plan, for which a brief one did not search."""
    if error.smallest_bytes is not None:
        return error
    try:
        Executable(traced.graph, traced.wrt_positions, **options._asdict())
    except type(error) as whole:
        return whole
    return error


def compiled_within(traced: Traced, options: CompileOptions) -> Executable:
    """Compiles a traced function and returns the program. If no plan meets the budget with updates
    after the backward, the program updates inside it, where gradients take less memory and results
    are bitwise equal.

    Raises:
        BudgetError: if no plan meets the budget in either way.
    """
    graph, wrt = traced.graph, traced.wrt_positions
    is_after = options.keep_gradients and options.updates == "after" and options.plan is None
    brief = is_after and not options.packed and options.on_infeasible == "error"
    try:
        return Executable(graph, wrt, **options._replace(brief=brief)._asdict())
    except ValueError as error:
        from ..errors import BudgetError  # imported late, to save start-up time

        if not isinstance(error, BudgetError) or error.reason != "budget":
            raise
        if not is_after:
            raise _with_slices(traced, options, error) from None
        # a share refers to the step with updates after the backward, so pass its bytes
        budget = options.budget if error.budget_bytes is None else error.budget_bytes
        inside = options._replace(updates="inside", decisions=None, budget=budget)
        try:
            run = Executable(graph, wrt, **inside._asdict())
        except BudgetError as other:
            whole = _smaller(_whole(traced, options, error), other)
            raise _with_slices(traced, inside, whole) from None
        if not run.runs_inside:
            raise _with_slices(traced, options, _whole(traced, options, error)) from None
        return run
