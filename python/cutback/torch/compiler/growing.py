"""Sizes that vary from call to call: what they were, so that one plan may hold for all of them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..graph.sizes import hint

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import sympy

    from ..types import GraphInput

MOST_GROWTHS = 16
"""How often a model is compiled anew because sizes are larger than those it was planned for."""


class LargerError(Exception):
    """A call, of which nothing has run yet, has larger sizes than its plan was made for."""


class Sizes:
    """The largest sizes seen in each place of a model, by PyTorch's number of its code."""

    def __init__(self) -> None:
        self._largest: dict[int | None, list[list[int]]] = {}  # of its tensors
        self._symbolic: set[int | None] = set()  # places that were compiled for sizes that change
        self._grown = 0
        self.growths = 0
        """How often plans were made anew for them."""
        self.outgrown = False
        """Are those in force too small?"""

    @property
    def told(self) -> bool:
        """Has it been said that sizes are larger than planned?"""
        return self.growths > MOST_GROWTHS

    def outgrow(self, size: int, planned: int, fresh: bool) -> None:
        """A call has a larger size than planned; ``fresh``: nothing of it has run.

        Raises:
            LargerError: it is to begin anew.
        """
        if self.growths < MOST_GROWTHS:
            self.outgrown = True  # the next call, if this one is under way
            if fresh:
                raise LargerError
        elif self.growths == MOST_GROWTHS:
            self.growths += 1
            warnings.warn(
                f"a size of {size} was planned as {planned}, and plans were made anew for larger "
                f"sizes {MOST_GROWTHS} times: the budget may not hold. Begin with the largest "
                "sizes, or pass dynamic=False",
                stacklevel=3,
            )

    def begin_anew(self) -> bool:
        """Are plans to be made anew? From here on they are in force."""
        outgrown, self.outgrown = self.outgrown, False
        self.growths += outgrown
        return outgrown

    def larger(self, frame: int | None, inputs: Sequence[GraphInput]) -> dict[sympy.Symbol, int]:
        """Symbols of a graph's sizes that were larger before, in this place of the model, and what
        they were: one plan is to hold for all of them. Sizes that keep on growing get some room.

        Args:
            inputs: what the graph takes, with symbolic sizes.
        """
        shapes = [t.shape for t in inputs if isinstance(t, torch.Tensor)]
        now = [[hint(n) for n in shape] for shape in shapes]
        before = self._largest.get(frame, now)
        if [len(row) for row in before] != [len(row) for row in now]:
            before = now  # another kind of call
        self._largest[frame] = [
            [max(pair) for pair in zip(*rows, strict=True)]
            for rows in zip(before, now, strict=True)
        ]
        planned: dict[sympy.Symbol, int] = {}
        found = [
            (n.node.expr, most, own)
            for rows in zip(shapes, before, now, strict=True)
            for n, most, own in zip(*rows, strict=True)
            if isinstance(n, torch.SymInt) and n.node.expr.is_Symbol
        ]
        if frame in self._symbolic and any(own > most for _, most, own in found):
            self._grown += 1
        if found:
            self._symbolic.add(frame)
        for symbol, most, own in found:
            size = max(most, own + own // 4) if self._grown > 1 else most
            if size > max(own, planned.get(symbol, 0)):
                planned[symbol] = size
        return planned
