"""Schedules that move values, as the emitter takes them: with the ends of the lives that leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from ... import _native
    from ...problem import Problem

CPU_LINK = 10e9
"""Bytes/s of a copy from the CPU's memory to itself, half of the bandwidth of its device row, which
has no link of its own."""


class Move(NamedTuple):
    """One step that runs nothing."""

    action: Literal["out", "wait", "end", "in"]
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


def schedule_of(plan: _native.Plan) -> Schedule:
    """The schedule of a plan. Plans say nowhere when memory that leaves is gone, but their lives
    do: it depends on the copy's time."""
    steps, begins = plan.steps, plan.backward_starts
    ends: dict[int, list[Move]] = {}
    if any(step.action == "out" for step in steps):
        ops = plan.problem.parts().ops
        rows: dict[int | None, list[tuple[int, int]]] = {}
        for life in plan.lives:
            rows.setdefault(life.storage, []).append((life.made, life.last))
        for t, step in enumerate(steps):
            if step.action != "out":
                continue
            storages = {value.storage for value in ops[step.op].outputs}
            lives = [max(row for row in rows[s] if row[0] <= t) for s in storages if s in rows]
            last = max((last for _, last in lives), default=t)
            ends.setdefault(min(max(last, t), len(steps) - 1), []).append(Move("end", step.op, t))
    found: list[Step] = []
    starts = 0
    for t, step in enumerate(steps):
        if t == begins:
            starts = len(found)
        found.append(step.op if step.action == "run" else Move(step.action, step.op, t))
        found += ends.get(t, ())
    return Schedule(found, starts if begins < len(steps) else len(found))


def moves_anything(plan: _native.Plan) -> bool:
    """Does a plan move values to the host?"""
    return bool(plan.numbers.get("out_bytes"))


def with_link(problem: Problem, device: object) -> Problem:
    """The problem with a link to the host where its device is the CPU, whose row has none."""
    is_cpu = isinstance(device, str) and device.partition("+")[0] == "cpu"
    if is_cpu and not problem.link_bytes_per_s:
        return replace(problem, link_bytes_per_s=CPU_LINK)
    return problem
