"""Rows of the table for reductions, softmax, norms, losses, and copies of several tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ..graph.sizes import hint
from .arrays import NAMES, Array, computed_in, is_float
from .building import Builder, Results, Value, argument, tensors_of
from .layouts import Meta, axes_of, meta_of
from .pointwise import Check, Row

aten = torch.ops.aten

_REDUCTIONS = ("none", "mean", "sum")
"""The reductions of losses, indexed by PyTorch's number."""


_LEAST_ROW = 32
"""Elements from which rows are reduced before the axes that go over them."""


# ---- reductions over axes -----------------------------------------------------------------------


def _squeezed(b: Builder, value: Value, dtype: str) -> tuple[Array, list[int]]:
    """Returns a tensor without its axes of size 1, and the remaining axes."""
    shape = value.meta.shape
    sized = [a for a, n in enumerate(shape) if n != 1]
    array = b.framed(value, sized, len(shape)).cast(dtype)
    return array.expand([shape[a] for a in sized]), sized


def _axes(node: fx.Node, rank: int, position: int = 1) -> list[int]:
    """Returns the axes of a reduction as non-negative numbers."""
    given = argument(node, position, "dim", None)
    if isinstance(given, int):
        given = [given]
    chosen = [] if given is None else [int(a) for a in given]
    return [a % rank for a in chosen] if chosen and rank else list(range(rank))


def _reduced(name: str, position: int = 1) -> Callable[[Builder, fx.Node], Value]:
    def build(b: Builder, node: fx.Node) -> Value:
        meta, given = b.meta(node), b.tensor(node, 0)
        x, sized = _squeezed(b, given, computed_in(NAMES[meta.dtype]))
        chosen = set(_axes(node, len(given.meta.shape), position))
        places = [i for i, a in enumerate(sized) if a in chosen]
        memory = [sized.index(a) for a in given.axes if a in sized]
        y = _in_rows(x, name, places, memory) if places else x.copy()
        return b.result(y, meta)

    return build


def _in_rows(x: Array, name: str, places: list[int], memory: Sequence[int]) -> Array:
    """Reduces axes. If a kept axis separates the fastest of them from the others, the fastest are
    reduced first, as rows: that takes one pass with the operations before it.

    Args:
        places: the axes to reduce.
        memory: the axes of the array from the slowest to the fastest.
    """
    rows = list(itertools.takewhile(places.__contains__, reversed(memory)))
    others = [p for p in places if p not in rows]
    if not others or math.prod(x.shape[p] for p in rows) < _LEAST_ROW:
        return x.reduce(name, places)
    return x.reduce(name, rows, keepdims=True).reduce(name, places)


def _variance(b: Builder, node: fx.Node) -> Value:
    meta, given = b.meta(node), b.tensor(node, 0)
    x, sized = _squeezed(b, given, computed_in(NAMES[meta.dtype]))
    chosen = _axes(node, len(given.meta.shape))
    places = [i for i, a in enumerate(sized) if a in chosen]
    correction = argument(node, 2, "correction", None)
    correction = 1 if correction is None else correction
    count = math.prod(given.meta.shape[a] for a in chosen)
    apart = (x - x.reduce("mean", places, keepdims=True)).op("square")
    left = max(0.0, count - float(correction))
    return b.result(apart.reduce("sum", places) / left, meta)


def _float_result(node: fx.Node) -> str | None:
    for val in tensors_of(node):
        if not is_float(NAMES.get(val.dtype, "")):
            return f"its result is {val.dtype}"
    return None


def _not_empty(node: fx.Node) -> str | None:
    given = node.args[0]
    assert isinstance(given, fx.Node)
    if any(hint(n) == 0 for n in given.meta["val"].shape):
        return "it reduces no elements"
    return _float_result(node)


# ---- softmax ------------------------------------------------------------------------------------


def _has_rows(node: fx.Node) -> bool:
    """True if the axes of a tensor are in order, possibly with gaps between rows."""
    meta = meta_of(node.meta["val"], hint)
    strides = [s for n, s in zip(meta.shape, meta.stride, strict=True) if n != 1]
    in_order = all(a >= b for a, b in itertools.pairwise(strides))
    return meta.numel == 0 or (in_order and (not strides or strides[-1] == 1))


def _over_last(position: int, n_tensors: int) -> Check:
    def check(node: fx.Node) -> str | None:
        val = tensors_of(node)[0]
        dim = node.args[position]
        if val.dim() == 0 or not isinstance(dim, int) or dim % val.dim() != val.dim() - 1:
            return "it is not over the last axis"
        for a in node.args[:n_tensors]:
            assert isinstance(a, fx.Node)
            if not _has_rows(a):
                return "the last axis of an argument is not the fastest"
        return _float_result(node)

    return check


