"""What a run of an op with an inside takes, from the document alone."""

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
