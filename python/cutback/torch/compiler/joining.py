"""Joins the problems of several graphs that run one after another, and splits a joint plan.

The forwards run in order and the backwards in reverse. If it is known what the graphs share
(:class:`Common`, which :mod:`compiler.crossing` finds in a step), the problem has additional ops
that model what autograd does between the graphs:

- A value that one graph passes to the next stays in the memory that the first graph made, and its
  op runs once, because the graphs have separate code and one cannot run an op of another. PyTorch's
  frames hold it to the end of the forward (``handed_on``); after that it lives as long as a graph
  reads it.
- The gradient of such a value is made by the later graph's backward, and lives until the earlier
  graph's backward has read it.
- Gradients of one leaf, or of a value passed to several graphs, are added in new memory when the
  second one arrives: after the backward of its graph, before leaves copy their gradients.

Otherwise a value that crosses is counted in the graph that makes it and outputs are counted to the
end, and its gradient is counted on both sides, so that the plan errs on the safe side.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from ...problem import HELD, Flag, Op, Problem, Storage, StorageFlag, Value
from ..graph.leaves import KIND
from ..graph.moving import Move, Schedule

OWN = -1
"""Stands in for a graph number if no graph runs an op."""

_FORWARD: frozenset[Flag] = frozenset({"effect"})
_BACKWARD: frozenset[Flag] = frozenset({"backward", "effect"})
_FREE: frozenset[StorageFlag] = frozenset()

_Ref = tuple[int, int]  # graph and value; or OWN and the number of an op with one result


class Flow(NamedTuple):
    """Gradients of one tensor that flow to a leaf or into the backward of an earlier graph."""

    parts: list[list[int]]
    """In order of arrival. Each part has the graph after whose backward it arrives (the number of
    graphs means before all), its rank among those, its graph, and the value there. Graph
    :data:`OWN` means a part of the step without a graph."""
    bytes: int
    to: list[int]
    """Graph and op of the tangent; empty if the gradients flow to a leaf."""
    copy: int
    """Bytes of the copy that the receiver makes; 0 if it takes what arrives."""


class Common(NamedTuple):
    """What graphs share, as lists of ints. Graphs are numbered in the order of the forwards."""

    handed: list[list[int]]
    """Each entry: graph, op of its placeholder, earlier graph, value there."""
    read: list[list[int]]
    """Graph and value, one pair for each storage in ``loose``."""
    loose: list[list[int]]
    """Graph and storage: results that only graphs hold, and gradients that go to other graphs."""
    idle: list[list[int]]
    """Graph and op: gradient copies that do not happen, because a sum takes their place."""
    flows: list[Flow]
    exact: bool = False
    """True if everything that crosses between graphs is known. Otherwise the problem may count too
    much."""

    def document(self) -> dict[str, Any]:
        """Returns a JSON document."""
        return {**self._asdict(), "flows": [flow._asdict() for flow in self.flows]}

    @classmethod
    def of(cls, document: dict[str, Any]) -> Common:
        """Reads a result of :meth:`document`. Raises TypeError or KeyError if the document is not
        one.
        """
        flows = [Flow(**flow) for flow in document["flows"]]
        return cls(**{**document, "flows": flows})


NOTHING = Common([], [], [], [], [])


class _Joined:
    """Writes the ops of all graphs, one after another."""

    def __init__(self, problems: list[Problem], common: Common) -> None:
        self.problems = problems
        self.common = common
        self.order: list[tuple[int, int]] = []
        self.ops: list[Op] = []
        self.lies_in: list[list[_Ref]] = []  # for each op, the storages of its outputs
        self.value: dict[_Ref, int] = {}
        self.n_values = 0
        self.n_own = 0
        self.storage_of = [[value.storage for value in p.values] for p in problems]
        self.first_value: list[list[int]] = []
        for p in problems:
            at, rows = 0, []
            for op in p.ops:
                rows.append(at)
                at += len(op.outputs)
            self.first_value.append(rows)
        self.same: dict[_Ref, _Ref] = {}  # maps a storage to the one that it is the same as
        self.own_storage: dict[_Ref, Storage] = {}
        self.handed = {(g, i): (h, v) for g, i, h, v in common.handed}
        self.idle = {(g, i) for g, i in common.idle}
        # maps a tangent's op to what arrives there
        self.tangents: dict[_Ref, tuple[Flow, _Ref]] = {}
        self.arrived: dict[int, _Ref] = {}  # maps a flow to the sum of what has arrived

    def memory(self, ref: _Ref) -> _Ref:
        """Returns the storage of a value."""
        g, v = ref
        key = ref if g == OWN else (g, self.storage_of[g][v])
        while key in self.same:
            key = self.same[key]
        return key

    # ---- ops ------------------------------------------------------------------------------------

    def _push(self, place: tuple[int, int], op: Op, outs: list[_Ref], lies_in: list[_Ref]) -> None:
        for ref in outs:
            self.value[ref] = self.n_values
            self.n_values += 1
        self.ops.append(op)
        self.lies_in.append(lies_in)
        self.order.append(place)

    def own(self, kind: str, reads: list[_Ref], bytes: int | None, hold: bool = False) -> _Ref:
        """Adds an op that no graph runs and returns its result; ``bytes`` is the size of that."""
        ref = (OWN, self.n_own)
        self.n_own += 1
        op = Op(
            f"{kind}_{ref[1]}", kind, [self.value[r] for r in reads],
            flags=_FORWARD if kind == "handed_on" else _BACKWARD, time_ps=0,
        )  # fmt: skip
        if bytes is not None:
            op.outputs = [Value(-1, bytes=bytes)]
            self.own_storage[ref] = Storage(bytes, HELD if hold else _FREE)
        made = [] if bytes is None else [ref]
        self._push(ref, op, made, made)
        return ref

    def add(self, g: int, i: int) -> None:
        """Adds an op of a graph."""
        op = self.problems[g].ops[i]
        first = self.first_value[g][i]
        refs = [(g, first + k) for k in range(len(op.outputs))]
        reads, place = [(g, v) for v in op.inputs], (g, i)
        made = replace(op, name=f"{op.name}@{g}")
        if (g, i) in self.idle:
            refs = []
        elif (g, i) in self.handed:
            place = (OWN, self.n_own)
            self.n_own += 1
            reads = [self.handed[g, i]]
            made.kind, made.flags, made.time_ps = "handed", _FORWARD | {"view"}, 0
            self.same[g, self.storage_of[g][first]] = self.memory(reads[0])
        elif (g, i) in self.tangents:
            flow, source = self.tangents[g, i]
            reads = [source]
            if not flow.copy:
                made.flags = _BACKWARD | {"view"}
                self.same[g, self.storage_of[g][first]] = self.memory(source)
        made.outputs = [replace(op.outputs[v - first]) for _, v in refs]
        made.inputs = [self.value[ref] for ref in reads]
        self._push(place, made, refs, [(g, self.storage_of[g][v]) for g, v in refs])

    def forward(self) -> None:
        """Adds the forward ops of the graphs, with the values that the graphs receive."""
        for g, p in enumerate(self.problems):
            mine = range(p.backward_starts)
            for i in mine:
                if (g, i) in self.handed:
                    self.add(g, i)
            for i in mine:
                if (g, i) not in self.handed:
                    self.add(g, i)
        if self.common.read:
            self.own("handed_on", [(g, v) for g, v in self.common.read], None)

    def made(self, gradient: _Ref) -> _Ref:
        """Returns the gradient itself or, if it is updated, the value that its memory is allocated
        for, because plans have no steps for views of it."""
        g, v = gradient
        s = self.storage_of[g][v]
        return (
            gradient
            if self.problems[g].storages[s].updates is None
            else (g, self.storage_of[g].index(s))
        )

    def arrive(self, after: int) -> None:
        """Adds the gradients that arrive when the backward of a graph has ended."""
        rows = sorted(
            (rank, k, (g, v))
            for k, flow in enumerate(self.common.flows)
            for when, rank, g, v in flow.parts
            if when == after
        )
        for _, k, arrives in rows:
            flow = self.common.flows[k]
            part = self.made(arrives) if arrives[0] != OWN else self.own("gradient", [], flow.bytes)
            if k in self.arrived:
                part = self.own("add_gradients", [self.arrived[k], part], flow.bytes)
            self.arrived[k] = part
        for k in dict.fromkeys(row[1] for row in rows):
            flow = self.common.flows[k]
            if after != min(part[0] for part in flow.parts):
                continue  # more gradients will follow
            if flow.to:
                self.tangents[flow.to[0], flow.to[1]] = flow, self.arrived[k]
            elif flow.copy:
                self.arrived[k] = self.own(KIND, [self.arrived[k]], flow.copy, hold=True)
            else:
                self.own_storage[self.arrived[k]] = Storage(flow.bytes, HELD)

    def backward(self) -> None:
        """Adds the backward ops of the graphs, with the sums between them."""
        n = len(self.problems)
        self.arrive(n)
        for g in reversed(range(n)):
            p = self.problems[g]
            ends = len(p.ops)
            copies = [i for i in range(ends) if p.ops[i].kind == KIND]
            split = min(copies, default=ends)
            for i in range(p.backward_starts, split):
                self.add(g, i)
            self.arrive(g)
            for i in range(split, ends):
                self.add(g, i)

    # ---- the whole ------------------------------------------------------------------------------

    def problem(self) -> Problem:
        """Returns the joint problem."""
        ps = self.problems
        loose = {(g, s) for g, s in self.common.loose}
        unused = {(g, value.storage) for g, i in self.idle for value in ps[g].ops[i].outputs}
        number: dict[_Ref, int] = {}
        storages: list[Storage] = []
        keys = [(g, s) for g, p in enumerate(ps) for s in range(len(p.storages))]
        for key in [*keys, *self.own_storage]:
            if key in self.same or key in unused:
                continue
            number[key] = len(storages)
            storages.append(self.own_storage[key] if key[0] == OWN else self._storage(key, loose))
        for key in self.same:
            at = key
            while at in self.same:
                at = self.same[at]
            number[key] = number[at]
            if at[0] != OWN and "hold_end" in self._storage(key, loose).flags:
                storages[number[at]] = replace(
                    storages[number[at]], flags=storages[number[at]].flags | HELD
                )
        for op, lies_in in zip(self.ops, self.lies_in, strict=True):
            for value, key in zip(op.outputs, lies_in, strict=True):
                value.storage = number[key]
        for (g, s), n in number.items():
            parameter = None if g == OWN else ps[g].storages[s].updates
            if parameter is not None:
                storages[n] = replace(storages[n], updates=number[g, parameter])
        gone = {number[key] for key in loose if key in number}
        self.keep_over(storages)
        ends = [self.arrived[k] for k, flow in enumerate(self.common.flows) if not flow.to]
        return replace(
            ps[0],
            ops=self.ops,
            storages=storages,
            backward_starts=self.starts,
            keep_saved=any(p.keep_saved for p in ps),
            reruns="forward",  # an op of one graph cannot run late, in the backward of another
            static_bytes=sum(p.static_bytes for p in ps),
            network_bytes_per_s=max(p.network_bytes_per_s for p in ps),
            forward_outputs=self._outputs([p.forward_outputs for p in ps], number, gone),
            backward_outputs=self._outputs([p.backward_outputs for p in ps], number, gone)
            + [self.value[ref] for ref in ends],
        )

    def keep_over(self, storages: list[Storage]) -> None:
        """Removes inputs that something holds here from the lists of memory to take over."""
        lies_in = [value.storage for op in self.ops for value in op.outputs]
        for op in self.ops:
            op.over = tuple(k for k in op.over if not storages[lies_in[op.inputs[k]]].flags)

    def _outputs(
        self, values: list[list[int]], number: dict[_Ref, int], gone: set[int]
    ) -> list[int]:
        """Returns the outputs of graphs whose memory still exists."""
        return [
            self.value[g, v]
            for g, mine in enumerate(values)
            for v in mine
            if (g, v) in self.value and number[g, self.storage_of[g][v]] not in gone
        ]

    def _storage(self, key: _Ref, loose: set[_Ref]) -> Storage:
        storage = self.problems[key[0]].storages[key[1]]
        return replace(storage, flags=storage.flags - HELD) if key in loose else storage

    def write(self) -> tuple[Problem, list[tuple[int, int]]]:
        """Returns the problem, and what each of its ops stands for."""
        self.forward()
        self.starts = len(self.ops)
        self.backward()
        return self.problem(), self.order


def join(
    problems: list[Problem], common: Common | None = None
) -> tuple[Problem, list[tuple[int, int]]]:
    """Joins the problems of several graphs that run one after another. Returns the problem and, for
    each of its ops, (graph, op) or (:data:`OWN`, number). A single graph is its own joint
    problem."""
    if len(problems) == 1 and common in (None, NOTHING):
        return problems[0], [(0, i) for i in range(len(problems[0].ops))]
    return _Joined(problems, common or NOTHING).write()


def lenient(problem: Problem) -> Problem:
    """Returns the problem with backward ops that may run late and again. It is used to evaluate
    schedules that were planned for single graphs, where ops may do that."""
    return replace(problem, reruns="all")


def part_of(schedule: Schedule, order: list[tuple[int, int]], graph: int) -> Schedule:
    """Returns one graph's part of a joint schedule. A move between the graph's forward and its
    backward, while other graphs run, goes to the side that holds less memory."""
    steps, start = schedule
    mine = [
        (t, step)
        for t, step in enumerate(steps)
        if order[step if isinstance(step, int) else step.op][0] == graph
    ]
    runs = [t for t, step in mine if isinstance(step, int)]
    begins = min((t for t in runs if t >= start), default=len(steps))
    ends = max((t for t in runs if t < start), default=-1)
    early: list[int | Move] = []
    late: list[int | Move] = []
    for t, step in mine:
        if isinstance(step, int):
            (early if t < start else late).append(order[step][1])
        else:
            first = t <= ends if step.action == "in" else t < begins
            (early if first else late).append(step._replace(op=order[step.op][1]))
    return Schedule(early + late, len(early))
