"""Measures the scratch of kernels: runs the first two steps of planned code under PyTorch's memory
profiler.

Plans and trackers count what ops return. A kernel may allocate more and free it before it returns
(scratch): on the CPU, for example, the backward of a batch norm holds a second gradient of its
input. So the first two forwards and backwards of every graph with a budget run as code that marks
each op in the profiler's events (``graph/codegen.py``) and reports its result to a tracker. At any
moment inside an op, the allocator's level is then the tracker's count without this op, plus what
the op has allocated so far. Two steps are measured because kernels may allocate more in their first
run, or in their second; :mod:`compiler.counted_scratch` says how plans count the larger of the two.

The profiler is PyTorch's legacy one that preceded Kineto. It does not use device clocks, takes
microseconds to start and stop, and does not conflict with a profiler that the user has prepared but
not started. While the user's own profiler runs, or a CUDA graph is captured, nothing is measured,
and later steps are measured instead.
"""

from __future__ import annotations

import threading
from collections import Counter
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
"""The share by which scratch may exceed a budget without a warning."""

STEPS = 2
"""Number of steps that are measured."""

_MARK = "cutback: an op"


class GraphPeak(NamedTuple):
    """The peak of a forward or backward of one graph, as the allocator sees it."""

    phase: str
    """``"forward"`` or ``"backward"``."""
    peak_bytes: int
    """Peak bytes, including scratch of kernels and what the step's graphs held before."""
    tensor_bytes: int
    """Peak bytes of tensors only."""
    op: str
    """The op that ran at the peak, such as ``"aten.mm.default"``."""
    op_bytes: int
    """The scratch of that op."""


class AllocatorStats(NamedTuple):
    """The bytes that a step takes from PyTorch's allocator, and those of its tensors, for the
    larger of the first two steps under a plan. Bytes cover what the planned graphs make, as for
    ``live_bytes`` of :attr:`cutback.Plan.numbers`.

    >>> step = cutback.torch.compile(model, budget=0.5)
    >>> for _ in range(2):
    ...     step(x).sum().backward()
    >>> print(step.allocator_stats)  # of the first two steps
    """

    peak_bytes: int
    """Peak bytes, including scratch of kernels."""
    tensor_bytes: int
    """Peak bytes of tensors, counted as plans and :class:`MemoryTracker` count them."""
    op: str
    """The op that ran at the peak, such as ``"aten.mm.default"``."""
    op_bytes: int
    """The scratch of that op: bytes that it allocated and freed while it ran."""
    by_op: dict[str, int]
    """The largest scratch of each kind of op that uses any, largest first."""
    graphs: list[GraphPeak]
    """The forwards and backwards, in the order in which they ran."""

    @property
    def scratch_bytes(self) -> int:
        """The bytes that scratch adds to the peak of tensors."""
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
    """True if this PyTorch has the required profiler."""
    return _PROFILER is not None


def _is_free() -> bool:
    """True if a profiler may be started in this thread."""
    if hooks.is_profiled():
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


class _Profile:
    """PyTorch's memory profiler, in this thread."""

    def __init__(self) -> None:
        self.traces: list[list[int]] = []
        """Bytes that each marked op allocated (positive) and freed (negative), in order."""

    def __enter__(self) -> None:
        assert _PROFILER is not None
        _PROFILER.enable(_PROFILER.config)

    def __exit__(self, *error: Raised) -> None:
        assert _PROFILER is not None
        for events in _PROFILER.disable():
            self.traces += _traces(events)


class _Pause:
    """Pauses the profiler. Otherwise PyTorch would print that it does not know the size of freed
    memory that was allocated earlier."""

    def __init__(self, profile: _Profile) -> None:
        self.profile = profile

    def __enter__(self) -> None:
        self.profile.__exit__()

    def __exit__(self, *error: Raised) -> None:
        self.profile.__enter__()


