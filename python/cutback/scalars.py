"""Checks of numbers and flags, of Python's or NumPy's types. ``True`` as a number is refused
because it is most likely an argument in the wrong place, and so is ``"no"`` as a flag, which would
be true."""

from __future__ import annotations

from typing import Any

import numpy as np


def number(owner: str, name: str, value: Any) -> float:
    """An option as a float.

    Raises:
        TypeError, ValueError: if it is not a number, or is too large for a float.
    """
    try:
        if isinstance(value, str | bytes | bool | np.bool_):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # an array raises one of the latter
        raise TypeError(f"{owner}: {name}={value!r:.60} is not a number") from None
    except OverflowError:
        raise ValueError(f"{owner}: {name} is an integer too large for a float") from None


def flag(owner: str, name: str, value: Any) -> bool:
    """True or False.

    Raises:
        TypeError: if it is neither.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{owner}: {name}={value!r:.60} is neither True nor False")
    return bool(value)
