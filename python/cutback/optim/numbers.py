"""Hyper-parameters as the core takes them: checked here, where their names are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..scalars import number

Schedule = Callable[[int], float]
"""A hyper-parameter that changes: a function of the number of steps taken so far."""

Scalar = float | Schedule
"""A hyper-parameter as users write it."""

Row = tuple[float, ...]
"""The hyper-parameters of a group in the core's order."""


def least_zero(owner: str, name: str, value: Any) -> float:
    """A hyper-parameter that is finite and at least 0.

    Raises:
        TypeError, ValueError: it is not.
    """
    x = number(owner, name, value)
    if not 0 <= x < math.inf:
        raise ValueError(f"{owner}: {name}={x} is not finite and at least 0")
    return x


def pair(owner: str, name: str, value: Any) -> tuple[float, float]:
    """Two numbers that are finite and at least 0.

    Raises:
        TypeError, ValueError: they are not.
    """
    try:
        first, second = value
    except (TypeError, ValueError):
        raise ValueError(f"{owner}: {name}={value!r} are not two numbers") from None
    return least_zero(owner, f"{name}[0]", first), least_zero(owner, f"{name}[1]", second)


def betas(owner: str, betas: Any, n: int = 2) -> Row:
    """So many numbers in [0, 1).

    Raises:
        TypeError, ValueError: they are not.
    """
    try:
        given = tuple(betas)
    except TypeError:
        given = ()
    if len(given) != n or isinstance(betas, str):
        raise ValueError(f"{owner}: betas={betas!r} are not {['two', 'three'][n - 2]} numbers")
    numbers = tuple([number(owner, f"beta{k}", beta) for k, beta in enumerate(given, 1)])
    for k, beta in enumerate(numbers, 1):
        if not 0 <= beta < 1:
            raise ValueError(f"{owner}: beta{k}={beta} is not in [0, 1)")
    return numbers
