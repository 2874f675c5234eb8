"""Rewrites a planned graph so that groups of its nodes are calls of our kernels."""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch.fx._lazy_graph_module import _make_graph_module
from torch.multiprocessing.reductions import StorageWeakRef

from ..graph.codegen import NAME, RUN_OF
from . import choosing
from .calls import Group, call_of, compile_group, varying
from .decisions import Decisions
from .grouping import Kinds
from .masks import draw, split_dropouts
from .symbols import symbols_in

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import sympy


class ForeignOp(NamedTuple):
    """An operation that PyTorch's kernels run."""

    op: str
    calls: int
    reason: str
    share: float = 0.0
    """Share of the graph's time according to the plan, or 0 without a plan."""

    def __str__(self) -> str:
        part = f", {self.share:.0%} of the time" if self.share >= 0.005 else ""
        return f"{self.calls} {self.op} ({self.reason}{part})"


class NativeNote(NamedTuple):
    """The outcome for one graph under ``codegen="native"``."""

    graph: str
    """``"forward"``, ``"backward"`` or ``"inference"``."""
    groups: list[tuple[str, ...]]
    """The operations of each call of our kernels."""
    foreign: list[ForeignOp]
    """The operations that PyTorch's kernels run, most expensive first."""

    def __str__(self) -> str:
        inside = sum(map(len, self.groups))
        outside = sum(f.calls for f in self.foreign)
        text = f"native {self.graph}: {inside} operations in {len(self.groups)} calls"
        text += f"; {outside} run in PyTorch's kernels"
        rest = ", ".join(map(str, self.foreign[:4]))
        more = len(self.foreign) - 4
        text += f": {rest}" if rest else ""
        return text + (f", and {more} more" if more > 0 else "")

    def __repr__(self) -> str:
        return str(self)


# ---- graphs -------------------------------------------------------------------------------------


def _op_name(node: fx.Node) -> str:
    name = str(node.target).removesuffix(".default")
    return node.meta.get(NAME, name) if node.target is draw else name


class _Writer:
    """Writes the graph in which groups are calls."""

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self.graph = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}
        self.ours: set[fx.Node] = set()  # values of the old graph that one of our calls returns
        self.groups: list[tuple[str, ...]] = []
        self.symbols: dict[sympy.Symbol, fx.Node] = {}
        for node in kinds.graph.find_nodes(op="placeholder"):
            self.last_argument = self.copy(node)

    def have(self, node: fx.Node) -> fx.Node:
        """Returns the node of the new graph for a value. Views are written before their first
        reader."""
        known = self.env.get(node)
        return self.copy(node) if known is None else known

    def copy(self, node: fx.Node) -> fx.Node:
        """Copies a node to the new graph."""
        for given in node.all_input_nodes:
            self.have(given)
        copied = self.env[node] = self.graph.node_copy(node, self.env.__getitem__)
        return copied

    def leave(self, nodes: Sequence[fx.Node], why: str) -> None:
        """Writes the nodes of a group for PyTorch's kernels."""
        for node in nodes:
            self.kinds.why[node] = why
            self.copy(node)

    def symbol(self, symbol: sympy.Symbol) -> fx.Node:
        """Returns the node for a symbol's value, at the start of the graph."""
        known = self.symbols.get(symbol)
        if known is None:
            node, axis = self.kinds.symbols.places[symbol]
            known = self.have(node)
            if axis is not None:
                with self.graph.inserting_after(self.last_argument):
                    known = self.graph.call_function(torch.ops.aten.sym_size.int, (known, axis))
                    known.meta["val"] = node.meta["val"].shape[axis]
            self.symbols[symbol] = known
        return known

    def _function(
        self, nodes: Sequence[fx.Node], group: Group, room: int
    ) -> tuple[Callable[..., Any], list[fx.Node]]:
        """Returns the function of a group, and its arguments before the group's own."""
        checked = [self.kinds.source(n) not in self.ours for n, _ in group.inputs]
        reached = {n for node in nodes for n in (node, *_reads(node, self.kinds))}
        found: set[sympy.Symbol] = set().union(*map(symbols_in, reached))
        if not found:
            return call_of(group, checked), []
        symbols = sorted(found, key=str)
        function = varying(nodes, self.kinds, group, room, checked, symbols)
        return function, [self.symbol(s) for s in symbols]

    def call(self, nodes: Sequence[fx.Node], group: Group, room: int) -> None:
        """Writes the call of a group."""
        tensors = list(map(self.have, group.arguments))
        function, values = self._function(nodes, group, room)
        call = self.graph.call_function(function, (*values, *tensors))
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


