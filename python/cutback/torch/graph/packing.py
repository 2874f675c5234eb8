"""Lets a step keep masks as bits, and indices in few bytes, between forward and backward.

:func:`add_packing` rewrites a joint graph. A mask or an index that the forward makes and the
backward reads gets two nodes, and everything that read it reads the second one:

    mask = gt(x, 0.1)
    packed = pack_bits(mask)
    unpacked = unpack_bits(packed)

In the planner's problem these are operations like any other (:mod:`planner.packed` has the costs).
A plan keeps ``unpacked``, or keeps ``packed`` and unpacks it in the backward, or runs all three
again. A graph that has just packed a mask still has the mask, so the emitter uses it directly where
``unpacked`` follows ``packed`` immediately, and leaves out ``packed`` if nothing else reads that.
So a plan that packs nothing runs the same operations as before.

If the backward does not read the values of a ReLU's result, it reads their signs:

    y = relu(x)                                      y = relu(x); bits = pack_signs(y)
    dx = threshold_backward(dy, y, 0)            ->  dx = keep_by_bits(dy, bits)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ...planner.packed import FEWEST, index_bytes, traffic
from ...problem import ONCE
from . import ops
from .graphs import forward_ends, is_tangent, nodes_in
from .packed_ops import (
    KEEP_BY_BITS,
    PACK_BITS,
    PACK_INDICES,
    PACK_SIGNS,
    PACK_WINDOWS,
    PACKS,
    UNPACK_BITS,
    UNPACK_INDICES,
    UNPACK_WINDOWS,
    UNPACKS,
)
from .sizes import hint

if TYPE_CHECKING:
    from torch.fx.node import Argument, Target

    from ...problem import Flag, Op

_aten = torch.ops.aten

ADDED = PACKS | UNPACKS | {PACK_SIGNS, KEEP_BY_BITS}

_DTYPES = {1: torch.uint8, 2: torch.uint16, 4: torch.int32}
"""The type of an index, by its bytes."""


_POOLS: dict[Target, int] = {
    _aten.max_pool2d_with_indices.default: 2,
    _aten.max_pool3d_with_indices.default: 3,
    _aten.adaptive_max_pool2d.default: 2,
    _aten.adaptive_max_pool3d.default: 3,
}
"""Poolings, and the number of last axes that their second result, indices, counts as one axis."""

_WINDOWS = (_aten.max_pool2d_with_indices.default, _aten.max_pool3d_with_indices.default)
_POSITIONS = (_aten.argmax.default, _aten.argmin.default)
"""Operations whose only result has indices into one axis, or all elements, of the argument."""

_SELECTIONS: frozenset[Target] = frozenset(
    {
        _aten.cummax.default, _aten.cummin.default, _aten.kthvalue.default, _aten.max.dim,
        _aten.median.dim, _aten.min.dim, _aten.mode.default, _aten.sort.default,
        _aten.sort.stable, _aten.topk.default,
    }
)  # fmt: skip
"""Operations whose second result has indices into one axis of the argument."""


def charge(node: fx.Node, op: Op) -> None:
    """Sets the costs of packing and unpacking in the op of a node, as :mod:`planner.packed`
    explains."""
    if node.target in PACKS:
        op.bytes = 0
    elif node.target in UNPACKS:
        op.bytes = _traffic(node.args[0])
    elif isinstance(node.meta.get("val"), torch.Tensor):
        op.bytes = max(0, op.bytes - sum(map(_traffic, _packs(node))))
    elif not ONCE.isdisjoint(op.flags):  # another operation may compute one result separately
        packs = [pack for part in node.users for pack in _packs(part)]
        op.bytes = max(0, op.bytes - sum(map(_traffic, packs)))


def runs_once(node: fx.Node, known: Mapping[fx.Node, frozenset[Flag]]) -> frozenset[Flag]:
    """Returns the flags that let the packing of a value run only once, like the value's
    operation.
    """
    maker = node.args[0]
    if maker.target is operator.getitem:
        maker = maker.args[0]
    return known[maker] & ONCE


def _packs(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if user.target in PACKS]


def _traffic(pack: fx.Node) -> int:
    whole, packed = (
        int(hint(n.meta["val"].numel())) * n.meta["val"].element_size()
        for n in (pack.args[0], pack)
    )
    return traffic(whole, packed)


def _memory(val: Argument) -> set[int]:
    items = val if isinstance(val, (list, tuple)) else [val]
    return {v.untyped_storage()._cdata for v in items if isinstance(v, torch.Tensor)}


class _Finder:
    def __init__(self, gm: fx.GraphModule) -> None:
        self.nodes = [n for n in gm.graph.nodes if n.op != "output"]
        self.results = set(nodes_in(list(gm.graph.output_node().args)))
        end = forward_ends(self.nodes)
        self.late = set(self.nodes[end:])
        for node in self.nodes:
            if is_tangent(node) or not self.late.isdisjoint(node.all_input_nodes):
                self.late.add(node)
        kinds = ops.learn(n.target for n in self.nodes if n.op == "call_function")
        self.writes = {t for t, kind in kinds.items() if kind.mutable}

    def _readers(self, node: fx.Node) -> list[fx.Node] | None:
        """Returns the readers of a node and of its views, or None if one of these is a result, or
        something may write into their memory."""
        memory, found, todo = _memory(node.meta["val"]), [], [node]
        while todo:
            there = todo.pop()
            if there in self.results:
                return None
            for user in there.users:
                if user.op != "call_function" or user.target in self.writes:
                    return None
                if memory & _memory(user.meta.get("val")):
                    todo.append(user)
                else:
                    found.append(user)
        return found

    def may_pack(self, node: fx.Node) -> bool:
        """True if a tensor has its own memory, which the backward reads and nothing writes."""
        val = node.meta.get("val")
        if node.op != "call_function" or node in self.late or not isinstance(val, torch.Tensor):
            return False
        if val.layout is not torch.strided or type(val).__name__ != "FakeTensor":
            return False
        if hint(val.numel()) * val.element_size() < FEWEST or not _is_dense(val):
            return False
        if node.target is not operator.getitem:
            mine = _memory(val)
            if any(mine & _memory(source.meta.get("val")) for source in node.all_input_nodes):
                return False
        readers = self._readers(node)
        return readers is not None and not self.late.isdisjoint(readers)

    def thresholds(self, node: fx.Node) -> list[fx.Node]:
        """Returns the readers in the backward if all of them read only whether an element is above
        0; otherwise returns an empty list."""
        late = [reader for reader in self._readers(node) or () if reader in self.late]
        return late if all(self._is_threshold(reader, node) for reader in late) else []

    def _is_threshold(self, reader: fx.Node, node: fx.Node) -> bool:
        if reader.target is not _aten.threshold_backward.default or reader.args[2] != 0:
            return False
        vals = [n.meta["val"] for n in (node, reader.args[1], reader.args[0], reader)]
        if _memory(vals[2]) & _memory(vals[0]) or not vals[0].is_floating_point():
            return False
        layouts = [(val.dtype, val.dim(), (*val.shape, *val.stride())) for val in vals]
        return all(
            layout[:2] == layouts[0][:2]
            and all(map(statically_known_true, map(operator.eq, layout[2], layouts[0][2])))
            for layout in layouts[1:]
        )


def _is_dense(val: torch.Tensor) -> bool:
    """True if a tensor fills its memory, in some order of its axes, for all values of the graph's
    symbols."""
    whole: int | torch.SymInt = 1
    axes = [d for d in range(val.dim()) if not statically_known_true(val.shape[d] == 1)]
    for d in sorted(axes, key=lambda d: (hint(val.stride(d)), hint(val.shape[d]))):
        if not statically_known_true(val.stride(d) == whole):
            return False
        whole = whole * val.shape[d]
    held = val.untyped_storage().nbytes()
    return bool(statically_known_true(held == whole * val.element_size()))


@dataclass(frozen=True)
class _Index:
    """How an index is packed."""

    dtype: torch.dtype
    windows: tuple[int, ...] = ()
    """Sizes of plane, kernel, stride, padding and dilation, if positions in windows are packed."""


def _arguments(node: fx.Node) -> dict[str, Argument]:
    names = (argument.name for argument in node.target._schema.arguments)
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _windows(maker: fx.Node) -> tuple[int, ...] | None:
    """Returns the sizes of a max pooling's windows, or None if they vary, or are not known."""
    if maker.target not in _WINDOWS:
        return None
    axes, known = _POOLS[maker.target], _arguments(maker)
    kernel = _sizes(known["kernel_size"], axes)
    stride = _sizes(known.get("stride") or kernel, axes)
    others = [_sizes(known.get(k, n), axes) for k, n in (("padding", 0), ("dilation", 1))]
    found = (*maker.args[0].meta["val"].shape[-axes:], *kernel, *stride, *others[0], *others[1])
    return found if all(type(n) is int for n in found) else None


