"""One segment of PyTorch's caching allocator for a planned step.

On GPUs PyTorch's allocator takes memory from the driver in segments and keeps them. With default
settings each allocation from 10 MiB on gets a segment of its own size, and segments never merge, so
that a step whose tensors have many sizes reserves up to 1.8 times what is alive at once.

Here the step gets one large segment, allocated and freed before it, which the allocator then splits
and merges. It places a block at the low end of the smallest hole that is large enough. That
alone leaves holes between values that live long and values that live short, so the code of the step
steers it: before some ops it allocates a *plug*, which fills the low end of the largest hole up to
where the results of the op are to begin, and frees it behind them. Values at both ends of a hole
then leave it in one piece. Which ops have a plug is chosen by simulating the allocator on the lives
of the plan, under several rules, of which the one with the smallest segment is taken.

What an op computes, and with which kernel, is not changed by this; if the allocator's state differs
from the simulated one (other tensors of the program lie in the segment), only bytes differ.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

GRAIN = 512
"""The allocator rounds sizes up to a multiple of this."""
SMALL = 1 << 20
"""Up to this size blocks come from the pool of small blocks."""
LARGE = 10 << 20
"""From this size on a block gets a segment of its own size."""
_SMALL_SEGMENT, _SEGMENT, _SEGMENT_GRAIN = 2 << 20, 20 << 20, 2 << 20


class Life(NamedTuple):
    """One allocation of a step: the first and the last moment at which it is there, and bytes."""

    made: int
    last: int
    bytes: int


def rounded(size: int) -> int:
    """The bytes that the allocator takes for a block."""
    return max(GRAIN, -(-size // GRAIN) * GRAIN)


class _Block:
    """A part of a segment, in use or free."""

    __slots__ = ("is_free", "next", "number", "offset", "previous", "size", "small")

    def __init__(self, number: int, offset: int, size: int, small: bool) -> None:
        self.number = number  # of the segment
        self.offset = offset
        self.size = size
        self.small = small
        self.is_free = True
        self.previous: _Block | None = None
        self.next: _Block | None = None


class CachingAllocator:
    """The decisions of PyTorch's caching allocator, with default settings and one stream."""

    def __init__(self) -> None:
        self.reserved = 0
        self.peak_reserved = 0
        self._segments = 0
        # by small: (size, number of the segment, offset, block)
        self._free: dict[bool, list[tuple[int, int, int, _Block]]] = {True: [], False: []}

    def _add(self, block: _Block) -> None:
        insort(self._free[block.small], (block.size, block.number, block.offset, block))

    def _remove(self, block: _Block) -> None:
        free = self._free[block.small]
        del free[bisect_left(free, (block.size, block.number, block.offset))]

    def malloc(self, size: int) -> _Block:
        """A block."""
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
        """Frees a block, which merges with free blocks beside it."""
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

    def largest_hole(self) -> int:
        """Bytes of the largest free block that is not small."""
        free = self._free[False]
        return free[-1][0] if free else 0

    def best_hole(self, size: int) -> int:
        """Size of the smallest free block that is large enough. 0: there is none."""
        free = self._free[False]
        at = bisect_left(free, (size,))
        return free[at][0] if at < len(free) else 0


class Placed(NamedTuple):
    """How a step is placed."""

    segment: int
    """Bytes of the segment that is reserved for it."""
    plugs: dict[int, int]
    """By moment, bytes of the plug that is there while its op runs."""
    reserved: int
    """Bytes that the allocator reserves in the simulation, small blocks included."""
    live: int
    """The most bytes that are alive at one moment, each block rounded."""


def _moments(lives: Sequence[Life]) -> list[tuple[list[int], list[int]]]:
    """By moment, the lives that begin and those that end."""
    count = max((max(life.made, life.last) for life in lives), default=-1) + 1
    found: list[tuple[list[int], list[int]]] = [([], []) for _ in range(count)]
    for k, life in enumerate(lives):
        found[life.made][0].append(k)
        found[life.last][1].append(k)
    return found


