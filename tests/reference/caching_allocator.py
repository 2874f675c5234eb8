"""Simulates the memory that PyTorch's caching allocator reserves on a GPU for a sequence of
allocations, with default settings and one stream: a second, simple implementation next to
``cutback.torch.graph.segment``, with which it shares no code.

Blocks of up to 1 MiB are cut from segments of 2 MiB; larger ones from segments of 20 MiB, or of
their own size, rounded up to 2 MiB, from 10 MiB on. A request takes the low end of the smallest
free block that holds it; the rest is split off if it has 512 bytes (small blocks) or more than 1
MiB. Freed blocks merge with free neighbours in their segment."""

from __future__ import annotations

MIB = 1 << 20


class Allocator:
    """Segments as lists of ``[offset, size, is_free]``."""

    def __init__(self) -> None:
        self.segments: list[tuple[bool, int, list[list[int]]]] = []
        self.reserved = self.live = self.peak_live = 0

    def malloc(self, size: int) -> tuple[int, int]:
        """Allocates a block; returns its segment and offset."""
        size = max(512, (size + 511) // 512 * 512)
        small = size <= MIB
        free = [
            (block[1], number, block[0])
            for number, (kind, _, blocks) in enumerate(self.segments)
            if kind == small
            for block in blocks
            if block[2] and block[1] >= size
        ]
        if free:
            _, number, offset = min(free)
        else:
            if small:
                room = 2 * MIB
            elif size < 10 * MIB:
                room = 20 * MIB
            else:
                room = (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            number, offset = len(self.segments), 0
            self.segments.append((small, room, [[0, room, 1]]))
            self.reserved += room
        blocks = self.segments[number][2]
        at = next(i for i, block in enumerate(blocks) if block[0] == offset)
        rest = blocks[at][1] - size
        if (small and rest >= 512) or rest > MIB:
            blocks[at : at + 1] = [[offset, size, 0], [offset + size, rest, 1]]
        blocks[at][2] = 0
        self.live += blocks[at][1]
        self.peak_live = max(self.peak_live, self.live)
        return number, offset

    def free(self, block: tuple[int, int]) -> None:
        """Frees a block."""
        number, offset = block
        blocks = self.segments[number][2]
        at = next(i for i, found in enumerate(blocks) if found[0] == offset)
        self.live -= blocks[at][1]
        blocks[at][2] = 1
        for left in (at, at - 1):
            if 0 <= left < len(blocks) - 1 and blocks[left][2] and blocks[left + 1][2]:
                blocks[left : left + 2] = [
                    [blocks[left][0], blocks[left][1] + blocks[left + 1][1], 1]
                ]
