"""Stores plans on disk, with one part for each graph of a step, found by fingerprint.

A file has what another process needs to run the same plans on the same graphs. For each graph it
has the fingerprint (``docs/problem.md``), one line per op, and the graph's part of the schedule.
For each plan it has the document, the graphs that it spans, and the rest of its problem: the link
to the host, and the bytes of model and optimizer. The lines are used to explain what differs when a
graph is refused.

A step is an op or a move: ``[action, op, number]`` (:class:`graph.moving.Move`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ... import budgets, files
from ... import schedule as schedules
from ...planner.packed import PACK
from ...planner.plan import Plan
from ...problem import Op, Problem
from ..graph.moving import Move, Schedule, Step, with_link
from ..graph.slices import is_sliced
from ..graph.taking_over import separate
from ..native.decisions import are_decisions
from .counted_scratch import Rows, check_rows
from .joining import Common, lenient
from .totals import Total, with_total

FORMAT = "cutback.torch.plans"
VERSIONS = (1, 2, 3, 4, 5)
"""Version 1 has neither moves nor totals; version 2 has no data shared by graphs; version 3 has no
measured scratch; up to version 4 nothing is taken over."""

Path = str | os.PathLike[str]


class Part(NamedTuple):
    """One graph's part of a plan."""

    problem: Problem  # of the graph
    steps: Sequence[Step]
    backward_starts: int
    scratch: Rows = ()
    """Measured scratch, which the plan counts but ``problem`` does not."""


class _Graph(NamedTuple):
    fingerprint: str
    ops: list[str]
    steps: list[Any]  # as in the file
    backward_starts: int
    scratch: Rows = ()

    def schedule(self) -> Schedule:
        """Returns the schedule of this part. Raises ValueError if a step is invalid or the backward
        has no start.
        """
        if type(self.backward_starts) is not int or self.backward_starts not in range(
            len(self.steps) + 1
        ):
            raise ValueError(
                f"backward_starts is {self.backward_starts!r}, not the number of a step"
            )
        return Schedule([_step(row) for row in self.steps], self.backward_starts)


class _Saved(NamedTuple):
    """A plan, and the parts of its problem that do not come from its graphs."""

    plan: dict[str, Any]
    graphs: list[int]
    link_bytes_per_s: float | None = None
    total: list[int] | None = None
    common: dict[str, Any] | None = None  # what its graphs share

    def problem(self, of_graphs: Problem) -> Problem:
        """Returns the plan's problem, made from that of its graphs."""
        if self.link_bytes_per_s is not None and not of_graphs.link_bytes_per_s:
            of_graphs = replace(of_graphs, link_bytes_per_s=self.link_bytes_per_s)
        return of_graphs if self.total is None else with_total(of_graphs, Total(*self.total))


def _step(row: Any) -> Step:
    if type(row) is int:
        return row
    action, op, number = row
    if action not in ("out", "wait", "end", "in") or type(op) is not int or type(number) is not int:
        raise ValueError(f"step {row!r} is not valid")
    return Move(action, op, number)


def fingerprint(problem: Problem) -> str:
    """Returns a hash of a problem's structure, sizes and flags. It does not depend on what plans
    may do in the backward, because a plan that may do less is also valid where plans may do more.
    Nor does it depend on memory taken over, which the code generator decides."""
    return replace(separate(problem), reruns="forward").check().fingerprint


def _line(op: Op) -> str:
    """Describes an op as text: ``"aten.mm.default f32[6,5]"``."""
    return " ".join([op.kind or op.name, *(value.type for value in op.outputs)])


def _where(op: Op) -> str:
    return f" at {op.location}" if op.location else ""


def _difference(graph: _Graph, problem: Problem) -> str:
    """Describes the first difference between a saved graph and the current one."""
    ops = problem.ops
    more = "" if len(graph.ops) == len(ops) else f"it had {len(graph.ops)} ops, now {len(ops)}"
    for k, (then, op) in enumerate(zip(graph.ops, ops, strict=False)):
        if then != _line(op):
            where = f"op {k} was {then}, now it is {_line(op)} ({op.name}{_where(op)})"
            return f"{more}; {where}" if more else where
    return more or (
        "the ops are the same, but they differ in the values they read, in whether they may run "
        "again, or in the memory of views"
    )


