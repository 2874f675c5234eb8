"""Rows of the table for batch norm and group norm, in any order of strides."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import fx

from .arrays import HALVES, NAMES, Array, computed_in, is_float
from .building import Builder, Results, Value, tensors_of
from .layouts import Meta, axes_of
from .pointwise import Check, Row

aten = torch.ops.aten

_CHANNELS = 1
"""The axis of channels."""


class _Frame(NamedTuple):
    """The order of axes in which a norm is computed: that of a tensor in memory."""

    meta: Meta
    axes: tuple[int, ...]  # all of them, those of size 1 first
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in this order."""
        return tuple(self.meta.shape[a] for a in self.axes)

    def of(self, b: Builder, given: Any) -> Array:
        """A tensor in this order."""
        return (
            b.framed(b.value(given), self.axes, len(self.axes)).cast(self.dtype).expand(self.shape)
        )

    def channels(self, b: Builder, given: Any, default: float) -> Array:
        """A tensor with a number for each channel."""
        if not isinstance(given, fx.Node):
            return b.graph.full((1,) * len(self.axes), default, self.dtype)
        return self.along(b.logical(b.value(given)).cast(self.dtype))

    def along(self, array: Array) -> Array:
        """A number for each channel, to broadcast."""
        channels = self.meta.shape[_CHANNELS]
        return array.reshape([channels if a == _CHANNELS else 1 for a in self.axes])

    @property
    def others(self) -> list[int]:
        """The places of all axes but that of channels."""
        return [i for i, a in enumerate(self.axes) if a != _CHANNELS]

    def value(self, array: Array, meta: Meta) -> Value:
        """An array in this order as a tensor that lies in memory in it."""
        axes = axes_of(meta)
        assert axes is not None
        return Value(
            array.cast(NAMES[meta.dtype]).reshape([meta.shape[a] for a in axes]), axes, meta
        )


def _frame(meta: Meta) -> _Frame:
    axes = axes_of(meta)
    assert axes is not None
    ones = [a for a in range(len(meta.shape)) if a not in axes]
    return _Frame(meta, (*ones, *axes), computed_in(NAMES[meta.dtype]))


def _vector(b: Builder, node: fx.Node, index: int, array: Array) -> Value:
    meta = b.meta(node, index)
    return b.result(array.reshape(meta.shape), meta)


def _floats(node: fx.Node) -> str | None:
    for val in tensors_of(node):
        if not is_float(NAMES.get(val.dtype, "")):
            return f"its result is {val.dtype}"
    given = node.all_input_nodes[0].meta["val"]
    if given.dim() < 2 or given.numel() == 0:
        return "its input has no channels, or no elements"
    return None


# ---- batch norm ---------------------------------------------------------------------------------


def _batch_norm(b: Builder, node: fx.Node) -> Results:
    given, weight, bias, running_mean, running_var, training, momentum, eps = node.args
    frame = _frame(b.meta(node, 0))
    x = frame.of(b, given)
    if not training:
        mean = frame.channels(b, running_mean, 0.0)
        rstd = (frame.channels(b, running_var, 1.0) + float(eps)).op("rsqrt")
        y = (x - mean) * rstd * frame.channels(b, weight, 1.0) + frame.channels(b, bias, 0.0)
        return [frame.value(y, b.meta(node, 0)), *_unchanged(b, node)]
    mean = x.reduce("mean", frame.others, keepdims=True)
    apart = x - mean
    var = apart.op("square").reduce("mean", frame.others, keepdims=True)
    rstd = (var + float(eps)).op("rsqrt")
    y = apart * rstd * frame.channels(b, weight, 1.0) + frame.channels(b, bias, 0.0)
    made: list[Value | None] = [frame.value(y, b.meta(node, 0))]
    made += [_vector(b, node, 1, mean), _vector(b, node, 2, rstd)]
    if len(node.meta["val"]) == 5:
        count = frame.meta.numel // frame.meta.shape[_CHANNELS]
        unbiased = var * (count / max(count - 1, 1))
        for i, (old, new) in enumerate(((running_mean, mean), (running_var, unbiased)), 3):
            kept = frame.channels(b, old, 0.0) * (1 - float(momentum)) + new * float(momentum)
            made.append(_vector(b, node, i, kept))
    return made


