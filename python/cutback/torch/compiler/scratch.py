"""What kernels take while they run: the first two steps of planned code, under PyTorch's memory
profiler.

Plans and trackers count what ops return. A kernel may allocate more and free it before it returns
(scratch): on the CPU the backward of a batch norm holds a second gradient of its input. So the
first two forwards and backwards of every graph with a budget run as code that marks each op in the
profiler's events (``graph/codegen.py``) and tells a tracker of its result. The allocator's level at
any moment inside an op is then what the tracker counts besides this op, plus what the op has
allocated so far. Two steps are measured because kernels may allocate more in their first run, or in
their second; :mod:`compiler.counted_scratch` says how plans count the larger of the two.

The profiler is the one that PyTorch had before Kineto: it knows nothing of devices' clocks, takes
microseconds to start and stop, and does not conflict with a profiler that the user has prepared but
not started. While the user's own profiler runs, or a CUDA graph is captured, nothing is measured,
and later steps are measured instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch

from ... import budgets
from .. import hooks
from ..graph.codegen import Boxed
from ..memory import StepTracker
from .counted_scratch import LEAST
from .together import MOST_CALLS

if TYPE_CHECKING:
    from torch.autograd import ProfilerEvent
    from torch.fx.node import Argument

    from ..types import GraphInput, GraphValue, Raised

MARGIN = 0.02
"""How far over a budget scratch may take a step before anything is said."""

STEPS = 2
"""Steps that are measured."""

_MARK = "cutback: an op"


class GraphPeak(NamedTuple):
    """A forward or backward of one graph, at its peak by the allocator."""

    phase: str
    """``"forward"`` or ``"backward"``."""
    peak_bytes: int
    """Most bytes at one moment, scratch of kernels included, with what the step's graphs held
    before."""
    tensor_bytes: int
    """Most bytes of tensors alone at one moment."""
    op: str
    """What ran at the peak: ``"aten.mm.default"``."""
    op_bytes: int
    """Its scratch there."""


class AllocatorStats(NamedTuple):
    """What a step takes by PyTorch's allocator, and what its tensors take: of the first two steps
    under a plan, the one that took more. Bytes are of what the planned graphs make, as for
    ``live_bytes`` of :attr:`cutback.Plan.numbers`.

    >>> step = cutback.torch.compile(model, budget=0.5)
    >>> for _ in range(2):
    ...     step(x).sum().backward()
    >>> print(step.allocator_stats)  # of the first two steps
    """

    peak_bytes: int
    """Most bytes at one moment, scratch of kernels included."""
    tensor_bytes: int
    """Most bytes of tensors at one moment, as plans and :class:`MemoryTracker` count."""
    op: str
    """What ran at the peak: ``"aten.mm.default"``."""
    op_bytes: int
    """Its scratch there: what it took and gave back while it ran."""
    by_op: dict[str, int]
    """The largest scratch of each kind of op that takes some, the largest first."""
    graphs: list[GraphPeak]
    """Forwards and backwards, in the order in which they ran."""

    @property
    def scratch_bytes(self) -> int:
        """How much scratch adds to the peak."""
        return self.peak_bytes - self.tensor_bytes

    def __repr__(self) -> str:
        size = budgets.text
        text = f"peak {size(self.peak_bytes)} by the allocator, "
        text += f"{size(self.tensor_bytes)} of tensors"
        if self.scratch_bytes:
            text += f"; {self.op} takes {size(self.op_bytes)} of scratch at the peak"
        return f"<cutback.torch.AllocatorStats: {text}>"


# ---- the profiler ------------------------------------------------------------------------------


_PROFILER = hooks.memory_profiler()


def can_measure() -> bool:
    """Has this PyTorch what it takes?"""
    return _PROFILER is not None


def _is_free() -> bool:
    """May a profiler be started in this thread?"""
    if hooks.is_profiled():
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


class _Profile:
    """PyTorch's memory profiler, in this thread."""

    def __init__(self) -> None:
        self.traces: list[list[int]] = []
        """What each marked op allocated (bytes) and freed (negative), in order."""

    def __enter__(self) -> None:
        assert _PROFILER is not None
        _PROFILER.enable(_PROFILER.config)

    def __exit__(self, *error: Raised) -> None:
        assert _PROFILER is not None
        for events in _PROFILER.disable():
            self.traces += _traces(events)


class _Pause:
    """No profiler for a while: PyTorch would say on the terminal that it does not know the size of
    memory from before that is freed."""

    def __init__(self, profile: _Profile) -> None:
        self.profile = profile

    def __enter__(self) -> None:
        self.profile.__exit__()

    def __exit__(self, *error: Raised) -> None:
        self.profile.__enter__()


