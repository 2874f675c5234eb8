"""A planned graph in which groups are calls of our kernels."""

from __future__ import annotations

import operator
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch.fx._lazy_graph_module import _make_graph_module

from ... import BudgetError
from ..graph.codegen import NAME, RUN_OF
from ..graph.graphs import UnsupportedGraphError, location
from .building import Builder, tensors_of
from .grouping import Grouping, Kinds, results_of
from .layouts import Meta
from .table import ROWS

if TYPE_CHECKING:
    from ... import _native

_KEPT = 512
"""Executables that are kept for other groups of the same structure."""


class ForeignOp(NamedTuple):
    """An operation that PyTorch's kernels run."""

    op: str
    calls: int
    reason: str


class NativeNote(NamedTuple):
    """What became of one graph under ``codegen="native"``."""

    graph: str
    """``"forward"``, ``"backward"`` or ``"inference"``."""
    groups: list[tuple[str, ...]]
    """The operations of each call of our kernels."""
    foreign: list[ForeignOp]
    """What PyTorch's kernels run, the most frequent first."""

    def __str__(self) -> str:
        inside = sum(map(len, self.groups))
        outside = sum(f.calls for f in self.foreign)
        text = f"native {self.graph}: {inside} operations in {len(self.groups)} calls"
        text += f"; {outside} run in PyTorch's kernels"
        rest = ", ".join(f"{f.calls} {f.op} ({f.reason})" for f in self.foreign[:4])
        more = len(self.foreign) - 4
        text += f": {rest}" if rest else ""
        return text + (f", and {more} more" if more > 0 else "")

    def __repr__(self) -> str:
        return str(self)


# ---- executables --------------------------------------------------------------------------------


