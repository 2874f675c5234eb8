"""Finds the reads and members of runs with insides and inlinings, from the document alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def slice_of(op: dict[str, Any], made: Iterable[int]) -> tuple[set[int], set[int]]:
    """Returns the members of an op with an inside that these outputs depend on, and the positions
    of the inputs read by them."""
    inside = op["inside"]
    todo, members, inputs = [op["out"][k]["member"] for k in made], set[int](), set[int]()
    while todo:
        m = todo.pop()
        members.add(m)
        inputs |= set(inside[m]["reads"])
        todo += inside[m]["uses"]
    return members, inputs


def made_alone(problem: dict[str, Any], value: int) -> tuple[int, set[int]]:
    """Returns the op that makes a value, and the positions of the inputs that it reads to make only
    this value."""
    for i, op in enumerate(problem["ops"]):
        if value < len(op["out"]):
            return i, slice_of(op, [value])[1] if op.get("inside") else set(range(len(op["in"])))
        value -= len(op["out"])
    raise IndexError(value)


def taken_reads(
    problem: dict[str, Any], op: int, inputs: Iterable[int], taken: set[int]
) -> tuple[list[tuple[int, int]], set[int]]:
    """Returns all reads of a run that inlines these values, as (op, value), and the inlined values
    that it reads, directly or through others. ``inputs`` has the positions of the run's own
    reads."""
    todo, reads, used = [(op, j) for j in inputs], list[tuple[int, int]](), set[int]()
    while todo:
        i, j = todo.pop(0)
        value = problem["ops"][i]["in"][j]
        if value not in taken:
            reads.append((i, value))
        elif value not in used:
            used.add(value)
            maker, places = made_alone(problem, value)
            todo += [(maker, k) for k in sorted(places)]
    return reads, used
