"""Plans with their problems: which values a step saves and recomputes, why, and at what cost."""

from __future__ import annotations

import json
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .. import _native, budgets, files
from ..schedule import Decision, Life, Numbers, Schedule, bytes_of

if TYPE_CHECKING:
    from ..explanation import Explanation, Holding, Saving
    from ..problem import Problem
    from ..report.page import Measured
    from .differences import Difference


class Compiled(Protocol):
    """The part of a compiled graph that its plan needs."""

    timeline: list[int] | None

    @property
    def stats(self) -> Any:
        """Measurements of the last run; None before the first."""
        ...

    @property
    def planned(self) -> Any:
        """Planned bytes and times of the program."""
        ...

    def text(self, what: str) -> str:
        """Returns the JSON of the step's ``"problem"``, ``"packed"``, ``"plan"`` or
        ``"kernels"``."""
        ...


class AllNumbers(Numbers):
    """The numbers of a plan and its budget."""

    budget_bytes: int | None
    """The budget in bytes, or None if there is no budget."""


class Entry(NamedTuple):
    """A value that the backward needs, and the decision about it."""

    value: int
    """Its id in the problem and the plan."""
    name: str
    """Name of the operation that makes it, ``"matmul_12"``."""
    kind: str
    """Kind of that operation, ``"matmul"``."""
    type: str
    """``"f32[8,32]"``."""
    bytes: int
    """Bytes of its storage."""
    location: str
    """Source line, ``"model.py:12"``; ``""`` if unknown."""
    decision: str
    """``"save"``, ``"recompute"`` or ``"offload"``."""
    reason: str
    """The reason of the decision; :class:`cutback.schedule.Decision` lists the reasons."""


