"""Schedules that move values, as the emitter takes them: with the ends of the lives that leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

CPU_LINK = 10e9
"""Bytes/s of a copy from the CPU's memory to itself, half of the bandwidth of its device row, which
has no link of its own."""


class Move(NamedTuple):
    """One step that runs nothing."""

    action: str
    """``"out"``: what ``op`` made is copied to the host. ``"wait"``: until that has ended.
    ``"end"``: the memory that it left may go. ``"in"``: it comes back."""
    op: int
    number: int = 0
    """Of an ``out`` and of its ``end``."""


Step = int | Move


class Schedule(NamedTuple):
    """Steps of one graph, and the first of the backward."""

    steps: Sequence[Step]
    backward_starts: int


def schedule_of(problem: dict[str, Any], plan: dict[str, Any]) -> Schedule:
    """The schedule of a plan (``docs/problem.md``). Plans say nowhere when memory that leaves is
    gone, but their lives do: it depends on the copy's time."""
    rows: dict[int, list[tuple[int, int]]] = {}
    for storage, made, last, *_ in plan["lives"]:
        rows.setdefault(storage, []).append((made, last))
    steps: list[Any] = plan["steps"]
    ends: dict[int, list[Move]] = {}
    for t, step in enumerate(steps):
        if isinstance(step, int) or step[0] != "out":
            continue
        storages = {out["storage"] for out in problem["ops"][step[1]]["out"]}
        lives = [max(row for row in rows[s] if row[0] <= t) for s in storages if s in rows]
        last = max((last for _, last in lives), default=t)
        ends.setdefault(min(max(last, t), len(steps) - 1), []).append(Move("end", step[1], t))
    found: list[Step] = []
    starts = 0
    for t, step in enumerate(steps):
        if t == plan["backward_starts"]:
            starts = len(found)
        found.append(step if isinstance(step, int) else Move(step[0], step[1], t))
        found += ends.get(t, ())
    return Schedule(found, starts if plan["backward_starts"] < len(steps) else len(found))


def moves_anything(plan: dict[str, Any]) -> bool:
    """Does a plan move values to the host?"""
    return bool(plan["numbers"].get("out_bytes"))


def wants_moves(problem: dict[str, Any]) -> bool:
    """Does a policy ask that values of a problem move?"""
    return any(
        out.get("constraint", "").endswith("offload") for op in problem["ops"] for out in op["out"]
    )


def with_link(problem: dict[str, Any], device: Any) -> dict[str, Any]:
    """The problem with a link to the host where its device is the CPU, whose row has none."""
    if isinstance(device, str) and device.partition("+")[0] == "cpu":
        return {"link_bytes_per_s": CPU_LINK, **problem}
    return problem