class _Steps:
    """Steps with these lives, to be simulated."""

    def __init__(self, lives: Sequence[Life], traces: Mapping[int, Sequence[int]]) -> None:
        self.lives = lives
        self.moments = _moments(lives)
        self.steerable = [t in traces for t in range(len(self.moments))]
        self.traces = [
            list(traces[t]) if t in traces else [lives[k].bytes for k in begin]
            for t, (begin, _) in enumerate(self.moments)
        ]
        self.needs = [_need(trace) for trace in self.traces]

    def live(self) -> int:
        """The most bytes that are alive at one moment."""
        now = most = 0
        for begin, end in self.moments:
            now += sum(rounded(self.lives[k].bytes) for k in begin)
            most = max(most, now)
            now -= sum(rounded(self.lives[k].bytes) for k in end)
        return most

    def simulate(self, segment: int, high: Sequence[bool], largest: bool) -> Placed:
        """The allocator's decisions in two steps.

        Args:
            segment: bytes that are allocated and freed before the first step. 0: none are.
            high: by moment, whether results go to the high end of a hole.
            largest: of the largest hole; otherwise of the smallest that holds them.
        """
        allocator = CachingAllocator()
        if segment:
            allocator.release(allocator.malloc(segment))
        plugs: dict[int, int] = {}
        for step in range(2):
            there: dict[int, _Block] = {}
            for t, (begin, end) in enumerate(self.moments):
                need = self.needs[t]
                if step == 0 and need and high[t] and self.steerable[t]:
                    hole = allocator.largest_hole() if largest else allocator.best_hole(need)
                    if hole - need > SMALL:
                        plugs[t] = hole - need
                plug = allocator.malloc(plugs[t]) if t in plugs else None
                made = self._run(allocator, t)
                if plug is not None:
                    allocator.release(plug)
                for k in begin:
                    found = made.get(self.lives[k].bytes)
                    there[k] = found.pop() if found else allocator.malloc(self.lives[k].bytes)
                for blocks in made.values():
                    for block in blocks:
                        allocator.release(block)
                for k in end:
                    allocator.release(there.pop(k))
        return Placed(segment, plugs, allocator.peak_reserved, 0)

    def _run(self, allocator: CachingAllocator, t: int) -> dict[int, list[_Block]]:
        """Runs the op of a moment. Returns what it has not freed, by size."""
        made: dict[int, list[_Block]] = {}
        for size in self.traces[t]:
            if size > 0:
                made.setdefault(size, []).append(allocator.malloc(size))
            elif made.get(-size):
                allocator.release(made[-size].pop(0))
        return made

    def rules(self, border: int) -> Iterator[list[bool]]:
        """Which moments to place high: by how long their results live, or by whether they live
        from before a moment (the begin of the backward) to after it."""
        longest = [
            max((self.lives[k].last - t for k in begin), default=0)
            for t, (begin, _) in enumerate(self.moments)
        ]
        for length in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            yield [most <= length for most in longest]
        yield [t < border <= t + most for t, most in enumerate(longest)]
        yield [not t < border <= t + most for t, most in enumerate(longest)]
        yield [False] * len(longest)


def _need(trace: Sequence[int]) -> int:
    """The most bytes that an op has allocated at one time."""
    blocks = [rounded(size) if size > 0 else -rounded(-size) for size in trace]
    return max(accumulate(blocks), default=0)


_ROOM = (1.0, 1.005, 1.01, 1.015, 1.02, 1.03, 1.045, 1.06, 1.08, 1.1, 1.125, 1.15)
"""Sizes of the segment that are tried, as parts of what is alive at most."""


def reserved_without(lives: Sequence[Life]) -> int:
    """The bytes that the allocator reserves for a step that is not placed."""
    steps = _Steps(lives, {})
    return steps.simulate(0, [False] * len(steps.moments), False).reserved


def place(
    lives: Sequence[Life], backward_starts: int, traces: Mapping[int, Sequence[int]]
) -> Placed:
    """The placement that reserves least, of those that are tried.

    Args:
        lives: of one step, in the order of its plan.
        backward_starts: the first moment of the backward.
        traces: by moment at which an op of the step's own code runs, what it allocates (bytes) and
            frees (negative), in order.
    """
    large = [life for life in lives if life.bytes > SMALL]
    small = reserved_without([life for life in lives if life.bytes <= SMALL])
    steps = _Steps(large, {t: [n for n in trace if abs(n) > SMALL] for t, trace in traces.items()})
    least, best = steps.live(), Placed(0, {}, reserved_without(large), 0)
    rules = list(steps.rules(backward_starts))
    for room in _ROOM:
        segment = -(-int(least * room) // _SEGMENT_GRAIN) * _SEGMENT_GRAIN
        if segment >= best.reserved:
            break
        for high in rules:
            for largest in (True, False):
                found = steps.simulate(segment, high, largest)
                if found.reserved < best.reserved:
                    best = found
    live = _Steps(lives, {}).live()
    return best._replace(reserved=best.reserved + small, live=live)
