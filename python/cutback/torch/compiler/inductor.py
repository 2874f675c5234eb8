"""Checks plans against Inductor's scheduler, before and after the first step.

Inductor keeps the planned nodes, but chooses their fusion and order itself. Fusion saves memory
that the plan counts. Two runs of one op in one kernel cost memory that the plan does not count,
because the kernel computes the value once and keeps it. So the two graphs are lowered and scheduled
without generating code, and Inductor's own estimate of the peak is compared with the budget. If it
is too high, the scheduler is first restricted (:class:`Lever`); then the plan is made again for a
target reduced by the excess. The first step is measured.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import torch
from torch import fx

from .. import amounts
from ..graph.codegen import RUN_OF
from ..graph.graphs import ends, is_tangent
from ..graph.sizes import hint
from ..memory import StepTracker, watch_inductor

if TYPE_CHECKING:
    from torch._inductor.choices import InductorChoices
    from torch._inductor.memory import BufferInfo
    from torch._inductor.output_code import OutputCode
    from torch._inductor.scheduler import BaseSchedulerNode, Scheduler
    from torch.fx.node import Argument

    from ... import budgets
    from ..graph.codegen import Boxed
    from ..types import GraphInput, GraphValue

MOST_PLANS = 3
"""How often a plan may be made again because of Inductor's estimate."""


class CompilerNote:
    """The changes that Inductor made to the plan of one graph. Bytes are counted as in
    :attr:`cutback.Plan.numbers`: everything that the step allocates, including tangents and
    outputs."""

    def __init__(self, limit: int | None, position: budgets.Position | None = None) -> None:
        self.limit_bytes = limit
        """The budget in bytes, or None: without a budget nothing was estimated."""
        self.position = position
        """The position given as budget, and the bytes of positions 0 and 1, or None if the budget
        was not a position."""
        self.planned_bytes: list[int] = []
        """The peak of each plan that was made, counted op by op."""
        self.estimated_bytes: list[int] = []
        """Inductor's estimate for each of these plans."""
        self.merged_runs = 0
        """Number of runs in the last plan that share a kernel with another run of the same op, and
        so are not reruns."""
        self.lever = ""
        """A description of how Inductor was restricted."""
        self.measured_bytes: int | None = None
        """The peak of the first step, or None if it has not ended yet."""
        self.problem: str | None = None
        """The reason why nothing was estimated."""

    def __str__(self) -> str:
        if self.limit_bytes is None:
            text = "Inductor: no budget to check"
        elif self.problem is not None:
            text = f"Inductor: not checked before the first step: {self.problem}"
        else:
            trail = ", ".join(
                f"planned {p:,} estimated {e:,}"
                for p, e in zip(self.planned_bytes, self.estimated_bytes, strict=True)
            )
            text = f"Inductor: budget {self.limit_bytes:,} bytes; {trail}"
            if self.position is not None:
                asked = amounts.name_of(self.limit_bytes, self.position)
                text = f"Inductor: budget {asked} ({self.limit_bytes:,} bytes); {trail}"
            text += f"; {self.merged_runs} runs merged into others"
            text += f"; {self.lever}" if self.lever else ""
        if self.measured_bytes is not None:
            text += f"; first step measured {self.measured_bytes:,}"
        return text

    __repr__ = __str__


# ---- before: the schedule ----------------------------------------------------------------------


def _runs(node: BaseSchedulerNode) -> dict[str, set[str]]:
    """Returns the ops that a kernel runs, and the nodes of each."""
    found: dict[str, set[str]] = {}
    for part in node.get_nodes():
        for origin in getattr(part.node, "origins", ()):
            op = origin.meta.get(RUN_OF)
            if op is not None:
                found.setdefault(op, set()).add(origin.name)
    return found


def _share_an_op(a: BaseSchedulerNode, b: BaseSchedulerNode) -> bool:
    """True if both kernels run the same op, as different runs."""
    left, right = _runs(a), _runs(b)
    return any(op in right and left[op] != right[op] for op in left)


