"""Decides which nodes of a planned graph run together, so that no peak rises above the plan's.

A group is a run of nodes that our kernels compute, without PyTorch nodes in between. While a group
runs, everything that it reads and returns is live, whereas nodes that run one by one would free
some of it. A group that would exceed the graph's peak is cut. Later nodes that read a group's
values join it, if their results may exist that much earlier.
"""

from __future__ import annotations

import copy
import math
import operator
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.multiprocessing.reductions import StorageWeakRef

from ..graph.sizes import hint
from .building import tensors_of
from .decisions import Decisions
from .layouts import Sizes, Window, elements_of, held_by, meta_of, window_of
from .masks import draw
from .symbols import Symbols
from .table import FASTER, ROWS, is_exact, why_foreign, why_no_array, why_not_ours

_AHEAD = 200  # number of nodes after a group that are considered
_MOST = 64  # nodes per group
_LEAST = 4095  # bytes of scratch that plans do not count (compiler/counted_scratch.py)

Item: TypeAlias = fx.Node | list[fx.Node]
"""A node that PyTorch runs, or the nodes of a group."""


_UNSAFE_VIEWS = frozenset((
    torch.ops.aten._unsafe_view.default, torch.ops.aten.unsafe_split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default,
))  # fmt: skip
"""Ops that return views although their schemas do not say so."""

_VIEWS: dict[Any, bool] = {}
"""Whether an op returns views according to its schema, for the ops seen so far."""


def is_view(node: fx.Node) -> bool:
    """True if a call returns memory of its first argument, without writing to it."""
    if node.target in _UNSAFE_VIEWS:
        return True
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return False
    known = _VIEWS.get(node.target)
    if known is None:
        returned = [r.alias_info for r in schema.returns]
        known = bool(returned) and all(a is not None and not a.is_write for a in returned)
        _VIEWS[node.target] = known
    return known


