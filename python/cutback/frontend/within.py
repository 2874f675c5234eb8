"""Compiles steps; if a budget can only be met with updates inside the backward, uses them."""

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


def compiled_within(traced: Traced, options: CompileOptions) -> Executable:
    """Compiles a traced function and returns the program. If no plan meets the budget with updates
    after the backward, the program updates inside it, where gradients take less memory and results
    are bitwise equal.

    Raises:
        BudgetError: if no plan meets the budget in either way.
    """
    graph, wrt = traced.graph, traced.wrt_positions
    try:
        return Executable(graph, wrt, **options._asdict())
    except ValueError as error:
        from ..errors import BudgetError  # imported late, to save start-up time

        is_after = options.keep_gradients and options.updates == "after" and options.plan is None
        if not isinstance(error, BudgetError) or error.reason != "budget" or not is_after:
            raise
        # a share refers to the step with updates after the backward, so pass its bytes
        budget = options.budget if error.budget_bytes is None else error.budget_bytes
        options = options._replace(updates="inside", decisions=None, budget=budget)
        try:
            run = Executable(graph, wrt, **options._asdict())
        except BudgetError as inside:
            raise _smaller(error, inside) from None
        if not run.runs_inside:
            raise
        return run