def _traces(events: Sequence[ProfilerEvent]) -> Iterator[list[int]]:
    """What the marked ops of one thread allocated and freed. Its events are in order."""
    depth = 0
    trace: list[int] = []
    inside = None  # depth of the op
    for event in events:
        kind = event.kind()
        if kind == "push":
            depth += 1
            if inside is None and event.name() == _MARK:
                inside, trace = depth, []
        elif kind == "pop":
            if depth == inside:
                inside = None
                yield trace
            depth -= 1
        elif kind == "memory_alloc" and inside is not None:
            trace.append(event.cpu_memory_usage() + event.cuda_memory_usage())


# ---- graphs ------------------------------------------------------------------------------------


class Kernels:
    """The graphs of one model, up to the end of the last step that is measured.

    Args:
        tell: called after each step that was measured.
    """

    def __init__(self, tell: Callable[[Kernels], None]) -> None:
        self.stats: AllocatorStats | None = None
        """Of the step that took most so far."""
        self.scratch: dict[str, dict[str, int]] = {}
        """By the key of a graph and the name of an op: its largest scratch so far."""
        self.traces: dict[str, dict[str, list[int]]] = {}
        """By the same, what it allocated and freed when it ran last."""
        self.steps = 0
        """How many were measured."""
        self.lock = threading.Lock()
        self._tell = tell
        self._graphs: list[Graph] = []
        self._rows: list[GraphPeak] = []
        self._by_op: dict[str, int] = {}
        self._tracker: StepTracker | None = None

    def graph(self) -> Graph:
        """Another graph of the model."""
        graph = Graph(self)
        self._graphs.append(graph)
        return graph

    @property
    def _searches(self) -> bool:
        """True if kernels may take more in this step than in later ones."""
        return self.steps == 0 and hooks.searches_kernels()

    @property
    def is_done(self) -> bool:
        """True if no step is measured any more."""
        return self.steps >= STEPS

    def tracker(self) -> StepTracker:
        """The tracker of this step."""
        if self._tracker is None:
            self._tracker = StepTracker()
        return self._tracker

    def take(self, graph: Graph, row: GraphPeak, scratch: dict[tuple[str, str], int]) -> None:
        """Notes what a forward or backward took.

        Args:
            scratch: by operation and node.
        """
        self._rows.append(row)
        nodes = self.scratch.setdefault(graph.key or "", {})
        for (op, node), size in scratch.items():
            self._by_op[op] = max(size, self._by_op.get(op, 0))
            if not self._searches:
                nodes[node] = max(size, nodes.get(node, 0))

    def ended(self) -> None:
        """The backward of a graph has ended; with the last of them the step has."""
        if any(graph.runs for graph in self._graphs):
            return
        self._graphs = [graph for graph in self._graphs if not graph.is_done]
        if self._tracker is not None:
            self._tracker.end()
            self._tracker = None
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        top = max(rows, key=lambda row: row.peak_bytes)
        by_op = sorted(self._by_op.items(), key=lambda item: -item[1])
        stats = AllocatorStats(
            top.peak_bytes, max(row.tensor_bytes for row in rows), top.op, top.op_bytes,
            dict(by_op), rows,
        )  # fmt: skip
        if not self._searches and (self.stats is None or stats.peak_bytes > self.stats.peak_bytes):
            self.stats = stats
        self.steps += 1
        self._tell(self)


