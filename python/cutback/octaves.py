"""The sizes at which plans are made for shapes that vary: eight between two powers of two, so that
few plans serve many shapes, and none is made for a size more than an eighth too large."""

from __future__ import annotations


def rounded_up(size: int) -> int:
    """``size`` rounded up to an eighth of an octave: to 1, 2, ... 16, 18, ... 32, 36, ...

    >>> from cutback.octaves import rounded_up
    >>> [rounded_up(n) for n in (7, 91, 93, 96, 97, 128)]
    [7, 96, 96, 96, 104, 128]
    """
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step
