"""The data that pictures are drawn from: a plan joined with its problem."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from .. import schedule
from .layers import paths_of

if TYPE_CHECKING:
    from .. import _native
    from ..explanation import Explanation, Holding, Saving
    from ..problem import Problem


class Plan(Protocol):
    """The part of :class:`cutback.Plan` that pictures need."""

    @property
    def core(self) -> _native.Plan:
        """The core's plan, with steps, lifetimes and decisions."""
        ...

    @property
    def parts(self) -> Problem:
        """The problem that was planned."""
        ...

    @property
    def packed_parts(self) -> Problem | None:
        """The problem of a compiled step with packed values, if it packs any."""
        ...

    @property
    def explanation(self) -> Explanation:
        """The reasons why values are saved or recomputed."""
        ...

    @property
    def holdings(self) -> list[Holding]:
        """The parts of the peak."""
        ...

    @property
    def savings(self) -> list[Saving]:
        """The smallest plans that other options allow."""
        ...

    def headline(self) -> str:
        """Returns a line about a budget that is a position from 0 to 1; "" for other budgets."""
        ...


@dataclass
class Op:
    """An op of the joint graph. `backward` is true if it depends on a tangent."""

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
    """One output of an op, and the plan's decision about it."""

    id: int
    op: int
    storage: int
    type: str
    decision: str = "none"
    reason: str = "none"


