"""Checks of numbers and flags, which may be Python or NumPy scalars. ``True`` is refused as a
number, because it is most likely an argument in the wrong position. A string is refused as a flag,
because even ``"no"`` is true."""

from __future__ import annotations

from typing import Any

import numpy as np


def number(owner: str, name: str, value: Any) -> float:
    """Converts an option to a float. ``owner`` and ``name`` are used in errors.

    Raises:
        TypeError, ValueError: if ``value`` is not a number, or is too large for a float.
    """
    try:
        if isinstance(value, str | bytes | bool | np.bool_):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # arrays raise ValueError or RuntimeError
        raise TypeError(f"{owner}: {name}={value!r:.60} is not a number") from None
    except OverflowError:
        raise ValueError(f"{owner}: {name} is an integer too large for a float") from None


def flag(owner: str, name: str, value: Any) -> bool:
    """Converts an option to a bool. ``owner`` and ``name`` are used in errors.

    Raises:
        TypeError: if ``value`` is neither True nor False.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{owner}: {name}={value!r:.60} is neither True nor False")
    return bool(value)
