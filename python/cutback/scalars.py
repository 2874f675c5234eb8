"""Numbers and flags that callers pass, of Python's types or NumPy's. ``True`` where a number is
wanted is an argument in the wrong place, not a 1; ``"no"`` for a flag is not true."""

from __future__ import annotations

from typing import Any

import numpy as np


def number(owner: str, name: str, value: Any) -> float:
    """An option as a float.

    Raises:
        TypeError, ValueError: it is no number, or none that a float can hold.
    """
    try:
        if isinstance(value, str | bytes | bool | np.bool_):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # an array of several says one of the latter
        raise TypeError(f"{owner}: {name}={value!r:.60} is not a number") from None
    except OverflowError:
        raise ValueError(f"{owner}: {name} is an integer too large for a float") from None


def flag(owner: str, name: str, value: Any) -> bool:
    """True or False.

    Raises:
        TypeError: it is neither.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{owner}: {name}={value!r:.60} is neither True nor False")
    return bool(value)
