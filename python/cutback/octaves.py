"""Rounds sizes, so that a few plans serve many shapes. Plans are made for eight sizes from one
power of two to the next, so a plan is for a size that is at most an eighth too large."""

from __future__ import annotations


def rounded_up(size: int) -> int:
    """Rounds ``size`` up to an eighth of an octave: to 1, 2, ... 16, 18, ... 32, 36, ...

    >>> from cutback.octaves import rounded_up
    >>> [rounded_up(n) for n in (7, 91, 93, 96, 97, 128)]
    [7, 96, 96, 96, 104, 128]
    """
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step
