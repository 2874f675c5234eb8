"""A plan beside its problem: what a step saves and recomputes, why, and what it takes."""

from __future__ import annotations

import json
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .. import _native, budgets, files
from ..schedule import Decision, Life, Numbers, Schedule, bytes_of

if TYPE_CHECKING:
    from ..explanation import Explanation
    from ..problem import Problem
    from ..report.page import Measured
    from .differences import Difference


class Compiled(Protocol):
    """A compiled graph, as far as its plan asks it."""

    timeline: list[int] | None

    @property
    def stats(self) -> Any:
        """What the last run measured; None before one."""
        ...

    @property
    def planned(self) -> Any:
        """Bytes and times that the program takes."""
        ...

    def text(self, what: str) -> str:
        """Its ``"problem"``, its ``"plan"`` or its ``"kernels"``."""
        ...


class AllNumbers(Numbers):
    """The numbers of a plan, and its budget."""

    budget_bytes: int | None


class Entry(NamedTuple):
    """One value that the backward needs, and what is done about it."""

    value: int  # id in problem and plan
    name: str  # of the operation that makes it: "matmul_12"
    kind: str  # "matmul"
    type: str  # "f32[8,32]"
    bytes: int  # of its storage
    location: str  # "model.py:12", "" when not known
    decision: str  # "save", "recompute" or "offload"
    reason: str  # "cut", "policy", "peak", ...