def _is_barrier(node: fx.Node) -> bool:
    """True if the call may do more than return a function of its arguments."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is not draw
    namespace = node.target.namespace
    return node.target._schema.is_mutable or namespace not in ("aten", "prims", "cutback")


class Kinds:
    """The kind of each node of a graph.

    Args:
        everything: see :func:`native.lowering.lower`.
        decisions: the decisions for operations that have other bits in PyTorch's kernels. The table
            decides the others.
        kept: memory of the model's arguments, which the caller holds.
    """

    def __init__(
        self,
        graph: fx.Graph,
        everything: bool = False,
        decisions: Decisions | None = None,
        kept: Collection[StorageWeakRef] = (),
    ) -> None:
        self.kept = kept
        self.graph = graph
        self.decisions = decisions
        self.order = list(graph.nodes)
        self.everything = everything
        self.why: dict[fx.Node, str] = {}  # why calls are left to PyTorch
        self.own: set[fx.Node] = set()
        self.views: set[fx.Node] = set()
        self.symbols = Symbols(graph)
        for node in self.order:
            if node.op != "call_function":
                continue
            if node.target is operator.getitem:
                if node.args[0] in self.own or _is_part_of_view(node):
                    self.views.add(node)
            elif is_view(node):
                self.views.add(node)
            elif tensors_of(node):
                why = self._why_foreign(node)
                if why is None:
                    self.own.add(node)
                else:
                    self.why[node] = why

    def _why_foreign(self, node: fx.Node) -> str | None:
        for given in (*node.all_input_nodes, node):
            if not self.symbols.know(given):
                return "a size is known only while the graph runs"
        made = None
        if self.decisions is not None and node.target in ROWS and not is_exact(node):
            made = self.decisions.get(node)
        why = why_foreign(node, self.is_block, self.everything or made is not None)
        return FASTER if why is None and made is False else why

    def copy(self) -> Kinds:
        """Returns a copy that can be changed."""
        copied = copy.copy(self)
        copied.why, copied.own, copied.views = dict(self.why), set(self.own), set(self.views)
        return copied

    def make_foreign(self, node: fx.Node, why: str) -> None:
        """Leaves a call to PyTorch's kernel."""
        self.own.remove(node)
        self.why[node] = why
        parts = [n for n in node.users if n.target is operator.getitem]
        self.views.difference_update(parts)

    def source(self, node: fx.Node) -> fx.Node:
        """Returns the node that makes the memory of a value."""
        while node in self.views or is_view(node) or _is_part_of_view(node):
            given = node.args[0]
            assert isinstance(given, fx.Node)
            node = given
        return node

    def shown(self, node: fx.Node) -> fx.Node | None:
        """Returns the node all of whose elements a view shows, or whose tuple the view belongs to,
        or None."""
        if node not in self.views:
            return None
        given = node.args[0]
        assert isinstance(given, fx.Node)
        if given in self.own and node.target is operator.getitem:
            return given
        new, old = node.meta["val"], given.meta.get("val")
        if not (isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor)):
            return None
        if new.dtype != old.dtype:
            return None
        if why_no_array(new) is not None or why_no_array(old) is not None:
            return None
        counts = [elements_of(meta_of(v, hint)) for v in (new, old)]
        same = counts[0] == counts[1] and _equal(new.storage_offset(), old.storage_offset())
        return given if same and _equal(new.numel(), old.numel()) else None

    def root(self, node: fx.Node) -> fx.Node:
        """Returns the tensor whose memory a view shows."""
        while is_view(node) or _is_part_of_view(node):
            given = node.args[0]
            assert isinstance(given, fx.Node)
            node = given
        return node

    def is_block(self, node: fx.Node) -> bool:
        """True if a tensor is a block of an array (:func:`layouts.window_of`)."""
        return self.block(node, hint) is not None

    def block(self, node: fx.Node, sizes: Sizes) -> tuple[fx.Node, Window] | None:
        """Returns the tensor in whose memory a tensor with gaps is a block, with the block's
        position, or None if it is not a block. An argument of the graph is a block of the
        memory that it holds."""
        root = self.root(node)
        new, old = node.meta.get("val"), root.meta.get("val")
        if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
            return None
        if new.dtype != old.dtype or why_not_ours(old) is not None or _is_lazy(new):
            return None
        elements = elements_of(meta_of(old, sizes))
        if elements is not None and root is node:
            return None
        begin = 0
        if elements is None:
            elements = held_by(old, sizes).elements
        else:
            begin = sizes(old.storage_offset())
        offset = sizes(new.storage_offset()) - begin
        window = window_of(meta_of(new, sizes), offset, elements) if offset >= 0 else None
        return None if window is None else (root, window)

    def is_cut_off(self, node: fx.Node, group: Collection[fx.Node]) -> bool:
        """True if the node reads only a part of a value that the group makes."""
        for given in node.all_input_nodes:
            shown: fx.Node | None = given
            while shown is not None and shown not in group:
                given, shown = shown, self.shown(shown)
            if shown is None and self.source(given) in group and not self.is_block(given):
                return True
        return False

    def sources(self, node: fx.Node) -> list[fx.Node]:
        """Returns the nodes that make the memory of everything that a node reads."""
        return list(dict.fromkeys(self.source(n) for n in node.all_input_nodes))