def _choices() -> type[InductorChoices]:
    from torch._inductor.choices import InductorChoices

    class RunsApart(InductorChoices):
        """Inductor's choices, except that two runs of one op are not fused."""

        @staticmethod
        def can_fuse_horizontal(
            scheduler: Scheduler, a: BaseSchedulerNode, b: BaseSchedulerNode, score: int
        ) -> bool:
            if _share_an_op(a, b):
                return False
            return bool(InductorChoices.can_fuse_horizontal(scheduler, a, b, score))

        @staticmethod
        def can_fuse_vertical(
            scheduler: Scheduler, a: BaseSchedulerNode, b: BaseSchedulerNode, score: int
        ) -> bool:
            if _share_an_op(a, b):
                return False
            return bool(InductorChoices.can_fuse_vertical(scheduler, a, b, score))

        def uuid(self) -> str:
            return "cutback.RunsApart"

    return RunsApart


class Lever(NamedTuple):
    """A restriction of the scheduler."""

    name: str
    apart: bool  # True if two runs of one op are not fused
    narrow: bool  # True if CPU kernels are not fused horizontally at all


LEVERS = (
    Lever("", False, False),
    Lever("runs of one op kept in separate kernels", True, False),
    Lever("kernels not fused side by side", True, True),
)


@contextmanager
def held_back(lever: Lever) -> Iterator[None]:
    """Compiles with a lever. If runs are kept apart, Inductor's cache is neither read nor written,
    because its keys do not include this choice."""
    from torch._inductor import config
    from torch._inductor.virtualized import V

    with ExitStack() as stack:
        if lever.narrow:
            stack.enter_context(config.patch({"cpp.max_horizontal_fusion_size": 1}))
        if lever.apart:
            stack.enter_context(config.patch(fx_graph_cache=False))
            stack.enter_context(V.set_choices_handler(_choices()()))
        yield


class _ScheduledError(Exception):
    """Ends a compilation before code is generated."""


def _copy(gm: fx.GraphModule) -> fx.GraphModule:
    """Copies a graph, because Inductor's passes change the graph that they get."""
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        values[node] = graph.node_copy(node, values.__getitem__)
    return fx.GraphModule(gm, graph)


def peak_of(timeline: Sequence[BufferInfo]) -> int:
    """Returns the peak of Inductor's buffers, from the lifetimes that ``compute_memory_timeline``
    gives. Buffers that never end are outputs; before torch 2.13, ``estimate_peak_memory`` subtracts
    them at the start."""
    change: Counter[int] = Counter()
    for buffer in timeline:
        change[buffer.start_step] += buffer.size_alloc
        if buffer.end_step != -1:
            change[buffer.end_step + 1] -= buffer.size_free
    return max(accumulate((change[step] for step in sorted(change)), initial=0))


def _schedule(gm: fx.GraphModule, is_backward: bool) -> tuple[int, int]:
    """Returns Inductor's estimate of the peak of a graph, in bytes, and the number of runs that it
    merges into others."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.memory import compute_memory_timeline, prepare_planning_info
    from torch._inductor.scheduler import Scheduler
    from torch._inductor.virtualized import V
    from torch.utils._ordered_set import OrderedSet

    found: list[tuple[int, int]] = []

    def look(scheduler: Scheduler) -> None:
        outputs = OrderedSet(V.graph.get_output_names())
        _, freeable = prepare_planning_info(
            scheduler.nodes, scheduler.name_to_buf, scheduler.name_to_fused_node,
            OrderedSet(V.graph.graph_inputs), outputs,
        )  # fmt: skip
        timeline, *_ = compute_memory_timeline(scheduler.nodes, freeable, outputs)
        merged = sum(len(r) - 1 for node in scheduler.nodes for r in _runs(node).values())
        found.append((peak_of(timeline), merged))
        raise _ScheduledError

    inputs = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
    with ExitStack() as stack:
        stack.enter_context(config.patch(fx_graph_cache=False, fx_graph_remote_cache=False))
        stack.enter_context(patch.object(Scheduler, "codegen", look))
        try:
            compile_fx_inner(_copy(gm), inputs, is_backward=is_backward)
        except Exception:
            if not found:
                raise
    return found[0]


def _bytes(nodes: Sequence[Argument], known: set[int]) -> int:
    """Returns the bytes of the nodes' storages that are not in ``known`` yet, and adds them."""
    total = 0
    for node in nodes:
        val = node.meta.get("val") if isinstance(node, fx.Node) else None
        if isinstance(val, torch.Tensor):
            memory = val.untyped_storage()
            if memory._cdata not in known:
                known.add(memory._cdata)
                total += hint(memory.nbytes())
    return total


