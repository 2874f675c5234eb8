"""Rows of the table for lookups by index, and for copies that move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ..graph.sizes import hint
from .arrays import NAMES, Array, computed_in, is_float
from .building import Builder, Results, Value, argument, tensors_of
from .pointwise import Check, Row

aten = torch.ops.aten

_MEAN, _SUM = 1, 2  # PyTorch's numbers of reductions


# ---- negative log likelihood --------------------------------------------------------------------


def _labels(b: Builder, node: fx.Node, position: int, ignored: Any) -> tuple[Array, Array]:
    """Labels of rows, as a column, and which of them count. [n, 1]"""
    label = b.logical(b.tensor(node, position)).cast("i64")
    label = label.reshape((label.shape[0] if label.shape else 1, 1))
    return label, label.op("ne", int(ignored))


def _nll(b: Builder, node: fx.Node) -> Results:
    given = b.tensor(node, 0)
    dtype = computed_in(NAMES[given.meta.dtype])
    x = b.logical(given)
    x = x.reshape((x.shape[0] if len(x.shape) == 2 else 1, x.shape[-1]))
    label, counts = _labels(b, node, 1, node.args[4])
    known = label * counts.cast("i64")
    picked = x.op("gather", known, axis=1).cast(dtype)
    total = b.graph.where(counts, -picked, 0.0).reduce("sum", (0, 1))
    weight = counts.cast(dtype).reduce("sum", (0, 1))
    loss = total / weight if node.args[3] == _MEAN else total
    metas = b.meta(node, 0), b.meta(node, 1)
    return [b.result(a, m) for a, m in zip((loss, weight), metas, strict=True)]


def _nll_backward(b: Builder, node: fx.Node) -> Value:
    _dy, _, _, _, reduction, ignored, _ = node.args
    meta = b.meta(node)
    rows, columns = (meta.shape[0] if len(meta.shape) == 2 else 1), meta.shape[-1]
    dtype = computed_in(NAMES[meta.dtype])
    label, counts = _labels(b, node, 2, ignored)
    place = b.graph.op("iota", axis=1, shape=(rows, columns), dtype="i32")[0]
    scale = -b.logical(b.tensor(node, 0)).cast(dtype).reshape((1, 1))
    if reduction == _MEAN:
        scale = scale / b.logical(b.tensor(node, 6)).cast(dtype).reshape((1, 1))
    each = b.graph.where(counts, scale, 0.0)
    made = b.graph.where(place.op("eq", label.cast("i32")), each, 0.0)
    return b.result(made.reshape(meta.shape), meta)


def _nll_check(reduction: int, ignored: int) -> Check:
    def check(node: fx.Node) -> str | None:
        if node.args[reduction] not in (_MEAN, _SUM):
            return "its losses are not reduced"
        if isinstance(node.args[reduction - 1], fx.Node):
            return "its classes have weights"
        if not isinstance(node.args[ignored], int):
            return "its ignored label varies"
        if tensors_of(node)[0].numel() == 0:
            return "it has no elements"
        return _float(node)

    return check


def _float(node: fx.Node) -> str | None:
    for val in tensors_of(node):
        if not is_float(NAMES.get(val.dtype, "")):
            return f"its result is {val.dtype}"
    return None


# ---- padding ------------------------------------------------------------------------------------


def _number(b: Builder, given: Any) -> int:
    """An argument that is a size, perhaps a symbolic one."""
    return b.sizes(given.meta["val"] if isinstance(given, fx.Node) else given)


def _pad(b: Builder, node: fx.Node) -> Value:
    meta = b.meta(node)
    array = b.logical(b.tensor(node, 0))
    pads = node.args[1]
    assert isinstance(pads, Sequence)
    value = float(argument(node, 2, "value", 0) or 0)
    for i in range(len(pads) // 2):
        low, high = (_number(b, p) for p in pads[2 * i : 2 * i + 2])
        if low or high:
            axis = len(array.shape) - 1 - i
            array = array.op("pad", axis=axis, low=low, high=high, interior=0, value=value)
    return b.result(array if any(map(hint, _plain(pads))) else array.copy(), meta)


def _plain(given: Sequence[Any]) -> list[Any]:
    return [g.meta["val"] if isinstance(g, fx.Node) else g for g in given]


def _pad_check(node: fx.Node) -> str | None:
    pads = node.args[1]
    assert isinstance(pads, Sequence)
    if any(hint(p) < 0 for p in _plain(pads)):
        return "it cuts elements off"
    return _float(node)


def _slice_backward(b: Builder, node: fx.Node) -> Value:
    _, _, dim, start, _, step = node.args
    meta = b.meta(node)
    array = b.logical(b.tensor(node, 0))
    axis = int(dim) % len(meta.shape)
    n = meta.shape[axis]
    first, by = _number(b, start), _number(b, step)
    first = min(max(first + n if first < 0 else first, 0), n)
    taken = array.shape[axis]
    if taken == 0:
        return b.result(b.graph.full(meta.shape, 0.0, NAMES[meta.dtype]), meta)
    rest = n - first - ((taken - 1) * by + 1)
    if first or rest or by > 1:
        array = array.op("pad", axis=axis, low=first, high=rest, interior=by - 1, value=0.0)
    else:
        array = array.copy()
    return b.result(array, meta)


def _select_backward(b: Builder, node: fx.Node) -> Value:
    _, _, dim, index = node.args
    meta = b.meta(node)
    axis = int(dim) % len(meta.shape)
    n = meta.shape[axis]
    at = _number(b, index)
    at = at + n if at < 0 else at
    array = b.logical(b.tensor(node, 0))
    array = array.reshape((*array.shape[:axis], 1, *array.shape[axis:]))
    if n > 1:
        array = array.op("pad", axis=axis, low=at, high=n - at - 1, interior=0, value=0.0)
    else:
        array = array.copy()
    return b.result(array, meta)


# ---- several tensors as one ---------------------------------------------------------------------


def _stack(b: Builder, node: fx.Node) -> Value:
    given = node.args[0]
    assert isinstance(given, Sequence)
    meta = b.meta(node)
    axis = int(argument(node, 1, "dim", 0)) % len(meta.shape)
    parts = []
    for a in given:
        assert isinstance(a, fx.Node)
        array = b.logical(b.value(a)).cast(NAMES[meta.dtype])
        parts.append(array.reshape((*array.shape[:axis], 1, *array.shape[axis:])))
    return b.result(b.graph.op("concat", *parts, axis=axis)[0], meta)


# ---- embeddings ---------------------------------------------------------------------------------


def _embedding(b: Builder, node: fx.Node) -> Value:
    meta = b.meta(node)
    weight, index = (b.logical(b.tensor(node, i)) for i in (0, 1))
    return b.result(weight.op("embedding", index.cast("i64")), meta)


def _embedding_check(node: fx.Node) -> str | None:
    index = node.args[1]
    assert isinstance(index, fx.Node)
    kind = index.meta["val"].dtype
    return _float(node) if kind in (torch.int64, torch.int32) else f"its index is {kind}"


ROWS: dict[Any, Row] = {
    aten.nll_loss_forward.default: Row(_nll, _nll_check(3, 4)),
    aten.nll_loss_backward.default: Row(_nll_backward, _nll_check(4, 5)),
    aten.constant_pad_nd.default: Row(_pad, _pad_check, exact=True),
    aten.slice_backward.default: Row(_slice_backward, _float, exact=True),
    aten.select_backward.default: Row(_select_backward, _float, exact=True),
    aten.stack.default: Row(_stack, _float, exact=True),
    aten.embedding.default: Row(_embedding, _embedding_check, exact=True),
}
