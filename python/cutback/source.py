"""The line of the user's program that an operation comes from."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

import numpy as np

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep  # its functions call ours
_inside: dict[str, bool] = {}


def _file(path: str) -> str:
    """Returns the name of a file without its folder, or ``In[3]`` for a notebook cell."""
    ipython = sys.modules.get("IPython")
    if ipython is not None:
        compiler = getattr(ipython.get_ipython(), "compile", None)
        number = getattr(compiler, "_filename_map", {}).get(path)  # exists since IPython 7.21
        if number is not None:
            return f"In[{number}]"
    return os.path.basename(path)


def _is_inside(path: str) -> bool:
    """Returns True if the file is one of this package or of NumPy."""
    return os.path.abspath(path).startswith((_PACKAGE, _NUMPY))


def _frame() -> FrameType | None:
    """Returns the innermost frame outside this package and NumPy, or None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        inside = _inside.get(name)
        if inside is None:
            inside = _inside[name] = _is_inside(name)
        if not inside:
            return frame
        frame = frame.f_back
    return None


def location() -> str | None:
    """Returns the user's line, such as ``"model.py:12"``, or None if no frame is the user's."""
    frame = _frame()
    return f"{_file(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else None


def warn(text: str, category: type[Warning]) -> None:
    """Issues a warning at the user's line, and appends that line to the message."""
    frame = _frame()
    if frame is None:
        warnings.warn(text, category, stacklevel=2)
        return
    file, line = frame.f_code.co_filename, frame.f_lineno
    known = frame.f_globals.setdefault("__warningregistry__", {})
    text = f"{text} [{_file(file)}:{line}]"
    warnings.warn_explicit(text, category, file, line, registry=known)


class _Located(str):
    """A message that ends with a source line."""

    __slots__ = ()


def located(text: str) -> str:
    """Returns an error message: ``text``, followed by the user's source line."""
    where = location()
    return _Located(f"{text} [{where}]") if where else text


def has_line(error: Exception) -> bool:
    """Returns True for an error of this package whose message ends with the user's line."""
    return getattr(error, "has_location", False) or any(
        isinstance(arg, _Located) for arg in error.args
    )


def reword(error: Exception, text: str) -> None:
    """Replaces the message of an error by ``text``, which already ends with the user's line."""
    error.args = (_Located(text),)


def place_at_origin(error: Exception) -> None:
    """Adds the user's source line to the message of a caught error. The line is taken from the
    traceback, because the frames that raised the error have returned."""
    where, trace = None, error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not _is_inside(name):
            where = f"{_file(name)}:{trace.tb_lineno}"
        trace = trace.tb_next
    if where:
        error.args = (_Located(f"{error} [{where}]"),)


def place(error: Exception) -> None:
    """Adds the user's source line to the message of an error that does not name a line yet. Errors
    of the core already name the line of the operation, which is more exact."""
    where = location()
    if where and not has_line(error):
        error.args = (_Located(f"{error} [{where}]"),)