def _over_rows(name: str, n_tensors: int) -> Callable[[Builder, fx.Node], Value]:
    def build(b: Builder, node: fx.Node) -> Value:
        meta = b.meta(node)
        dtype = computed_in(NAMES[meta.dtype])
        given = [b.logical(b.tensor(node, i)).cast(dtype) for i in range(n_tensors)]
        return b.result(given[0].op(name, *given[1:]), meta)

    return build


def _safe_softmax(b: Builder, node: fx.Node) -> Value:
    meta = b.meta(node)
    x = b.logical(b.tensor(node, 0)).cast(computed_in(NAMES[meta.dtype]))
    largest = x.reduce("amax", [len(x.shape) - 1], keepdims=True)
    return b.result(b.graph.where(largest <= -math.inf, 0.0, x.op("softmax")), meta)


# ---- layer norm ---------------------------------------------------------------------------------


def _same_dtypes(node: fx.Node) -> str | None:
    """Returns why a call with several dtypes stays with PyTorch (its kernels return f32 statistics
    although its shape functions say 16 bits), or None."""
    vals = [a.meta["val"] for a in node.all_input_nodes] + tensors_of(node)
    if len({v.dtype for v in vals if isinstance(v, torch.Tensor)}) > 1:
        return "its arguments have several dtypes"
    return _float_result(node)


def _contiguous(positions: Sequence[int]) -> Check:
    def check(node: fx.Node) -> str | None:
        for i in positions:
            a = node.args[i]
            if isinstance(a, fx.Node) and not _has_rows(a):
                return "the last axis of an argument is not the fastest"
        return _same_dtypes(node)

    return check


def _norm_check(node: fx.Node) -> str | None:
    eps = node.args[4]
    is_usual = isinstance(eps, float) and 0 <= eps < math.inf
    return _contiguous((0, 2, 3))(node) if is_usual else f"eps is {eps}"


def _weight(b: Builder, given: Any, columns: int, default: float, dtype: str) -> Array:
    if isinstance(given, fx.Node):
        return b.logical(b.value(given)).reshape((columns,)).cast(dtype)
    return b.graph.full((columns,), default, dtype)


def _rows_of(meta: Meta, node: fx.Node, position: int) -> tuple[int, int]:
    """Returns the numbers of rows and columns of a layer norm."""
    normalized = node.args[position]
    assert isinstance(normalized, (list, tuple))
    columns = math.prod(meta.shape[len(meta.shape) - len(normalized) :])
    return meta.numel // max(columns, 1), columns


def _layer_norm(b: Builder, node: fx.Node) -> Results:
    given = b.tensor(node, 0)
    dtype = computed_in(NAMES[given.meta.dtype])
    rows, columns = _rows_of(given.meta, node, 1)
    x = b.logical(given).cast(dtype).reshape((rows, columns))
    w = _weight(b, node.args[2], columns, 1.0, dtype)
    bias = _weight(b, node.args[3], columns, 0.0, dtype)
    made = b.graph.op("layer_norm", x, w, bias, eps=float(node.args[4]))
    return [b.result(y.reshape(b.meta(node, i).shape), b.meta(node, i)) for i, y in enumerate(made)]


def _layer_norm_backward(b: Builder, node: fx.Node) -> Results:
    given = b.tensor(node, 1)
    dtype = computed_in(NAMES[given.meta.dtype])
    rows, columns = _rows_of(given.meta, node, 2)
    dy, x = (b.logical(b.tensor(node, i)).cast(dtype).reshape((rows, columns)) for i in (0, 1))
    mean, rstd = (b.logical(b.tensor(node, i)).cast(dtype).reshape((rows,)) for i in (3, 4))
    w = _weight(b, node.args[5], columns, 1.0, dtype)
    made = b.graph.op("layer_norm_bwd", dy, x, w, mean, rstd)
    wanted = [v is not None for v in node.meta["val"]]
    return [
        b.result(y.reshape(b.meta(node, i).shape), b.meta(node, i)) if wanted[i] else None
        for i, y in enumerate(made)
    ]


# ---- losses -------------------------------------------------------------------------------------


def _squared_error(b: Builder, node: fx.Node) -> Value:
    meta = b.meta(node)
    dtype = computed_in(NAMES[meta.dtype])
    x, y = (b.logical(b.tensor(node, i)).cast(dtype) for i in (0, 1))
    apart = (x - y).op("square")
    reduction = _REDUCTIONS[int(argument(node, 2, "reduction", 1))]
    if reduction != "none":
        axes = range(len(apart.shape))
        apart = apart.reduce(reduction, tuple(axes))
    return b.result(apart, meta)


# ---- constants and copies -----------------------------------------------------------------------


