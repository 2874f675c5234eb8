"""Finds the arguments of a graph from which sizes that vary between calls can be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import fx

from .building import tensors_of
from .layouts import Sizes

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import sympy

Size: TypeAlias = "int | torch.SymInt"


class Place(NamedTuple):
    """An argument of the graph that is the value of a symbol, or has that size along an axis."""

    node: fx.Node
    axis: int | None


def symbols_in(node: fx.Node) -> set[sympy.Symbol]:
    """Returns the symbols in the sizes of a node's tensors, or in its value if that is a size."""
    val = node.meta.get("val")
    sizes: list[Size] = [val] if isinstance(val, (int, torch.SymInt)) else []
    for t in tensors_of(node):
        sizes += (*t.shape, *t.stride(), t.storage_offset())
    return {s for n in sizes if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols}


def sizes_with(values: Mapping[sympy.Symbol, int]) -> Sizes:
    """Returns a function that converts sizes to ints when symbols have these values."""

    def size(n: Size) -> int:
        return int(n.node.expr.xreplace(values)) if isinstance(n, torch.SymInt) else n

    return size


class Symbols:
    """Finds which arguments have the values of a graph's symbols."""

    def __init__(self, graph: fx.Graph) -> None:
        self.places: dict[sympy.Symbol, Place] = {}
        for node in graph.find_nodes(op="placeholder"):
            for symbol, axis in _bound_by(node):
                place = self.places.get(symbol)
                if place is None or axis is None:
                    self.places[symbol] = Place(node, axis)

    def know(self, node: fx.Node) -> bool:
        """True if all sizes of a node's tensors can be computed from the graph's arguments."""
        return symbols_in(node) <= self.places.keys()


def _bound_by(node: fx.Node) -> Iterator[tuple[sympy.Symbol, int | None]]:
    """Yields the symbols whose values an argument provides, with the axis for each."""
    val = node.meta.get("val")
    if isinstance(val, torch.SymInt):
        if val.node.expr.is_symbol:
            yield val.node.expr, None
    elif isinstance(val, torch.Tensor):
        for axis, n in enumerate(val.shape):
            if isinstance(n, torch.SymInt) and n.node.expr.is_symbol:
                yield n.node.expr, axis
