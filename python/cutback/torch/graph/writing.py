"""Adds calls to a joint graph, with the values that they return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx
from torch._guards import detect_fake_mode

if TYPE_CHECKING:
    from torch.fx.node import Argument, Target

_OWN = ("tensor_meta", "val", "desc")


class Calls:
    """Adds calls to a graph of fake tensors."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.mode = detect_fake_mode([n.meta.get("val") for n in graph.nodes])

    def call(
        self, like: fx.Node, target: Target, *args: Argument, name: str = "", **kwargs: Argument
    ) -> fx.Node:
        """Adds a call where the graph inserts nodes. Its module and source line are those of
        ``like``."""
        values, named = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        with self.mode:
            val = target(*values, **named)
        node = self.graph.create_node("call_function", target, args, kwargs, name or None)
        node.meta = {k: v for k, v in like.meta.items() if k not in _OWN}
        node.meta["val"] = val
        return node

    def viewed(self, like: fx.Node, node: fx.Node, size: list[int]) -> fx.Node:
        """Adds a view of a value in another shape, or of a dense copy if its axes cannot be
        joined."""
        view = torch.ops.aten.view.default
        try:
            return self.call(like, view, node, size)
        except RuntimeError:
            dense = self.call(
                like, torch.ops.aten.clone.default, node, memory_format=torch.contiguous_format
            )
            return self.call(like, view, dense, size)

    def take_place(self, old: fx.Node, new: fx.Node, readers: list[fx.Node]) -> None:
        """Makes readers of a node read another one. If both have the same layout, the new node gets
        the old one's memory, because views record in ``meta["val"]`` which memory they are in."""
        was, val = old.meta["val"], new.meta["val"]
        if (was.dtype, was.shape, was.stride()) == (val.dtype, val.shape, val.stride()):
            new.meta["val"] = was
        for reader in readers:
            reader.replace_input_with(old, new)

    def in_memory_of(self, node: fx.Node, val: torch.Tensor) -> None:
        """Gives a node that has the elements of ``val`` in another shape the memory of ``val``."""
        own = node.meta["val"]
        with self.mode:
            shared = val.view(own.shape) if val.is_contiguous() else val
        if shared.stride() == own.stride() and shared.shape == own.shape:
            node.meta["val"] = shared
