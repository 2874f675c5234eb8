"""Converts sizes of tensors to ints. A symbolic size counts as its hint, or as the value that a
plan is made for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch.fx.experimental import symbolic_shapes

if TYPE_CHECKING:
    from torch import SymInt
    from torch.fx.experimental.symbolic_shapes import sympy

# The function has another name before torch 2.12.
_hint = getattr(symbolic_shapes, "optimization_hint", None) or symbolic_shapes.size_hint


class _Sizes(threading.local):
    """Values of symbols where they differ from the hints."""

    def __init__(self) -> None:
        self.planned: dict[sympy.Symbol, int] = {}
        self.known: dict[sympy.Expr, int] = {}  # sizes computed so far


_sizes = _Sizes()


@contextlib.contextmanager
def sizes_as(planned: dict[sympy.Symbol, int]) -> Iterator[None]:
    """Returns a context in which symbols have these values instead of their hints."""
    before = _sizes.planned, _sizes.known
    _sizes.planned, _sizes.known = planned, {}
    try:
        yield
    finally:
        _sizes.planned, _sizes.known = before


def hint(n: int | SymInt) -> int:
    """Returns a size as an int. A symbolic size counts as its hint, or as the value set for its
    symbols."""
    if type(n) is int:
        return n
    planned, node = _sizes.planned, getattr(n, "node", None)
    if planned and node is not None:
        expr = node.expr
        if expr not in _sizes.known and not expr.free_symbols.isdisjoint(planned):
            others = {s: int(_hint(node.shape_env.create_symintnode(s, hint=None), 4096))
                      for s in expr.free_symbols - planned.keys()}  # fmt: skip
            _sizes.known[expr] = int(expr.xreplace({**planned, **others}))
        if expr in _sizes.known:
            return _sizes.known[expr]
    return int(_hint(n, 4096))
