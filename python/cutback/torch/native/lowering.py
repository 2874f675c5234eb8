"""A planned graph in which groups are calls of our kernels."""

from __future__ import annotations

import operator
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch.fx._lazy_graph_module import _make_graph_module

from ... import BudgetError
from ..graph.codegen import NAME, RUN_OF
from ..graph.sizes import hint
from .building import Builder
from .grouping import Grouping, Item, Kinds, results_of
from .layouts import Meta, Sizes
from .masks import draw, split_dropouts
from .symbols import sizes_with, symbols_in
from .table import ROWS

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import sympy

    from ... import _native

_KEPT = 512
"""Executables that are kept for other groups of the same structure."""


class CannotRunError(Exception):
    """Our kernels do not run a node that the table has a row for."""

    def __init__(self, node: fx.Node, why: Exception) -> None:
        super().__init__(f"{node}: {why}")
        self.node = node


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


def _compile(
    nodes: Sequence[fx.Node], kinds: Kinds, room: int | None, sizes: Sizes = hint
) -> tuple[_Group, bool]:
    """A group, and whether it runs in so many bytes besides arguments and results. Where it needs
    more, it is planned again under that budget: some of its values are then computed twice."""
    b = Builder(sizes, kinds)
    for node in nodes:
        b.values[node] = ROWS[node.target].build(b, node)
    results = results_of(nodes, kinds).nodes
    for node in results:
        b.graph.output(b.value(node).array)
    step = _executables.of(b, None)
    if room is None:
        room = step.run_bytes
    elif step.run_bytes > max(room, 0):
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


# ---- calls with sizes that vary -----------------------------------------------------------------

_SIZES_KEPT = 256
"""Sizes for which a call keeps its function."""


def _by_nodes(
    nodes: Sequence[fx.Node], kinds: Kinds, group: _Group, sizes: Sizes
) -> Callable[..., Any]:
    """A function like :func:`call_of`'s that runs PyTorch's kernels, node by node."""

    def run(*given: torch.Tensor) -> Any:
        values: dict[fx.Node, Any] = {n: t for (n, _), t in zip(group.inputs, given, strict=True)}

        def value(node: fx.Node) -> Any:
            if node not in values:
                val = node.meta["val"]
                is_size = isinstance(val, (int, torch.SymInt))
                values[node] = sizes(val) if is_size else compute(node)
            return values[node]

        def compute(node: fx.Node) -> Any:
            args, kwargs = fx.map_arg((node.args, node.kwargs), value)
            return node.target(*args, **kwargs)

        made = tuple(value(n) for n, _ in group.results)
        return made[0] if len(made) == 1 else made

    return run


def varying(
    nodes: Sequence[fx.Node], kinds: Kinds, group: _Group, room: int, checked: Sequence[bool],
    symbols: Sequence[sympy.Symbol],
) -> Callable[..., Any]:  # fmt: skip
    """A function of the values of symbols and of a group's arguments. The group is compiled for
    each set of values.

    Args:
        group: compiled for the hints.
        room: see :func:`_compile`; for sizes not larger than the hints.
    """
    known: OrderedDict[tuple[int, ...], Callable[..., Any]] = OrderedDict()
    held = _bytes_of(group)

    def make(values: tuple[int, ...]) -> Callable[..., Any]:
        sizes = sizes_with(dict(zip(symbols, values, strict=True)))
        try:
            made, fits = _compile(nodes, kinds, None, sizes)
            if not fits or [n for n, _ in made.inputs] != [n for n, _ in group.inputs]:
                return _by_nodes(nodes, kinds, group, sizes)
            if _bytes_of(made) <= held:
                made, _ = _compile(nodes, kinds, room, sizes)
            return call_of(made, checked)
        except MemoryError:
            raise
        except Exception:  # sizes for which the table has no row, as a mean of nothing
            return _by_nodes(nodes, kinds, group, sizes)

    def native(*args: Any) -> Any:
        values = args[: len(symbols)]
        run = known.get(values)
        if run is None:
            run = known[values] = make(values)
            while len(known) > _SIZES_KEPT:
                known.popitem(last=False)
        return run(*args[len(symbols) :])

    return native