def _unchanged(b: Builder, node: fx.Node) -> list[Value]:
    """What an evaluating batch norm returns besides its result: no statistics, and copies."""
    made = []
    for i in range(1, len(node.meta["val"])):
        meta = b.meta(node, i)
        if i < 3:
            array = b.graph.full(meta.shape, 0.0, NAMES[meta.dtype])
        else:
            array = b.logical(b.tensor(node, i)).copy()
        made.append(b.result(array, meta))
    return made


def _batch_norm_check(node: fx.Node) -> str | None:
    if not (isinstance(node.args[3], fx.Node) and isinstance(node.args[4], fx.Node)):
        return "it has no running statistics"
    return _is_rounded(tensors_of(node)[1]) or _floats(node)


def _is_rounded(statistics: torch.Tensor) -> str | None:
    """PyTorch's kernel returns statistics in f32 where its shape function says 16 bits."""
    return "its statistics have 16 bits" if NAMES.get(statistics.dtype) in HALVES else None


def _batch_norm_backward_check(node: fx.Node) -> str | None:
    mean = node.args[5]
    rounded = _is_rounded(mean.meta["val"]) if isinstance(mean, fx.Node) else None
    return rounded or _floats(node)


def _batch_norm_backward(b: Builder, node: fx.Node) -> Results:
    dy, given, weight, running_mean, running_var, mean, rstd, training, eps, _ = node.args
    assert isinstance(given, fx.Node)
    wanted = [v is not None for v in node.meta["val"]]
    frame = _frame(b.meta(node, 0) if wanted[0] else b.meta(given))
    x, g = frame.of(b, given), frame.of(b, dy)
    if training:
        center, scale = (frame.channels(b, v, 0.0) for v in (mean, rstd))
    else:
        center = frame.channels(b, running_mean, 0.0)
        scale = (frame.channels(b, running_var, 1.0) + float(eps)).op("rsqrt")
    xhat = (x - center) * scale
    dbias = g.reduce("sum", frame.others, keepdims=True)
    dweight = (g * xhat).reduce("sum", frame.others, keepdims=True)
    made: list[Value | None] = [None, None, None]
    if wanted[0]:
        count = frame.meta.numel // frame.meta.shape[_CHANNELS]
        if training:
            g = g - (dbias / count + xhat * (dweight / count))
        made[0] = frame.value(g * (scale * frame.channels(b, weight, 1.0)), b.meta(node, 0))
    if wanted[1]:
        made[1] = _vector(b, node, 1, dweight)
    if wanted[2]:
        made[2] = _vector(b, node, 2, dbias)
    return made


# ---- group norm ---------------------------------------------------------------------------------


class _Groups(NamedTuple):
    """A frame in which the axis of channels is two: groups, and channels of a group."""

    frame: _Frame
    n: int

    @property
    def place(self) -> int:
        """Of the axis of groups."""
        return self.frame.axes.index(_CHANNELS)

    def split(self, array: Array) -> Array:
        """An array over the frame's axes, or one that broadcasts to it."""
        at, channels = self.place, array.shape[self.place]
        inner = (self.n, channels // self.n) if channels > 1 else (1, 1)
        return array.reshape((*array.shape[:at], *inner, *array.shape[at + 1 :]))

    def whole(self, array: Array) -> Array:
        """The reverse of split."""
        at, shape = self.place, array.shape
        return array.reshape((*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]))

    @property
    def inside(self) -> list[int]:
        """The places of the axes that a group has."""
        rank = len(self.frame.axes) + 1
        return [i for i in range(rank) if i != self.place and i != self.rows]

    @property
    def rows(self) -> int:
        """The place of the axis of samples."""
        at = self.frame.axes.index(0)
        return at + (at > self.place)

    def samples(self, b: Builder, given: Any) -> Array:
        """A number for each sample and group, to broadcast."""
        array = b.logical(b.value(given)).cast(self.frame.dtype)
        sizes = {self.rows: self.frame.meta.shape[0], self.place: self.n}
        return array.reshape([sizes.get(i, 1) for i in range(len(self.frame.axes) + 1)])

    def all_but_channels(self) -> list[int]:
        """The places that a sum for each channel goes over."""
        rank = len(self.frame.axes) + 1
        return [i for i in range(rank) if i not in (self.place, self.place + 1)]