def _equal(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    """True if two sizes are equal in each call."""
    known: bool = statically_known_true(a == b)
    return known


def _is_lazy(val: torch.Tensor) -> bool:
    return bool(val.is_neg() or val.is_conj())


def _is_part_of_view(node: fx.Node) -> bool:
    """True for a part of a tuple of views, such as a split."""
    given = node.args[0] if node.target is operator.getitem else None
    return isinstance(given, fx.Node) and is_view(given)


def storage_of(val: torch.Tensor) -> StorageWeakRef:
    """Identifies the memory of a fake tensor."""
    return StorageWeakRef(val.untyped_storage())


def arguments_of(graph: fx.Graph) -> set[StorageWeakRef]:
    """Returns the memory of a joint graph's own arguments, which are not tangents."""
    nodes = graph.find_nodes(op="placeholder")
    vals = [n.meta.get("val") for n in nodes if n.name.startswith("primals")]
    return {storage_of(v) for v in vals if isinstance(v, torch.Tensor)}


class Results(NamedTuple):
    """Tensors of a group that are read outside it."""

    nodes: list[fx.Node]
    bytes: int


def _bytes(node: fx.Node) -> int:
    """Returns the bytes of the memory that a node makes."""
    return sum(hint(v.numel()) * v.element_size() for v in tensors_of(node))


def results_of(group: Sequence[fx.Node], kinds: Kinds) -> Results:
    """Returns the values of a group that are read outside it: nodes, or parts of their tuples."""
    inside = set(group)
    found: list[fx.Node] = []

    def is_read(node: fx.Node) -> bool:
        for user in node.users:
            if user in kinds.views:
                if is_read(user):
                    return True
            elif user not in inside:
                return True
        return False

    for node in group:
        if isinstance(node.meta["val"], (tuple, list)):
            found += [part for part in node.users if is_read(part)]
        elif is_read(node):
            found.append(node)
    return Results(found, sum(map(_bytes, found)))


class Grouping:
    """The order in which a graph runs in groups.

    Args:
        can_run: tells whether the kernels of a group need at most this many bytes besides its
            results.
        most: the plan's peak in bytes, if it is less than the peak of the graph op by op;
            ``math.inf`` means no limit.
    """

    def __init__(
        self, kinds: Kinds, can_run: Callable[[Sequence[fx.Node], int], bool],
        most: float | None = None,
    ) -> None:  # fmt: skip
        self.kinds = kinds
        self.can_run = can_run
        self.at = {node: i for i, node in enumerate(kinds.order)}
        self.sources = {node: kinds.sources(node) for node in kinds.order}
        self.before, self.live = self._timeline()
        own = max(self.live, default=0)
        self.most = own if most is None else most if most == math.inf else min(own, most)

    def _owners(self) -> dict[fx.Node, fx.Node]:
        """Returns, for each argument, the first argument of the graph in the same memory: a
        backward may receive several views of one tensor."""
        first: dict[StorageWeakRef, fx.Node] = {}
        owner = {}
        for node in self.kinds.graph.find_nodes(op="placeholder"):
            val = node.meta.get("val")
            if isinstance(val, torch.Tensor):
                owner[node] = first.setdefault(storage_of(val), node)
        return owner

    def _is_kept(self, node: fx.Node) -> bool:
        """True if the caller holds the memory of an argument. A backward may receive views of
        weights."""
        if node.op != "placeholder" or not isinstance(node.meta.get("val"), torch.Tensor):
            return False
        return node.name.startswith("primals") or storage_of(node.meta["val"]) in self.kinds.kept

    def _timeline(self) -> tuple[list[int], list[int]]:
        """Returns the live bytes before each node and while it runs. Arguments that the caller
        keeps do not count."""
        last: dict[fx.Node, int] = {}
        owner = self._owners()
        for i, node in enumerate(self.kinds.order):
            for source in (node, *self.sources[node]):
                last[owner.get(source, source)] = i
        dying: dict[int, int] = {}
        size: dict[fx.Node, int] = {}
        total = 0
        for node in self.kinds.order:
            makes = node in self.kinds.own or node is self.kinds.source(node)
            is_kept = (
                node.op == "get_attr" or self._is_kept(node) or owner.get(node) not in (node, None)
            )
            is_part = node.op == "call_function" and node.target is operator.getitem
            if makes and not is_kept and not (is_part and node in self.kinds.views):
                size[node] = _bytes_held(node, node in self.kinds.own)
                dying[last[node]] = dying.get(last[node], 0) + size[node]
                total += size[node] if node.op == "placeholder" else 0
        before, live = [], []
        for i, node in enumerate(self.kinds.order):
            before.append(total)
            total += 0 if node.op == "placeholder" else size.get(node, 0)
            live.append(total)
            total -= dying.get(i, 0)
        return before, live

    # ---- runs ---------------------------------------------------------------------------------

    def arrange(self) -> list[Item]:
        """Returns all nodes except views, in order."""
        self.items: list[Item] = []
        self.taken: set[fx.Node] = set()
        self.there: set[fx.Node] = set()
        run: list[fx.Node] = []
        for node in self.kinds.order:
            if node in self.taken or node in self.kinds.views:
                continue
            is_own = node in self.kinds.own
            if run and (not is_own or len(run) >= _MOST or self.kinds.is_cut_off(node, run)):
                self._close(run)
                run = []
                if node in self.taken:
                    continue
            if is_own:
                run.append(node)
                self.taken.add(node)
            else:
                self.items.append(node)
                self.there.add(node)
        return self.items

    def _close(self, run: list[fx.Node]) -> None:
        """Adds the groups of a run."""
        if self._fits(run):
            group = self._with_later(run)
            if self._runs(group):
                self._add(group)
                return
            self.taken.difference_update(group[len(run) :])
            if len(group) > len(run) and self._runs(run):
                self._add(run)
                return
        half = len(run) // 2
        self._close(run[:half])
        self._close(run[half:])

    def _add(self, group: list[fx.Node]) -> None:
        if len(group) == 1 and is_exact(group[0]) and not self.kinds.everything:
            self.items.append(group[0])  # a call would cost more than it gains
            self.kinds.why[group[0]] = "it has no neighbor, and PyTorch's kernel has the same bits"
        else:
            self.items.append(group)
        self.there.update(group)

    def _taken_by(self, group: Sequence[fx.Node]) -> int:
        """Returns the live bytes while a group runs."""
        return self.before[self.at[group[0]]] + results_of(group, self.kinds).bytes

    def _fits(self, group: Sequence[fx.Node]) -> bool:
        return len(group) == 1 or self._taken_by(group) <= self.most

    def _runs(self, group: Sequence[fx.Node]) -> bool:
        room = max(self.most - self._taken_by(group), _LEAST)
        return (
            self.can_run(group, sys.maxsize if room == math.inf else int(room)) or len(group) == 1
        )

    def _with_later(self, run: list[fx.Node]) -> list[fx.Node]:
        """Returns the group of a run, with later nodes that read its values."""
        group = dict.fromkeys(run)  # in order
        end = self.at[run[-1]]
        for j in range(end + 1, min(end + _AHEAD, len(self.kinds.order))):
            node = self.kinds.order[j]
            if _is_barrier(node) or len(group) >= _MOST:
                break
            if node not in self.kinds.own or node in self.taken or not self._joins(node, group):
                continue
            size = _bytes(node)
            if max(self.live[end:j]) + size > self.most or not self._fits([*group, node]):
                continue
            for i in range(end, j):
                self.live[i] += size
                self.before[i + 1] += size
            group[node] = None
            self.taken.add(node)
        return list(group)

    def _joins(self, node: fx.Node, group: Collection[fx.Node]) -> bool:
        """True if a later node reads a value of the group, and everything else that it reads exists
        by then."""
        inside = [s for s in self.sources[node] if s in group]
        known = bool(inside) and all(s in self.there or s in inside for s in self.sources[node])
        return known and not self.kinds.is_cut_off(node, group)


def _bytes_held(node: fx.Node, is_own: bool) -> int:
    """Returns the bytes that live as long as a node's value. An argument may be a view, which holds
    all memory of the tensor that it is a part of."""
    val = node.meta.get("val")
    if node.op == "placeholder" and isinstance(val, torch.Tensor):
        return int(hint(val.untyped_storage().nbytes()))
    return 0 if _is_tuple(node) and not is_own else _bytes(node)


def _is_tuple(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))
