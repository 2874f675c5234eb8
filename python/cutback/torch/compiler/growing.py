"""Sizes that vary from call to call: what they were, so that one plan may hold for all of them.

A plan is made for sizes that are rounded up to an eighth of an octave (:func:`rounded_up`), so that
lengths which differ a little share it. Where no plan meets a budget at those sizes, they are
planned as they are from then on."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from ...octaves import rounded_up
from ..graph.sizes import hint

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import sympy

    from ..types import GraphInput

MOST_GROWTHS = 64
"""How often a model is planned again because sizes are larger than those it was planned for."""


class Symbols(NamedTuple):
    """The symbols of a graph's sizes, and what they count as."""

    hints: dict[sympy.Symbol, int]
    """As PyTorch has them."""
    largest: dict[sympy.Symbol, int]
    """The largest sizes that were seen."""
    is_rounded: bool = False
    """Is a plan made for sizes that are rounded up?"""

    @property
    def planned(self) -> dict[sympy.Symbol, int]:
        """What a plan is made for, where that is not the hint."""
        sizes = self.largest
        if self.is_rounded:
            sizes = {symbol: rounded_up(size) for symbol, size in sizes.items()}
        return {symbol: size for symbol, size in sizes.items() if size != self.hints[symbol]}

    def grown(self, sizes: Iterable[tuple[sympy.Symbol, int]]) -> Symbols:
        """These, where sizes may be larger than those that were seen."""
        largest = dict(self.largest)
        for symbol, size in sizes:
            if symbol in largest:
                largest[symbol] = max(size, largest[symbol])
        return self._replace(largest=largest)


class RoundedUpError(Exception):
    """No plan meets the budget for sizes that are rounded up; for the actual ones one may."""


class LargerError(Exception):
    """A call, of which nothing has run yet, has larger sizes than its plan was made for."""


class Sizes:
    """The largest sizes seen in each place of a model, by PyTorch's number of its code."""

    def __init__(self) -> None:
        self._largest: dict[int | None, list[list[int]]] = {}  # of its tensors
        self.growths = 0
        """How often plans were made anew for them."""
        self.starts = 0
        """The same; graphs that were planned before the last time are planned again."""
        self.outgrown = False
        """Are those in force too small?"""
        self.rounds = True
        """Are sizes rounded up for planning?"""
        self.rounded = False
        """Were any, since plans were last started from nothing?"""

    @property
    def told(self) -> bool:
        """Has it been said that sizes are larger than planned?"""
        return self.growths > MOST_GROWTHS

    def outgrow(self, size: int, planned: int) -> None:
        """A call has a larger size than planned."""
        if self.growths < MOST_GROWTHS:
            self.outgrown = True
        elif self.growths == MOST_GROWTHS:
            self.growths += 1
            warnings.warn(
                f"a size of {size} was planned as {planned}, and plans were made anew for larger "
                f"sizes {MOST_GROWTHS} times: the budget may not hold. Begin with the largest "
                "sizes, or pass dynamic=False",
                stacklevel=4,
            )

    def begin_anew(self) -> bool:
        """Are plans to be made anew? From here on they are in force."""
        outgrown, self.outgrown = self.outgrown, False
        self.growths += outgrown
        self.starts += outgrown
        self.rounded &= not outgrown
        return outgrown

    def as_they_are(self) -> None:
        """From now on no size is rounded up; plans are to be started from nothing."""
        self.rounds, self.outgrown = False, True

    def larger(self, frame: int | None, inputs: Sequence[GraphInput]) -> Symbols:
        """Symbols of the sizes of a graph that is compiled. One plan is to hold for all sizes that
        were seen in this place of the model.

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
        hints: dict[sympy.Symbol, int] = {}
        largest: dict[sympy.Symbol, int] = {}
        for rows in zip(shapes, self._largest[frame], strict=True):
            for n, most in zip(*rows, strict=True):
                if isinstance(n, torch.SymInt) and n.node.expr.is_Symbol:
                    symbol = n.node.expr
                    hints[symbol] = hint(n)
                    largest[symbol] = max(most, largest.get(symbol, 0))
        return self.planned(Symbols(hints, largest))

    def planned(self, symbols: Symbols) -> Symbols:
        """What symbols count as for a plan."""
        found = symbols._replace(is_rounded=True)
        if not self.rounds or found.planned == symbols._replace(is_rounded=False).planned:
            return symbols._replace(is_rounded=False)
        self.rounded = True
        return found
