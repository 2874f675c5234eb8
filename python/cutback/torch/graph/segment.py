"""Places a planned step in one segment of PyTorch's caching allocator.

On GPUs PyTorch's allocator takes memory from the driver in segments and keeps them. With default
settings each allocation of 10 MiB or more gets a segment of exactly its size, and segments never
merge, so a step whose tensors have many sizes reserves up to 1.8 times its peak of live bytes.

Here the step gets one large segment, allocated and freed before it, which the allocator then splits
and merges. It places a block at the low end of the smallest hole that is large enough. That still
leaves holes between long-lived and short-lived values, so the code of the step steers the
allocator: before some ops it allocates a *plug*, which fills the low end of a hole up to the
intended start of the op's results, and frees it after the op. Values at both ends of a hole then
leave it in one piece. The ops with a plug are chosen by simulating the allocator on the lives of
the plan: first under several rules, then by a search for a smaller segment. The search changes the
choice for some of the ops whose results are alive when a segment first turns out to be too small,
and keeps the change if the step gets at least as far as before.

Plugs do not change what an op computes or which kernel it uses. If the allocator's state differs
from the simulated one (because other tensors of the program are in the segment), only bytes differ.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate
from random import Random
from typing import NamedTuple

GRAIN = 512
"""The allocator rounds sizes up to a multiple of this."""
SMALL = 1 << 20
"""Blocks up to this size come from the pool of small blocks."""
LARGE = 10 << 20
"""A block of at least this size gets a segment of exactly its size."""
_SMALL_SEGMENT, _SEGMENT, _SEGMENT_GRAIN = 2 << 20, 20 << 20, 2 << 20


class Life(NamedTuple):
    """One allocation of a step: its first and last moment, and its bytes."""

    made: int
    last: int
    bytes: int


def continued(rows: Iterable[tuple[Life, int]]) -> tuple[list[Life], list[int]]:
    """Joins lives whose memory a result takes over: it begins at the moment at which the other
    ends, at the same offset. Returns the lives, and the moments of these results.

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
        self.number = number  # of the segment
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
        # by small: (size, number of the segment, offset, block)
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

    def largest_hole(self) -> int:
        """Returns the bytes of the largest free block that is not small."""
        free = self._free[False]
        return free[-1][0] if free else 0

    def best_hole(self, size: int) -> int:
        """Returns the size of the smallest free block that is large enough, or 0."""
        free = self._free[False]
        at = bisect_left(free, (size,))
        return free[at][0] if at < len(free) else 0


class Placed(NamedTuple):
    """The placement of a step."""

    segment: int
    """Bytes of the segment that is reserved for the step."""
    plugs: dict[int, int]
    """By moment, bytes of the plug that is allocated while its op runs."""
    reserved: int
    """Bytes that the allocator reserves in the simulation, including small blocks."""
    live: int
    """Peak of live bytes, with each block rounded."""


class _Where(IntEnum):
    """The intended place of an op's results."""

    LOW = 0
    """The allocator's choice: the low end of the smallest hole that holds them."""
    HIGH = 1
    """The high end of the largest hole."""
    HIGH_OF_SMALLEST = 2
    """The high end of the smallest hole that holds them."""


class _Simulated(NamedTuple):
    """The state of a simulated allocator."""

    placed: Placed
    failed: int | None
    """The number of moments that were left when the simulation ended because the segment was too
    small."""
    alive: list[int]
    """Lives at that moment."""


def _moments(lives: Sequence[Life]) -> list[tuple[list[int], list[int]]]:
    """Returns, by moment, the lives that begin and those that end."""
    count = max((max(life.made, life.last) for life in lives), default=-1) + 1
    found: list[tuple[list[int], list[int]]] = [([], []) for _ in range(count)]
    for k, life in enumerate(lives):
        found[life.made][0].append(k)
        found[life.last][1].append(k)
    return found


class _Steps:
    """Simulates steps with these lives."""

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
        """Returns the peak of live bytes."""
        now = most = 0
        for begin, end in self.moments:
            now += sum(rounded(self.lives[k].bytes) for k in begin)
            most = max(most, now)
            now -= sum(rounded(self.lives[k].bytes) for k in end)
        return most

    def simulate(
        self, segment: int, where: Sequence[_Where], must_hold: bool = False
    ) -> _Simulated:
        """Simulates the allocator over two steps.

        Args:
            segment: bytes that are allocated and freed before the first step; 0: none.
            where: by moment, where results go.
            must_hold: whether to end when a block does not fit into the segment.
        """
        allocator = CachingAllocator()
        if segment:
            allocator.release(allocator.malloc(segment))
        first, plugs = allocator.reserved, dict[int, int]()
        for step in range(2):
            there: dict[int, _Block] = {}
            for t, (begin, end) in enumerate(self.moments):
                need = self.needs[t]
                if step == 0 and need and where[t] and self.steerable[t]:
                    largest = where[t] is _Where.HIGH
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
                if must_hold and allocator.reserved > first:
                    failed = step * len(self.moments) + t
                    placed = Placed(segment, plugs, allocator.reserved, 0)
                    return _Simulated(placed, failed, list(there))
                for k in end:
                    allocator.release(there.pop(k))
        return _Simulated(Placed(segment, plugs, allocator.peak_reserved, 0), None, [])

    def _run(self, allocator: CachingAllocator, t: int) -> dict[int, list[_Block]]:
        """Runs the op of a moment. Returns the blocks that it has not freed, by size."""
        made: dict[int, list[_Block]] = {}
        for size in self.traces[t]:
            if size > 0:
                made.setdefault(size, []).append(allocator.malloc(size))
            elif made.get(-size):
                allocator.release(made[-size].pop(0))
        return made

    def rules(self, border: int) -> Iterator[list[_Where]]:
        """Yields rules for the place of results: by the length of their life, or by whether they
        live across a moment (the start of the backward)."""
        for high in self._high(border):
            for end in (_Where.HIGH, _Where.HIGH_OF_SMALLEST):
                yield [end if is_high else _Where.LOW for is_high in high]

    def _high(self, border: int) -> Iterator[list[bool]]:
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
    """Returns the peak of bytes that an op has allocated."""
    blocks = [rounded(size) if size > 0 else -rounded(-size) for size in trace]
    return max(accumulate(blocks), default=0)


