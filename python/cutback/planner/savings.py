"""The parts of a plan's peak, and the bytes that updates inside, slices and packing would save."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from .. import budgets, schedule
from ..errors import BudgetError
from ..explanation import Holding, Saving
from ..problem import Problem
from ..report.model import live_bytes, taken_over
from .packed import masks_of, with_packed
from .sliced import logits_of, with_slices
from .updated import gradients_of, with_updates

if TYPE_CHECKING:
    from .. import _native
    from ..report.model import Plan

UPDATES, SLICES, PACKED = 'updates="inside"', "slices=True", "packed=True"
_LEAST = 0.05
"""Updates inside are tried if all gradients, slices if logits, and packing if masks at the peak,
take more than this share of the peak."""
_SECONDS = 2.0
"""Time limit for all searches of one plan; they end with the smallest plans found so far."""


def _alive(plan: Plan) -> Iterator[schedule.Life]:
    """Yields the lifetimes that include the peak. If one storage takes over the memory of another
    one at the peak, only the new one counts."""
    lives, n_step = plan.core.lives, len(plan.core.steps)
    begins = taken_over(lives)
    timeline = live_bytes(lives, n_step, begins)
    peak = timeline.index(max(timeline)) if timeline else 0
    for life in lives:
        is_taken = life.made < life.last and (life.offset, life.last) in begins
        if life.bytes and life.made <= peak < (life.last if is_taken else life.last + 1):
            yield life


def holdings(plan: Plan) -> list[Holding]:
    """Returns the parts of the peak of a plan, largest first."""
    problem, starts = plan.parts, plan.core.backward_starts
    named = {s: "masks" for s in masks_of(problem)}
    named |= {s: "logits" for s in logits_of(problem)}
    named |= {s: "gradients" for s in gradients_of(problem)}
    found: dict[str, list[int]] = defaultdict(list)
    for life in _alive(plan):
        what = "scratch" if life.storage is None else named.get(life.storage)
        kept = life.made < starts <= life.last
        found[what or ("saved" if kept else "other")].append(life.bytes)
    rows = [Holding(what, sum(sizes), len(sizes)) for what, sizes in found.items()]
    return sorted(rows, key=lambda row: (-row.bytes, row.what))


def _variants(plan: Plan) -> list[tuple[str, Problem]]:
    """Returns the options that may lower the peak, each with the problem that results from it."""
    problem, least = plan.parts, _LEAST * plan.core.numbers["live_bytes"]
    gradients = sum(problem.storages[s].bytes for s in gradients_of(problem))
    logits = max((problem.storages[s].bytes for s in logits_of(problem)), default=0)
    inside = with_updates(problem) if gradients > least else problem
    cut = with_slices(problem) if logits > least else problem
    has_updates = len(inside.backward_outputs) < len(problem.backward_outputs)
    has_slices = len(cut.ops) > len(problem.ops)
    found = [(UPDATES, inside)] if has_updates else []
    if has_slices:
        found.append((SLICES, cut))
    if has_updates and has_slices:
        found.append((f"{UPDATES} and {SLICES}", with_slices(inside)))
    return found + _packed(plan, found)


def _packed(plan: Plan, others: list[tuple[str, Problem]]) -> list[tuple[str, Problem]]:
    """Returns the variants that pack masks: the plan's own problem, and the last of the others."""
    masks = sum(row.bytes for row in plan.holdings if row.what == "masks")
    if any(op.kind.startswith("aten.") for op in plan.parts.ops):
        if masks <= _LEAST * plan.core.numbers["live_bytes"]:
            return []
        both = [("", plan.parts), *others[-1:]]
        made = [(name, problem, with_packed(problem)) for name, problem in both]
        return [(_and(name), new) for name, old, new in made if len(new.ops) > len(old.ops)]
    packed = plan.packed_parts
    if packed is None:
        return []
    found = [(PACKED, packed)]
    for name, _ in others[-1:]:
        problem = with_updates(packed) if UPDATES in name else packed
        found.append((_and(name), with_slices(problem) if SLICES in name else problem))
    return found


def _and(name: str) -> str:
    return f"{name} and {PACKED}" if name else PACKED


def savings(plan: Plan) -> list[Saving]:
    """Returns the plan itself and the smallest plan of its problem with each option that may lower
    the peak. Returns an empty list if no option may."""
    found, variants = [_saving("", plan.core)], _variants(plan)
    least, device = budgets.parse("min", "live"), plan.core.device
    for name, problem in variants:
        limit = _SECONDS / len(variants)
        with suppress(BudgetError):  # the user's constraints may not allow any plan
            core = problem.check().plan(budget=least, device=device, time_limit=limit)
            found.append(_saving(name, core))
    return found if len(found) > 1 else []


def _saving(options: str, core: _native.Plan) -> Saving:
    numbers = core.numbers
    extra = numbers["time_ps"] / max(1, numbers["once_ps"]) - 1
    return Saving(options, numbers["live_bytes"], extra)


def lines(plan: Plan) -> str:
    """Returns the end of an explanation: the parts of the peak, and what options would save."""
    rows = plan.holdings
    whole = max(1, sum(row.bytes for row in rows))
    text = "\n  At the peak (live bytes):\n" if rows else ""
    for row in rows:
        share = 100 * row.bytes / whole
        text += f"        {budgets.text(row.bytes):>14}  {row.what} ({share:.0f} %)\n"
    text += "\n  The smallest plans with other options (live bytes):\n" if plan.savings else ""
    for saving in plan.savings:
        size, extra = budgets.text(saving.bytes), 100 * saving.extra
        text += f"        {size:>14}  {saving.options or 'this plan'}, {extra:.0f} % more time\n"
    return text
