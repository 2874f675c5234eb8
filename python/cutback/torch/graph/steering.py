"""Chooses plugs that lead the allocator to intended offsets.

PyTorch's caching allocator puts a block at the low end of the smallest hole that holds it. So a
result gets another position if the space below that position in its hole, and the smaller holes
that would hold the result, are filled while its op runs (:mod:`graph.segment`).

Some positions cannot be reached. What one op allocates first cannot be above what it allocates next
in the same hole, and a hole is not split if at most 1 MiB would be left. Therefore a position is
rated by its effect on later blocks: the number of blocks whose intended offsets it covers while
they exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np

SMALL = 1 << 20
"""Blocks up to this size come from the pool of small blocks. Larger holes are not split if they
would leave at most this many bytes."""


class Hole(NamedTuple):
    """A free part of the segment. Holes compare in the order in which the allocator chooses
    them."""

    size: int
    start: int


class Guide:
    """Blocks and their intended offsets.

    Args:
        lives: for each block, the first and the last allocation at which it exists.
        sizes: the size of each block.
        moments: for each block, the op that allocates it.
        offsets: the offset of each block.
    """

    def __init__(
        self,
        lives: Sequence[tuple[int, int]],
        sizes: Sequence[int],
        moments: Sequence[int],
        offsets: Sequence[int],
    ) -> None:
        self.lives, self.sizes, self.moments, self.offsets = lives, sizes, moments, offsets
        self._made = np.array([life[0] for life in lives], np.int64)
        self._moment = np.array(moments, np.int64)
        self._low = np.array(offsets, np.int64)
        self._high = self._low + np.array(sizes, np.int64)

    def conflicts(self, block: int, low: int, high: int) -> int:
        """Returns the number of later blocks whose intended position overlaps ``block`` at ``low``
        to ``high`` while it exists."""
        made, last = self.lives[block]
        if last <= made:
            return 0
        later = (self._moment > self.moments[block]) & (self._made <= last)
        return int(np.count_nonzero(later & (self._low < high) & (self._high > low)))


def choose(holes: Sequence[Hole], events: Sequence[int], guide: Guide) -> tuple[int, ...] | None:
    """Returns the sizes of the plugs to allocate before an op, in order: the first ones found that
    hinder no later block, or else those that hinder the fewest. Returns None if the op's blocks do
    not fit.

    Args:
        holes: the holes of the segment.
        events: what the op does: it allocates block ``k``, or frees it (``~k``).
        guide: the blocks of the step.
    """
    plugs: tuple[int, ...] = ()
    best = _rate(holes, events, guide)
    if best == 0:
        return plugs
    blocks = [k for k in events if k >= 0]
    least = min(guide.sizes[k] for k in blocks)
    tried = set[tuple[int, ...]]()
    for starts in _starts(holes, blocks, guide):
        if starts in tried:
            continue
        tried.add(starts)
        for sizes, left in _opened(holes, starts, least):
            cost = _rate(left, events, guide)
            if cost is None:
                continue
            if best is None or (cost, len(sizes)) < (best, len(plugs)):
                best, plugs = cost, sizes
        if best == 0:
            break
    return None if best is None else plugs


def _rate(holes: Sequence[Hole], events: Sequence[int], guide: Guide) -> int | None:
    """Returns the number of conflicts if the op runs with these holes, or None if the holes are too
    small."""
    left, places = list(holes), dict[int, tuple[int, int]]()
    for k in events:
        if k < 0:
            _give_back(left, *places.pop(~k))
            continue
        taken = _take(left, guide.sizes[k])
        if taken is None:
            return None
        places[k] = taken
    return sum(guide.conflicts(k, *place) for k, place in places.items())


def _take(holes: list[Hole], size: int) -> tuple[int, int] | None:
    """Allocates a block. Returns its start and end, or None if no hole is large enough."""
    hole = min((hole for hole in holes if hole.size >= size), default=None)
    if hole is None:
        return None
    holes.remove(hole)
    rest = hole.size - size
    if rest <= SMALL:
        return hole.start, hole.start + hole.size
    holes.append(Hole(rest, hole.start + size))
    return hole.start, hole.start + size


def _give_back(holes: list[Hole], low: int, high: int) -> None:
    for hole in list(holes):
        if hole.start + hole.size == low or hole.start == high:
            holes.remove(hole)
            low, high = min(low, hole.start), max(high, hole.start + hole.size)
    holes.append(Hole(high - low, low))


_PLACES = 16
"""Number of start positions that are tried in pairs."""


def _starts(
    holes: Sequence[Hole], blocks: Sequence[int], guide: Guide
) -> Iterator[tuple[int, ...]]:
    """Yields the starts of the parts of holes that are left open for an op's blocks: first the
    intended offsets, then both ends of holes."""
    wanted = sorted({guide.offsets[k] for k in blocks})
    yield tuple(wanted)
    sizes = {guide.sizes[k] for k in blocks}
    sizes.add(sum(guide.sizes[k] for k in blocks))
    low = [hole.start for hole in holes if hole.size >= min(sizes)]
    high = [hole.start + hole.size - n for hole in holes for n in sizes if hole.size >= n]
    places = list(dict.fromkeys(chain(wanted, low, high)))
    yield from ((start,) for start in places)
    if len(blocks) > 1:
        yield from combinations(sorted(places[:_PLACES]), 2)


def _opened(
    holes: Sequence[Hole], starts: tuple[int, ...], least: int
) -> Iterator[tuple[tuple[int, ...], list[Hole]]]:
    """Yields plugs that fill holes up to these starts, and the holes that are left: first without
    plugs that fill other holes, then with one more of those each time.

    Args:
        holes: the holes of the segment.
        starts: where blocks are to begin, in rising order.
        least: bytes of the op's smallest block.
    """

    def is_open(hole: Hole) -> bool:
        return any(hole.start <= start < hole.start + hole.size for start in starts)

    left, plugs = list(holes), list[int]()
    for start in starts:
        hole = next((h for h in left if h.start <= start < h.start + h.size), None)
        if hole is None:
            return
        size = start - hole.start
        if size <= SMALL or hole.start in starts:
            continue
        while (smaller := min(h for h in left if h.size >= size)) != hole:
            if is_open(smaller):
                return
            plugs.append(smaller.size)
            left.remove(smaller)
        plugs.append(size)
        _take(left, size)
    yield tuple(plugs), left
    for hole in sorted(hole for hole in left if hole.size >= least and not is_open(hole)):
        plugs.append(hole.size)
        left = [other for other in left if other != hole]
        yield tuple(plugs), left