def _sizes(given: Argument, axes: int) -> tuple[Argument, ...]:
    listed = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    return listed * axes if len(listed) == 1 else listed


def _index_type(node: fx.Node) -> _Index | None:
    """Returns the smallest packed form of an index, or None if it needs 8 bytes."""
    if node.meta["val"].dtype != torch.int64:
        return None
    if node.target in _POSITIONS:
        maker = node
    elif node.target is operator.getitem and node.args[1] == 1:
        maker = node.args[0]
    else:
        return None
    known = [*_POOLS, *_SELECTIONS, *_POSITIONS]
    if maker.target not in known:
        return None
    shape = maker.args[0].meta["val"].shape
    if maker.target in _POOLS:
        shape = shape[-_POOLS[maker.target] :]
    else:
        axis = _axis(maker)
        shape = shape if axis is None else shape[axis : axis + 1 or None]
    if not all(isinstance(n, int) for n in shape):  # a symbol may grow
        return None
    size = index_bytes(math.prod(shape))
    windows = _windows(maker)
    if windows is not None and node.meta["val"].is_contiguous():
        axes = len(windows) // 5
        fewer = index_bytes(math.prod(windows[axes : 2 * axes]))
        if fewer < size:
            return _Index(_DTYPES[fewer], windows)
    return _Index(_DTYPES[size]) if size in _DTYPES else None


