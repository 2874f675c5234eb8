"""The state of an optimizer, and checks for loaded states."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..integers import integer
from .groups import Pattern

Array = np.ndarray[Any, Any]
Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and type of a parameter."""
HALVES = ("float16", "bfloat16", "uint16")
"""Names of the 16-bit types of parameters; uint16 holds the bits of bfloat16."""
BLOCK = 256  # CB_STATE_BLOCK of cutback.h
_LINE = 64  # bytes of a cache line
_LARGE = 1 << 16  # states of at least this many bytes are aligned to a cache line


class State(NamedTuple):
    """The state of an optimizer. It is only replaced as a whole, so that an interrupt cannot leave
    it inconsistent. A step updates ``arrays`` and ``counter`` in place, in one call of the core."""

    names: list[str]  # names of the parameters; empty before the first attempt to step
    kinds: list[Kind]  # shapes and types of the parameters
    group_of: list[int]  # row of hyper-parameters of each parameter
    arrays: dict[
        str, tuple[Array | None, ...]
    ]  # by state; None where a parameter does not have the state
    counter: Array  # i64: steps taken
    missed: Array  # i64 [parameters]: steps in which the parameter had no gradient
    numbers: Array  # f64 [parameters, numbers]: scalar states
    loaded: dict[str, dict[str, Array]] | None = (
        None  # until the first step: state -> name -> array
    )
    patterns: tuple[
        tuple[Pattern, ...], ...
    ] = ()  # the name patterns that group_of was computed from
    first: int = -1  # counter when this state was made; equal to it until a step is taken

    @property
    def bound(self) -> bool:
        """True once a step was taken with these parameters. A first step that raised an error
        leaves a state that is not bound, so the next step may use other parameters."""
        return bool(self.names) and int(self.counter) != self.first


def kind_of(param: Kind, form: str) -> Kind:
    """Returns the shape and type of a parameter's state in this form: a ``cb_state_kind`` of the
    core, or "master" or "remainder"."""
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
    """Returns True if a parameter of this kind has a state in this form. Only sides up to
    ``most_side`` have a "left" or "right" state."""
    is_matrix = len(param[0]) > 1
    if form in ("left", "right"):
        return is_matrix and 0 < _side(param[0], form) <= most_side and 0 not in param[0]
    return is_matrix if form in ("rows", "columns") else not (form == "whole" and is_matrix)


def bytes_of(kind: Kind) -> int:
    """Returns the bytes of an array of this shape and type."""
    shape, dtype = kind
    return math.prod(shape) * dtype.itemsize


def zeros(kind: Kind) -> Array:
    """Allocates a state of zeros. Large states are aligned to a cache line: NumPy's large arrays
    start 16 bytes after one, so that every vector load would touch two lines."""
    shape, dtype = kind
    size = bytes_of(kind)
    if size < _LARGE:
        return np.zeros(shape, dtype)
    room = np.zeros(size + _LINE, np.uint8)
    begin = -room.ctypes.data % _LINE
    return room[begin : begin + size].view(dtype).reshape(shape)


def count(t: Any) -> Array:
    """Returns a step counter (i64 of shape ()) with the value ``t``.

    Raises:
        TypeError, ValueError: if ``t`` is not an integer in 0 .. 2**63 - 1.
    """
    return np.array(integer("t", t, 0, 2**63 - 1), np.int64)


def loaded(key: str, value: Any) -> Array:
    """Returns a copy of a state array that the user passed.

    Raises:
        TypeError: if the array does not hold real numbers.
    """
    array = np.array(value)
    if array.dtype == bool or not np.can_cast(array.dtype, np.float64, "same_kind"):
        raise TypeError(f"{key} of the state is {array.dtype}, not a floating type")
    return array


def fitting(array: Array, what: str, kind: Kind) -> Array:
    """Converts the array to the type of ``kind``. Floating types are converted to each other; codes
    and remainders must already have their integer type.

    Raises:
        ValueError: if the shape differs, the type cannot be converted, or an element overflows.
    """
    shape, dtype = kind
    if array.shape != shape:
        raise ValueError(f"{what} has shape {array.shape}, expected {shape}")
    if (array.dtype if array.dtype.kind in "iu" else None) != (
        dtype if dtype.kind in "iu" else None
    ):
        raise ValueError(f"{what} is {array.dtype}, expected {dtype}")
    with np.errstate(over="ignore"):
        fitting = np.ascontiguousarray(array.astype(dtype)).reshape(shape)
    if (np.isinf(fitting) & np.isfinite(array)).any():
        raise ValueError(f"{what} has elements too large for {dtype}")
    return fitting
