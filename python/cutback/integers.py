"""Checks of integer arguments. They may have any type with ``__index__`` except bool: ``True`` is
most likely an argument in the wrong position, not a 1."""

from __future__ import annotations

import operator
from typing import Any


def index(value: Any) -> int:
    """Converts a size or a position to an int, like ``operator.index``, but refuses bools.

    Raises:
        TypeError: if ``value`` is not an integer.
        ValueError: if ``value`` does not fit in 64 bits.
    """
    number = _index(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"a size or position must have at most 64 bits, not {number.bit_length()}")
    return number


def _index(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"expected an integer, not {value}")
    return operator.index(value)


def integer(name: str, value: Any, low: int, high: int) -> int:
    """Converts the argument ``name`` to an int in ``low .. high``.

    Raises:
        TypeError: if ``value`` is not an integer.
        ValueError: if ``value`` is outside that range; the message gives the range.
    """
    try:
        number = _index(value)
    except TypeError:
        shown = repr(value)
        shown = shown if len(shown) < 60 else f"{shown[:57]}..."
        raise TypeError(f"{name}={shown} is not an integer") from None
    if not low <= number <= high:
        raise ValueError(f"{name}={number} is not in {_power(low)} .. {_power(high)}")
    return number


def _power(n: int) -> str:
    """Formats a number; numbers near a limit of int types become ``2**64 - 1`` and the like."""
    for bits in (31, 32, 63, 64):
        for less in (0, 1, 2):
            if abs(n) == 2**bits - less:
                power = f"2**{bits} - {less}" if less else f"2**{bits}"
                return power if n > 0 else f"-({power})" if less else f"-{power}"
    return str(n)
