"""Finds what crosses from graph to graph in a step, when its first backward begins.

Each run of a planned graph leaves a :class:`Run`. It records which of the arguments are results of
earlier runs, which are leaves, and the graph's node in autograd's graph. When the first backward
begins, all forwards have run, so :func:`common_of` can find what they share: equal tensors and
equal autograd nodes are the same object. A result that Python still holds at that time is assumed
to live to the end of the step. Eager code between graphs is known only through autograd's graph,
which shows for which leaves and results it makes gradients.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch._functorch._aot_autograd.descriptors import (
    GradAOTOutput,
    PlainAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch.utils._python_dispatch import _disable_current_modes

from ...problem import Problem
from ..graph.graphs import is_tangent
from ..graph.importer import Imported
from ..graph.layouts import is_like
from ..graph.sizes import hint
from .joining import OWN, Common, Flow
from .pipelines import Place, Sizes, add

if TYPE_CHECKING:
    from torch.autograd.graph import Node

    from ..types import GraphInput, GraphValue

_MANY = 64
"""Number of runs after which those without a backward are forgotten."""

_LAST = sys.maxsize  # rank of gradients that arrive after those of a graph


class _Layout(NamedTuple):
    """The memory layout of a tensor, without the tensor."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, t: torch.Tensor) -> _Layout:
        return cls(tuple(map(hint, t.shape)), tuple(map(hint, t.stride())), t.dtype)

    def made(self) -> torch.Tensor:
        """Returns a tensor of this layout without memory."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="meta")


class _Gradient(NamedTuple):
    value: int
    layout: _Layout
    copied: int | None  # op of the copy that a leaf makes


class Ends(NamedTuple):
    """Maps the arguments and results of a compiled graph, by position, to ops and values of its
    problem."""

    inputs: dict[int, int]  # op
    results: dict[int, int]  # value
    tangents: dict[int, tuple[int, _Layout]]  # by result: op
    gradients: dict[int, _Gradient]  # by input

    @classmethod
    def of(cls, graph: Imported) -> Ends:
        """Makes the map of an imported graph."""
        place, first = {}, []
        at = 0
        for i, (op, node) in enumerate(zip(graph.problem.ops, graph.order, strict=True)):
            if node is not None:
                place[node] = i
            first.append(at)
            at += len(op.outputs)
        ends = cls({}, {}, {}, {})
        for node, i in place.items():
            desc, val = node.meta.get("desc"), node.meta.get("val")
            if node.op != "placeholder" or not _is_plain(val):
                continue
            if is_tangent(node):
                if isinstance(desc, TangentAOTInput) and isinstance(desc.output, PlainAOTOutput):
                    ends.tangents[desc.output.idx] = i, _Layout.of(val)
            elif isinstance(desc, PlainAOTInput):
                ends.inputs[desc.idx] = i
        copies = {copy.output: i for i, copy in graph.copies.items()}
        for k, (node, desc) in enumerate(zip(graph.outputs, graph.descs, strict=False)):
            if node is None or node not in place or not _is_plain(node.meta.get("val")):
                continue
            value = first[place[node]]
            if isinstance(desc, PlainAOTOutput):
                ends.results[desc.idx] = value
            elif isinstance(desc, GradAOTOutput) and isinstance(desc.grad_of, PlainAOTInput):
                layout = _Layout.of(node.meta["val"])
                ends.gradients[desc.grad_of.idx] = _Gradient(value, layout, copies.get(k))
        return ends


def _is_plain(val: GraphValue) -> bool:
    return isinstance(val, torch.Tensor) and val.layout is torch.strided


class Run:
    """One run of a planned graph. It keeps no tensor alive."""

    def __init__(
        self, key: str, node: Node, args: Sequence[GraphInput], result: Sequence[GraphValue]
    ) -> None:
        self.key = key
        self.pipeline: Place | None = None
        self.node = weakref.ref(node)
        # maps an argument to the run and result that it came from, and to whether its history is
        # the same
        self.handed: dict[int, tuple[Run, int, bool]] = {}
        self.leaves: dict[int, weakref.ref[torch.Tensor]] = {}
        self.results: dict[int, weakref.ref[torch.Tensor]] = {}
        for k, t in enumerate(result if isinstance(result, (tuple, list)) else [result]):
            if isinstance(t, torch.Tensor):
                self.results[k] = weakref.ref(t)
        for k, t in enumerate(args):
            if isinstance(t, torch.Tensor) and t.is_leaf and t.requires_grad:
                self.leaves[k] = weakref.ref(t)

    def lasting(self) -> Sizes:
        """Returns the storages that outlive the backward: results that the program keeps, gradients
        of leaves, and in a pipeline those that are on their way to another stage."""
        found: Sizes = {}
        for ref in self.leaves.values():
            leaf = ref()
            if leaf is not None:
                add(found, leaf.grad)
        if self.pipeline is not None:
            for gradient in self.pipeline.sent:
                add(found, gradient())
        return {**found, **self.alive()}

    def alive(self) -> Sizes:
        """Returns the storages of the results that the program keeps."""
        found: Sizes = {}
        for ref in self.results.values():
            add(found, ref())
        return found

    def held(self, k: int) -> bool:
        """True if Python holds a result."""
        tensor = self.results[k]()
        if tensor is None:
            return False
        count = getattr(tensor, "_use_count", None)
        if count is None:
            return True
        of_autograd = bool(count() > 1)  # then the object and the tensor hold each other
        del count
        return sys.getrefcount(tensor) - 2 - of_autograd > 0


class Trail:
    """The runs of a step, in order."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        # keyed by the id of a tensor that was alive at that time
        self._results: dict[int, tuple[Run, int]] = {}

    def add(self, run: Run, args: Sequence[GraphInput]) -> None:
        """Records that a graph has run with these arguments."""
        for i, t in enumerate(args):
            before, k = self._results.get(id(t), (None, 0))
            if before is not None and before.results[k]() is t:
                assert t is not None
                node = t.grad_fn
                run.handed[i] = before, k, node is not None and node is before.node()
        if len(self.runs) >= _MANY:
            self.runs = [r for r in self.runs if r.node() is not None]
            known = {id(r) for r in self.runs}
            self._results = {t: p for t, p in self._results.items() if id(p[0]) in known}
        self.runs.append(run)
        for k, ref in run.results.items():
            known_as, place = self._results.get(id(ref()), (None, 0))
            if known_as is None or known_as.results[place]() is not ref():
                self._results[id(ref())] = run, k

    def take(self) -> list[Run]:
        """Returns the runs whose backward is still to come, and begins a new step."""
        runs = [run for run in self.runs if run.node() is not None]
        self.runs, self._results = [], {}
        return runs


