"""What a step takes where nobody gives a budget, and what shares count from.

Two plans need no search: saving all that the backward reads (the preset ``autograd``), and the cut
of PyTorch's partitioner (``torch-compat``), whose bytes are those that ``aot_eager`` takes. Both do
what checkpoints in the model ask for. The reference is the one with the lower peak; of equal peaks
the one that saves less, as other ops run while that is held; then the faster one. So a model that
is compiled takes no more than it would under ``aot_eager``, nor than with its own checkpoints.
"""

from __future__ import annotations

from ... import BudgetError, _native, budgets, devices
from ...planner.plan import Plan
from ...schedule import bytes_of as measured

FASTEST = "fastest"
"""The budget that asks for speed, whatever it takes."""

_PYTORCH = "torch-compat"

Row = devices.Device | None


def _plans(problem: _native.Problem, device: Row) -> list[_native.Plan]:
    """The plans that need no search. Where values are to move, PyTorch's cut, which moves nothing,
    is left out."""
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
    """The preset of the reference. None: the one that saves everything."""
    preset = _reference(problem, device).preset
    return preset if preset == _PYTORCH else None


def plan_of(problem: _native.Problem, device: Row) -> Plan:
    """The reference for a problem."""
    return Plan.of(_reference(problem, device))


def bytes_of(problem: _native.Problem, device: Row, measure: str) -> int:
    """What a share counts from: the fewest bytes of a plan that needs no search."""
    return min(measured(plan.numbers, measure) for plan in _plans(problem, device))


def plan_by_share(
    problem: _native.Problem,
    own: _native.Problem,
    budget: budgets.NativeBudget,
    device: Row,
    measure: str,
) -> Plan:
    """The plan of a problem under a share of what the reference takes.

    Args:
        own: the problem with no wishes but those of the model itself, which shares count from.

    Raises:
        BudgetError: no plan meets the budget; its shares count from what the step takes without
            one.
    """
    whole = bytes_of(own, device, measure)
    limit = int(budget[2] * whole)
    row = devices.resolve(device)
    try:
        return Plan.of(problem.plan(budget=budgets.in_bytes(budget, limit), device=row))
    except BudgetError as error:
        why = error.replace(share=budget[2], **counted_from(whole))
        return plan_within(problem, device, measure, limit, why)


def plan_within(
    problem: _native.Problem, device: Row, measure: str, limit: int, error: BudgetError
) -> Plan:
    """Of the plans that need no search the fastest that takes no more than ``limit``. The search
    adds runs of single ops, and may find none at the peak of a cut of the whole graph.

    Raises:
        BudgetError: none does; it is ``error``.
    """
    meets = [plan for plan in _plans(problem, device) if measured(plan.numbers, measure) <= limit]
    if not meets:
        raise error from None
    fastest = min(meets, key=lambda plan: plan.numbers["time_ps"])
    return Plan.of(fastest.asked(budgets.MEASURES.index(measure), limit))


def counted_from(whole: int) -> dict[str, int | str]:
    """For a BudgetError: shares count from the reference, of ``whole`` bytes."""
    return {"reference_bytes": whole, "reference": "the step takes without a budget"}


def plan_by_bytes(
    problem: _native.Problem,
    own: _native.Problem,
    budget: budgets.NativeBudget | None,
    device: Row,
    measure: str,
) -> Plan:
    """The plan of a problem under a number of bytes, or as small as it gets.

    Args:
        own: what shares would count from.

    Raises:
        BudgetError: no plan meets the budget; its shares are those that may be asked for.
    """
    try:
        return Plan.of(problem.plan(budget=budget, device=devices.resolve(device)))
    except BudgetError as error:
        raise error.replace(**counted_from(bytes_of(own, device, measure))) from None