def _reads(node: fx.Node, kinds: Kinds) -> Iterator[fx.Node]:
    """Yields the values that a node reads, and the sources of those that are views."""
    for given in node.all_input_nodes:
        yield given
        while given in kinds.views:
            shown = given.args[0]
            assert isinstance(shown, fx.Node)
            given = shown
            yield given


def _foreign_of(kinds: Kinds, times: Mapping[str, float]) -> list[ForeignOp]:
    """Returns the operations that PyTorch's kernels run, most expensive first, then most
    frequent."""
    calls: Counter[tuple[str, str]] = Counter()
    spent: dict[tuple[str, str], float] = defaultdict(float)
    rest = {n.meta.get(RUN_OF, n.name): n for n in reversed(kinds.order) if n not in kinds.views}
    total = sum(times.get(name, 0.0) for name in rest) or 1.0
    for node, why in kinds.why.items():
        origin = node.meta.get(RUN_OF, node.name)
        calls[_op_name(node), why] += 1
        # the first part of an operation that was split has all of its time
        spent[_op_name(node), why] += times.get(origin, 0.0) if rest.get(origin) is node else 0.0
    made = [ForeignOp(key[0], n, key[1], spent[key] / total) for key, n in calls.items()]
    return sorted(made, key=lambda f: (-f.share, -f.calls))


class Planned(NamedTuple):
    """Facts about a graph from the plan and the caller."""

    times: Mapping[str, float] = MappingProxyType({})
    """The time of each operation according to the plan, by name."""
    most: int | None = None
    """The plan's peak in bytes, which groups must not exceed; None means the graph's own peak."""
    kept: Collection[StorageWeakRef] = ()
    """Memory that the caller holds during the whole graph, such as that of parameters."""


_UNPLANNED = Planned()


def lower(
    gm: fx.GraphModule, name: str, everything: bool = False, decisions: Decisions | None = None,
    planned: Planned = _UNPLANNED,
) -> tuple[fx.GraphModule, NativeNote]:  # fmt: skip
    """Returns the graph with groups of its nodes as calls of our kernels, and a note on it.

    Args:
        name: ``"forward"``, ``"backward"`` or ``"inference"``.
        everything: True also runs operations in our kernels that were measured to be faster in
            PyTorch's, and single operations.
        decisions: the decisions of the model.
        planned: limits the memory of groups, and orders the note.
    """
    decisions = Decisions() if decisions is None else decisions
    if name == "inference":  # it has no joint graph, for which decisions are made
        choosing.decide(gm.graph, decisions)
    split_dropouts(gm.graph)
    kinds = Kinds(gm.graph, everything, None if everything else decisions, planned.kept)
    if not everything:
        choosing.leave_wasteful(kinds)
        choosing.decide_alone(kinds, decisions)
    compiled: dict[tuple[fx.Node, ...], tuple[Group, int]] = {}

    def can_run(nodes: Sequence[fx.Node], room: int) -> bool:
        group, fits = compile_group(nodes, kinds, room)
        compiled[tuple(nodes)] = group, room
        return fits

    items = choosing.arranged(kinds, can_run, planned.most)
    writer = _Writer(kinds)
    for item in items:
        if not isinstance(item, fx.Node):
            if everything or choosing.is_worth_it(item, kinds, compiled[tuple(item)][0]):
                writer.call(item, *compiled[tuple(item)])
            else:
                writer.leave(item, "its group is slower than PyTorch's kernels")
        elif item.op != "placeholder":
            writer.copy(item)
    made = _make_graph_module(gm, writer.graph)
    made.meta.update(gm.meta)
    return made, NativeNote(name, writer.groups, _foreign_of(kinds, planned.times))
