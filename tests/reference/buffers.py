"""Makes buffers that just fit a block of memory, like the CSV instances of MiniMalloc.

buffers = tight_buffers(seed, n, capacity)     [(lower, upper, size), ...]
"""

from __future__ import annotations

import random

CAPACITY = 1 << 20
HARD = tuple((seed, 150 + 30 * seed) for seed in range(11))
"""Seed and number of pieces of eleven instances, as many as MiniMalloc's challenging ones."""


def tight_buffers(seed: int, n: int, capacity: int = CAPACITY) -> list[tuple[int, int, int]]:
    """Returns a block of memory and time, cut into about ``n`` pieces, some of which are removed.

    Sizes are multiples of 1 KiB, and lower <= t < upper are the times in use.
    """
    draw = random.Random(seed)
    pieces = [(0, 4 * n, capacity // 1024)]  # lower, upper, KiB
    while len(pieces) < n:
        k = draw.randrange(len(pieces))
        lower, upper, size = pieces[k]
        if draw.random() < 0.5 and upper - lower > 1:
            cut = draw.randint(lower + 1, upper - 1)
            pieces[k : k + 1] = [(lower, cut, size), (cut, upper, size)]
        elif size > 1:
            cut = draw.randint(1, size - 1)
            pieces[k : k + 1] = [(lower, upper, cut), (lower, upper, size - cut)]
    draw.shuffle(pieces)
    return [(lower, upper, 1024 * size) for lower, upper, size in pieces[: n - n // 20]]
