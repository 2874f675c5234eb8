"""Indexing of traced arrays, ``x[...]``. NumPy's basic indexing becomes slices and reshapes;
integer arrays become row lookups.

An index is first converted to one item per axis. Then slices are applied axis by axis, and all axes
with integer arrays together become one lookup of rows. Their place in the result follows NumPy's
rules.
"""

from __future__ import annotations

import operator
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from .. import dtypes
from ..source import located, place


class Indexed(Protocol):
    """The part of :class:`cutback.Array` that indexing uses."""

    @property
    def graph(self) -> Any:
        """The graph that operations on it are added to."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""
        ...

    @property
    def ndim(self) -> int:
        """Number of axes."""
        ...

    @property
    def dtype(self) -> Any:
        """Type of its elements."""
        ...

    def reshape(self, *shape: Any) -> Self:
        """Returns the same elements in another shape."""
        ...

    def transpose(self, *axes: Any) -> Self:
        """Returns the array with its axes in the given order."""
        ...

    def __add__(self, other: Any) -> Self: ...
    def __mul__(self, other: Any) -> Self: ...
    def __lt__(self, other: Any) -> Self: ...
    def __ge__(self, other: Any) -> Self: ...
    def __and__(self, other: Any) -> Self: ...


Array = TypeVar("Array", bound=Indexed)


def getitem(x: Array, key: Any) -> Array:
    """Returns ``x[key]`` for ints, slices, None, Ellipsis, integer arrays and masks of NumPy.

    Raises:
        IndexError: if there are too many items, or an int is out of range.
        TypeError: if an item is of another kind, such as a traced mask, whose result has no fixed
            shape.
    """
    traced = type(x)
    items = [_item(x, item) for item in (key if isinstance(key, tuple) else (key,))]
    items = _positions_of_masks(x, items)
    items = _expand_ellipsis(x, items)
    if not any(isinstance(item, (traced, np.ndarray)) for item in items):
        return _basic(x, items)
    x = x.reshape(_with_new_axes(x.shape, items))
    items = [slice(None) if item is None else item for item in items]
    for axis, item in enumerate(items):
        if isinstance(item, slice):
            x = _slice(x, axis, item)
    return _lookup(x, items)


def _applied(x: Array, name: str, ins: tuple[Any, ...], attrs: dict[str, Any]) -> Array:
    """Adds an operation to the graph of ``x`` and returns its result."""
    result: Array = x.graph.apply(name, ins, attrs)[0]
    return result


def _item(x: Array, item: Any) -> Any:
    """Converts an item of an index to an int, slice, None, Ellipsis, mask of NumPy, or integer
    array (NumPy or traced)."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, np.ndarray):
        x.graph.capture(item)
    if isinstance(item, (list, tuple)):
        item = np.asarray(item, dtype=None if item else np.int64)
    if isinstance(item, np.ndarray) and item.dtype == bool and item.ndim > 0:
        return item
    if isinstance(item, (bool, np.bool_)) or getattr(item, "dtype", None) in (
        np.dtype(bool),
        "bool",
    ):
        raise TypeError(
            located(
                "a boolean mask that is traced selects an unknown number of elements; "
                "use cutback.where(mask, x, 0)"
            )
        )
    if isinstance(item, type(x)):
        if item.dtype not in dtypes.INTS:
            raise TypeError(located(f"an index array must hold integers, not {item.dtype}"))
        return item
    if isinstance(item, np.ndarray) and item.ndim > 0:
        if item.dtype.kind not in "iu":
            raise TypeError(located(f"an index array must hold integers, not {item.dtype}"))
        return item.astype(np.int64)
    try:
        return operator.index(item)
    except TypeError:
        raise TypeError(
            located(f"{item!r} is not an index; use ints, slices, None, ... and integer arrays")
        ) from None


def _positions_of_masks(x: Array, items: list[Any]) -> list[Any]:
    """Replaces masks of NumPy by the positions that they select, one array for each axis."""
    masks = [item for item in items if isinstance(item, np.ndarray) and item.dtype == bool]
    if not masks:
        return items
    masked = sum(mask.ndim - 1 for mask in masks)
    n_axes = masked + sum(item is not None and item is not Ellipsis for item in items)
    axis, found = 0, []
    for item in items:
        if not any(item is mask for mask in masks):
            axis += x.ndim - n_axes if item is Ellipsis else item is not None
            found.append(item)
            continue
        covered = x.shape[axis : axis + item.ndim]
        if item.shape != covered:
            raise IndexError(
                located(
                    f"a boolean mask of shape {item.shape} does not fit axes of sizes {covered}"
                )
            )
        axis += item.ndim
        found += item.nonzero()
    return found


def _expand_ellipsis(x: Array, items: list[Any]) -> list[Any]:
    n_axes = sum(item is not None and item is not Ellipsis for item in items)
    if n_axes > x.ndim:
        raise IndexError(located(f"got {n_axes} indices for an array of shape {x.shape}"))
    ellipses = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError(located("an index may have at most one ellipsis (...)"))
    at = ellipses[0] if ellipses else len(items)
    return items[:at] + [slice(None)] * (x.ndim - n_axes) + items[at + 1 :]


