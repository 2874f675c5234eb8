"""Measured scratch, and how plans count it.

The first two steps measure what each op takes from the allocator besides its results
(:mod:`compiler.scratch`). Later plans count it as the ``workspace`` of that op. It is stored
separately from the problem: a graph's problem, fingerprint and key do not contain it. So a graph is
recognized whatever was measured, and positions and shares are turned into bytes without it.

Ranks may measure different scratch, which may take one rank over its budget and not another. So
each rank decides for itself whether to plan a step again. A plan that repeats collectives needs the
same decision on all ranks, so it does not count measured scratch; if scratch takes the step over
its budget, a warning is issued.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...problem import Problem

GRAIN = 64 * 1024
"""Measured bytes are rounded up to a multiple of this, so that small changes do not matter. For
budgets below 16 times that value, the multiple is ``PART`` of the budget."""

PART = 0.01
"""Scratch is counted if it exceeds what the problem already counts by this fraction of the
budget."""

LEAST = 4096
"""Scratch below this number of bytes is not counted."""

Rows = Sequence[Sequence[int]]
"""Measured scratch of a graph: pairs of an op of its problem and bytes."""


def rows_of(problem: Problem, measured: Mapping[str, int], limit: int) -> list[list[int]]:
    """Returns the scratch that plans of a graph must count.

    Args:
        problem: the graph's problem.
        measured: maps the name of an op to bytes.
        limit: the budget in bytes.
    """
    rows = []
    grain = GRAIN if limit >= 16 * GRAIN else max(1, int(PART * limit))
    for i, op in enumerate(problem.ops):
        size = measured.get(op.name, 0)
        rounded = -(-size // grain) * grain
        if size >= LEAST and rounded - op.workspace > PART * limit:
            rows.append([i, rounded])
    return rows


def merged(before: Rows, now: Rows) -> list[list[int]]:
    """Returns the larger scratch of each op."""
    found = {op: size for op, size in before}
    for op, size in now:
        found[op] = max(size, found.get(op, 0))
    return [[op, size] for op, size in sorted(found.items())]


def with_scratch(problem: Problem, rows: Rows) -> Problem:
    """Returns the problem with measured scratch as the ``workspace`` of its ops.

    Raises:
        ValueError: a row names an op that the problem does not have.
    """
    if not rows:
        return problem
    ops = list(problem.ops)
    check_rows(rows, len(ops))
    for op, size in rows:
        ops[op] = replace(ops[op], workspace=max(size, ops[op].workspace))
    return replace(problem, ops=ops)


def check_rows(rows: Rows, ops: int) -> None:
    """Raises ValueError if the rows cannot belong to a graph with this many ops."""
    for op, size in rows:
        if type(op) is not int or type(size) is not int or not 0 <= op < ops or size < 0:
            raise ValueError(
                f"it gives a scratch of {size!r} bytes for op {op!r}, but the graph has {ops} ops "
                "and sizes are at least 0"
            )
