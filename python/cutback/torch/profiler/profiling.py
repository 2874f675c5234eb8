"""Implements ``cutback.torch.profile``, which measures a training step op by op."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ... import budgets, files
from ...planner.plan import Plan
from ...problem import Problem
from ..compiler.joining import part_of
from ..graph.emitter import emit
from ..graph.moving import Move, Schedule, schedule_of
from ..graph.records import MOVES, Row, Uses, Value
from ..graph.statistics import Measured, Statistics, check_same, signature
from ..graph.taking_over import separate
from .capture import Captured, capture
from .optimizer_step import OptimizerStep, measure_optimizer
from .stepping import Life, Program, Watch, make_clock, on
from .tracing import TracedStep

if TYPE_CHECKING:
    from torch.fx.node import Argument

    from ..types import GraphInput

_LINK_BYTES = 1 << 25  # size of the copies that measure the link
_LINK_COPIES = 5


class Profile(Statistics):
    """The measurements of a step (:class:`~cutback.torch.graph.statistics.Statistics`) and the step
    itself, which can be planned, rewritten and run again. It keeps the step's inputs alive.

    >>> measured = cutback.torch.profile(model, x)
    >>> print(measured)
    """

    def __init__(self, captured: Captured, figures: Statistics) -> None:
        measured = Measured(figures.link_bytes_per_s, figures.runs, figures.device)
        super().__init__(figures.rows, figures.values, measured, figures.signature, figures.graphs)
        self.captured = captured

    @property
    def step(self) -> TracedStep:
        """The step as the planner sees it, with times from the device table."""
        return TracedStep(self.captured.graph.problem, self.device)

    @property
    def graph(self) -> fx.GraphModule:
        """The joint graph of forward and backward, as PyTorch traced it; the first one if the step
        has graph breaks."""
        return self.captured.pieces[0].gm

    def problem(self, swap: bool = False) -> str:
        """Returns the planner's problem with the measured times, as JSON. With ``swap`` it includes
        the link, so that plans may move values to the host."""
        return self.measured_problem(swap).to_json()

    def measured_problem(self, swap: bool = False) -> Problem:
        """Returns what :meth:`problem` returns, as an object."""
        problem = self.captured.graph.problem
        problem = separate(problem) if swap else problem  # steps that move values take nothing over
        link = self.link_bytes_per_s if swap else problem.link_bytes_per_s
        problem = replace(problem, link_bytes_per_s=link, ops=[replace(op) for op in problem.ops])
        files.lay_times(problem, self.times())
        return problem

    def rewrite(self, plan: Plan, graph: int = 0) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Returns the forward and backward graph under a plan of this step. Recomputed values have
        separate nodes in the backward, right before their first reader. Values that move to the
        host are copied by nodes that call ``cutback.torch.transfers``.

        Args:
            plan: a plan of this step.
            graph: the number of the graph, if the step has graph breaks.

        Raises:
            ValueError: if the plan is for another step, or the graph does not exist.
        """
        schedule = self._schedule(plan)
        if graph not in range(len(self.captured.pieces)):
            raise ValueError(f"graph={graph!r}: the step has {len(self.captured.pieces)} graphs")
        piece = self.captured.under(plan).pieces[graph]
        return emit(piece.gm, piece.graph, part_of(schedule, self.captured.places, graph))

    def _schedule(self, plan: Plan) -> Schedule:
        check_same(self.signature, plan.parts, "the plan")
        return schedule_of(plan.core)

    def rerun(self, plan: Plan, runs: int = 5, warmup: int = 1) -> Profile:
        """Profiles the step under a plan, op by op. A copy to or from the host has its own row
        (:data:`graph.statistics.MOVES`) with the time of the copy; here it does not overlap with
        other ops. Returns a profile whose rows are the steps of the plan.

        Raises:
            ValueError: if the plan is for another step.
        """
        _check_runs(runs, warmup)
        program = Program(self.captured.under(plan), self._schedule(plan))
        return Profile(self.captured, _measure(program, runs, warmup, self.link_bytes_per_s, None))


# ---- measuring --------------------------------------------------------------------------------


def _check_runs(runs: int, warmup: int) -> None:
    for name, n, least in (("runs", runs, 1), ("warmup", warmup, 0)):
        if not isinstance(n, int) or isinstance(n, bool) or n < least:
            raise ValueError(f"profile: {name}={n!r} must be an int of at least {least}")