class Plan:
    """A plan with its problem.

    ``print(plan)`` summarises it, ``plan.explain()`` lists every decision with its reason, and a
    notebook displays it as a picture.

    >>> plan = cutback.plan(loss, params, x, y, budget=0.5)
    >>> print(plan)
    >>> print(plan.numbers["arena_bytes"], plan.numbers["save_all_arena_bytes"])
    >>> plan.report("plan.html")
    """

    shared: budgets.Shared | None = None
    """The budget shared by several calls of a PyTorch model before one backward, or None. The
    plan's numbers are those of one call."""

    def __init__(self, problem: str, plan: str) -> None:
        self._core = _native.Problem.read(problem).read_plan(plan)
        self._step: Compiled | None = None
        self._position: budgets.Position | None = None
        self._parts: Problem | None = None
        self._explanation: Explanation | None = None

    @classmethod
    def of(
        cls,
        core: _native.Plan,
        step: Compiled | None = None,
        position: budgets.Position | None = None,
    ) -> Plan:
        """Returns a plan of the core as a :class:`Plan`. ``step`` is the compiled graph that runs
        it. ``position`` is the requested position, if the core does not know it."""
        plan = cls.__new__(cls)
        plan._core = core
        plan._step = step
        plan._position = position
        plan._parts = plan._explanation = None
        return plan

    @classmethod
    def _again(
        cls,
        problem: str,
        plan: str,
        position: budgets.Position | None,
        shared: budgets.Shared | None = None,
    ) -> Plan:
        made = cls(problem, plan)
        made._position, made.shared = position, shared
        return made

    @property
    def core(self) -> _native.Plan:
        """The plan in the core."""
        return self._core

    @property
    def parts(self) -> Problem:
        """The planner's input: operations, values, storages. Copy it before you change it."""
        if self._parts is None:
            self._parts = self._core.problem.parts()
        return self._parts

    @property
    def schedule(self) -> Schedule:
        """The steps in order, and the index of the first step of the backward."""
        return Schedule(self._core.steps, self._core.backward_starts)

    @property
    def lives(self) -> list[Life]:
        """The lifetimes of the storages: the steps between which they live, and their offsets in
        the arena."""
        return self._core.lives

    @property
    def decisions(self) -> list[Decision]:
        """The decision about each value that the backward needs."""
        return self._core.decisions

    @cached_property
    def problem(self) -> dict[str, Any]:
        """The planner's input as a document of ``docs/problem.md``."""
        from ..problem import document_of  # imported on demand, as below

        return document_of(self._core.problem)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The plan as a document of ``docs/problem.md``."""
        document: dict[str, Any] = json.loads(self._core.to_json())
        return document

    @property
    def numbers(self) -> AllNumbers:
        """Planned bytes and modelled picoseconds. ``save_all_*`` are the bytes of saving
        everything. For a compiled step, ``budget_bytes`` is the step's own budget, which may
        differ from the plan's because operations run in groups."""
        core, step = self._core, self._step
        budget = core.budget_bytes if step is None else step.planned.budget_bytes
        return {**core.numbers, "budget_bytes": budget}

    @property
    def position(self) -> budgets.Position | None:
        """The position and the bytes at both ends of its range, if the budget was a position from 0
        to 1; otherwise None. It is None for plans read from a file, which store only bytes."""
        known = self._core.position
        return self._position or (None if known is None else budgets.Position(*known))

    @property
    def measure(self) -> str:
        """The quantity that the budget bounds: ``"arena"``, ``"live"``, ``"saved"`` or
        ``"total"``."""
        return self._core.measure

    @property
    def in_groups(self) -> bool:
        """True if the problem has groups of operations as its ops (``groups=True``)."""
        return any(op.inside for op in self.parts.ops)

    @property
    def entries(self) -> list[Entry]:
        """The values that the backward needs, in program order. ``pandas.DataFrame(plan.entries)``
        has a row for each value and a column for each field.

        >>> print(sum(entry.bytes for entry in plan.entries if entry.decision == "save"))
        """
        made, storages = list(self.parts.made()), self.parts.storages
        return [
            Entry(
                value=row.value,
                name=op.name,
                kind=op.kind,
                type=value.type,
                bytes=storages[value.storage].bytes,
                location=op.location,
                decision=row.decision,
                reason=row.reason,
            )
            for row in self.decisions
            for op, value in [made[row.value]]
        ]

    @property
    def saved(self) -> list[Entry]:
        """Values that are saved from the forward to the backward."""
        return [e for e in self.entries if e.decision == "save"]

    @property
    def offloaded(self) -> list[Entry]:
        """Values that are copied to the host and back."""
        return [e for e in self.entries if e.decision == "offload"]

    @property
    def recomputed(self) -> list[Entry]:
        """Values that are computed again in the backward."""
        return [e for e in self.entries if e.decision == "recompute"]

    def explain(self, as_json: bool = False, *, kernels: bool = False) -> str:
        """Explains the plan: totals, then one line for each value. The line gives its type, bytes,
        the op that makes it, source line, readers, decision, reason, and how peak and time would
        change if only this decision were different. At the end come the parts of the peak, and the
        memory that other options would save (:meth:`savings`).

        Args:
            as_json: return JSON (``docs/problem.md``) with all values and readers.
            kernels: describe the groups of a compiled step instead: their reads and writes, the
                values that never exist in memory, and why each group ends where it does
                (``docs/fusion.md``). Needs ``step.plan`` of a step that has run once.

        Raises:
            ValueError: if ``kernels`` is set and the plan does not belong to a compiled step.
        """
        if kernels:
            return self._explain_kernels(as_json)
        if as_json:
            return self._core.explain_json()
        from .savings import lines  # imported on demand, as in `holdings` and `savings`

        text = self._core.explain_text(files.for_people(self._core.problem))
        return f"{self.headline()}{text}{lines(self)}"

    def _explain_kernels(self, as_json: bool) -> str:
        if self._step is None:
            raise ValueError(
                "kernels=True needs the plan of a compiled step, but this plan was made, copied or "
                "read without one: run step = cutback.compile(...) once and use step.plan"
            )
        document = self._step.text("kernels")
        if as_json:
            return document
        from ..report import kernels_text

        return kernels_text(json.loads(document))

    @property
    def holdings(self) -> list[Holding]:
        """The parts of the peak of live bytes, largest first: gradients, logits, masks, other saved
        values, scratch and the rest.

        >>> print({row.what: row.bytes for row in plan.holdings})
        """
        from .savings import holdings

        return holdings(self)

    @property
    def packed_parts(self) -> Problem | None:
        """For a compiled step, the problem of the same step with ``packed=True``; None if it packs
        nothing, or already does."""
        if self._step is None:
            return None
        document = self._step.text("packed")
        return None if document == "null" else _native.Problem.read(document).parts()

    @property
    def savings(self) -> list[Saving]:
        """The memory that ``updates="inside"``, ``slices=True`` and, for models of PyTorch and
        compiled steps, ``packed=True`` would save. The list has this plan, and the smallest plan of
        the same step with each of these options and with several. Updates are tried if all
        gradients together take more than 5 % of the peak, slices if logits do. Packing is tried if
        the masks at the peak of a PyTorch model do, and for all compiled steps that pack values. If
        none is tried, the list is empty. The searches end after two seconds, with the smallest
        plans found so far.

        The numbers are estimates: they guess from the order and the sizes of values which argument
        a gradient belongs to and which operations work row by row. Steps compiled with these
        options know it.

        >>> for row in plan.savings:
        ...     print(row.options or "this plan", row.bytes, f"{row.extra:.0%}")
        """
        return list(self._savings)

    @cached_property
    def _savings(self) -> list[Saving]:
        from .savings import savings

        return savings(self)

    @property
    def explanation(self) -> Explanation:
        """The contents of :meth:`explain` as a document."""
        if self._explanation is None:
            self._explanation = json.loads(self._core.explain_json())
        return self._explanation

    def diff(self, other: Plan) -> Difference:
        """Returns the differences between this plan and ``other``, value by value and in total.

        Raises:
            ValueError: if the plans are for different problems.
        """
        from .differences import Difference  # imported on demand

        return Difference(self, other)

    def to_json(self) -> str:
        """Returns the plan as JSON, which ``compile(plan=...)`` accepts."""
        return self._core.to_json()

    def timeline(self) -> list[int]:
        """Returns the live bytes during each step of the schedule."""
        from ..report.model import live_bytes, taken_over  # imported on demand, as below

        core = self._core
        return live_bytes(core.lives, len(core.steps), taken_over(core.lives))

    def _measured(self) -> Measured:
        measured: Measured = {}
        if self._step is not None:
            measured["timeline"] = self._step.timeline
            stats = self._step.stats
            if stats is not None:
                measured["peak_bytes"] = stats.peak_bytes
                measured["ms"] = stats.seconds * 1e3
        return measured

    def report(self, path: str | os.PathLike[str], title: str = "Cutback plan") -> None:
        """Writes a self-contained HTML page: graph, memory timeline, the decisions with their
        reasons, and the groups of a compiled step.

        After ``step.profile(...)`` the timeline also shows the measured bytes."""
        from ..report import render_html

        kernels = json.loads(self._step.text("kernels")) if self._step is not None else None
        page = render_html(self, self._measured(), title, kernels)
        files.write_text(path, page)

    def plot(self, axes: Any = None, *, time: bool = False) -> Any:
        """Draws the memory timeline with matplotlib: ``plan.plot().figure.savefig("plan.pdf")``.

        Args:
            axes: matplotlib axes to draw on; None draws on a new figure.
            time: if true, the x axis is milliseconds of modelled time instead of steps.

        Returns:
            The axes. The y axis is in bytes.

        Raises:
            ImportError: if matplotlib is not installed (``pip install 'cutback[plots]'``).
        """
        from ..report import read
        from ..report.figures import plot_plan

        return plot_plan(read(self), axes, time=time)

    def __reduce__(self) -> tuple[Any, ...]:  # copies and pickles do not keep the compiled step
        core = self._core
        return Plan._again, (core.problem.to_json(), core.to_json(), self.position, self.shared)

    @property
    def bound_ps(self) -> int:
        """Lower bound on the time of all plans for this budget, in picoseconds. The time of this
        plan is at least as large. ``numbers["bound_class"]`` says which plans the bound holds for:
        ``"any"``, ``"ordered"`` (plans that keep the order of operations, as all plans of the
        search do), or ``"trivial"`` (it is only the time of running every operation once)."""
        return self._core.numbers["lower_bound_ps"]

    def headline(self) -> str:
        """Returns a line about a budget that is a position, such as ``0.5: 812 MiB, 63 % of 1.26
        GiB; smallest 340 MiB``, or that several calls share; "" for other budgets."""
        position, measure = self.position, self._core.measure
        if self.shared is not None:
            return self.shared.describe() + "\n"
        if position is None:
            return ""
        taken = bytes_of(self.numbers, measure)
        if self._step is not None and measure != "saved":
            taken = getattr(self._step.planned, f"{measure}_bytes")
        return position.describe(taken) + "\n"

    def _bounded(self) -> str:
        """Describes the budget. Includes the bytes by the budget's measure, unless that is the
        arena, which the caller prints anyway."""
        n, measure = self.numbers, self._core.measure
        if n["budget_bytes"] is None:
            return "no budget"
        size = bytes_of(n, measure)
        beside = "" if measure == "arena" else f", which is {budgets.text(size)}"
        return f"budget {budgets.text(n['budget_bytes'])} for {measure}{beside}"

    def __str__(self) -> str:
        n = self.numbers
        once = n["once_ps"]
        extra = 100 * (n["time_ps"] - once) / max(1, once)
        size = budgets.text
        gap = "n/a" if n["gap"] is None else f"{100 * n['gap']:.2f} %"
        trivial = ", a trivial bound" if n["bound_class"] == "trivial" else ""
        least = 100 * max(0, self.bound_ps - once) / max(1, once)
        return self.headline() + (
            f"arena {size(n['arena_bytes'])} (save everything: {size(n['save_all_arena_bytes'])}), "
            f"{self._bounded()}\n"
            f"saved {len(self.saved)} values, {size(n['saved_bytes'])} "
            f"(save everything: {size(n['save_all_saved_bytes'])})\n"
            f"recomputed {n['recomputed']} values, {extra:.1f} % more time "
            f"(at least {least:.1f} %{trivial}; gap {gap})"
            + (f"\noffloaded {size(n['out_bytes'])}" if n.get("out_bytes") else "")
            + self._compiled()
        )

    def _compiled(self) -> str:
        """Returns a line about the arena of the compiled step, or "" if grouping did not change
        it."""
        if self._step is None:
            return ""
        arena = json.loads(self._step.text("kernels"))["arena_bytes"]
        if arena == self.numbers["arena_bytes"]:
            return ""
        return f"\ncompiled: arena {budgets.text(arena)}, because operations run in groups"

    def __repr__(self) -> str:
        n = self.numbers
        return f"<cutback.Plan {budgets.text(n['arena_bytes'])}, {n['recomputed']} recomputed>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ..report import render_fragment

        html = render_fragment(self)
        return {"text/plain": str(self), "text/html": html}