def _axis(maker: fx.Node) -> int | None:
    """Returns the axis into which a result has indices, or None for the flattened argument."""
    schema = {argument.name: argument for argument in maker.target._schema.arguments}
    default = schema["dim"].default_value if schema["dim"].has_default_value() else None
    axis = _arguments(maker).get("dim", default)
    return axis if isinstance(axis, int) else None


class _Rewriter:
    def __init__(self, gm: fx.GraphModule) -> None:
        self.graph = gm.graph
        self.finder = _Finder(gm)
        self.mode = detect_fake_mode([n.meta.get("val") for n in self.finder.nodes])

    def _call(
        self, like: fx.Node, target: Target, *args: Argument, name: str | None = None
    ) -> fx.Node:
        node = self.graph.create_node("call_function", target, args, name=name)
        keys = ("tensor_meta", "val", "desc", "recompute", "ac_graph_id")
        node.meta = {k: v for k, v in like.meta.items() if k not in keys}
        values = fx.map_arg(args, lambda n: n.meta["val"])
        with self.mode:
            node.meta["val"] = target(*values)
        return node

    def _numbers(self, node: fx.Node, known: Iterable[Argument], op: Target) -> list[Argument]:
        return [n if type(n) is int else self._call(node, op, node, d) for d, n in enumerate(known)]

    def pack(self, node: fx.Node, index: _Index | None) -> None:
        """Adds the two nodes after a mask, or after indices that are packed as ``index`` says."""
        val, readers = node.meta["val"], list(node.users)
        name, back = f"{node.name}_packed", f"{node.name}_unpacked"
        with self.graph.inserting_before(node.next):
            if index is not None and index.windows:
                sizes = list(index.windows)
                packed = self._call(node, PACK_WINDOWS, node, sizes, index.dtype, name=name)
                whole = self._call(node, UNPACK_WINDOWS, packed, sizes, name=back)
            elif index is not None:
                packed = self._call(node, PACK_INDICES, node, index.dtype, name=name)
                whole = self._call(node, UNPACK_INDICES, packed, name=back)
            else:
                size = self._numbers(node, val.shape, _aten.sym_size.int)
                stride = self._numbers(node, val.stride(), _aten.sym_stride.int)
                packed = self._call(node, PACK_BITS, node, stride, name=name)
                whole = self._call(node, UNPACK_BITS, packed, size, stride, name=back)
        for reader in readers:
            reader.replace_input_with(node, whole)
        self._move_views(whole, val)

    def pack_signs(self, node: fx.Node, thresholds: Iterable[fx.Node]) -> None:
        """Gives readers that compare a value with 0 one bit per element of it."""
        val = node.meta["val"]
        with self.graph.inserting_before(node.next):
            stride = self._numbers(node, val.stride(), _aten.sym_stride.int)
            bits = self._call(node, PACK_SIGNS, node, stride, name=f"{node.name}_signs")
        for reader in thresholds:
            with self.graph.inserting_before(reader):
                kept = self._call(
                    reader, KEEP_BY_BITS, reader.args[0], bits, stride, name=f"{reader.name}_kept"
                )
            kept.meta["val"] = reader.meta["val"]
            reader.replace_all_uses_with(kept)
            self.graph.erase_node(reader)

    def _move_views(self, whole: fx.Node, val: torch.Tensor) -> None:
        """Gives the memory of a value to the node whose views its views have become. Views record
        in ``meta["val"]`` which memory they are in."""
        source = whole.args[0].args[0]
        source.meta["val"], whole.meta["val"] = whole.meta["val"], val
        if source.target is operator.getitem:
            maker, position = source.args
            parts = list(maker.meta["val"])
            parts[position] = source.meta["val"]
            maker.meta["val"] = tuple(parts)


def add_packing(
    gm: fx.GraphModule, is_wished: Callable[[fx.Node], bool] = lambda node: False
) -> int:
    """Adds packing and unpacking to a joint graph, in place. Returns the number of values that a
    plan may keep packed.

    Args:
        is_wished: returns True for nodes that a policy or the model says to save or not to save.
            They stay as they are.
    """
    rewriter = _Rewriter(gm)
    found = 0
    for node in rewriter.finder.nodes:
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor):
            continue
        index = None if val.dtype == torch.bool else _index_type(node)
        packs = val.dtype == torch.bool or index is not None
        if not (packs or val.is_floating_point()) or is_wished(node):
            continue
        if not rewriter.finder.may_pack(node):
            continue
        if packs:
            rewriter.pack(node, index)
            found += 1
        elif thresholds := rewriter.finder.thresholds(node):
            rewriter.pack_signs(node, thresholds)
            found += 1
    return found
