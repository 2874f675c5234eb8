"""Finds repeated blocks in a list of ops, so that twelve equal layers are drawn once, marked
"x12"."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Fold:
    """A repeat: `count` consecutive copies of the items start .. start + period - 1."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        """The index after the last copy."""
        return self.start + self.period * self.count


def best_fold(signatures: Sequence[Hashable], min_period: int = 3) -> Fold | None:
    """Returns the repeat whose folding hides the most items, or None.

    For a period p, a run of consecutive i with s[i] == s[i + p] is a repeat of run // p + 1 copies.
    The search takes about n**2 / 2 vectorised comparisons: milliseconds for a thousand items.
    """
    index: dict[Hashable, int] = {}
    codes = np.array([index.setdefault(s, len(index)) for s in signatures], dtype=np.int64)
    best: Fold | None = None
    hidden = 0
    for period in range(min_period, len(codes) // 2 + 1):
        equal = codes[:-period] == codes[period:]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
        if not len(edges):
            continue
        starts, stops = edges[::2], edges[1::2]
        lengths = stops - starts
        copies = lengths // period + 1
        saving = (copies - 1) * period
        k = int(np.argmax(saving))
        if saving[k] > hidden:
            hidden = int(saving[k])
            best = Fold(int(starts[k]), period, int(copies[k]))
    return best


def folds(signatures: Sequence[Hashable], min_period: int = 3, limit: int = 4) -> list[Fold]:
    """Returns up to `limit` repeats that do not overlap, in order. The search is greedy: it takes
    the largest repeat, then searches on both sides of it."""
    found: list[Fold] = []

    def search(start: int, stop: int) -> None:
        if len(found) >= limit or stop - start < 2 * min_period:
            return
        fold = best_fold(signatures[start:stop], min_period)
        if fold is None:
            return
        moved = Fold(fold.start + start, fold.period, fold.count)
        found.append(moved)
        search(start, moved.start)
        search(moved.stop, stop)

    search(0, len(signatures))
    return sorted(found, key=lambda fold: fold.start)