class SavedPlans:
    """The contents of a file of plans."""

    def __init__(self) -> None:
        self.source = "plans"
        self.whole = False
        """True if graphs were kept whole where PyTorch would split them."""
        self.takes_over = False
        """True if results take over the memory of inputs (:mod:`graph.taking_over`)."""
        self.slices = False
        """True if operations run in pieces of rows (:mod:`graph.slices`)."""
        self.packs = False
        """True if values may be kept packed (:mod:`graph.packing`)."""
        self.graphs: list[_Graph] = []
        self.plans: list[_Saved] = []
        self.kernels: dict[str, bool] = {}
        """With ``codegen="native"``: True for operations that run in our kernels."""

    def add(
        self, plan: Plan, parts: list[Part], total: Total | None, common: Common | None = None
    ) -> None:
        """Adds a plan and its parts, in the order of the forwards."""
        self.takes_over |= any(op.over for op in plan.parts.ops)
        self.slices |= is_sliced(plan.parts)
        self.packs |= any(op.kind.startswith(PACK) for op in plan.parts.ops)
        graphs = []
        for part in parts:
            ops = [_line(op) for op in part.problem.ops]
            graph = _Graph(
                fingerprint(part.problem), ops, list(part.steps), part.backward_starts, part.scratch
            )
            if len(parts) > 1 and graph in self.graphs:  # the graph is also on another path
                graphs.append(self.graphs.index(graph))
                continue
            graphs.append(len(self.graphs))
            self.graphs.append(graph)
        self.plans.append(
            _Saved(
                {**plan.document, "fingerprint": separate(plan.parts).check().fingerprint},
                graphs,
                plan.parts.link_bytes_per_s or None,
                None if total is None else list(total),
                None if common is None else common.document(),
            )
        )

    def knows(self, problem: Problem) -> bool:
        """True if the file has a plan for this graph."""
        return any(graph.fingerprint == fingerprint(problem) for graph in self.graphs)

    def find(self, problem: Problem) -> int:
        """Finds the saved graph that matches a problem. Raises ValueError if none does; the message
        says what differs from the most similar graph.
        """
        own = fingerprint(problem)
        for k, graph in enumerate(self.graphs):
            if graph.fingerprint == own:
                return k
        if not self.graphs:
            raise ValueError(f"{self.source}: it holds no plans")
        lines = [_line(op) for op in problem.ops]

        def alike(graph: _Graph) -> int:
            pairs = enumerate(zip(graph.ops, lines, strict=False))
            return next((k for k, (a, b) in pairs if a != b), min(len(graph.ops), len(lines)))

        closest = max(self.graphs, key=alike)
        raise ValueError(
            f"{self.source}: no plan in it is for this graph (fingerprint {own}). Compared with "
            f"graph {closest.fingerprint} of the file: {_difference(closest, problem)}. Plans "
            "are valid for one model with the same shapes, settings and PyTorch version"
            f"{self._slices_differ(problem)}: use these, or leave plans= out and give a budget"
        )

    def _slices_differ(self, problem: Problem) -> str:
        """Says that the file and the problem differ in whether the step runs in pieces, if they
        do."""
        if self.slices == is_sliced(problem):
            return ""
        return " (these were saved " + (
            "with slices=True, and this step has nothing that runs in pieces)"
            if self.slices
            else "without slices=True, and this step runs in pieces)"
        )

    def write(self, path: Path) -> None:
        """Writes the plans as JSON, compressed if the name ends in ``.gz``."""
        text = json.dumps(
            {
                "format": FORMAT,
                "version": VERSIONS[-1],
                "source": f"PyTorch {torch.__version__}",
                "whole": self.whole,
                "takes_over": self.takes_over,
                "slices": self.slices,
                "packs": self.packs,
                "graphs": [graph._asdict() for graph in self.graphs],
                "plans": [plan._asdict() for plan in self.plans],
                **({"kernels": self.kernels} if self.kernels else {}),
            }
        )
        files.write_text(path, text)

    @classmethod
    def read(cls, path: Path) -> SavedPlans:
        """Reads a file written by :meth:`write`.

        Raises:
            ValueError: the file holds something else. OSError: the file cannot be read.
        """
        saved = cls()
        saved.source = os.fspath(path)
        text = files.read_text(path)
        try:
            document = json.loads(text)
            found = document["format"], document["version"]
        except (ValueError, TypeError, KeyError):
            found = None
        if found is None or found[0] != FORMAT or found[1] not in VERSIONS:
            raise ValueError(
                f"{saved.source}: not a file of plans ({FORMAT}, version 1 to {VERSIONS[-1]}), as "
                "cutback.torch.compile(...).save_plans() writes it"
            )
        try:
            saved.whole = bool(document["whole"])
            saved.takes_over = bool(document.get("takes_over", False))
            saved.slices = bool(document.get("slices", False))
            saved.packs = bool(document.get("packs", True))  # older files do not say
            saved.kernels = document.get("kernels", {})
            if not are_decisions(saved.kernels):
                raise TypeError(f"kernels is {saved.kernels!r:.40}, not a table of decisions")
            for graph in document["graphs"]:
                saved.graphs.append(_Graph(**graph))
                saved.graphs[-1].schedule()
                check_rows(saved.graphs[-1].scratch, len(saved.graphs[-1].ops))
            for entry in document["plans"]:
                plan = _Saved(**entry)
                if not all(0 <= k < len(saved.graphs) for k in plan.graphs):
                    raise IndexError(plan.graphs)
                if plan.total is not None:
                    Total(*plan.total)
                if plan.common is not None:
                    Common.of(plan.common)
                for key, kind in (("steps", list), ("backward_starts", int), ("device", str)):
                    if not isinstance(plan.plan[key], kind):
                        raise TypeError(
                            f"{key} is {plan.plan[key]!r:.40}, which has the wrong type"
                        )
                saved.plans.append(plan._replace(plan=dict(plan.plan)))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"{saved.source}: damaged, at {error!r}") from None
        return saved


