"""Tracks sizes that vary from call to call, so that one plan can cover all of them.

A plan is made for sizes that are rounded up to an eighth of an octave (:func:`rounded_up`), so that
similar lengths share it. If no plan meets a budget at those sizes, sizes are planned without
rounding from then on."""

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
"""How often a model may be planned again because sizes are larger than planned for."""


class Symbols(NamedTuple):
    """The symbols of a graph's sizes and the values that plans use for them."""

    hints: dict[sympy.Symbol, int]
    """The values that PyTorch uses (hints)."""
    largest: dict[sympy.Symbol, int]
    """The largest sizes seen so far."""
    is_rounded: bool = False
    """True if the plan is made for rounded-up sizes."""

    @property
    def planned(self) -> dict[sympy.Symbol, int]:
        """The sizes that the plan uses, if they differ from the hints."""
        sizes = self.largest
        if self.is_rounded:
            sizes = {symbol: rounded_up(size) for symbol, size in sizes.items()}
        return {symbol: size for symbol, size in sizes.items() if size != self.hints[symbol]}

    def grown(self, sizes: Iterable[tuple[sympy.Symbol, int]]) -> Symbols:
        """Returns symbols for sizes that may be larger than those seen so far."""
        largest = dict(self.largest)
        for symbol, size in sizes:
            if symbol in largest:
                largest[symbol] = max(size, largest[symbol])
        return self._replace(largest=largest)


class RoundedUpError(Exception):
    """Raised if no plan meets the budget for rounded-up sizes. There may be one for the actual
    sizes."""


class LargerError(Exception):
    """Raised before any graph of a call has run, if a size is larger than its plan was made for."""


class Sizes:
    """The largest sizes seen in each part of a model, keyed by PyTorch's frame number."""

    def __init__(self) -> None:
        self._largest: dict[int | None, list[list[int]]] = {}  # sizes of the part's tensors
        self.growths = 0
        """How often plans were remade for larger sizes."""
        self.starts = 0
        """The same count, as of the last start from scratch; graphs planned before it are planned
        again."""
        self.outgrown = False
        """True if the plans in force are for smaller sizes."""
        self.rounds = True
        """True if sizes are rounded up for planning."""
        self.rounded = False
        """True if any size was rounded up since the last start from scratch."""

    @property
    def told(self) -> bool:
        """True if the warning about sizes larger than planned has been given."""
        return self.growths > MOST_GROWTHS

    def outgrow(self, size: int, planned: int) -> None:
        """Handles a call with a larger size than planned."""
        if self.growths < MOST_GROWTHS:
            self.outgrown = True
        elif self.growths == MOST_GROWTHS:
            self.growths += 1
            warnings.warn(
                f"a size of {size} was planned as {planned}, and plans were already made again "
                f"{MOST_GROWTHS} times for larger sizes: the budget may not hold. Begin with the "
                "largest sizes, or pass dynamic=False",
                stacklevel=4,
            )

    def restart_if_outgrown(self) -> bool:
        """Returns whether plans must be made again, and resets that flag."""
        outgrown, self.outgrown = self.outgrown, False
        self.growths += outgrown
        self.starts += outgrown
        self.rounded &= not outgrown
        return outgrown

    def as_they_are(self) -> None:
        """Stops rounding sizes up from now on; plans must start from scratch."""
        self.rounds, self.outgrown = False, True

    def larger(self, frame: int | None, inputs: Sequence[GraphInput]) -> Symbols:
        """Returns the symbols of the sizes of a graph that is being compiled. One plan must hold
        for all sizes seen in this part of the model.

        Args:
            inputs: inputs of the graph, with symbolic sizes.
        """
        shapes = [t.shape for t in inputs if isinstance(t, torch.Tensor)]
        now = [[hint(n) for n in shape] for shape in shapes]
        before = self._largest.get(frame, now)
        if [len(row) for row in before] != [len(row) for row in now]:
            before = now  # a different kind of call
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
        """Returns the values of symbols for a plan."""
        found = symbols._replace(is_rounded=True)
        if not self.rounds or found.planned == symbols._replace(is_rounded=False).planned:
            return symbols._replace(is_rounded=False)
        self.rounded = True
        return found