def estimate(
    forward: fx.GraphModule, backward: fx.GraphModule, num_fwd_outputs: int
) -> tuple[int, int]:
    """Returns Inductor's estimate for a step: its peak in bytes, counted as a plan counts, and the
    number of merged runs. In the backward Inductor counts saved tensors and what it makes;
    tangents, and forward outputs that are not saved, are added here."""
    peak_forward, merged_forward = _schedule(forward, False)
    peak_backward, merged_backward = _schedule(backward, True)
    outputs, _ = ends(forward)
    primals = forward.graph.find_nodes(op="placeholder")
    known: set[int] = set()
    _bytes(primals, known)
    _bytes(outputs[num_fwd_outputs:], known)
    beside = _bytes(outputs[:num_fwd_outputs], known)
    tangents = [n for n in backward.graph.find_nodes(op="placeholder") if is_tangent(n)]
    beside += _bytes(tangents, known)
    return max(peak_forward, peak_backward + beside), merged_forward + merged_backward


def best_estimate(
    forward: fx.GraphModule, backward: fx.GraphModule, num_fwd_outputs: int, limit: int,
    levers: Sequence[Lever],
) -> tuple[int, int, Lever]:  # fmt: skip
    """Returns the estimate (bytes, merged runs, lever) with the first lever that keeps to the
    limit, or else the lowest estimate."""
    tries = []
    for k, lever in enumerate(levers):
        with held_back(lever):
            peak, merged = estimate(forward, backward, num_fwd_outputs)
        tries.append((peak, k, merged))
        if peak <= limit:
            break
    peak, k, merged = min(tries)
    return peak, merged, levers[k]


# ---- after: the first step ---------------------------------------------------------------------


class Watch:
    """Watches the compiled functions of one joint graph until their first step has been
    measured."""

    def __init__(self) -> None:
        self.note: CompilerNote | None = None
        self.lever = LEVERS[0]
        self._step: StepTracker | None = None
        self._forward_ended = False

    def compile(
        self, gm: fx.GraphModule, inputs: Sequence[GraphInput], **options: Any
    ) -> OutputCode:
        """Replaces Inductor's ``inner_compile`` for this graph."""
        from torch._inductor.compile_fx import compile_fx_inner

        watch_inductor()
        with held_back(self.lever):
            compiled = compile_fx_inner(gm, inputs, **options)
        run = getattr(compiled, "current_callable", None)
        if run is not None and self.note is not None and not options.get("is_inference"):
            call = self._backward if options.get("is_backward") else self._forward
            compiled.current_callable = lambda args: call(compiled, run, args)
        return compiled

    def _forward(
        self, compiled: OutputCode, run: Boxed, args: list[GraphInput]
    ) -> Sequence[GraphValue]:
        assert self.note is not None
        if self.note.measured_bytes is not None:
            compiled.current_callable = run
            return run(args)
        self._step = step = StepTracker()
        self._forward_ended = False
        step.given(args, count=False)
        with step:
            result = run(args)
        self._forward_ended = True
        return result

    def _backward(
        self, compiled: OutputCode, run: Boxed, args: list[GraphInput]
    ) -> Sequence[GraphValue]:
        step, note = self._step, self.note
        if step is None or note is None or not self._forward_ended:
            compiled.current_callable = run
            return run(args)
        self._step = None
        compiled.current_callable = run
        step.given(args, count=True)
        with step:
            result = run(args)
        step.end()
        note.measured_bytes = step.peak_bytes
        if note.limit_bytes is not None and step.peak_bytes > note.limit_bytes:
            warnings.warn(
                f"the first step takes {step.peak_bytes:,} bytes under Inductor, more than the "
                f"budget of {note.limit_bytes:,} ({note}); codegen='eager' keeps to its plan",
                stacklevel=2,
            )
        return result
