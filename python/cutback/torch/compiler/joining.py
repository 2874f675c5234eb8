"""The problem of several graphs that run one after another, and a graph's part of its plan.

The forwards run in order and the backwards in reverse. Where it is known what the graphs have in
common (:class:`Common`, which :mod:`compiler.crossing` sees in a step), the problem says what
autograd does between them, with ops of its own:

- What one graph hands to the next lies in the memory that the first made, whose op runs once: the
  graphs have code of their own, and one cannot run an op of another. PyTorch's frames hold it to
  the end of the forward (``handed_on``); then it lives as long as a graph reads it.
- The gradient of it is what a later graph's backward made, and lives until the earlier one's has
  read it.
- Gradients of one leaf, or of what several graphs were handed, are added in new memory when the
  second arrives: behind the backward of its graph, before leaves copy their gradients.

Otherwise what one graph hands to the next is counted where it is made, outputs to the end, and the
gradient that comes back on both sides, so that the plan errs on the safe side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..graph.leaves import KIND
from ..graph.moving import Move, Schedule

OWN = -1
"""In the place of a graph: an op that no graph runs."""

_Ref = tuple[int, int]  # a graph and a value of it; or OWN and the number of an op with one result


class Flow(NamedTuple):
    """Gradients of one tensor, on their way to a leaf or into the backward of an earlier graph."""

    parts: list[list[int]]
    """As they arrive: after which graph's backward (the number of graphs: before all), rank among
    those that do, graph, value there. Graph :data:`OWN`: of a part of the step without a graph."""
    bytes: int
    to: list[int]
    """Graph and op of the tangent; none: to a leaf."""
    copy: int
    """Bytes of the copy that the receiver takes; 0: it takes what arrives."""


class Common(NamedTuple):
    """What graphs have in common, by their numbers in the order of the forwards. Lists of ints."""

    handed: list[list[int]]
    """Graph, op of its placeholder, earlier graph, value there."""
    read: list[list[int]]
    """Graph, value: of the results in ``loose`` memory, one for each."""
    loose: list[list[int]]
    """Graph, storage: results that nobody holds but the graphs, gradients that go on."""
    idle: list[list[int]]
    """Graph, op: copies of gradients that are none, as there is a sum."""
    flows: list[Flow]
    exact: bool = False
    """Is all known of what goes from graph to graph? Otherwise the problem may count too much."""

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**self._asdict(), "flows": [flow._asdict() for flow in self.flows]}

    @classmethod
    def of(cls, document: dict[str, Any]) -> Common:
        """What :meth:`document` wrote.

        Raises:
            TypeError, KeyError: it is none.
        """
        flows = [Flow(**flow) for flow in document["flows"]]
        return cls(**{**document, "flows": flows})


NOTHING = Common([], [], [], [], [])


class _Joined:
    """The ops of all graphs, written one after another."""

    def __init__(self, documents: list[dict[str, Any]], common: Common) -> None:
        self.documents = documents
        self.common = common
        self.order: list[tuple[int, int]] = []
        self.ops: list[dict[str, Any]] = []
        self.value: dict[_Ref, int] = {}
        self.n_values = 0
        self.n_own = 0
        self.storage_of = [[o["storage"] for op in d["ops"] for o in op["out"]] for d in documents]
        self.first_value: list[list[int]] = []
        for d in documents:
            at, rows = 0, []
            for op in d["ops"]:
                rows.append(at)
                at += len(op["out"])
            self.first_value.append(rows)
        self.same: dict[_Ref, _Ref] = {}  # storage -> the one that it is
        self.own_bytes: dict[_Ref, tuple[int, list[str]]] = {}
        self.handed = {(g, i): (h, v) for g, i, h, v in common.handed}
        self.idle = {(g, i) for g, i in common.idle}
        self.tangents: dict[_Ref, tuple[Flow, _Ref]] = {}  # tangent's op -> what arrives there
        self.arrived: dict[int, _Ref] = {}  # flow -> sum of what has arrived

    def memory(self, ref: _Ref) -> _Ref:
        """Where a value lies."""
        g, v = ref
        key = ref if g == OWN else (g, self.storage_of[g][v])
        while key in self.same:
            key = self.same[key]
        return key

    # ---- ops ------------------------------------------------------------------------------------

    def _push(self, place: tuple[int, int], op: dict[str, Any], outs: list[_Ref]) -> None:
        for ref in outs:
            self.value[ref] = self.n_values
            self.n_values += 1
        self.ops.append(op)
        self.order.append(place)

    def own(self, kind: str, reads: list[_Ref], bytes: int | None, hold: bool = False) -> _Ref:
        """An op of no graph; ``bytes``: of what it makes. Returns that."""
        ref = (OWN, self.n_own)
        self.n_own += 1
        flags = ["effect"] if kind == "handed_on" else ["backward", "effect"]
        op: dict[str, Any] = {
            "name": f"{kind}_{ref[1]}", "kind": kind, "flags": flags, "time_ps": 0,
            "in": [self.value[r] for r in reads], "out": [],
        }  # fmt: skip
        if bytes is not None:
            op["out"] = [{"storage": ref, "bytes": bytes}]
            self.own_bytes[ref] = bytes, ["hold_end"] if hold else []
        self._push(ref, op, [] if bytes is None else [ref])
        return ref

    def add(self, g: int, i: int) -> None:
        """An op of a graph."""
        op = self.documents[g]["ops"][i]
        first = self.first_value[g][i]
        refs = [(g, first + k) for k in range(len(op["out"]))]
        reads, place = [(g, v) for v in op["in"]], (g, i)
        made: dict[str, Any] = {"name": f"{op['name']}@{g}"}
        if (g, i) in self.idle:
            refs = []
        elif (g, i) in self.handed:
            place = (OWN, self.n_own)
            self.n_own += 1
            reads = [self.handed[g, i]]
            made.update(kind="handed", flags=["effect", "view"], time_ps=0)
            self.same[g, self.storage_of[g][first]] = self.memory(reads[0])
        elif (g, i) in self.tangents:
            flow, source = self.tangents[g, i]
            reads = [source]
            if not flow.copy:
                made["flags"] = ["backward", "effect", "view"]
                self.same[g, self.storage_of[g][first]] = self.memory(source)
        outs = [{**op["out"][v - first], "storage": (g, self.storage_of[g][v])} for g, v in refs]
        ins = [self.value[ref] for ref in reads]
        self._push(place, {**op, **made, "in": ins, "out": outs}, refs)

    def forward(self) -> None:
        """What the graphs are handed, and their ops."""
        for g, d in enumerate(self.documents):
            mine = range(d["backward_starts"])
            for i in mine:
                if (g, i) in self.handed:
                    self.add(g, i)
            for i in mine:
                if (g, i) not in self.handed:
                    self.add(g, i)
        if self.common.read:
            self.own("handed_on", [(g, v) for g, v in self.common.read], None)

    def arrive(self, after: int) -> None:
        """Gradients that arrive when the backward of a graph has ended."""
        rows = sorted(
            (rank, k, (g, v))
            for k, flow in enumerate(self.common.flows)
            for when, rank, g, v in flow.parts
            if when == after
        )
        for _, k, arrives in rows:
            flow = self.common.flows[k]
            part = arrives if arrives[0] != OWN else self.own("gradient", [], flow.bytes)
            if k in self.arrived:
                part = self.own("add_gradients", [self.arrived[k], part], flow.bytes)
            self.arrived[k] = part
        for k in dict.fromkeys(row[1] for row in rows):
            flow = self.common.flows[k]
            if after != min(part[0] for part in flow.parts):
                continue  # more of it is to come
            if flow.to:
                self.tangents[flow.to[0], flow.to[1]] = flow, self.arrived[k]
            elif flow.copy:
                self.arrived[k] = self.own(KIND, [self.arrived[k]], flow.copy, hold=True)
            else:
                self.own_bytes[self.arrived[k]] = flow.bytes, ["hold_end"]

    def backward(self) -> None:
        """The ops of the graphs, with the sums between them."""
        n = len(self.documents)
        self.arrive(n)
        for g in reversed(range(n)):
            d = self.documents[g]
            ends = len(d["ops"])
            copies = [i for i in range(ends) if d["ops"][i]["kind"] == KIND]
            split = min(copies, default=ends)
            for i in range(d["backward_starts"], split):
                self.add(g, i)
            self.arrive(g)
            for i in range(split, ends):
                self.add(g, i)

    # ---- the whole ------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """The problem."""
        ds = self.documents
        loose = {(g, s) for g, s in self.common.loose}
        unused = {
            (g, out["storage"]) for g, i in self.idle for out in ds[g]["ops"][i]["out"]
        }  # fmt: skip
        number: dict[_Ref, int] = {}
        storages: list[dict[str, Any]] = []
        keys = [(g, s) for g, d in enumerate(ds) for s in range(len(d["storages"]))]
        for key in [*keys, *self.own_bytes]:
            if key in self.same or key in unused:
                continue
            number[key] = len(storages)
            if key[0] == OWN:
                size, flags = self.own_bytes[key]
            else:
                size, flags = self._storage(key, loose)
            storages.append({"bytes": size, "flags": flags} if flags else {"bytes": size})
        for key in self.same:
            at = key
            while at in self.same:
                at = self.same[at]
            number[key] = number[at]
            if at[0] != OWN and "hold_end" in self._storage(key, loose)[1]:
                flags = storages[number[at]].setdefault("flags", [])
                storages[number[at]]["flags"] = sorted({*flags, "hold_end"})
        for op in self.ops:
            op["out"] = [{**out, "storage": number[out["storage"]]} for out in op["out"]]
        joined = {
            **ds[0],
            "backward_starts": self.starts,
            "static_bytes": sum(d["static_bytes"] for d in ds),
            "storages": storages,
            "ops": self.ops,
        }
        gone = {number[key] for key in loose if key in number}
        for name in ("forward_outputs", "backward_outputs"):
            joined[name] = [
                self.value[g, v]
                for g, d in enumerate(ds)
                for v in d[name]
                if (g, v) in self.value and number[g, self.storage_of[g][v]] not in gone
            ]
        ends = [self.arrived[k] for k, flow in enumerate(self.common.flows) if not flow.to]
        joined["backward_outputs"] += [self.value[ref] for ref in ends]
        return joined

    def _storage(self, key: _Ref, loose: set[_Ref]) -> tuple[int, list[str]]:
        row = self.documents[key[0]]["storages"][key[1]]
        flags = [f for f in row.get("flags", []) if f != "hold_end" or key not in loose]
        return row["bytes"], flags

    def write(self) -> tuple[dict[str, Any], list[tuple[int, int]]]:
        """The problem, and what its ops are."""
        self.forward()
        self.starts = len(self.ops)
        self.backward()
        return self.document(), self.order


def join(
    documents: list[dict[str, Any]], common: Common | None = None
) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """The problem of several graphs that run one after another; by its op ids, (graph, op), or
    (:data:`OWN`, number)."""
    return _Joined(documents, common or NOTHING).write()


def part_of(schedule: Schedule, order: list[tuple[int, int]], graph: int) -> Schedule:
    """What a joint schedule says of one graph. A move that stands between the graph's forward and
    its backward, while others run, is drawn to the side that holds less memory."""
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
