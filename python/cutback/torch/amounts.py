"""Formats budgets for warnings."""

from __future__ import annotations

from .. import budgets


def name_of(limit: int, position: budgets.Position | None) -> str:
    """Returns a budget as text: ``"812.00 MiB"``, or a position with its bytes."""
    return budgets.text(limit) if position is None else position.describe(limit)
