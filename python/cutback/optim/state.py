"""The state of an optimizer, and what is read of one that was kept."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..integers import integer

Array = np.ndarray[Any, Any]
Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and type of a parameter."""
HALVES = ("float16", "bfloat16", "uint16")
"""Types of 16 bits that hold numbers; the last one the bits of bfloat16."""
BLOCK = 256  # CB_STATE_BLOCK of cutback.h
_LINE = 64
_LARGE = 1 << 16


class State(NamedTuple):
    """The state of an optimizer. It is exchanged as a whole, so that no interrupt comes between its
    parts; a step updates ``arrays`` and ``counter`` in place, in one call of the core."""

    names: list[str]  # of the parameters; none before a step was tried
    kinds: list[Kind]  # their shapes and types
    group_of: list[int]
    arrays: dict[
        str, tuple[Array | None, ...]
    ]  # by state; None: the parameter's group does not have it
    counter: Array  # i64: steps taken
    missed: Array  # i64, one a parameter: how many of them it had no gradient for
    numbers: Array  # f64, a row a parameter: what it keeps beside its arrays
    loaded: dict[str, dict[str, Array]] | None = None  # before the first step: state, name -> array
    patterns: tuple[tuple[str, ...], ...] = ()  # of the groups that group_of was found with
    first: int = -1  # the counter when this was made; while it is still that, no step was taken

    @property
    def bound(self) -> bool:
        """Whether a step was taken, or a state loaded after one. A first step that was refused
        leaves what was made for it, which belongs to no parameters yet."""
        return bool(self.names) and int(self.counter) != self.first


def kind_of(param: Kind, form: str) -> Kind:
    """Shape and type of a state in this form (``cb_state_kind``, or what halves keep) beside a
    parameter."""
    shape, dtype = param
    whole = np.dtype(np.float32) if dtype.name in HALVES else dtype
    if form == "codes":
        return shape, np.dtype(np.uint8)
    if form == "remainder":
        return shape, np.dtype(np.uint16)
    if form in ("left", "right"):
        side = _side(shape, form)
        return (2, side, side), whole
    if form == "rows":
        return shape[:-1], whole
    if form == "columns":
        return (*shape[:-2], *shape[-1:]), whole
    if form == "scales":
        return (-(-math.prod(shape) // BLOCK), 2), np.dtype(np.float32)
    return shape, whole


def _side(shape: tuple[int, ...], form: str) -> int:
    return shape[0] if form == "left" else math.prod(shape[1:])


def has_form(param: Kind, form: str, most_side: int) -> bool:
    """Whether such a parameter has a state in this form; sides are at most so long."""
    is_matrix = len(param[0]) > 1
    if form in ("left", "right"):
        return is_matrix and 0 < _side(param[0], form) <= most_side and 0 not in param[0]
    return is_matrix if form in ("rows", "columns") else not (form == "whole" and is_matrix)


def bytes_of(kind: Kind) -> int:
    """Bytes of such an array."""
    shape, dtype = kind
    return math.prod(shape) * dtype.itemsize


def zeros(kind: Kind) -> Array:
    """A new state. Large ones begin at a cache line, where NumPy's own begin 16 bytes after one and
    every wide load takes two."""
    shape, dtype = kind
    size = bytes_of(kind)
    if size < _LARGE:
        return np.zeros(shape, dtype)
    room = np.zeros(size + _LINE, np.uint8)
    begin = -room.ctypes.data % _LINE
    return room[begin : begin + size].view(dtype).reshape(shape)


def count(t: Any) -> Array:
    """A number of steps as the counter of one.

    Raises:
        TypeError, ValueError: no integer, or not in 0 .. 2**63 - 1.
    """
    return np.array(integer("t", t, 0, 2**63 - 1), np.int64)


def loaded(key: str, value: Any) -> Array:
    """A copy of an array of a state.

    Raises:
        TypeError: it holds no real numbers.
    """
    array = np.array(value)
    if array.dtype == bool or not np.can_cast(array.dtype, np.float64, "same_kind"):
        raise TypeError(f"{key} of the state is {array.dtype}, not a floating type")
    return array


def fitting(array: Array, what: str, kind: Kind) -> Array:
    """The array in the shape and type of its parameter: floating types become each other, codes
    and remainders nothing else.

    Raises:
        ValueError: it has another shape, a type of another kind, or elements that are too large.
    """
    shape, dtype = kind
    if array.shape != shape:
        raise ValueError(f"{what} has shape {array.shape}, expected {shape}")
    if (array.dtype if array.dtype.kind in "iu" else None) != (
        dtype if dtype.kind in "iu" else None
    ):
        raise ValueError(f"{what} is {array.dtype}, and has to be {dtype}")
    with np.errstate(over="ignore"):
        fitting = np.ascontiguousarray(array.astype(dtype)).reshape(shape)
    if (np.isinf(fitting) & np.isfinite(array)).any():
        raise ValueError(f"{what} has elements too large for {dtype}")
    return fitting
