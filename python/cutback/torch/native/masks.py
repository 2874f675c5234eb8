"""Splits dropout into a mask and a product that our kernels compute. PyTorch draws the mask, or,
with ``random="counter"``, our generator does, inside a group.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from ..graph.codegen import NAME, RUN_OF
from ..graph.dropout import REMAKE, remaking_scale

aten = torch.ops.aten


def draw(like: torch.Tensor, p: float) -> torch.Tensor:
    """Draws the mask of ``native_dropout(like, p, True)`` from the same random numbers."""
    return torch.empty_like(like, dtype=torch.bool).bernoulli_(1 - p)


def split_dropouts(graph: fx.Graph) -> None:
    """Replaces each dropout by a draw of its mask and a product, if that has the same bits."""
    for node in graph.find_nodes(op="call_function", target=aten.native_dropout.default):
        _, p, train = node.args
        val = node.meta["val"][0]
        parts = list(node.users)
        only_parts = all(n.target is operator.getitem for n in parts)
        if train is not True or not 0 < p < 1 or not only_parts:
            continue
        scale = remaking_scale(p, val) if val.device.type == "cpu" else None
        if scale is not None:
            _split(graph, node, parts, scale)


def _split(graph: fx.Graph, node: fx.Node, parts: list[fx.Node], scale: float) -> None:
    x, p, _ = node.args
    origin = {k: v for k, v in node.meta.items() if k not in ("val", "tensor_meta")}
    origin.setdefault(RUN_OF, node.name)
    with graph.inserting_before(node):
        mask = graph.call_function(draw, (x, p))
        result = graph.call_function(REMAKE, (x, mask, scale))
    mask.meta.update(origin, val=node.meta["val"][1])
    mask.meta[NAME] = "aten.native_dropout"
    result.meta.update(origin, val=node.meta["val"][0])
    for part in parts:
        part.replace_all_uses_with(mask if part.args[1] else result)
        graph.erase_node(part)
    graph.erase_node(node)