class Plan:
    """A plan with the problem it answers.

    ``print(plan)`` summarises it, ``plan.explain()`` lists every decision with its reason, and in a
    notebook it shows as a picture.
    """

    shared: budgets.Shared | None = None
    """Of a PyTorch model that is called several times before a backward: what these calls share.
    The numbers of the plan are those of one call."""

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
        """A plan that the core made. ``step``: the compiled graph that runs it. ``position``: what
        it was asked for, unless the core knows."""
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
        """The steps, and the first of the backward."""
        return Schedule(self._core.steps, self._core.backward_starts)

    @property
    def lives(self) -> list[Life]:
        """When each storage is alive, and where it lies in the arena."""
        return self._core.lives

    @property
    def decisions(self) -> list[Decision]:
        """What is done with each value that the backward needs."""
        return self._core.decisions

    @cached_property
    def problem(self) -> dict[str, Any]:
        """The planner's input as a document of ``docs/problem.md``."""
        from ..problem import document_of  # for those who ask; so below

        return document_of(self._core.problem)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The plan as a document of ``docs/problem.md``."""
        document: dict[str, Any] = json.loads(self._core.to_json())
        return document

    @property
    def numbers(self) -> AllNumbers:
        """Planned bytes and modelled picoseconds; ``save_all_*`` are those of saving everything.
        The budget of a compiled step's plan is that of the step, whose operations run in groups."""
        core, step = self._core, self._step
        budget = core.budget_bytes if step is None else step.planned.budget_bytes
        return {**core.numbers, "budget_bytes": budget}

    @property
    def position(self) -> budgets.Position | None:
        """If the budget was a position from 0 to 1: that, and the bytes of both ends of its range;
        else None. Plans that were read from a file know only the budget in bytes."""
        known = self._core.position
        return self._position or (None if known is None else budgets.Position(*known))

    @property
    def measure(self) -> str:
        """What its budget bounds: ``"arena"``, ``"live"``, ``"saved"`` or ``"total"``."""
        return self._core.measure

    @property
    def in_groups(self) -> bool:
        """Whether ops of its problem are groups (``groups=True``), not single operations."""
        return any(op.inside for op in self.parts.ops)

    @property
    def entries(self) -> list[Entry]:
        """Every value that the backward needs, in the order of the program."""
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
        """Values that are kept from the forward to the backward."""
        return [e for e in self.entries if e.decision == "save"]

    @property
    def offloaded(self) -> list[Entry]:
        """Values that leave for the host and come back."""
        return [e for e in self.entries if e.decision == "offload"]

    @property
    def recomputed(self) -> list[Entry]:
        """Values that are computed again in the backward."""
        return [e for e in self.entries if e.decision == "recompute"]

    def explain(self, as_json: bool = False, *, kernels: bool = False) -> str:
        """Totals, then one line for each value: shape, bytes, maker, source line, readers,
        decision, reason, and what the peak and the time would gain or lose if only this decision
        were the other one.

        ``as_json`` gives the same as JSON (``docs/problem.md``), with all values and readers.

        ``kernels`` explains instead what runs together: the groups of a compiled step, what they
        read and write, which values never exist in memory, and why a group ends where it ends
        (``docs/fusion.md``). ``step.plan`` knows them, of a step that has run once.

        Raises:
            ValueError: ``kernels`` of a plan that is not a compiled step's.
        """
        if kernels:
            return self._explain_kernels(as_json)
        if as_json:
            return self._core.explain_json()
        return self.headline() + self._core.explain_text(files.for_people(self._core.problem))

    def _explain_kernels(self, as_json: bool) -> str:
        if self._step is None:
            raise ValueError(
                "kernels are known of compiled steps alone, and this plan was made, copied or read "
                "without one: run step = cutback.compile(...) once and ask step.plan"
            )
        document = self._step.text("kernels")
        if as_json:
            return document
        from ..report import kernels_text

        return kernels_text(json.loads(document))

    @property
    def explanation(self) -> Explanation:
        """What :meth:`explain` says, as a document."""
        if self._explanation is None:
            self._explanation = json.loads(self._core.explain_json())
        return self._explanation

    def diff(self, other: Plan) -> Difference:
        """What ``other`` does differently, value by value, and what that comes to.

        Raises:
            ValueError: the plans are for different problems.
        """
        from .differences import Difference  # which few programs need

        return Difference(self, other)

    def to_json(self) -> str:
        """The plan as JSON; ``compile(plan=...)`` takes it."""
        return self._core.to_json()

    def timeline(self) -> list[int]:
        """Bytes that are live during each step of the schedule."""
        from ..report.model import live_bytes  # for those who ask; so below

        core = self._core
        return live_bytes(core.lives, len(core.steps))

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
        """Writes a self-contained HTML page: graph, memory timeline, what is saved and why, and of
        a compiled step what runs together.

        After ``step.profile(...)`` the timeline shows what was measured beside what was planned."""
        from ..report import render_html

        kernels = json.loads(self._step.text("kernels")) if self._step is not None else None
        page = render_html(self, self._measured(), title, kernels)
        files.write_text(path, page)

    def __reduce__(self) -> tuple[Any, ...]:  # copies and pickles leave the compiled step behind
        core = self._core
        return Plan._again, (core.problem.to_json(), core.to_json(), self.position, self.shared)

    @property
    def bound_ps(self) -> int:
        """Lower bound on the time of every plan for this budget, in picoseconds; at most this
        plan's own time. ``numbers["bound_class"]`` says which plans it holds for: ``"any"``,
        ``"ordered"`` (those that keep the order of operations, as all plans of a search do), or
        ``"trivial"`` where only the time of running every operation once is known."""
        return self._core.numbers["lower_bound_ps"]

    def headline(self) -> str:
        """The line that says what a position came to, such as ``0.5: 812 MiB, 63 % of 1.26 GiB;
        smallest 340 MiB``, and what several calls that share the budget take; or nothing."""
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
        """The budget, and what it bounds where that is not the arena before it."""
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
        """What operations that run together leave of the plan's arena."""
        if self._step is None:
            return ""
        arena = json.loads(self._step.text("kernels"))["arena_bytes"]
        if arena == self.numbers["arena_bytes"]:
            return ""
        return f"\ncompiled: an arena of {budgets.text(arena)}, as operations run in groups"

    def __repr__(self) -> str:
        n = self.numbers
        return f"<cutback.Plan {budgets.text(n['arena_bytes'])}, {n['recomputed']} recomputed>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ..report import render_fragment

        html = render_fragment(self)
        return {"text/plain": str(self), "text/html": html}