# ---- what they share ------------------------------------------------------------------------


class _Shared:
    """Finds what runs share."""

    def __init__(self, runs: list[Run], problems: list[Problem], ends: list[Ends]) -> None:
        self.runs, self.problems, self.ends = runs, problems, ends
        self.number = {id(run): g for g, run in enumerate(runs)}
        self.storage_of = [[value.storage for value in p.values] for p in problems]
        self.common = Common([], [], [], [], [])
        self.parts: dict[tuple[str, int, int], list[list[int]]] = {}
        self.leaves: dict[int, torch.Tensor] = {}

    def work_out(self) -> Common:
        for g in range(len(self.runs)):
            self._find_handed(g)
        for g in range(len(self.runs)):
            self._find_loose(g)
        self._find_gradients()
        self._find_outside()
        for target in self.parts:
            self._flow(target)
        self._find_consumed()
        return self.common._replace(exact=self._is_exact())

    def _is_exact(self) -> bool:
        """True if all results of all graphs but the last go only to other graphs, and no gradient
        comes from a part of the step without a graph."""
        loose = {(g, s) for g, s in self.common.loose}
        results = {
            (g, self.storage_of[g][v])
            for g, problem in enumerate(self.problems[:-1])
            for v in problem.forward_outputs
        }
        stays = [key for key in results - loose if not self._is_static(*key) and self._bytes(*key)]
        return not stays and all(p[2] != OWN for flow in self.common.flows for p in flow.parts)

    def _bytes(self, g: int, s: int) -> int:
        return self.problems[g].storages[s].bytes

    def _is_static(self, g: int, s: int) -> bool:
        return "static" in self.problems[g].storages[s].flags

    def _find_handed(self, g: int) -> None:
        """Finds arguments of a graph whose memory an earlier graph allocated."""
        ops = self.problems[g].ops
        written = {v.storage for op in ops if "mutates" in op.flags for v in op.outputs}
        for k, (run, result, _) in self.runs[g].handed.items():
            h = self.number.get(id(run))
            op, value = self.ends[g].inputs.get(k), None
            if h is not None:
                value = self.ends[h].results.get(result)
            if h is None or op is None or value is None:
                continue
            storage = ops[op].outputs[0].storage
            if storage not in written and not self._is_static(h, self.storage_of[h][value]):
                self.common.handed.append([g, op, h, value])

    def _find_loose(self, g: int) -> None:
        """Finds the memory of results that goes to other graphs and that nothing else holds."""
        run, ends, storage_of = self.runs[g], self.ends[g], self.storage_of[g]
        known = {value: k for k, value in ends.results.items()}
        for s in {storage_of[v] for _, _, h, v in self.common.handed if h == g}:
            here = [v for v in self.problems[g].forward_outputs if storage_of[v] == s]
            if all(v in known and known[v] in run.results for v in here) and not any(
                run.held(known[v]) for v in here
            ):
                self.common.loose.append([g, s])
                self.common.read.append([g, here[0]])

    def _find_gradients(self) -> None:
        """Finds where each gradient of the graphs arrives."""
        for g in reversed(range(len(self.runs))):
            run = self.runs[g]
            for k, gradient in sorted(self.ends[g].gradients.items()):
                part = [g, k, g, gradient.value]
                if k in run.leaves:
                    leaf = run.leaves[k]()
                    if leaf is not None:
                        self.leaves[id(leaf)] = leaf
                        self.parts.setdefault(("leaf", id(leaf), 0), []).append(part)
                elif k in run.handed and run.handed[k][2]:
                    h = self.number.get(id(run.handed[k][0]))
                    if h is not None:
                        self.parts.setdefault(("result", h, run.handed[k][1]), []).append(part)

    def _find_outside(self) -> None:
        """Finds gradients that come from other parts of the step: eager code after a graph, and
        holders of a result."""
        nodes = {run.node(): g for g, run in enumerate(self.runs)}
        seen = set(nodes)
        for g in reversed(range(len(self.runs))):
            stack = [self.runs[g].node()]
            while stack:
                node = stack.pop()
                if node is None:
                    continue
                mine = node in nodes
                for other, k in node.next_functions:
                    if other is None:
                        continue
                    variable = getattr(other, "variable", None)
                    if not mine and variable is not None:
                        self._add_outside(("leaf", id(variable), 0), g)
                    elif not mine and other in nodes:
                        self._add_outside(("result", nodes[other], k), g)
                    elif other not in seen:
                        seen.add(other)
                        stack.append(other)
        n = len(self.runs)
        for g, run in enumerate(self.runs[:-1]):
            for k in run.results:
                target = ("result", g, k)
                if target in self.parts and run.held(k):
                    self._add_outside(target, n)

    def _add_outside(self, target: tuple[str, int, int], after: int) -> None:
        if target[0] == "result" or target in self.parts:
            self.parts.setdefault(target, []).append([after, _LAST, OWN, 0])

    def _flow(self, target: tuple[str, int, int]) -> None:
        """Returns the flow of the gradients of one tensor."""
        parts = sorted(self.parts[target], key=lambda part: (-part[0], part[1]))
        layouts = [self.ends[g].gradients[k].layout for _, k, g, _ in parts if g != OWN]
        kind, h, result = target
        tangent = self.ends[h].tangents.get(result) if kind == "result" else None
        if (kind == "result" and tangent is None) or (kind == "leaf" and len(parts) < 2):
            return
        if not layouts:  # all gradients come from outside
            if tangent is None or parts[0][0] <= h + 1:
                return
            layouts = [tangent[1]]
        with _disable_current_modes():  # a tracker would count it
            found = layouts[0].made()
            for layout in layouts[1:]:
                found = found + layout.made()
            if len(layouts) == 1 and len(parts) > 1:
                found = found + found
        size = found.numel() * found.element_size()
        if tangent is not None:
            fits = tuple(found.stride()) == tangent[1].stride and found.dtype == tangent[1].dtype
            to = [h, tangent[0]]
        else:
            fits, to = is_like(found, self.leaves[h]), []
        self.common.flows.append(Flow(parts, size, to, 0 if fits else size))

    def _find_consumed(self) -> None:
        """Finds the memory of gradients that go to other graphs and so is not held to the end."""
        taken = {(g, k) for flow in self.common.flows for _, k, g, _ in flow.parts}
        arrived = {tuple(flow.to) for flow in self.common.flows if flow.to}
        for g, problem in enumerate(self.problems):
            storage_of, gradients = self.storage_of[g], self.ends[g].gradients
            maker: dict[int, int] = {}  # storage -> op
            for i, op in enumerate(problem.ops):
                for value in op.outputs:
                    maker.setdefault(value.storage, i)
            goes = {storage_of[x.value] for k, x in gradients.items() if (g, k) in taken}
            goes |= {s for s, i in maker.items() if (g, i) in arrived}
            known = {x.value for x in gradients.values()}
            kept = {*problem.forward_outputs, *problem.backward_outputs} - known
            kept |= {x.value for k, x in gradients.items()
                     if (g, k) not in taken and x.copied is None}  # fmt: skip
            goes -= {storage_of[v] for v in kept}
            kept_by_autograd = {  # backward() makes the gradient of a scalar
                s for s, i in maker.items()
                if problem.ops[i].kind == "tangent" and (g, i) not in arrived
                and problem.ops[i].outputs[0].type.endswith("[]")
            }  # fmt: skip
            goes -= kept_by_autograd
            first = problem.backward_starts
            self.common.loose.extend([g, s] for s in sorted(goes) if maker[s] >= first)
            idle = (x.copied for k, x in gradients.items() if (g, k) in taken)
            self.common.idle.extend([g, i] for i in idle if i is not None)


def common_of(runs: list[Run], problems: list[Problem], ends: list[Ends]) -> Common:
    """Returns what runs share, in the order of their forwards.

    Args:
        problems, ends: one for the graph of each run.
    """
    return _Shared(runs, problems, ends).work_out()
