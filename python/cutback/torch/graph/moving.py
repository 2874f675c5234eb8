"""Converts schedules that move values to the emitter's form, which has a step wherever memory on
the device is freed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

if TYPE_CHECKING:
    from ... import _native
    from ...problem import Problem

CPU_LINK = 10e9
"""Bytes/s of a copy from the CPU's memory to itself: half of the bandwidth in its device row, which
has no link."""


class Move(NamedTuple):
    """A step that runs no op."""

    action: Literal["out", "wait", "end", "in"]
    """``"out"`` copies the result of ``op`` to the host. ``"wait"`` waits until that has ended.
    ``"end"`` frees the memory on the device. ``"in"`` brings the result back."""
    op: int
    number: int = 0
    """Number shared by an ``out`` and its ``end``."""


Step = int | Move


def on_host(val: torch.Tensor) -> torch.Tensor:
    """Returns a fake tensor of the same layout on the host."""
    mode = getattr(val, "fake_mode", None)
    if mode is None:
        return val.cpu()
    with mode:
        return torch.empty_strided(val.size(), val.stride(), dtype=val.dtype, device="cpu")


class Schedule(NamedTuple):
    """The steps of one graph, and the index of the first backward step."""

    steps: Sequence[Step]
    backward_starts: int


def schedule_of(plan: _native.Plan) -> Schedule:
    """Returns the schedule of a plan. The plan's steps do not say when moved memory is freed, which
    depends on the copy's time; the plan's lifetimes do."""
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
    """True if a plan moves values to the host."""
    return bool(plan.numbers.get("out_bytes"))


def with_link(problem: Problem, device: object) -> Problem:
    """Returns the problem with a link to the host if its device is the CPU, whose row has no
    link."""
    is_cpu = isinstance(device, str) and device.partition("+")[0] == "cpu"
    if is_cpu and not problem.link_bytes_per_s:
        return replace(problem, link_bytes_per_s=CPU_LINK)
    return problem