def measure_link(device: torch.device) -> float:
    """Measures the bandwidth between a device and pinned host memory, in bytes per second of the
    slower direction. For a CPU, measures plain copies."""
    host = torch.empty(_LINK_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.ones(_LINK_BYTES, dtype=torch.uint8, device=device)
    seconds: dict[str, list[float]] = {"out": [], "in": []}
    with on(device):
        for _ in range(_LINK_COPIES):
            for way, target, source in (("out", host, there), ("in", there, host)):
                clock = make_clock(device)
                clock.start()
                target.copy_(source, non_blocking=True)
                clock.stop()
                seconds[way] += clock.seconds()
    slower = max(statistics.median(row) for row in seconds.values())
    return _LINK_BYTES / max(slower, 1e-9)


def _rate(link: float | str) -> float:
    """Parses a bandwidth in bytes per second."""
    rate = budgets.parse_bytes(link.removesuffix("/s")) if isinstance(link, str) else link
    number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
    if not number or not math.isfinite(rate) or rate <= 0:
        raise ValueError(
            f"profile: link={link!r} must be bytes per second, such as 25e9 or '25GB/s'"
        )
    return float(rate)


def _times(program: Program, runs: int, warmup: int) -> list[float]:
    """Returns the median seconds of each step. The dropout kernel also makes the masked result,
    which is a step of the problem. The time of that is measured separately and subtracted from the
    dropout's."""
    device = program.captured.device
    rows = []
    for i in range(warmup + runs):
        clock = make_clock(device)
        program.run(clock=clock)
        if i >= warmup:
            rows.append(clock.seconds())
    seconds = [statistics.median(column) for column in zip(*rows, strict=True)]
    latest: dict[fx.Node, int] = {}
    for k, row in enumerate(program.instructions):
        if row.node is not None and row.action == "run":
            latest[row.node] = k
        if row.action == "first" and row.node is not None:
            source = latest[row.node.args[0]]
            seconds[source] = max(0.0, seconds[source] - seconds[k])
    return seconds


def _rows(program: Program, seconds: Sequence[float], watch: Watch) -> list[Row]:
    made = [0] * len(program.steps)
    for life in watch.lives:
        if life.made >= 0 and program.instructions[life.made].over is None:
            made[life.made] += life.bytes
    ops = program.captured.graph.problem.ops
    rows, seen = [], set()
    for k, step in enumerate(program.steps):
        moves = isinstance(step, Move)
        id = step.op if isinstance(step, Move) else step
        op = ops[id]
        phase = "forward" if k < program.backward_starts else "backward"
        kind = MOVES[step.action] if isinstance(step, Move) else op.kind
        rows.append(
            Row(
                op.name, kind, phase, op.location, seconds[k], made[k], watch.live[k],
                id in seen and not moves, "view" in op.flags and not moves,
            )
        )  # fmt: skip
        seen.add(id)
    return rows


class _Namer:
    """Assigns categories to lives, and makes their rows in the table of values."""

    def __init__(self, program: Program, seconds: Sequence[float], link: float) -> None:
        captured = program.captured
        self.program = program
        self.link = link
        self.ops = captured.graph.problem.ops
        self.until = [0.0]  # start time of each step in seconds
        for one in seconds:
            self.until.append(self.until[-1] + one)
        graph = captured.graph
        self.gradients = set()  # storages of the backward's outputs
        values = [value.storage for value in graph.problem.values]
        for v in graph.problem.backward_outputs:
            self.gradients.add(values[v])
        self.trained = {
            id for id, value in enumerate(self._given()) if getattr(value, "requires_grad", False)
        }

    def _given(self) -> list[GraphInput | None]:
        """Returns the arguments of the placeholders by op id, with None for other ops."""
        by_node: dict[fx.Node | None, GraphInput] = {}
        for piece in self.program.captured.pieces:
            by_node.update(piece.given())
        return [by_node.get(node) for node in self.program.captured.graph.order]

    def category(self, life: Life) -> str:
        if life.made < 0:
            return "parameter" if life.op in self.trained else "other"
        if life.made < self.program.backward_starts:
            reads = any(k >= self.program.backward_starts for k in life.uses)
            return "activation" if reads else "other"
        returned = {value.storage for value in self.ops[life.op].outputs} & self.gradients
        return "gradient" if returned and life.last == len(self.program.steps) else "other"

    def value(self, life: Life) -> Value:
        start = self.program.backward_starts
        early = [k for k in life.uses if k < start]
        late = [k for k in life.uses if k >= start]
        inactive = 0.0
        if late and life.made < start:
            since = max([life.made, *early]) + 1
            inactive = self.until[late[0]] - self.until[since]
        copy = life.bytes / self.link
        return Value(
            self.ops[life.op].name, life.type, life.bytes, self.category(life), life.made,
            life.last, Uses(early[0], early[-1]) if early else None,
            Uses(late[0], late[-1]) if late else None, inactive, copy, copy,
        )  # fmt: skip


def _measure(
    program: Program, runs: int, warmup: int, link: float, optimizer: torch.optim.Optimizer | None
) -> Statistics:
    watch = Watch()
    with program.quiet():
        outputs = program.run(watch=watch)
        if optimizer is None:
            outputs = []  # do not keep the gradients during the timed runs
        seconds = _times(program, runs, warmup)
    rows = _rows(program, seconds, watch)
    namer = _Namer(program, seconds, link)
    values = [namer.value(life) for life in watch.lives]
    if optimizer is not None:
        with program.quiet():
            step = measure_optimizer(optimizer, _gradients(program, outputs), runs, warmup)
        rows, values = _with_optimizer(rows, values, step)
    captured = program.captured
    graphs = [signature(piece.graph.problem) for piece in captured.pieces]
    whole = signature(captured.graph.problem)
    return Statistics(rows, values, Measured(link, runs, captured.row), whole, graphs)


def _gradients(
    program: Program, outputs: list[Argument]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns the (input, gradient) pairs. Gradients from several graphs are added."""
    captured = program.captured
    late = iter(outputs[captured.graph.num_fwd_outputs :])
    found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for piece in captured.pieces:
        gradients = list(islice(late, len(piece.graph.outputs) - piece.graph.num_fwd_outputs))
        for primal, gradient in zip(piece.primals, gradients, strict=False):
            if isinstance(primal, torch.Tensor) and isinstance(gradient, torch.Tensor):
                before = found.get(id(primal))
                total = gradient if before is None else before[1] + gradient
                found[id(primal)] = primal, total
    return list(found.values())


def _with_optimizer(
    rows: list[Row], values: list[Value], step: OptimizerStep
) -> tuple[list[Row], list[Value]]:
    """Appends the optimizer's ops after the backward. Values alive at the end of the backward stay
    alive during the optimizer's step."""
    n = len(rows)
    end = n + len(step.rows)
    stays = [v._replace(last=end) if v.last >= n else v for v in values]
    held = sum(v.bytes for v in stays if v.made >= 0 and v.last >= end)
    more = [row._replace(live_bytes=row.live_bytes + held) for row in step.rows]
    states = [
        Value(name, type, size, "optimizer state", -1, end, None, None, 0.0, 0.0, 0.0)
        for name, type, size in step.states
    ]
    own = [
        Value(step.rows[made].name, type, size, "other", n + made, n + last, None, None, 0.0, 0.0,
              0.0)
        for made, last, type, size in step.temporaries
    ]  # fmt: skip
    return rows + more, stays + states + own


def profile(
    step: torch.nn.Module | Callable[..., Any],
    *inputs: Any,
    runs: int = 5,
    warmup: int = 1,
    optimizer: torch.optim.Optimizer | None = None,
    link: float | str | None = None,
    **kwargs: Any,
) -> Profile:
    """Runs one training step op by op, forward and backward, and measures it.

    The graph is the one that :func:`cutback.torch.trace` gives to the planner. Each of its ops runs
    once, in order, with PyTorch's kernels and the tensors of ``step``. The incoming gradient is 1.
    The caller's data does not change: inputs and buffers that the step writes into are copied
    first, random states are restored, and a copy of the optimizer steps copies of its parameters.

    A step with graph breaks is profiled as one problem with all its graphs: their forwards in
    order, their backwards in reverse, and op names with ``@`` and the number of the graph. To find
    the graphs, the forward runs once; then all inputs, buffers and overwritten tensors are
    restored. Other side effects of Python code between the graphs remain. That code is not timed.

    Times include the kernels and PyTorch's dispatch; on a GPU they are measured with events.

    Args:
        step: a module or function.
        inputs, kwargs: its arguments; tensors must be real.
        runs: number of runs; times are their medians.
        warmup: number of additional runs before these.
        optimizer: its step is measured, too, after its states exist. It must not need a closure.
        link: bandwidth to the host in bytes per second of one direction, or ``"25GB/s"``. None
            measures it with copies of 32 MiB: through pinned memory on a GPU, by plain copies on a
            CPU.

    Returns:
        A profile with one row per op, with its seconds and bytes, and the values that the backward
        needs; :func:`compile` and :func:`cutback.torch.mutwo.select` accept it.

    Raises:
        UnsupportedGraphError: if nothing needs a gradient, a graph cannot be planned, or a graph
            runs several times in the step.
        ValueError, TypeError: if an argument is invalid.

    Source: the profiler of S. Purandare et al., mu-TWO, MLSys 2023.

    >>> measured = cutback.torch.profile(model, x)
    >>> step = cutback.torch.compile(model, budget=0.5, profile=measured, dynamic=False)
    """
    _check_runs(runs, warmup)
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"profile: optimizer={optimizer!r} must be a torch.optim.Optimizer")
    rate = None if link is None else _rate(link)
    captured = capture(step, inputs, kwargs)
    program = Program(captured.under(captured.plan), schedule_of(captured.plan.core))
    if rate is None:
        rate = measure_link(captured.device)
    return Profile(captured, _measure(program, runs, warmup, rate, optimizer))