def _full(value: float | None, position: int = 1) -> Callable[[Builder, fx.Node], Value]:
    def build(b: Builder, node: fx.Node) -> Value:
        meta, axes = b.meta(node), axes_of(b.meta(node))
        assert axes is not None
        number = node.args[position] if value is None else value
        frame = [meta.shape[a] for a in axes]
        return Value(b.graph.full(frame, number, NAMES[meta.dtype]), axes, meta)

    return build


def _constant(position: int | None) -> Check:
    def check(node: fx.Node) -> str | None:
        number = 0 if position is None else node.args[position]
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            return f"it fills with {number!r}"
        return _float_result(node)

    return check


def _joined(node: fx.Node) -> tuple[list[fx.Node], int]:
    given = node.args[0]
    assert isinstance(given, (list, tuple))
    nodes = [a for a in given if isinstance(a, fx.Node)]
    rank = tensors_of(node)[0].dim()
    return nodes, int(argument(node, 1, "dim", 0)) % max(rank, 1)


def _concat(b: Builder, node: fx.Node) -> Value:
    nodes, axis = _joined(node)
    meta = b.meta(node)
    parts = [b.logical(b.value(a)) for a in nodes]
    return b.result(b.graph.op("concat", *parts, axis=axis)[0], meta)


def _stack(b: Builder, node: fx.Node) -> Value:
    nodes, axis = _joined(node)
    parts = []
    for a in nodes:
        part = b.logical(b.value(a))
        parts.append(part.reshape((*part.shape[:axis], 1, *part.shape[axis:])))
    return b.result(b.graph.op("concat", *parts, axis=axis)[0], b.meta(node))


def _stack_check(node: fx.Node) -> str | None:
    nodes, _ = _joined(node)
    if len({a.meta["val"].dtype for a in nodes}) > 1:
        return "its arguments have several dtypes"
    return _float_result(node)


def _concat_check(node: fx.Node) -> str | None:
    nodes, _ = _joined(node)
    vals = [a.meta["val"] for a in nodes]
    out = tensors_of(node)[0]
    if any(v.dtype != out.dtype for v in vals):
        return "its arguments have several dtypes"
    in_order = meta_of(out, hint).is_contiguous
    if any(v.dim() != out.dim() or v.dim() == 0 for v in vals) or not in_order:
        return "an argument has another rank, or the result is not contiguous"
    return _float_result(node)


_NORM = aten.native_layer_norm.default
_NORM_BACKWARD = aten.native_layer_norm_backward.default

ROWS: dict[Any, Row] = {
    aten.sum.dim_IntList: Row(_reduced("sum"), _float_result),
    aten.sum.default: Row(_reduced("sum", 9), _float_result),
    aten.mean.dim: Row(_reduced("mean"), _not_empty),
    aten.mean.default: Row(_reduced("mean", 9), _not_empty),
    aten.amax.default: Row(_reduced("amax"), _not_empty, exact=True),
    aten.amin.default: Row(_reduced("amin"), _not_empty, exact=True),
    aten.var.correction: Row(_variance, _not_empty),
    aten._softmax.default: Row(_over_rows("softmax", 1), _over_last(1, 1)),
    aten._safe_softmax.default: Row(_safe_softmax, _over_last(1, 1)),
    aten._log_softmax.default: Row(_over_rows("log_softmax", 1), _over_last(1, 1)),
    aten._softmax_backward_data.default: Row(_over_rows("softmax_bwd", 2), _over_last(2, 2)),
    aten._log_softmax_backward_data.default: Row(_over_rows("log_softmax_bwd", 2),
                                                 _over_last(2, 2)),
    _NORM: Row(_layer_norm, _norm_check),
    _NORM_BACKWARD: Row(_layer_norm_backward, _contiguous((0, 1, 3, 4, 5))),
    aten.mse_loss.default: Row(_squared_error, _not_empty),
    aten.cat.default: Row(_concat, _concat_check, exact=True),
    aten.stack.default: Row(_stack, _stack_check, exact=True),
    aten.full.default: Row(_full(None), _constant(1), exact=True),
    aten.full_like.default: Row(_full(None), _constant(1), exact=True),
    aten.zeros.default: Row(_full(0.0), _constant(None), exact=True),
    aten.ones.default: Row(_full(1.0), _constant(None), exact=True),
    aten.new_zeros.default: Row(_full(0.0), _constant(None), exact=True),
    aten.new_ones.default: Row(_full(1.0), _constant(None), exact=True),
    aten.new_full.default: Row(_full(None, 2), _constant(2), exact=True),
    aten.zeros_like.default: Row(_full(0.0), _constant(None), exact=True),
    aten.ones_like.default: Row(_full(1.0), _constant(None), exact=True),
}  # fmt: skip
