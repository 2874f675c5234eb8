"""Where in the user's program an operation was asked for."""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_inside: dict[str, bool] = {}


def location() -> str | None:
    """``"model.py:12"``: the innermost frame outside this package, or None when there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        inside = _inside.get(name)
        if inside is None:
            inside = _inside[name] = os.path.abspath(name).startswith(_PACKAGE)
        if not inside:
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def located(text: str) -> str:
    """``text`` with the user's source line after it, for an error message."""
    where = location()
    return f"{text} [{where}]" if where else text


def place(error: Exception) -> None:
    """Adds the user's source line to the text of an error, unless it is there already."""
    where = location()
    if where and f"[{where}]" not in str(error):
        error.args = (f"{error} [{where}]",)