_ROOM = (1.0, 1.005, 1.01, 1.015, 1.02, 1.03, 1.045, 1.06, 1.08, 1.1, 1.125, 1.15)
"""Segment sizes to try, relative to the peak of live bytes."""


def reserved_without(lives: Sequence[Life]) -> int:
    """Returns the bytes that the allocator reserves for a step that is not placed."""
    steps = _Steps(lives, {})
    return steps.simulate(0, [_Where.LOW] * len(steps.moments)).placed.reserved


_SEEDS = 8
"""Number of searches for each segment size."""
_CHANGES = 2500
"""Number of changes that one search tries, and number of consecutive failures that end it."""
_IN_VAIN = 400
_EFFORT = 6_000_000
"""Number of moments that all searches together simulate."""


class _Search:
    """Searches for a choice with which a step fits into a given segment."""

    def __init__(self, steps: _Steps, border: int) -> None:
        self.steps = steps
        self.rules = list(steps.rules(border))
        self.known = list(self.rules)
        """Initial choices: the rules, and choices found for larger segments."""
        self.effort = 0

    def run(self, segment: int) -> Placed | None:
        """Returns a placement in a segment of this size, or None if none was found."""
        begin = max((self._try(segment, where), k) for k, where in enumerate(self.known))
        for seed in range(_SEEDS):
            found = self._improve(segment, self.known[begin[1]], Random(seed))
            if found is not None or self.effort > _EFFORT:
                return found
        return None

    def _try(self, segment: int, where: Sequence[_Where]) -> int:
        found = self._simulate(segment, where)
        return 2 * len(where) if found.failed is None else found.failed

    def _simulate(self, segment: int, where: Sequence[_Where]) -> _Simulated:
        found = self.steps.simulate(segment, where, must_hold=True)
        self.effort += 2 * len(where) if found.failed is None else found.failed
        return found

    def _improve(self, segment: int, where: list[_Where], random: Random) -> Placed | None:
        """Changes a choice until the step fits."""
        now, in_vain = self._simulate(segment, where), 0
        for _ in range(_CHANGES):
            if now.failed is None:
                self.known.append(where)
                return now.placed
            changed = self._changed(where, now, random)
            then = self._simulate(segment, changed)
            in_vain += 1
            if then.failed is None or then.failed >= now.failed:
                in_vain = in_vain if then.failed == now.failed else 0
                where, now = changed, then
            if in_vain > _IN_VAIN or self.effort > _EFFORT:
                return None
        return None

    def _changed(self, where: Sequence[_Where], failed: _Simulated, random: Random) -> list[_Where]:
        """Returns a choice that differs in one to three moments: mostly those that made the blocks
        alive when the segment is too small, otherwise those shortly before."""
        assert failed.failed is not None
        changed, end = list(where), failed.failed % len(where)
        made = [self.steps.lives[k].made for k in failed.alive]
        made = [t for t in made if self.steps.steerable[t]]
        for _ in range(random.choice((1, 1, 2, 3))):
            near = random.random() > 0.7 or not made
            t = random.randrange(max(0, end - 40), end + 1) if near else random.choice(made)
            changed[t] = random.choice([other for other in _Where if other is not changed[t]])
        return changed


def place(
    lives: Sequence[Life], backward_starts: int, traces: Mapping[int, Sequence[int]]
) -> Placed:
    """Returns the placement that reserves least among those tried.

    Args:
        lives: of one step, in the order of its plan.
        backward_starts: the first moment of the backward.
        traces: by moment at which an op of the step runs, the bytes that it allocates and frees
            (negative), in order.
    """
    large = [life for life in lives if life.bytes > SMALL]
    small = reserved_without([life for life in lives if life.bytes <= SMALL])
    steps = _Steps(large, {t: [n for n in trace if abs(n) > SMALL] for t, trace in traces.items()})
    least, best = steps.live(), Placed(0, {}, reserved_without(large), 0)
    search = _Search(steps, backward_starts)
    segments = [-(-int(least * room) // _SEGMENT_GRAIN) * _SEGMENT_GRAIN for room in _ROOM]
    for segment in segments:
        if segment >= best.reserved:
            break
        for where in search.rules:
            found = steps.simulate(segment, where).placed
            if found.reserved < best.reserved:
                best = found
    for segment in reversed(segments):
        if segment >= best.reserved:
            continue
        smaller = search.run(segment)
        if smaller is None:
            break
        best = smaller
    live = _Steps(lives, {}).live()
    return best._replace(reserved=best.reserved + small, live=live)