class Graph:
    """Forward and backward of one graph. Forwards are measured until a backward has run: several
    calls may be pending, and some may never have one."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.key: str | None = None
        """See :func:`compiler.records.key_of`."""
        self.forward = _Block(self, is_backward=False)
        self.backward = _Block(self, is_backward=True)
        self.runs = 0  # of the forward, in this step
        self._steps = 0

    @property
    def is_done(self) -> bool:
        """True if the graph is not measured any more."""
        return self._steps >= STEPS

    def ended(self) -> None:
        """Its backward has run."""
        self.runs = 0
        self._steps += 1
        if self.is_done:
            self.forward.watched = self.backward.watched = None


class _Block:
    """A forward or backward, as :class:`graph.codegen.Watch` has it."""

    def __init__(self, graph: Graph, is_backward: bool) -> None:
        self.graph = graph
        self.is_backward = is_backward
        self.watched: Boxed | None = None
        self._tracker: StepTracker | None = None
        self._profile = _Profile()
        self._op = ("", "", 0)  # name, node, bytes before it
        # of each op: name, node, bytes after it, bytes of its result
        self._rows: list[tuple[str, str, int, int]] = []
        self._constants: list[torch.Tensor] = []

    def constants(self, tensors: list[torch.Tensor]) -> None:
        """What the graph has of its own: nothing that it makes."""
        self._constants = tensors

    def op(self, name: str, node: str) -> AbstractContextManager[None]:
        """See :class:`graph.codegen.Watch`, also for the methods below."""
        assert _PROFILER is not None and self._tracker is not None
        self._op = name, node, self._tracker.live_bytes
        return _PROFILER.mark(_MARK)

    def seen(self, result: Argument) -> None:
        assert self._tracker is not None
        name, node, before = self._op
        self._tracker.made(result, name)
        live = self._tracker.live_bytes
        self._rows.append((name, node, live, live - before))

    def dropped(self, *values: Argument) -> AbstractContextManager[None]:
        assert self._tracker is not None
        return nullcontext() if self._tracker.has_made(values) else _Pause(self._profile)

    def choose(self, run: Boxed, watched: Boxed) -> Boxed:
        self.watched = watched

        def call(args: list[GraphInput]) -> Sequence[GraphValue]:
            watched = self.watched
            if watched is None or (self.is_backward and not self.graph.runs) or not _is_free():
                return run(args)
            lock = self.graph.kernels.lock
            if not lock.acquire(blocking=False):  # another thread is measured
                return run(args)
            try:
                result = self._measure(run, watched, args)
            finally:
                lock.release()
            if self.is_backward:
                self.graph.kernels.ended()
            return result

        return call

    def _measure(self, run: Boxed, watched: Boxed, args: list[GraphInput]) -> Sequence[GraphValue]:
        """One run. It may raise: then a later one is measured. Of many forwards the last are not;
        what they saved counts as arguments of their backward."""
        tracker = self._tracker = self.graph.kernels.tracker()
        tracker.given(self._constants, count=False)
        tracker.given(args, count=self.is_backward)
        if not self.is_backward and self.graph.runs >= MOST_CALLS:
            return run(args)
        self._rows, self._profile = [], _Profile()
        before = tracker.live_bytes
        try:
            with self._profile:
                result = watched(args)
        finally:
            self._tracker = None
        self._note(before, self._profile.traces)
        return result

    def _note(self, before: int, traces: list[list[int]]) -> None:
        rows, self._rows = self._rows, []
        graph = self.graph
        graph.runs += not self.is_backward
        if len(rows) == len(traces):  # all marks came through
            known = graph.kernels.traces.setdefault(graph.key or "", {})
            scratch: dict[tuple[str, str], int] = {}
            peak = GraphPeak("backward" if self.is_backward else "forward", before, before, "", 0)
            for (op, node, after, made), trace in zip(rows, traces, strict=True):
                known[node] = trace
                beside = max(0, max(accumulate(trace), default=0) - max(0, made))
                if beside:
                    scratch[op, node] = max(beside, scratch.get((op, node), 0))
                if after + beside > peak.peak_bytes:
                    peak = peak._replace(peak_bytes=after + beside, op=op, op_bytes=beside)
                peak = peak._replace(tensor_bytes=max(peak.tensor_bytes, after))
            graph.kernels.take(graph, peak, scratch)
        if self.is_backward:
            graph.ended()


def excess_of_all_text(taken: int, limit: int | None, stays: bool) -> str | None:
    """The warning if no plan keeps to the budget once scratch is counted. None: the plan that is
    used exceeds the budget by little.

    Args:
        taken: bytes of the plan that is used.
        limit: the budget in bytes.
        stays: it is the plan that was in force, as the smallest takes hardly less.
    """
    if limit is not None and taken <= limit * (1 + MARGIN):
        return None
    asked = "" if limit is None else f" of {budgets.text(limit)} ({limit} bytes)"
    size = f"{budgets.text(taken)} ({taken} bytes)"
    said = f"the smallest takes {size}, and is used from now on"
    if stays:
        said = f"the one in force takes {size}, and stays, as none takes {MARGIN:.0%} less"
    return (
        "kernels take scratch, which was measured in the first steps, and no plan that counts it "
        f"keeps to the budget{asked}: {said}. Leave that much memory"
    )


def excess_text(stats: AllocatorStats, limit: int, budget: str, lower: str | None) -> str | None:
    """What is said where scratch takes the step over its budget by more than plans would leave out.
    Where tensors alone are over it, the reason is another one.

    Args:
        limit: of what the planned graphs make.
        budget: the budget for people.
        lower: a budget that is lower by as much; None: there is none.
    """
    if not stats.tensor_bytes <= limit < stats.peak_bytes / (1 + MARGIN):
        return None
    if stats.peak_bytes - limit < LEAST:
        return None
    advice = "No lower budget leaves so much room: have it beside the budget"
    if lower is not None:
        advice = f"Ask for a lower budget (about {lower}), or have that room beside it"
    return (
        f"kernels take scratch that plans do not count, most of it {stats.op} "
        f"({budgets.text(stats.op_bytes)}): with it the step's peak is "
        f"{budgets.text(stats.peak_bytes)} ({stats.peak_bytes} bytes), where the budget is "
        f"{budget} ({limit} bytes). {advice}"
    )
