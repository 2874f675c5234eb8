"""Checks hyper-parameters. The core receives rows of numbers without names, so errors are raised
here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any

from ..scalars import flag, number

_FLAGS = {"amsgrad", "clip", "decoupled_weight_decay", "maximize", "nesterov"}
Schedule = Callable[[int], float]
"""A hyper-parameter that varies: a function of the number of steps taken so far."""

Scalar = float | Schedule
"""A hyper-parameter as the user passes it: a number or a schedule."""

Row = tuple[float, ...]
"""The hyper-parameters of a group in the core's order."""


class LastRows:
    """A cache for the rows of the latest options; it hits if the next call has the same objects.
    Options whose value may change while the object stays the same, such as schedules and lists, are
    not cached."""

    def __init__(self) -> None:
        self._known: tuple[list[Any], list[Row]] | None = None  # set in one assignment

    def of(self, values: list[Any]) -> list[Row] | None:
        """Returns the rows for these options, or None."""
        known = self._known
        return known[1] if known is not None and all(map(is_, values, known[0])) else None

    def keep(self, values: list[Any], rows: list[Row]) -> list[Row]:
        """Caches the rows of these options, and returns them."""
        self._known = (values, rows) if all(map(_is_constant, values)) else None
        return rows


def _is_constant(value: Any) -> bool:
    """Returns True if the value of this object cannot change."""
    if type(value) is tuple:
        return all(map(_is_constant, value))
    return value is None or type(value) in (int, float, bool)


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


def numbers_of(owner: str, names: Sequence[str], options: Mapping[str, Any], n_betas: int) -> Row:
    """Converts the options of these names to numbers; ``betas`` is expanded.

    Raises:
        TypeError, ValueError: if a value is not a number or is outside its range.
    """
    row: list[float] = []
    for name in names:
        if name == "betas":
            row.extend(betas(owner, options[name], n_betas))
        elif name in _FLAGS:
            row.append(float(flag(owner, name, options[name])))
        else:
            row.append(least_zero(owner, name, options[name]))
    return tuple(row)
