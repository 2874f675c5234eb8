"""Translates nodes of PyTorch's graph into a graph of ours."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import fx

from .arrays import NAMES, Array, Graph
from .layouts import Held, Meta, Sizes, Window, axes_of, held_by, meta_of

if TYPE_CHECKING:
    from torch.fx.node import Argument


class Value(NamedTuple):
    """A tensor in a graph of ours."""

    array: Array  # its axes are `axes` of the tensor
    axes: tuple[int, ...]
    meta: Meta


Results = Value | list[Value | None]
"""What a node returns: a tensor, or a tuple of tensors, some of which may be missing."""


class Views(Protocol):
    """Relations between views and the nodes of a graph."""

    def shown(self, node: fx.Node) -> fx.Node | None:
        """Returns the node whose elements a node shows with another shape, or None."""
        ...

    def block(self, node: fx.Node, sizes: Sizes) -> tuple[fx.Node, Window] | None:
        """Returns the node in whose memory a node's tensor is a block, with the block's position,
        or None if it is not such a block. It may be the node itself."""
        ...


class Builder:
    """The graph of one group.

    Args:
        sizes: converts the sizes of fake tensors to ints.
        views: the views of the graph.
    """

    def __init__(self, sizes: Sizes, views: Views) -> None:
        self.graph = Graph()
        self.sizes = sizes
        self.inputs: list[fx.Node] = []
        """Tensors that the group takes, in the order of the graph's arguments."""
        self.held: dict[fx.Node, Held] = {}
        """The positions of tensors that have gaps."""
        self.seed: fx.Node | None = None
        """The tensor with the seed of the group's random numbers."""
        self.values: dict[fx.Node, Results] = {}
        self._views = views
        self._gapped: dict[fx.Node, Array] = {}

    # ---- tensors of PyTorch's graph -----------------------------------------------------------

    def meta(self, node: fx.Node, index: int | None = None) -> Meta:
        """Returns the metadata of a node's tensor, or of one of its tensors."""
        val = node.meta["val"]
        return meta_of(val if index is None else val[index], self.sizes)

    def value(self, node: fx.Node) -> Value:
        """Returns a tensor: made in the group, a view of an existing one, or an argument."""
        known = self.values.get(node)
        if known is None:
            known = self.values[node] = self._view_or_input(node)
        assert isinstance(known, Value)
        return known

    def _view_or_input(self, node: fx.Node) -> Value:
        shown = self._views.shown(node)
        meta = self.meta(node)
        if shown is not None and node.target is not operator.getitem:
            return self.as_view(self.value(shown), meta)
        if shown in self.values:  # a tuple that the group makes
            part = self.values[shown][node.args[1]]
            assert isinstance(part, Value)
            return part
        block = self._views.block(node, self.sizes)
        if block is not None:
            root, window = block
            return self._block(self._memory_of(root), window, meta)
        axes = axes_of(meta)
        assert axes is not None, node
        return Value(self._input(node, [meta.shape[a] for a in axes]), axes, meta)

    def _input(self, node: fx.Node, shape: Sequence[int]) -> Array:
        """Adds an argument."""
        self.inputs.append(node)
        return self.graph.input(shape, NAMES[self.meta(node).dtype])

    def _memory_of(self, node: fx.Node) -> Array:
        """Returns the memory of a tensor: if the tensor has gaps, all memory that it holds."""
        if axes_of(self.meta(node)) is not None:
            return self.value(node).array
        if node not in self._gapped:
            held = self.held[node] = held_by(node.meta["val"], self.sizes)
            self._gapped[node] = self._input(node, [held.elements])
        return self._gapped[node]

    def as_view(self, value: Value, meta: Meta) -> Value:
        """Returns the same memory with another shape."""
        axes = axes_of(meta)
        assert axes is not None
        return Value(value.array.reshape([meta.shape[a] for a in axes]), axes, meta)

    def _block(self, memory: Array, window: Window, meta: Meta) -> Value:
        """Returns the elements of a tensor that has gaps between them."""
        array = memory.reshape(window.frame)
        counts = [*(meta.shape[a] for a in window.axes), 1]
        for axis, (start, n) in enumerate(zip(window.starts, counts, strict=True)):
            array = array.part(axis, start, n)
        return Value(array.reshape(counts[:-1]), window.axes, meta)

    def tensor(self, node: fx.Node, position: int) -> Value:
        """Returns the tensor argument of a node at a position."""
        given = node.args[position]
        assert isinstance(given, fx.Node), node
        return self.value(given)

    # ---- arrays in the order of axes that an operation needs ----------------------------------

    def framed(self, value: Value, axes: Sequence[int], rank: int) -> Array:
        """Returns a tensor that broadcasts to `rank` axes as an array over some of those axes, in
        their order. Axes that the tensor lacks have size 1."""
        shift = rank - len(value.meta.shape)
        own = tuple(a + shift for a in value.axes)
        wanted = [a for a in axes if a in own]
        array = value.array.transpose([own.index(a) for a in wanted])
        sizes = dict(zip(own, value.array.shape, strict=True))
        return array.reshape([sizes.get(a, 1) for a in axes])

    def logical(self, value: Value) -> Array:
        """Returns a tensor as an array of its shape."""
        rank = len(value.meta.shape)
        return self.framed(value, range(rank), rank).expand(value.meta.shape)

    def result(self, array: Array, meta: Meta) -> Value:
        """Returns an array of a tensor's shape that was computed here, as that tensor."""
        axes = axes_of(meta)
        assert axes is not None
        array = array.cast(NAMES[meta.dtype])
        sized = [a for a, n in enumerate(meta.shape) if n != 1]
        array = array.reshape([meta.shape[a] for a in sized])
        if list(axes) != sized:
            array = array.transpose([sized.index(a) for a in axes]).copy()
        return Value(array, axes, meta)


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """Returns the fake tensors that a node returns."""
    val = node.meta.get("val")
    given = val if isinstance(val, (tuple, list)) else (val,)
    return [v for v in given if isinstance(v, torch.Tensor)]


def argument(node: fx.Node, position: int, name: str, default: Argument) -> Argument:
    """Returns an argument of a call, by position or name."""
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, default)
