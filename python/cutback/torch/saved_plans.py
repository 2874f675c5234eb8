"""Plans on disk: what was planned for each graph of a step, found again by fingerprint.

A file holds what is needed to run the same plans in another process, on the same graphs: for each
graph its fingerprint (``docs/problem.md``), one line for each op, and its part of the schedule; and
for each plan its document, with the graphs that it spans. The lines are there to tell what differs
when a graph is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .. import _native, files
from ..planning import Plan

FORMAT = "cutback.torch.plans"

Path = str | os.PathLike[str]


class Part(NamedTuple):
    """What a plan says of one graph."""

    document: dict[str, Any]  # the graph's problem
    steps: Sequence[Any]  # ops; a move is something else
    backward_starts: int


class _Graph(NamedTuple):
    fingerprint: str
    ops: list[str]
    steps: list[int]
    backward_starts: int


def fingerprint(document: dict[str, Any]) -> str:
    """Hash of a problem's structure, sizes and flags."""
    return str(json.loads(_native.problem_json(json.dumps(document)))["fingerprint"])


def _line(op: dict[str, Any]) -> str:
    """``"aten.mm.default f32[6,5]"``"""
    return " ".join([op.get("kind") or op["name"], *(out.get("type", "") for out in op["out"])])


def _where(op: dict[str, Any]) -> str:
    return f" at {op['at']}" if op.get("at") else ""


def _difference(graph: _Graph, document: dict[str, Any]) -> str:
    """What differs first between a saved graph and the one at hand."""
    ops = document["ops"]
    more = "" if len(graph.ops) == len(ops) else f"it had {len(graph.ops)} ops, and has {len(ops)}"
    for k, (then, op) in enumerate(zip(graph.ops, ops, strict=False)):
        if then != _line(op):
            where = f"op {k} was {then}, and is {_line(op)} ({op['name']}{_where(op)})"
            return f"{more}; {where}" if more else where
    return more or (
        "the ops are the same, but not which values they read, which of them may run again, or "
        "the memory that views lie in"
    )


class SavedPlans:
    """The contents of a file of plans."""

    def __init__(self) -> None:
        self.source = "plans"
        self.whole = False
        """Were graphs kept in one piece where PyTorch would cut them up?"""
        self.graphs: list[_Graph] = []
        self.plans: list[tuple[dict[str, Any], list[int]]] = []  # document, its graphs

    def add(self, plan: dict[str, Any], parts: list[Part]) -> None:
        """A plan, and its parts in the order of the forwards."""
        if any(not isinstance(step, int) for part in parts for step in part.steps):
            raise NotImplementedError(
                "plans that move values to the host cannot be written to a file in this version: "
                "plan without offload"
            )
        first = len(self.graphs)
        for part in parts:
            ops = [_line(op) for op in part.document["ops"]]
            self.graphs.append(
                _Graph(fingerprint(part.document), ops, list(part.steps), part.backward_starts)
            )
        self.plans.append((plan, list(range(first, len(self.graphs)))))

    def find(self, document: dict[str, Any]) -> int:
        """The graph that a problem is.

        Raises:
            ValueError: none; the text says what differs from the graph that is most like it.
        """
        own = fingerprint(document)
        for k, graph in enumerate(self.graphs):
            if graph.fingerprint == own:
                return k
        if not self.graphs:
            raise ValueError(f"{self.source}: it holds no plans")
        lines = [_line(op) for op in document["ops"]]

        def alike(graph: _Graph) -> int:
            pairs = enumerate(zip(graph.ops, lines, strict=False))
            return next((k for k, (a, b) in pairs if a != b), min(len(graph.ops), len(lines)))

        closest = max(self.graphs, key=alike)
        raise ValueError(
            f"{self.source}: no plan in it is for this graph (fingerprint {own}). Beside the "
            f"graph {closest.fingerprint} of the file: {_difference(closest, document)}. Plans "
            "hold for one model, with the shapes, settings and PyTorch they were made with: load "
            "them into the same, or leave plans= out and give a budget"
        )

    def write(self, path: Path) -> None:
        """As JSON; gzipped if the name ends in ``.gz``."""
        text = json.dumps(
            {
                "format": FORMAT,
                "version": 1,
                "source": f"PyTorch {torch.__version__}",
                "whole": self.whole,
                "graphs": [graph._asdict() for graph in self.graphs],
                "plans": [{"graphs": graphs, "plan": plan} for plan, graphs in self.plans],
            }
        )
        files.write_text(path, text)

    @classmethod
    def read(cls, path: Path) -> SavedPlans:
        """What :meth:`write` wrote.

        Raises:
            ValueError: the file holds something else. OSError: it cannot be read.
        """
        saved = cls()
        saved.source = os.fspath(path)
        text = files.read_text(path)
        try:
            document = json.loads(text)
            found = document["format"], document["version"]
        except (ValueError, TypeError, KeyError):
            found = None
        if found != (FORMAT, 1):
            raise ValueError(
                f"{saved.source}: not a file of plans ({FORMAT}, version 1), as "
                "cutback.torch.compile(...).save_plans() writes it"
            )
        try:
            saved.whole = bool(document["whole"])
            for graph in document["graphs"]:
                saved.graphs.append(_Graph(**graph))
            for entry in document["plans"]:
                graphs = [int(k) for k in entry["graphs"]]
                if not all(0 <= k < len(saved.graphs) for k in graphs):
                    raise IndexError(graphs)
                saved.plans.append((dict(entry["plan"]), graphs))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"{saved.source}: damaged, at {error!r}") from None
        return saved


def check_steps(
    document: dict[str, Any], steps: list[int], backward_starts: int, device: str = "cpu"
) -> str:
    """Walks a schedule of a problem; returns the problem's text.

    Raises:
        ValueError: the steps are none of this problem.
    """
    text = json.dumps(document)
    schedule = {"steps": steps, "backward_starts": backward_starts, "device": device}
    _native.evaluate_json(text, json.dumps(schedule), device)
    return text


def plan_of(document: dict[str, Any], answer: dict[str, Any]) -> Plan:
    """A saved plan with the problem that it answers, checked.

    Raises:
        ValueError: the plan's steps are none of this problem.
    """
    text = check_steps(document, answer["steps"], answer["backward_starts"], answer["device"])
    return Plan(text, json.dumps(answer))