def check_part(problem: Problem, schedule: Schedule) -> None:
    """Checks a graph's part of a plan, step by step.

    Raises:
        ValueError: the steps do not belong to this graph.
    """
    steps: list[schedules.Step | int] = []
    # maps the number of a move to the op whose memory has not been freed
    leaving: dict[int, int] = {}
    starts = 0
    for t, step in enumerate(schedule.steps):
        if t == schedule.backward_starts:
            starts = len(steps)
        if isinstance(step, int):
            steps.append(step)
        elif step.action != "end":
            steps.append(schedules.Step(step.op, step.action))
            if step.action == "out":
                leaving[step.number] = step.op
        elif leaving.pop(step.number, None) != step.op:
            raise ValueError(f"step {t}: op {step.op} has not left memory that could be freed here")
    if leaving:
        raise ValueError(f"op {min(leaving.values())} leaves memory that is never freed")
    if schedule.backward_starts >= len(schedule.steps):
        starts = len(steps)
    with_link(lenient(problem), "cpu").check().evaluate((steps, starts), "cpu")


def plan_of(of_graphs: Problem, saved: _Saved) -> Plan:
    """Returns a saved plan with its problem, checked.

    Args:
        of_graphs: the problem made from the plan's graphs.

    Raises:
        ValueError: the plan is not for this problem.
    """
    problem = saved.problem(of_graphs)
    plain = separate(problem)
    if any(not isinstance(step, int) and step[0] == "out" for step in saved.plan["steps"]):
        problem = plain  # graphs that move values take nothing over
    if saved.plan.get("fingerprint") != plain.check().fingerprint:
        problem, plain = lenient(problem), lenient(plain)
    checked, document = problem.check(), saved.plan
    if document.get("fingerprint") == plain.check().fingerprint:
        document = {**document, "fingerprint": checked.fingerprint}
    plan = checked.read_plan(json.dumps(document))
    limit, measure = plan.budget_bytes, document.get("measure")
    if limit is not None and measure in budgets.MEASURES:
        held = schedules.bytes_of(plan.numbers, measure)
        if held > limit:  # planned for code that takes memory over
            plan = plan.asked(budgets.MEASURES.index(measure), held)
    return Plan.of(plan)


def check_total(given: SavedPlans, then: list[int] | None, now: Total | None) -> None:
    """Raises ValueError if the plans of a file count another model or optimizer."""
    if now is None or then is None or list(now) == then:
        return
    raise ValueError(
        f"{given.source}: its plans count a model of {then[0]:,} bytes, optimizer states of "
        f"{then[1]:,} and a step of {then[2]:,}; these have {now.model_bytes:,}, "
        f"{now.state_bytes:,} and {now.step_bytes:,}: plan again for them"
    )
