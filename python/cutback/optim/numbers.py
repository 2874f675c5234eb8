"""Checks of hyper-parameters. The core receives rows of numbers without their names, so errors are
raised here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..scalars import number

Schedule = Callable[[int], float]
"""A hyper-parameter that varies: a function of the number of steps taken so far."""

Scalar = float | Schedule
"""A hyper-parameter as the user passes it: a number or a schedule."""

Row = tuple[float, ...]
"""The hyper-parameters of a group in the core's order."""


def least_zero(owner: str, name: str, value: Any) -> float:
    """Checks that a hyper-parameter is finite and at least 0.

    Raises:
        TypeError, ValueError: if it is not.
    """
    x = number(owner, name, value)
    if not 0 <= x < math.inf:
        raise ValueError(f"{owner}: {name}={x} must be finite and at least 0")
    return x


def pair(owner: str, name: str, value: Any) -> tuple[float, float]:
    """Checks that ``value`` is two numbers that are finite and at least 0.

    Raises:
        TypeError, ValueError: if it is not.
    """
    try:
        first, second = value
    except (TypeError, ValueError):
        raise ValueError(f"{owner}: {name}={value!r} must be two numbers") from None
    return least_zero(owner, f"{name}[0]", first), least_zero(owner, f"{name}[1]", second)


def betas(owner: str, betas: Any, n: int = 2) -> Row:
    """Checks that ``betas`` is a sequence of ``n`` numbers in [0, 1).

    Raises:
        TypeError, ValueError: if it is not.
    """
    try:
        given = tuple(betas)
    except TypeError:
        given = ()
    if len(given) != n or isinstance(betas, str):
        raise ValueError(f"{owner}: betas={betas!r} must be {['two', 'three'][n - 2]} numbers")
    numbers = tuple([number(owner, f"beta{k}", beta) for k, beta in enumerate(given, 1)])
    for k, beta in enumerate(numbers, 1):
        if not 0 <= beta < 1:
            raise ValueError(f"{owner}: beta{k}={beta} is not in [0, 1)")
    return numbers