@dataclass
class Life:
    """One lifetime of a storage, or the scratch of a step (storage None). It is alive during the
    steps made .. last, with this `offset` and these `bytes` in the arena."""

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
    counted from 0.

    >>> picture = report.read(plan)
    >>> largest = max(picture.storage_bytes)
    """

    ops: list[Op]
    values: list[Value]
    storage_bytes: list[int]
    steps: list[int]
    actions: list[str]  # action of each step: "run", "out", "wait" or "in"
    backward_starts: int
    lives: list[Life]
    numbers: schedule.Numbers
    budget_bytes: int | None
    measure: str
    position: str = ""  # one line about a budget that is a position
    live: list[int] = field(default_factory=list)  # [n_step] live bytes during each step
    everything: list[int] = field(default_factory=list)
    """[n_step] Live bytes of the plan that saves everything, at the corresponding step."""
    floor_bytes: int | None = None  # no plan with this order of ops has a smaller peak
    base: list[tuple[str, int]] = field(default_factory=list)
    """(name, bytes) of memory that the caller holds during the whole step."""
    times_ps: list[int] = field(default_factory=list)  # [n_step] modelled time of each step
    paths: list[str] = field(default_factory=list)  # [n_op] the layer of each op, "" if unknown

    @property
    def n_step(self) -> int:
        """Number of steps of the schedule."""
        return len(self.steps)

    @property
    def live_budget(self) -> int | None:
        """The budget for live bytes: without the parameters and optimizer states that a budget in
        total contains. None if there is no budget, or it bounds saved bytes."""
        if self.budget_bytes is None or self.measure == "saved":
            return None
        if self.measure != "total":
            return self.budget_bytes
        return self.budget_bytes - (self.numbers["total_bytes"] - self.numbers["live_bytes"])

    def phase(self, step: int) -> str:
        """Returns the kind of a step: ``"forward"``, ``"backward"``, ``"recomputed"`` or a copy."""
        if self.actions[step] != "run":
            return {"out": "copy to the host", "in": "copy back"}.get(self.actions[step], "wait")
        if self.is_rerun[step]:
            return "recomputed"
        return "forward" if step < self.backward_starts else "backward"

    @cached_property
    def is_rerun(self) -> list[bool]:
        """[n_step] True where an operation runs again. The first run of an operation of the forward
        may also come in the backward, if nothing before needs its result; it takes no extra time.
        """
        ran: set[int] = set()
        found = []
        for op, action in zip(self.steps, self.actions, strict=True):
            found.append(action == "run" and op in ran)
            if action == "run":
                ran.add(op)
        return found


CATEGORIES = ("saved", "recomputed", "offloaded", "gradient", "temporary", "scratch")


def _categorise(picture: Picture) -> None:
    """Assigns a category and a label to each lifetime, so that readers see the parts of a peak."""
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


def taken_over(lives: Iterable[Life | schedule.Life]) -> set[tuple[int, int]]:
    """Returns (offset, first step) of each lifetime. If another lifetime ends at that offset in
    that step, its memory is taken over, and the bytes of the two count once."""
    return {(life.offset, life.made) for life in lives if life.bytes}


def live_bytes(
    lives: Iterable[Life | schedule.Life], n_step: int, begins: set[tuple[int, int]]
) -> list[int]:
    """Returns the live bytes during each step. `begins` is the result of `taken_over` for all
    lifetimes."""
    change = [0] * (n_step + 1)
    for life in lives:
        is_taken = life.made < life.last and (life.offset, life.last) in begins
        change[life.made] += life.bytes
        change[life.last if is_taken else min(life.last + 1, n_step)] -= life.bytes
    return list(accumulate(change[:-1]))


def read(plan: Plan) -> Picture:
    """Joins a plan with its problem and returns the picture to draw.

    Args:
        plan: a :class:`cutback.Plan`.

    >>> picture = report.read(plan)
    >>> print(len(picture.ops), "operations")
    """
    core = plan.core
    ops, values = read_problem(plan.parts)
    for row in core.decisions:
        values[row.value].decision = row.decision
        values[row.value].reason = row.reason
    steps = core.steps
    picture = Picture(
        ops=ops,
        values=values,
        storage_bytes=[storage.bytes for storage in plan.parts.storages],
        steps=[step.op for step in steps],
        actions=[step.action for step in steps],
        backward_starts=core.backward_starts,
        lives=[Life(*life) for life in core.lives],
        numbers=core.numbers,
        budget_bytes=core.budget_bytes,
        measure=core.measure,
        position=plan.headline().rstrip(),
    )
    _categorise(picture)
    picture.live = live_bytes(picture.lives, picture.n_step, taken_over(picture.lives))
    floor = plan.explanation["floor"]
    picture.floor_bytes = None if floor is None else floor["bytes"]
    picture.base = _base(plan.parts)
    picture.times_ps = core.times_ps
    picture.paths = paths_of(ops)
    picture.everything = _everything(core, picture)
    return picture


def _base(problem: Problem) -> list[tuple[str, int]]:
    """Returns the memory that the caller holds during the step: arguments, and the further static
    bytes of the problem."""
    sizes: dict[str, dict[int, int]] = {"parameters": {}, "inputs": {}}
    for op in problem.ops:
        if "placeholder" in op.flags:
            kind = "parameters" if "parameter" in op.flags else "inputs"
            for value in op.outputs:
                sizes[kind][value.storage] = problem.storages[value.storage].bytes
    name = "inputs" if sizes["parameters"] else "parameters and inputs"
    rows = [
        ("parameters", sum(sizes["parameters"].values())),
        (name, sum(sizes["inputs"].values())),
    ]
    rest = problem.static_bytes - sum(size for _, size in rows)
    return [row for row in [*rows, ("optimizer states and the rest", rest)] if row[1] > 0]


def longest_in_order(numbers: Sequence[int]) -> list[int]:
    """Returns the indices of a longest subsequence that never falls."""
    ends: list[int] = []  # by length - 1: index of the least number that ends such a subsequence
    least: list[int] = []  # these numbers
    before: list[int] = []
    for i, number in enumerate(numbers):
        length = bisect_right(least, number)
        before.append(ends[length - 1] if length else -1)
        ends[length : length + 1] = [i]
        least[length : length + 1] = [number]
    found: list[int] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        found.append(at)
        at = before[at]
    return found[::-1]


def _everything(core: _native.Plan, picture: Picture) -> list[int]:
    """Returns the live bytes of the plan that saves everything, at the steps of this plan. A rerun,
    or an operation that this plan runs earlier or later, gets the bytes of the next other step."""
    whole = core.problem.plan(device=core.device)
    live = live_bytes(whole.lives, len(whole.steps), taken_over(whole.lives))
    at: dict[int, int] = {}
    for k, step in enumerate(whole.steps):
        at.setdefault(step.op, k)
    runs = [
        k
        for k, op in enumerate(picture.steps)
        if picture.actions[k] == "run" and not picture.is_rerun[k] and op in at
    ]
    known = {
        runs[i]: live[at[picture.steps[runs[i]]]]
        for i in longest_in_order([at[picture.steps[k]] for k in runs])
    }
    found: list[int] = []
    size = live[-1] if live else 0
    for k in reversed(range(picture.n_step)):
        size = known.get(k, size)
        found.append(size)
    return found[::-1]


def read_problem(problem: Problem) -> tuple[list[Op], list[Value]]:
    """Returns the ops and values of a problem, in the order of their ids."""
    ops: list[Op] = []
    values: list[Value] = []
    for i, op in enumerate(problem.ops):
        outputs = list(range(len(values), len(values) + len(op.outputs)))
        values += [
            Value(id, i, out.storage, out.type) for id, out in zip(outputs, op.outputs, strict=True)
        ]
        ops.append(
            Op(
                i,
                op.kind or "op",
                op.name or f"op{i}",
                op.location,
                "backward" in op.flags,
                "view" in op.flags,
                "placeholder" in op.flags,
                list(op.inputs),
                outputs,
            )
        )
    return ops, values