def _group_norm(b: Builder, node: fx.Node) -> Results:
    given, weight, bias, eps = node.args[0], node.args[1], node.args[2], node.args[7]
    groups = _Groups(_frame(b.meta(node, 0)), _n_groups(node, 6))
    frame = groups.frame
    x = groups.split(frame.of(b, given))
    mean = x.reduce("mean", groups.inside, keepdims=True)
    apart = x - mean
    rstd = (apart.op("square").reduce("mean", groups.inside, keepdims=True) + float(eps)).op(
        "rsqrt"
    )
    w, shift = (groups.split(frame.channels(b, v, d)) for v, d in ((weight, 1.0), (bias, 0.0)))
    y = groups.whole(apart * rstd * w + shift)
    return [frame.value(y, b.meta(node, 0)), _vector(b, node, 1, mean), _vector(b, node, 2, rstd)]


def _n_groups(node: fx.Node, position: int) -> int:
    n = node.args[position]
    assert isinstance(n, int)
    return n


def _group_norm_check(position: int) -> Check:
    def check(node: fx.Node) -> str | None:
        if not isinstance(node.args[position], int):
            return "its number of groups varies"
        for a in node.all_input_nodes:
            val = a.meta["val"]
            if val.dim() > 1 and val.dim() == node.all_input_nodes[0].meta["val"].dim():
                strides = [s for n, s in zip(val.shape, val.stride(), strict=True) if n != 1]
                if val.shape[0] != 1 and val.stride(0) != max(strides):
                    return "samples are not the slowest axis"
        return _floats(node)

    return check


def _group_norm_backward(b: Builder, node: fx.Node) -> Results:
    dy, given, mean, rstd, weight = node.args[:5]
    assert isinstance(given, fx.Node)
    wanted = [v is not None for v in node.meta["val"]]
    frame = _frame(b.meta(node, 0) if wanted[0] else b.meta(given))
    groups = _Groups(frame, _n_groups(node, 8))
    x, g = groups.split(frame.of(b, given)), groups.split(frame.of(b, dy))
    scale = groups.samples(b, rstd)
    xhat = (x - groups.samples(b, mean)) * scale
    made: list[Value | None] = [None, None, None]
    if wanted[0]:
        inner = g * groups.split(frame.channels(b, weight, 1.0))
        count = math.prod(x.shape[i] for i in groups.inside)
        first = inner.reduce("sum", groups.inside, keepdims=True) / count
        second = (inner * xhat).reduce("sum", groups.inside, keepdims=True) / count
        dx = (inner - (first + xhat * second)) * scale
        made[0] = frame.value(groups.whole(dx), b.meta(node, 0))
    for i, each in ((1, g * xhat), (2, g)):
        if wanted[i]:
            made[i] = _vector(b, node, i, each.reduce("sum", groups.all_but_channels()))
    return made


ROWS: dict[Any, Row] = {
    aten._native_batch_norm_legit_functional.default: Row(_batch_norm, _batch_norm_check),
    aten.native_batch_norm_backward.default: Row(_batch_norm_backward, _batch_norm_backward_check),
    aten.native_group_norm.default: Row(_group_norm, _group_norm_check(6)),
    aten.native_group_norm_backward.default: Row(_group_norm_backward, _group_norm_check(8)),
}
