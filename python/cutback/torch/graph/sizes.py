"""Sizes of tensors as ints: of a symbolic size its hint, or what a plan is made for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch.fx.experimental import symbolic_shapes

if TYPE_CHECKING:
    from torch import SymInt
    from torch.fx.experimental.symbolic_shapes import sympy

# Before torch 2.12 it has the other name.
_hint = getattr(symbolic_shapes, "optimization_hint", None) or symbolic_shapes.size_hint


class _Sizes(threading.local):
    """What symbolic sizes count as, by symbol, where that is not their hint."""

    def __init__(self) -> None:
        self.planned: dict[sympy.Symbol, int] = {}
        self.known: dict[sympy.Expr, int] = {}  # sizes that were worked out


_sizes = _Sizes()


@contextlib.contextmanager
def sizes_as(planned: dict[sympy.Symbol, int]) -> Iterator[None]:
    """Symbols of sizes count as these inside, and not as their hints."""
    before = _sizes.planned, _sizes.known
    _sizes.planned, _sizes.known = planned, {}
    try:
        yield
    finally:
        _sizes.planned, _sizes.known = before


def hint(n: int | SymInt) -> int:
    """A size as an int: of a symbolic size its hint, or what its symbols count as."""
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
