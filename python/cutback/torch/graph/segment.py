"""Places a planned step in one segment of PyTorch's caching allocator.

On GPUs PyTorch's allocator takes memory from the driver in segments and keeps them. With default
settings each allocation of 10 MiB or more gets a segment of exactly its size, and segments never
merge. So a step whose tensors have many sizes reserves up to 1.8 times its peak of live bytes.

Here the step gets one large segment, allocated and freed before it, which the allocator then splits
and merges. It places a block at the low end of the smallest hole that is large enough. That still
leaves holes between long-lived and short-lived values, so the code of the step steers the
allocator. Before some ops it allocates *plugs*, which fill the holes (or low ends of holes) that
the op's results must not take, and frees them after the op. The packing search of the planner gives
each block its intended offset, and :mod:`graph.steering` chooses plugs that lead to it. The
allocator cannot follow every packing, so several are tried on a simulation of the allocator, first
for the smallest segment that holds the largest sum of live blocks.

Plugs do not change what an op computes or which kernel it uses. If the allocator's state differs
from the simulated one (because other tensors of the program are in the segment), only bytes differ.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import NamedTuple

from ... import _native
from .steering import SMALL, Guide, Hole, choose

GRAIN = 512
"""The allocator rounds sizes up to a multiple of this."""
LARGE = 10 << 20
"""A block of at least this size gets a segment of exactly its size."""
_SMALL_SEGMENT, _SEGMENT, _SEGMENT_GRAIN = 2 << 20, 20 << 20, 2 << 20


class Life(NamedTuple):
    """One allocation of a step: its first and last moment, and its bytes."""

    made: int
    last: int
    bytes: int


def continued(rows: Iterable[tuple[Life, int]]) -> tuple[list[Life], list[int]]:
    """Joins each life with the life that takes over its memory, which begins at the moment the
    first ends, at the same offset. Returns the lives, and the moments at which they were joined.

    Args:
        rows: lives, and their offsets.
    """
    lives: list[Life] = []
    at: dict[tuple[int, int, int], int] = {}  # last moment, offset and bytes of a life
    taking = []
    for life, offset in sorted(rows, key=lambda row: row[0].made):
        k = at.pop((life.made, offset, life.bytes), None)
        if k is None:
            k = len(lives)
            lives.append(life)
        else:
            lives[k] = lives[k]._replace(last=life.last)
            taking.append(life.made)
        at[life.last, offset, life.bytes] = k
    return lives, taking


def rounded(size: int) -> int:
    """Returns the bytes that the allocator takes for a block."""
    return max(GRAIN, -(-size // GRAIN) * GRAIN)


class _Block:
    """A part of a segment, in use or free."""

    __slots__ = ("is_free", "next", "number", "offset", "previous", "size", "small")

    def __init__(self, number: int, offset: int, size: int, small: bool) -> None:
        self.number = number  # number of the segment
        self.offset = offset
        self.size = size
        self.small = small
        self.is_free = True
        self.previous: _Block | None = None
        self.next: _Block | None = None


class CachingAllocator:
    """Simulates PyTorch's caching allocator, with default settings and one stream."""

    def __init__(self) -> None:
        self.reserved = 0
        self.peak_reserved = 0
        self._segments = 0
        # keyed by whether blocks are small: (size, number of the segment, offset, block)
        self._free: dict[bool, list[tuple[int, int, int, _Block]]] = {True: [], False: []}

    def _add(self, block: _Block) -> None:
        insort(self._free[block.small], (block.size, block.number, block.offset, block))

    def _remove(self, block: _Block) -> None:
        free = self._free[block.small]
        del free[bisect_left(free, (block.size, block.number, block.offset))]

    def malloc(self, size: int) -> _Block:
        """Allocates a block."""
        size = rounded(size)
        small = size <= SMALL
        free = self._free[small]
        at = bisect_left(free, (size,))
        block = free[at][-1] if at < len(free) else self._new_segment(size, small)
        self._remove(block)
        rest = block.size - size
        if rest >= GRAIN if small else rest > SMALL:
            other = _Block(block.number, block.offset + size, rest, small)
            other.previous, other.next = block, block.next
            if block.next is not None:
                block.next.previous = other
            block.next, block.size = other, size
            self._add(other)
        block.is_free = False
        return block

    def _new_segment(self, size: int, small: bool) -> _Block:
        if small:
            bytes = _SMALL_SEGMENT
        else:
            bytes = _SEGMENT if size < LARGE else -(-size // _SEGMENT_GRAIN) * _SEGMENT_GRAIN
        self._segments += 1
        self.reserved += bytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        block = _Block(self._segments, 0, bytes, small)
        self._add(block)
        return block

    def release(self, block: _Block) -> None:
        """Frees a block, which merges with adjacent free blocks."""
        block.is_free = True
        after, before = block.next, block.previous
        if after is not None and after.is_free:
            self._remove(after)
            self._absorb(block, after)
        if before is not None and before.is_free:
            self._remove(before)
            self._absorb(before, block)
            block = before
        self._add(block)

    @staticmethod
    def _absorb(block: _Block, other: _Block) -> None:
        block.size += other.size
        block.next = other.next
        if other.next is not None:
            other.next.previous = block

    def holes(self) -> list[Hole]:
        """Returns the free blocks of the first segment that are not small."""
        return [
            Hole(block.size, block.offset) for *_, block in self._free[False] if block.number == 1
        ]


class Placed(NamedTuple):
    """The placement of a step."""

    segment: int
    """Bytes of the segment that is reserved for the step, or 0 if there is no segment."""
    plugs: dict[int, tuple[int, ...]]
    """For each moment, bytes of the plugs that are allocated, in order, while its op runs."""
    reserved: int
    """Bytes that the allocator reserves in the simulation, including small blocks."""


class _Steps:
    """The allocations of a step, in order.

    Attributes:
        sizes: the size of each block, rounded.
        lives: for each block, the first and the last allocation at which it exists.
        during: for each moment, what its op does: it allocates block ``k``, or frees it (``~k``).
        after: for each moment, the same after the op.
        steerable: by moment, True if plugs can be allocated before the op.
        moment_of: the moment at which each block is allocated.
        live: the largest sum of live blocks.
    """

    def __init__(self, lives: Sequence[Life], traces: Mapping[int, Sequence[int]]) -> None:
        count = max((max(life.made, life.last) for life in lives), default=-1) + 1
        begin: list[list[int]] = [[] for _ in range(count)]
        end: list[list[int]] = [[] for _ in range(count)]
        for k, life in enumerate(lives):
            begin[life.made].append(k)
            end[life.last].append(k)
        self.sizes: list[int] = []
        self.during: list[list[int]] = []
        self.after: list[list[int]] = []
        self.steerable = [t in traces for t in range(count)]
        block_of: dict[int, int] = {}
        for t in range(count):
            own = [lives[k].bytes for k in begin[t]]
            made = self._op(traces.get(t, own))
            after = []
            for k in begin[t]:
                same = made.get(lives[k].bytes)
                if same:
                    block_of[k] = same.pop()
                else:
                    block_of[k] = self._block(lives[k].bytes)
                    after.append(block_of[k])
            after += [~block for blocks in made.values() for block in blocks]
            self.after.append(after + [~block_of[k] for k in end[t]])
        self._time()

    def _block(self, size: int) -> int:
        self.sizes.append(rounded(size))
        return len(self.sizes) - 1

    def _op(self, trace: Sequence[int]) -> dict[int, list[int]]:
        """Adds the allocations and frees of an op. Returns the blocks that it has not freed, by
        size."""
        made: dict[int, list[int]] = {}
        events = []
        for size in trace:
            if size > 0:
                made.setdefault(size, []).append(self._block(size))
                events.append(made[size][-1])
            elif made.get(-size):
                events.append(~made[-size].pop(0))
        self.during.append(events)
        return made

    def _time(self) -> None:
        self.lives = [(0, 0)] * len(self.sizes)
        self.moment_of = [0] * len(self.sizes)
        self.live = clock = now = 0
        for t, events in enumerate(zip(self.during, self.after, strict=True)):
            for k in [*events[0], *events[1]]:
                if k >= 0:
                    clock, now = clock + 1, now + self.sizes[k]
                    self.lives[k], self.moment_of[k] = (clock, clock), t
                    self.live = max(self.live, now)
                else:
                    self.lives[~k] = self.lives[~k][0], clock
                    now -= self.sizes[~k]

    def reserved(self) -> int:
        """Returns the bytes that the allocator reserves for two steps without a segment."""
        allocator = CachingAllocator()
        for _ in range(2):
            there: dict[int, _Block] = {}
            for during, after in zip(self.during, self.after, strict=True):
                self._do(allocator, during, there)
                self._do(allocator, after, there)
        return allocator.reserved

    def _do(
        self, allocator: CachingAllocator, events: Iterable[int], there: dict[int, _Block]
    ) -> None:
        for k in events:
            if k >= 0:
                there[k] = allocator.malloc(self.sizes[k])
            else:
                allocator.release(there.pop(~k))

    def steer(self, segment: int, guide: Guide) -> dict[int, tuple[int, ...]] | None:
        """Returns plugs with which a step stays inside its segment, or None if none were found.
        After the step the whole segment is free again, so later steps do the same."""
        allocator = CachingAllocator()
        allocator.release(allocator.malloc(segment))
        first, there = allocator.reserved, dict[int, _Block]()
        found: dict[int, tuple[int, ...]] = {}
        for t, during in enumerate(self.during):
            if self.steerable[t] and during:
                sizes = choose(allocator.holes(), during, guide)
                if sizes is None:
                    return None
                if sizes:
                    found[t] = sizes
            plugs = [allocator.malloc(size) for size in found.get(t, ())]
            self._do(allocator, during, there)
            for plug in plugs:
                allocator.release(plug)
            self._do(allocator, self.after[t], there)
            if allocator.reserved > first:
                return None
        return found


def reserved_without(lives: Sequence[Life]) -> int:
    """Returns the bytes that the allocator reserves for a step that is not placed."""
    return _Steps(lives, {}).reserved()


_EXTRA = (0, 1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64)
"""Segment sizes to try: the largest sum of live blocks, plus this many times 2 MiB."""
_TRIES = 32
"""Packings to try for each segment size."""
_EFFORT = 120_000
"""Number of moments above which only two packings are tried for a segment size."""
_PACK_EFFORT = 100_000_000
"""Work limit of one packing: some tenths of a second."""


def _guides(steps: _Steps, capacity: int) -> Iterator[Guide]:
    """Packs the blocks of a step in several ways; also yields each packing upside down."""
    random, order = Random(0), list(range(len(steps.sizes)))
    while True:
        rows = [(*steps.lives[k], steps.sizes[k]) for k in order]
        fit, found, *_ = _native.place(rows, capacity, _PACK_EFFORT)
        if fit != "found":
            return
        low = dict(zip(order, found, strict=True))
        offsets = [low[k] for k in range(len(order))]
        yield Guide(steps.lives, steps.sizes, steps.moment_of, offsets)
        offsets = [
            capacity - offset - size for offset, size in zip(offsets, steps.sizes, strict=True)
        ]
        yield Guide(steps.lives, steps.sizes, steps.moment_of, offsets)
        random.shuffle(order)


def place(lives: Sequence[Life], traces: Mapping[int, Sequence[int]]) -> Placed:
    """Returns the placement that reserves least among those tried.

    Args:
        lives: the lives of one step, in the order of its plan.
        traces: for each moment at which an op of the step runs, the bytes that it allocates
            (positive) and frees (negative), in order.
    """
    large = [life for life in lives if life.bytes > SMALL]
    small = reserved_without([life for life in lives if life.bytes <= SMALL])
    steps = _Steps(large, {t: [n for n in trace if abs(n) > SMALL] for t, trace in traces.items()})
    without, effort = reserved_without(large), 0
    for extra in _EXTRA:
        segment = (-(-steps.live // _SEGMENT_GRAIN) + extra) * _SEGMENT_GRAIN
        reserved = segment if segment >= LARGE else _SEGMENT
        if reserved >= without:
            break
        tries = _TRIES if effort < _EFFORT else 2
        for guide in islice(_guides(steps, segment), tries):
            plugs = steps.steer(segment, guide)
            effort += len(steps.during)
            if plugs is not None:
                return Placed(segment, plugs, reserved + small)
    return Placed(0, {}, without + small)