def _bytes_of(group: _Group) -> int:
    return sum(m.numel * m.dtype.itemsize for _, m in (*group.inputs, *group.results))


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
        self.ours: set[fx.Node] = set()  # values of the old graph that a call of ours returns
        self.groups: list[tuple[str, ...]] = []
        self.symbols: dict[sympy.Symbol, fx.Node] = {}
        for node in kinds.graph.find_nodes(op="placeholder"):
            self.last_argument = self.copy(node)

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

    def symbol(self, symbol: sympy.Symbol) -> fx.Node:
        """The node for a symbol's value, at the start of the graph."""
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
        self, nodes: Sequence[fx.Node], group: _Group, room: int
    ) -> tuple[Callable[..., Any], list[fx.Node]]:
        """The function of a group, and what it takes before the group's arguments."""
        checked = [self.kinds.source(n) not in self.ours for n, _ in group.inputs]
        reached = {n for node in nodes for n in (node, *_reads(node, self.kinds))}
        found: set[sympy.Symbol] = set().union(*map(symbols_in, reached))
        if not found:
            return call_of(group, checked), []
        symbols = sorted(found, key=str)
        function = varying(nodes, self.kinds, group, room, checked, symbols)
        return function, [self.symbol(s) for s in symbols]

    def call(self, nodes: Sequence[fx.Node], group: _Group, room: int) -> None:
        """A group."""
        tensors = [self.have(n) for n, _ in group.inputs]
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
    """What a node reads, and what the views are of that it reads."""
    for given in node.all_input_nodes:
        yield given
        while given in kinds.views:
            shown = given.args[0]
            assert isinstance(shown, fx.Node)
            given = shown
            yield given


_SCRATCH = 1 << 14
_PART = 8


def _leave_wasteful(kinds: Kinds) -> None:
    """Leaves to PyTorch's kernels the nodes for which ours need much scratch: over 16 KiB and an
    eighth of what they read and return. This depends on the node alone, and so do bits."""
    for node in [n for n in kinds.order if n in kinds.own]:
        if ROWS[node.target].by_element:
            continue
        try:
            group, _ = _compile([node], kinds, None)
            room = max(_SCRATCH, _bytes_of(group) // _PART)
            if group.step.run_bytes > room and not _compile([node], kinds, room)[1]:
                kinds.make_foreign(node, f"it needs {group.step.run_bytes} bytes of scratch")
        except MemoryError:
            raise
        except Exception as error:
            kinds.make_foreign(node, f"our kernels refuse it: {error}")


def _arranged(kinds: Kinds, can_run: Callable[[Sequence[fx.Node], int], bool]) -> list[Item]:
    """The order in which a graph runs. Nodes that our kernels turn out not to run are left to
    PyTorch's."""
    while True:
        try:
            return Grouping(kinds, can_run).arrange()
        except CannotRunError as error:
            kinds.make_foreign(error.node, f"our kernels refuse it: {error.__cause__}")


def lower(
    gm: fx.GraphModule, name: str, everything: bool = False
) -> tuple[fx.GraphModule, NativeNote]:
    """The graph with groups of its nodes as calls of our kernels, and what became of it.

    Args:
        name: ``"forward"``, ``"backward"`` or ``"inference"``.
        everything: also operations that PyTorch's kernels were measured to run faster, and those
            that stand alone.

    """
    split_dropouts(gm.graph)
    kinds = Kinds(gm.graph, everything)
    if not everything:
        _leave_wasteful(kinds)
    compiled: dict[tuple[fx.Node, ...], tuple[_Group, int]] = {}

    def can_run(nodes: Sequence[fx.Node], room: int) -> bool:
        try:
            group, fits = _compile(nodes, kinds, room)
        except (MemoryError, KeyboardInterrupt):
            raise
        except Exception as error:
            if len(nodes) > 1:
                return False  # the group is cut until the node is found
            raise CannotRunError(nodes[0], error) from error
        compiled[tuple(nodes)] = group, room
        return fits

    items = _arranged(kinds, can_run)
    writer = _Writer(kinds)
    for item in items:
        if not isinstance(item, fx.Node):
            writer.call(item, *compiled[tuple(item)])
        elif item.op != "placeholder":
            writer.copy(item)
    made = _make_graph_module(gm, writer.graph)
    made.meta.update(gm.meta)
    counts = Counter((_op_name(n), kinds.why[n]) for n in kinds.order if n in kinds.why)
    foreign = [ForeignOp(op, calls, why) for (op, why), calls in counts.most_common()]
    return made, NativeNote(name, writer.groups, foreign)
