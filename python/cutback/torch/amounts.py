"""Budgets in bytes, and how warnings name them."""

from __future__ import annotations

from .. import budgets


def in_bytes(limit: int, measure: str) -> budgets.NativeBudget:
    """The budget of a number of bytes (an int may be a position)."""
    least = budgets.parse("min", measure)
    assert least is not None
    return budgets.in_bytes(least, limit)


def name_of(limit: int, position: budgets.Position | None) -> str:
    """A budget for people: ``"812.00 MiB"``, or what a position came to."""
    return budgets.text(limit) if position is None else position.describe(limit)