def _traces(events: Sequence[ProfilerEvent]) -> Iterator[list[int]]:
    """Yields the bytes that each marked op of one thread allocated and freed. The events are in
    order."""
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
    """The measured graphs of one model, until the last measured step has ended.

    Args:
        tell: called after each measured step.
    """

    def __init__(self, tell: Callable[[Kernels], None]) -> None:
        self.stats: AllocatorStats | None = None
        """Figures of the step that took the most memory so far."""
        self.scratch: dict[str, dict[str, int]] = {}
        """The largest scratch so far, by the key of a graph and the name of an op."""
        self.traces: dict[str, dict[str, list[int]]] = {}
        """Bytes allocated and freed in the last run, by the same keys."""
        self.steps = 0
        """Number of measured steps."""
        self.alone: dict[str, AllocatorStats] = {}
        """Figures of steps that ran one graph, by the graph's key."""
        self.latest: str | None = None
        """The key of the graph that the last step ran, or None if it ran several."""
        self.lock = threading.Lock()
        self._tell = tell
        self._graphs: list[Graph] = []
        self._rows: list[GraphPeak] = []
        self._keys: list[str | None] = []
        self._runs_alone: Counter[str] = Counter()
        self._by_op: dict[str, int] = {}
        self._tracker: StepTracker | None = None

    def graph(self) -> Graph:
        """Adds a graph of the model and returns it."""
        graph = Graph(self)
        self._graphs.append(graph)
        return graph

    @property
    def _searches(self) -> bool:
        """True if kernels may allocate more in this step than in later ones."""
        return self.steps == 0 and hooks.searches_kernels()

    @property
    def is_done(self) -> bool:
        """True if no more steps are measured."""
        return self.steps >= STEPS

    def is_done_alone(self, key: str) -> bool:
        """True if enough steps that ran only this graph were measured."""
        return self._runs_alone[key] >= STEPS

    def tracker(self) -> StepTracker:
        """Returns the tracker of this step."""
        if self._tracker is None:
            self._tracker = StepTracker()
        return self._tracker

    def take(self, graph: Graph, row: GraphPeak, scratch: dict[tuple[str, str], int]) -> None:
        """Records what a forward or backward took.

        Args:
            scratch: bytes by operation and node.
        """
        self._rows.append(row)
        self._keys.append(graph.key)
        nodes = self.scratch.setdefault(graph.key or "", {})
        for (op, node), size in scratch.items():
            self._by_op[op] = max(size, self._by_op.get(op, 0))
            if not self._searches:
                nodes[node] = max(size, nodes.get(node, 0))

    def ended(self) -> None:
        """Handles the end of a graph's backward. The last backward ends the step."""
        if any(graph.runs for graph in self._graphs):
            return
        self._graphs = [graph for graph in self._graphs if not graph.is_done]
        if self._tracker is not None:
            self._tracker.end()
            self._tracker = None
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        (key, *others), self._keys = dict.fromkeys(self._keys), []
        top = max(rows, key=lambda row: row.peak_bytes)
        by_op = sorted(self._by_op.items(), key=lambda item: -item[1])
        stats = AllocatorStats(
            top.peak_bytes, max(row.tensor_bytes for row in rows), top.op, top.op_bytes,
            dict(by_op), rows,
        )  # fmt: skip
        if not self._searches and (self.stats is None or stats.peak_bytes > self.stats.peak_bytes):
            self.stats = stats
        self.latest = None if others else key
        if self.latest is not None:
            before = self.alone.get(self.latest)
            if not self._searches and (before is None or stats.peak_bytes > before.peak_bytes):
                self.alone[self.latest] = stats
            self._runs_alone[self.latest] += 1
        self.steps += 1
        self._tell(self)


class Graph:
    """The forward and backward of one graph. Forwards are measured until a backward has run,
    because several calls may be pending, and some may never have a backward."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.key: str | None = None
        """The key of the graph (:func:`compiler.records.key_of`)."""
        self.forward = _Block(self, is_backward=False)
        self.backward = _Block(self, is_backward=True)
        self.runs = 0  # forwards of this step so far
        self._steps = 0

    @property
    def is_done(self) -> bool:
        """True if the graph is no longer measured."""
        return self._steps >= STEPS

    def ended(self) -> None:
        """Handles the end of the graph's backward."""
        self.runs = 0
        self._steps += 1
        if self.is_done:
            self.forward.watched = self.backward.watched = None


class _Block:
    """Measures a forward or backward; implements :class:`graph.codegen.Watch`."""

    def __init__(self, graph: Graph, is_backward: bool) -> None:
        self.graph = graph
        self.is_backward = is_backward
        self.watched: Boxed | None = None
        self._tracker: StepTracker | None = None
        self._profile = _Profile()
        self._op = ("", "", 0)  # name, node, and bytes before it
        # for each op: name, node, bytes after it, bytes of its result
        self._rows: list[tuple[str, str, int, int]] = []
        self._constants: list[torch.Tensor] = []

    def constants(self, tensors: list[torch.Tensor]) -> None:
        """Sets the graph's constants: tensors that no op makes."""
        self._constants = tensors

    def op(self, name: str, node: str) -> AbstractContextManager[None]:
        """See :class:`graph.codegen.Watch`, which also explains the methods below."""
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
        """Measures one run. If it raises, a later run is measured. The number of measured forwards
        is limited; what further forwards save counts as arguments of their backward."""
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
        if len(rows) == len(traces):  # all marks were recorded
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
    """Returns the warning for the case that no plan meets the budget once scratch is counted, or
    None if the plan exceeds the budget only slightly.

    Args:
        taken: bytes of the plan that is used.
        limit: the budget in bytes.
        stays: True if that is the plan in force, because the smallest plan takes hardly less.
    """
    if limit is not None and taken <= limit * (1 + MARGIN):
        return None
    asked = "" if limit is None else f" of {budgets.text(limit)} ({limit} bytes)"
    size = f"{budgets.text(taken)} ({taken} bytes)"
    said = f"the smallest takes {size}, and is used from now on"
    if stays:
        said = f"the plan in force takes {size}; none takes {MARGIN:.0%} less, so it stays"
    return (
        "kernels take scratch, which was measured in the first steps, and no plan that counts it "
        f"meets the budget{asked}: {said}. Leave that much memory"
    )


def excess_text(stats: AllocatorStats, limit: int, budget: str, lower: str | None) -> str | None:
    """Returns the warning for a step whose scratch exceeds its budget by more than the tolerance,
    or None if tensors alone exceed the budget, which has another reason.

    Args:
        limit: limit in bytes for what the planned graphs allocate.
        budget: the budget as text.
        lower: a budget that is lower by the excess, or None.
    """
    if not stats.tensor_bytes <= limit < stats.peak_bytes / (1 + MARGIN):
        return None
    if stats.peak_bytes - limit < LEAST:
        return None
    advice = "No lower budget leaves that much memory: leave it in addition to the budget"
    if lower is not None:
        advice = f"Give a lower budget (about {lower}), or leave that much memory in addition to it"
    return (
        f"kernels take scratch that plans do not count, most of it {stats.op} "
        f"({budgets.text(stats.op_bytes)}): with it the step's peak is "
        f"{budgets.text(stats.peak_bytes)} ({stats.peak_bytes} bytes), while the budget is "
        f"{budget} ({limit} bytes). {advice}"
    )
