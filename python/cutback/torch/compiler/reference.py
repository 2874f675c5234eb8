"""What a step takes where nobody gives a budget, and what shares count from.

Two plans need no search: saving all that the backward reads (the preset ``autograd``), and the cut
of PyTorch's partitioner (``torch-compat``), whose bytes are those that ``aot_eager`` takes. Both do
what checkpoints in the model ask for. The reference is the one with the lower peak; of equal peaks
the one that saves less, as other ops run while that is held; then the faster one. So a model that
is compiled takes no more than it would under ``aot_eager``, nor than with its own checkpoints.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ... import BudgetError, _native, budgets, devices
from ...planner.plan import Plan
from ..graph import moving

FASTEST = "fastest"
"""The budget that asks for speed, whatever it takes."""

_PYTORCH = "torch-compat"


class _Found(NamedTuple):
    """A plan that needs no search."""

    preset: str | None
    text: str
    document: dict[str, Any]

    def takes(self, measure: str) -> int:
        return int(self.document["numbers"][f"{measure}_bytes"])

    @property
    def seconds(self) -> int:
        return int(self.document["numbers"]["time_ps"])


def _plans(text: str, device: Any) -> list[_Found]:
    """Where values are to move, PyTorch's cut, which moves nothing, is left out."""
    presets = (None,) if moving.wants_moves(json.loads(text)) else (None, _PYTORCH)
    row = devices.resolve(device)
    found = []
    for preset in presets:
        number = budgets.parse_preset(preset)
        plan = _native.plan_json(text, preset=number, budget=None, device=row)
        found.append(_Found(preset, plan, json.loads(plan)))
    return found


def _reference(text: str, device: Any) -> _Found:
    plans = _plans(text, device)
    return min(plans, key=lambda plan: (plan.takes("live"), plan.takes("saved"), plan.seconds))


def preset_of(text: str, device: Any) -> str | None:
    """The preset of the reference."""
    return _reference(text, device).preset


def plan_of(text: str, device: Any) -> Plan:
    """The reference for a problem."""
    return Plan(text, _reference(text, device).text)


def bytes_of(text: str, device: Any, measure: str) -> int:
    """What a share counts from: the fewest bytes of a plan that needs no search."""
    return min(plan.takes(measure) for plan in _plans(text, device))


def plan_by_share(
    text: str, own: str, budget: budgets.NativeBudget, device: Any, measure: str
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
        return Plan(
            text, _native.plan_json(text, budget=budgets.in_bytes(budget, limit), device=row)
        )
    except BudgetError as error:
        why = error.replace(share=budget[2], **counted_from(whole))
        return plan_within(text, device, measure, limit, why)


def plan_within(text: str, device: Any, measure: str, limit: int, error: BudgetError) -> Plan:
    """Of the plans that need no search the fastest that takes no more than ``limit``. The search
    adds runs of single ops, and may find none at the peak of a cut of the whole graph.

    Raises:
        BudgetError: none does; it is ``error``.
    """
    meets = [plan for plan in _plans(text, device) if plan.takes(measure) <= limit]
    if not meets:
        raise error from None
    document = min(meets, key=lambda plan: plan.seconds).document
    return Plan(text, json.dumps({**document, "budget_bytes": limit, "measure": measure}))


def counted_from(whole: int) -> dict[str, int | str]:
    """For a BudgetError: shares count from the reference, of ``whole`` bytes."""
    return {"reference_bytes": whole, "reference": "the step takes without a budget"}


def plan_by_bytes(
    text: str, own: str, budget: budgets.NativeBudget | None, device: Any, measure: str
) -> Plan:
    """The plan of a problem under a number of bytes, or as small as it gets.

    Args:
        own: what shares would count from.

    Raises:
        BudgetError: no plan meets the budget; its shares are those that may be asked for.
    """
    row = devices.resolve(device)
    try:
        return Plan(text, _native.plan_json(text, budget=budget, device=row))
    except BudgetError as error:
        raise error.replace(**counted_from(bytes_of(own, device, measure))) from None