def _with_new_axes(shape: tuple[int, ...], items: list[Any]) -> tuple[int, ...]:
    sizes = iter(shape)
    return tuple(1 if item is None else next(sizes) for item in items)


def _position(shape: tuple[int, ...], axis: int, index: int) -> int:
    n = shape[axis]
    if not -n <= index < n:
        raise IndexError(located(f"index {index} is out of bounds for axis {axis} with size {n}"))
    return index % n


def _basic(x: Array, items: list[Any]) -> Array:
    """Applies slices axis by axis. One reshape at the end drops the axes of ints and adds those of
    None."""
    shape: list[int] = []
    axis = 0
    for item in items:
        if item is None:
            shape.append(1)
            continue
        if isinstance(item, slice):
            x = _slice(x, axis, item)
            shape.append(x.shape[axis])
        else:
            at = _position(x.shape, axis, item)
            x = _slice(x, axis, slice(at, at + 1))
        axis += 1
    return x.reshape(tuple(shape))


def _slice(x: Array, axis: int, item: slice) -> Array:
    try:
        start, stop, step = item.indices(x.shape[axis])
    except (TypeError, ValueError) as error:
        place(error)
        raise
    if step < 0:
        rows = np.arange(start, stop, step)
        return _lookup(x, [rows if a == axis else slice(None) for a in range(x.ndim)])
    stop = max(start, stop)
    if (start, stop, step) == (0, x.shape[axis], 1):
        return x
    return _applied(x, "slice", (x,), {"axis": axis, "start": start, "stop": stop, "step": step})


def _lookup(x: Array, items: list[Any]) -> Array:
    """Applies an index that has integer arrays (or ints, which are treated as arrays here) on some
    axes and full slices on the others."""
    chosen = [axis for axis, item in enumerate(items) if not isinstance(item, slice)]
    rest = [axis for axis in range(x.ndim) if axis not in chosen]
    rows = _row_numbers(x, [(axis, items[axis]) for axis in chosen])
    sizes = [x.shape[axis] for axis in rest]
    n_rows = int(np.prod([x.shape[axis] for axis in chosen]))
    table = x.transpose(chosen + rest).reshape((n_rows, int(np.prod(sizes))))
    found = _applied(x, "embedding", (table, rows), {}).reshape(rows.shape + tuple(sizes))
    if chosen != list(range(chosen[0], chosen[-1] + 1)):
        return found  # separated by slices: the looked-up axes come first
    n, before = rows.ndim, chosen[0]
    return found.transpose(
        [n + i for i in range(before)] + list(range(n)) + [n + i for i in range(before, len(rest))]
    )


def _row_numbers(x: Array, chosen: list[tuple[int, Any]]) -> Array:
    """Computes the row-major number of the element that the index arrays select within the axes
    that they index."""
    if not any(isinstance(item, type(x)) for _, item in chosen):
        numbers: Array = x.graph.constant(_known_numbers(x.shape, chosen))
        return numbers
    total: Array | None = None
    for axis, item in chosen:
        part = _wrapped(x, axis, item)
        if len(chosen) > 1 and isinstance(item, type(x)):
            part = _checked(part, x.shape[axis])
        total = part if total is None else total * x.shape[axis] + part
    assert total is not None
    return total


def _known_numbers(shape: tuple[int, ...], chosen: list[tuple[int, Any]]) -> np.ndarray[Any, Any]:
    """Computes the row numbers of index arrays whose entries are known while tracing. NumPy checks
    and numbers them."""
    arrays = [np.asarray(item) for _, item in chosen]
    for (axis, _), array in zip(chosen, arrays, strict=True):
        for extreme in (array.min(), array.max()) if array.size else ():
            _position(shape, axis, int(extreme))
    try:
        broadcast = np.broadcast_arrays(
            *(a % max(shape[axis], 1) for (axis, _), a in zip(chosen, arrays, strict=True))
        )
    except ValueError as error:
        raise IndexError(located(f"index arrays: {error}")) from None
    number = np.zeros(broadcast[0].shape, np.int64)
    for (axis, _), array in zip(chosen, broadcast, strict=True):
        number = number * shape[axis] + array
    return number


def _wrapped(x: Array, axis: int, item: Any) -> Array:
    """Converts negative entries of an index array, which count from the end. Entries before the
    first element are unchanged, so that the lookup's error shows what the user passed.

    Raises:
        IndexError: if the entries are known while tracing and one is out of range.
    """
    n = x.shape[axis]
    if not isinstance(item, type(x)):
        numbers: Array = x.graph.lift(_known_numbers(x.shape, [(axis, item)]))
        return numbers
    given: Array = item
    if item.dtype == "u8":
        return given
    counted = (given < 0) & (given >= -n)
    return _applied(x, "where", (counted, given + n, given), {})


def _checked(index: Array, n: int) -> Array:
    """Checks the entries of an index array when the step runs, by looking them up in 0 .. n-1, and
    returns them as i64. Without this, an entry out of range could combine with other index arrays
    to the number of an existing row."""
    rows = _applied(index, "iota", (), {"axis": 0, "shape": (n, 1), "dtype": "i64"})
    return _applied(index, "embedding", (rows, index), {}).reshape(index.shape)
