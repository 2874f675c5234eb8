"""How warnings name budgets."""

from __future__ import annotations

from .. import budgets


def name_of(limit: int, position: budgets.Position | None) -> str:
    """A budget for people: ``"812.00 MiB"``, or what a position came to."""
    return budgets.text(limit) if position is None else position.describe(limit)
