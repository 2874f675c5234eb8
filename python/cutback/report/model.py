"""What the pictures are drawn from: one problem and one plan, read from their JSON documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any


@dataclass
class Op:
    """An op of the joint graph; `backward` when it depends on a tangent."""

    id: int
    kind: str
    name: str
    location: str
    backward: bool
    view: bool
    placeholder: bool
    inputs: list[int]
    outputs: list[int]


@dataclass
class Value:
    """One output of an op and what the plan does with it."""

    id: int
    op: int
    storage: int
    type: str
    decision: str = "none"
    reason: str = "none"


@dataclass
class Life:
    """One life of a storage (or the scratch of a step): alive while steps made..last run."""

    storage: int | None
    made: int
    last: int
    bytes: int
    offset: int
    category: str = "temporary"
    label: str = ""


@dataclass
class Picture:
    """A problem and its plan, joined by :func:`read` for drawing. Sizes are in bytes, and steps are
    counted from 0."""

    ops: list[Op]
    values: list[Value]
    storage_bytes: list[int]
    steps: list[int]
    actions: list[str]  # of each step: "run", "out", "wait" or "in"
    backward_starts: int
    lives: list[Life]
    numbers: dict[str, Any]
    live: list[int] = field(default_factory=list)  # [n_step] while each step runs

    @property
    def n_step(self) -> int:
        """Steps of the schedule."""
        return len(self.steps)


CATEGORIES = ("saved", "recomputed", "offloaded", "gradient", "temporary", "scratch")


def _categorise(picture: Picture) -> None:
    """Name each life by its role: what people ask of a peak is "what is it made of"."""
    seen: set[int] = set()
    for life in sorted(picture.lives, key=lambda one: one.made):
        op = picture.ops[picture.steps[life.made]]
        life.label = f"{op.name} {op.location}".strip()
        if life.storage is None:
            life.category = "scratch"
        elif picture.actions[life.made] == "in":
            life.category = "offloaded"
        elif life.storage in seen:
            life.category = "recomputed"
        elif op.backward and life.last >= picture.n_step:
            life.category = "gradient"
        elif life.made < picture.backward_starts <= life.last:
            life.category = "saved"
        if life.storage is not None:
            seen.add(life.storage)


def live_bytes(lives: Iterable[Life], n_step: int) -> list[int]:
    """Bytes that are alive during each step."""
    change = [0] * (n_step + 1)
    for life in lives:
        change[life.made] += life.bytes
        change[min(life.last + 1, n_step)] -= life.bytes
    return list(accumulate(change[:-1]))


def read(problem: Mapping[str, Any], plan: Mapping[str, Any]) -> Picture:
    """Joins a problem and its plan for drawing.

    Args:
        problem: a problem document (``docs/problem.md``).
        plan: the document of a plan for it.
    """
    ops, values = read_problem(problem)
    for row in plan["decisions"]:
        values[row["value"]].decision = row["decision"]
        values[row["value"]].reason = row["reason"]
    lives = [Life(*row) for row in plan["lives"]]
    picture = Picture(
        ops=ops,
        values=values,
        storage_bytes=[row["bytes"] for row in problem["storages"]],
        steps=[step if isinstance(step, int) else step[1] for step in plan["steps"]],
        actions=["run" if isinstance(step, int) else step[0] for step in plan["steps"]],
        backward_starts=plan["backward_starts"],
        lives=lives,
        numbers={**plan["numbers"], "budget_bytes": plan.get("budget_bytes")},
    )
    _categorise(picture)
    picture.live = live_bytes(picture.lives, picture.n_step)
    return picture


def read_problem(problem: Mapping[str, Any]) -> tuple[list[Op], list[Value]]:
    """Ops and values of a problem document."""
    ops: list[Op] = []
    values: list[Value] = []
    for row in problem["ops"]:
        flags = row.get("flags", [])
        outputs = []
        for out in row["out"]:
            outputs.append(len(values))
            values.append(Value(len(values), len(ops), out["storage"], out.get("type", "")))
        ops.append(
            Op(
                len(ops),
                row.get("kind", "op"),
                row.get("name", f"op{len(ops)}"),
                row.get("at", ""),
                "backward" in flags,
                "view" in flags,
                "placeholder" in flags,
                list(row["in"]),
                outputs,
            )
        )
    return ops, values
