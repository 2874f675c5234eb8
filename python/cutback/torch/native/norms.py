"""Rows of the table for batch norm and group norm.

Our kernels are fast if a reduced axis is the fastest in memory. If the channels are the fastest
axis, PyTorch's kernels are faster.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import fx

from ..graph.sizes import hint
from .arrays import HALVES, NAMES, Array, computed_in, is_float
from .building import Builder, Results, Value, tensors_of
from .layouts import Meta, meta_of
from .pointwise import Row

aten = torch.ops.aten


class _Sizes(NamedTuple):
    """Samples, channels and elements per channel."""

    n: int
    channels: int
    inner: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """The input's shape as three axes."""
        return self.n, self.channels, self.inner

    @property
    def of_channel(self) -> int:
        """The number of elements of a channel."""
        return self.n * self.inner


def _sizes(meta: Meta) -> _Sizes:
    n, channels, *rest = meta.shape
    return _Sizes(n, channels, math.prod(rest))


class _Norm:
    """The arrays of a call. Tensors of the input's shape get three axes and one compute type.

    Args:
        given: the input.
    """

    def __init__(self, b: Builder, node: fx.Node, given: fx.Node) -> None:
        self.b, self.node = b, node
        meta = b.meta(given)
        self.sizes, self.dtype = _sizes(meta), computed_in(NAMES[meta.dtype])

    def whole(self, given: Any) -> Array:
        """Returns a tensor of the input's shape."""
        return self.b.logical(self.b.value(given)).cast(self.dtype).reshape(self.sizes.shape)

    def channels(self, given: Any, default: float) -> Array:
        """Returns one number per channel."""
        if isinstance(given, fx.Node):
            return self.b.logical(self.b.value(given)).cast(self.dtype)
        return self.b.graph.full((self.sizes.channels,), default, self.dtype)

    def result(self, index: int, array: Array) -> Value:
        """Converts an array to one of the call's tensors."""
        meta = self.b.meta(self.node, index)
        return self.b.result(array.reshape(meta.shape), meta)


def _floats(node: fx.Node) -> str | None:
    for val in tensors_of(node):
        if not is_float(NAMES.get(val.dtype, "")):
            return f"its result is {val.dtype}"
    given = node.all_input_nodes[0].meta["val"]
    if given.dim() < 3 or given.numel() == 0:
        return "its input has no elements besides channels"
    for val in (n.meta["val"] for n in node.all_input_nodes):
        if val.dim() == given.dim() and not meta_of(val, hint).is_contiguous:
            return "PyTorch's kernel is faster where channels are the fastest axis"
    return None


# ---- batch norm ---------------------------------------------------------------------------------


def _column(array: Array) -> Array:
    """Reshapes one number per channel so that it broadcasts."""
    return array.reshape((1, array.shape[0], 1))


def _batch_norm(b: Builder, node: fx.Node) -> Results:
    given, weight, bias, running_mean, running_var, training, momentum, eps = node.args
    norm = _Norm(b, node, node.all_input_nodes[0])
    x, w, shift = norm.whole(given), norm.channels(weight, 1.0), norm.channels(bias, 0.0)
    old = norm.channels(running_mean, 0.0), norm.channels(running_var, 1.0)
    if not training:
        rstd = (old[1] + float(eps)).op("rsqrt")
        y = (x - _column(old[0])) * _column(rstd * w) + _column(shift)
        none = [b.graph.full((0,), 0.0, norm.dtype) for _ in range(2)]
        rows = [y, *none, *(v.copy() for v in old)]
        return [norm.result(i, array) for i, array in enumerate(rows)]
    y, mean, var, rstd = b.graph.op("batch_norm", x, w, shift, eps=float(eps))
    count, part = norm.sizes.of_channel, float(momentum)
    new = mean, var * (count / max(count - 1, 1))
    kept = [a * (1 - part) + c * part for a, c in zip(old, new, strict=True)]
    return [norm.result(i, array) for i, array in enumerate((y, mean, rstd, *kept))]


def _batch_norm_check(node: fx.Node) -> str | None:
    if not (isinstance(node.args[3], fx.Node) and isinstance(node.args[4], fx.Node)):
        return "it has no running statistics"
    return _is_rounded(tensors_of(node)[1]) or _floats(node)


def _is_rounded(statistics: torch.Tensor) -> str | None:
    """Returns why statistics of 16 bits stay with PyTorch (its kernel returns f32 although its
    shape function says 16 bits), or None."""
    return "its statistics have 16 bits" if NAMES.get(statistics.dtype) in HALVES else None


def _batch_norm_backward(b: Builder, node: fx.Node) -> Results:
    dy, given, weight, running_mean, running_var, mean, rstd, training, eps, _ = node.args
    assert isinstance(given, fx.Node)
    norm = _Norm(b, node, given)
    x, g, w = norm.whole(given), norm.whole(dy), norm.channels(weight, 1.0)
    if training:
        center, scale = norm.channels(mean, 0.0), norm.channels(rstd, 1.0)
    else:
        center = norm.channels(running_mean, 0.0)
        scale = (norm.channels(running_var, 1.0) + float(eps)).op("rsqrt")
    made = b.graph.op("batch_norm_bwd", g, x, w, center, scale)
    if not training:
        made = (g * _column(scale * w), *made[1:])
    wanted = [v is not None for v in node.meta["val"]]
    return [norm.result(i, a) if wanted[i] else None for i, a in enumerate(made)]


def _batch_norm_backward_check(node: fx.Node) -> str | None:
    mean = node.args[5]
    rounded = _is_rounded(mean.meta["val"]) if isinstance(mean, fx.Node) else None
    return rounded or _floats(node)


# ---- group norm ---------------------------------------------------------------------------------


def _group_norm(b: Builder, node: fx.Node) -> Results:
    given, weight, bias, n_groups, eps = (node.args[i] for i in (0, 1, 2, 6, 7))
    assert isinstance(n_groups, int)
    norm = _Norm(b, node, node.all_input_nodes[0])
    x = norm.whole(given)
    rows = norm.sizes.n * n_groups
    grouped = x.reshape((rows, norm.sizes.channels // n_groups * norm.sizes.inner))
    mean = grouped.reduce("mean", (1,), keepdims=True)
    apart = grouped - mean
    rstd = (apart.op("square").reduce("mean", (1,), keepdims=True) + float(eps)).op("rsqrt")
    w, shift = norm.channels(weight, 1.0), norm.channels(bias, 0.0)
    y = (apart * rstd).reshape(x.shape) * _column(w) + _column(shift)
    return [norm.result(i, array) for i, array in enumerate((y, mean, rstd))]


def _group_norm_check(node: fx.Node) -> str | None:
    vals = [a.meta["val"] for a in node.all_input_nodes] + tensors_of(node)
    if len({v.dtype for v in vals if isinstance(v, torch.Tensor)}) > 1:
        return "its arguments have several dtypes"
    return _floats(node) if isinstance(node.args[6], int) else "its number of groups varies"


ROWS: dict[Any, Row] = {
    aten._native_batch_norm_legit_functional.default: Row(_batch_norm, _batch_norm_check),
    aten.native_batch_norm_backward.default: Row(_batch_norm_backward, _batch_norm_backward_check),
    aten.native_group_norm.default: Row(_group_norm, _group_norm_check),
}
