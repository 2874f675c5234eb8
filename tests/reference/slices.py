"""What a run takes where ops have insides and inlinings, from the document alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def slice_of(op: dict[str, Any], made: Iterable[int]) -> tuple[set[int], set[int]]:
    """The members of an op with an inside that lead to these outputs, and the places of the inputs
    that those read."""
    inside = op["inside"]
    todo, members, inputs = [op["out"][k]["member"] for k in made], set[int](), set[int]()
    while todo:
        m = todo.pop()
        members.add(m)
        inputs |= set(inside[m]["reads"])
        todo += inside[m]["uses"]
    return members, inputs


def made_alone(problem: dict[str, Any], value: int) -> tuple[int, set[int]]:
    """The op that makes a value, and the places of the inputs that making it alone reads."""
    for i, op in enumerate(problem["ops"]):
        if value < len(op["out"]):
            return i, slice_of(op, [value])[1] if op.get("inside") else set(range(len(op["in"])))
        value -= len(op["out"])
    raise IndexError(value)


def taken_reads(
    problem: dict[str, Any], op: int, inputs: Iterable[int], taken: set[int]
) -> tuple[list[tuple[int, int]], set[int]]:
    """(op, value) of all that a run reads which takes in these values, and those of them that it
    reads for that, directly or through others; ``inputs``: places of what the run itself reads."""
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