class _Executables:
    """Compiled graphs by their text, the latest used last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: OrderedDict[str, _native.Step] = OrderedDict()

    def of(self, builder: Builder, room: int | None) -> _native.Step:
        """The graph of a group, compiled.

        Args:
            room: the bytes that it may need besides arguments and results. None: any.

        Raises:
            BudgetError: it needs more.
        """
        text = builder.graph.native.text()
        if room is not None:
            text += f"in {room} bytes"
        with self._lock:
            step = self._steps.get(text)
            if step is not None:
                self._steps.move_to_end(text)
                return step
        step = builder.graph.compile(room)
        with self._lock:
            self._steps[text] = step
            if len(self._steps) > _KEPT:
                self._steps.popitem(last=False)
        return step


_executables = _Executables()


class _Group(NamedTuple):
    """A group, compiled."""

    step: _native.Step
    inputs: list[tuple[fx.Node, Meta]]
    results: list[tuple[fx.Node, Meta]]


def _compile(nodes: Sequence[fx.Node], kinds: Kinds, room: int) -> tuple[_Group, bool]:
    """A group, and whether it runs in so many bytes besides arguments and results. Where it needs
    more, it is planned again under that budget: some of its values are then computed twice."""
    b = Builder(int, kinds.shown)
    for node in nodes:
        b.values[node] = ROWS[node.target].build(b, node)
    results = results_of(nodes, kinds).nodes
    for node in results:
        b.graph.output(b.value(node).array)
    step = _executables.of(b, None)
    if step.run_bytes > max(room, 0):
        try:
            step = _executables.of(b, max(room, 0))
        except BudgetError:
            room = -1
    metas = [(n, b.meta(n)) for n in b.inputs], [(n, b.meta(n)) for n in results]
    return _Group(step, *metas), step.run_bytes <= room


# ---- calls --------------------------------------------------------------------------------------


def laid(t: torch.Tensor, meta: Meta) -> torch.Tensor:
    """A tensor whose kernel laid it out in another way than PyTorch's shape function says, as that
    says."""
    at = tuple(slice(0, 1) if s == 0 else slice(None) for s in meta.stride)
    own = t.detach()[at]
    return torch.empty_strided(own.shape, meta.stride, dtype=meta.dtype).copy_(own)


def _check(name: str, number: int, meta: Meta) -> str:
    """The line that sees to it that an argument lies in memory as the group was compiled for."""
    m = f"M{number}"
    as_planned = f"{name}.is_contiguous()"
    if not meta.is_contiguous:
        as_planned = f"{name}.stride() == {m}.stride"
    return f"if {name}.dtype is not {m}.dtype or not {as_planned}: {name} = laid({name}, {m})"


def _allocation(name: str, meta: Meta, scope: dict[str, Any]) -> str:
    dtype = str(meta.dtype).rpartition(".")[2]
    scope[dtype] = meta.dtype
    if meta.is_contiguous:
        return f"{name} = empty({meta.shape!r}, dtype={dtype}, device=cpu)"
    return f"{name} = strided({meta.shape!r}, {meta.stride!r}, dtype={dtype}, device=cpu)"


def call_of(group: _Group, checked: Sequence[bool]) -> Callable[..., Any]:
    """A function of a group's arguments that returns its results: a tensor, or a tuple of them.

    Args:
        checked: of each argument, whether its layout is looked at in each call.
    """
    scope: dict[str, Any] = {
        "empty": torch.empty, "strided": torch.empty_strided, "run": group.step.call,
        "cpu": torch.device("cpu"), "laid": laid, "bytes": torch.uint8, "__name__": __name__,
    }  # fmt: skip
    lines = []
    given = [f"a{i}" for i in range(len(group.inputs))]
    for i, (_, meta) in enumerate(group.inputs):
        if checked[i]:
            scope[f"M{i}"] = meta
            lines.append(_check(given[i], i, meta))
    made = [f"r{i}" for i in range(len(group.results))]
    lines += [_allocation(made[i], m, scope) for i, (_, m) in enumerate(group.results)]
    block = "0"
    if group.step.run_bytes:
        lines.append(f"b = empty({group.step.run_bytes}, dtype=bytes, device=cpu)")
        block = "b.data_ptr()"
    addresses = ", ".join([*(f"{name}.data_ptr()" for name in (*given, *made)), block])
    lines += [f"run({addresses})", f"return {', '.join(made)}"]
    source = f"def native({', '.join(given)}):\n    " + "\n    ".join(lines) + "\n"
    exec(compile(source, "<cutback native>", "exec"), scope)
    function: Callable[..., Any] = scope["native"]
    function._source = source  # type: ignore[attr-defined]
    return function


# ---- graphs -------------------------------------------------------------------------------------


def _op_name(node: fx.Node) -> str:
    return str(node.target).removesuffix(".default")


class _Writer:
    """Writes the graph in which groups are calls."""

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self.graph = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}
        self.ours: set[fx.Node] = set()  # values of the old graph that a call of ours returns
        self.groups: list[tuple[str, ...]] = []

    def have(self, node: fx.Node) -> fx.Node:
        """The node of the new graph for a value; views are written where they are first read."""
        known = self.env.get(node)
        return self.copy(node) if known is None else known

    def copy(self, node: fx.Node) -> fx.Node:
        """The same node in the new graph."""
        for given in node.all_input_nodes:
            self.have(given)
        copied = self.env[node] = self.graph.node_copy(node, self.env.__getitem__)
        return copied

    def call(self, nodes: Sequence[fx.Node], group: _Group) -> None:
        """A group."""
        given = tuple(self.have(n) for n, _ in group.inputs)
        checked = [self.kinds.source(n) not in self.ours for n, _ in group.inputs]
        call = self.graph.call_function(call_of(group, checked), given)
        vals = [n.meta["val"] for n, _ in group.results]
        call.meta[RUN_OF] = nodes[-1].meta.get(RUN_OF, nodes[-1].name)
        call.meta[NAME] = "native: " + ", ".join(dict.fromkeys(map(_op_name, nodes)))
        call.meta["val"] = vals[0] if len(vals) == 1 else tuple(vals)
        for i, (node, _) in enumerate(group.results):
            made = call
            if len(vals) > 1:
                made = self.graph.call_function(operator.getitem, (call, i))
                made.meta.update(node.meta)
            self.env[node] = made
        self.ours.update(nodes)
        self.groups.append(tuple(map(_op_name, nodes)))


def _check_devices(graph: fx.Graph) -> None:
    for node in graph.nodes:
        for val in tensors_of(node):
            if val.device.type not in ("cpu", "meta"):
                raise UnsupportedGraphError(
                    f"{node.name} ({location(node) or node.target}) is on {val.device}: "
                    'codegen="native" runs tensors on the CPU only. Use codegen="eager" or '
                    '"inductor", or move model and inputs to the CPU'
                )


def lower(
    gm: fx.GraphModule, name: str, everything: bool = False
) -> tuple[fx.GraphModule, NativeNote]:
    """The graph with groups of its nodes as calls of our kernels, and what became of it.

    Args:
        name: ``"forward"``, ``"backward"`` or ``"inference"``.
        everything: also operations that PyTorch's kernels were measured to run faster, and those
            that stand alone.

    Raises:
        UnsupportedGraphError: a tensor is not on the CPU.
    """
    _check_devices(gm.graph)
    kinds = Kinds(gm.graph, everything)
    compiled: dict[tuple[fx.Node, ...], _Group] = {}

    def can_run(nodes: Sequence[fx.Node], room: int) -> bool:
        compiled[tuple(nodes)], fits = _compile(nodes, kinds, room)
        return fits

    items = Grouping(kinds, can_run).arrange()
    writer = _Writer(kinds)
    for item in items:
        if isinstance(item, fx.Node):
            writer.copy(item)
        else:
            writer.call(item, compiled[tuple(item)])
    made = _make_graph_module(gm, writer.graph)
    made.meta.update(gm.meta)
    counts = Counter((_op_name(n), kinds.why[n]) for n in kinds.order if n in kinds.why)
    foreign = [ForeignOp(op, calls, why) for (op, why), calls in counts.most_common()]
    return made, NativeNote(name, writer.groups, foreign)
