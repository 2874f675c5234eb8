"""Functions whose arguments have other names in the array API standard than in NumPy, and functions
that only the standard has. They are in the module that ``Array.__array_namespace__`` returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from .. import dtypes
from ..source import located
from . import elementwise, ops, rearrange
from .tracer import Array, _normalize_axis


def _here(device: Any) -> None:
    """Checks a ``device`` argument: all arrays are on the device of the step."""
    if device not in (None, "step"):
        raise ValueError(located(f"device={device!r}: arrays are on the device of the step"))


def _number(dtype: Any) -> Any:
    return "f64" if dtype is None else dtype


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Array:
    """Returns ``start``, ``start + step``, ... below ``stop``; a single argument is ``stop``."""
    _here(device)
    return ops.arange(start, stop, step, dtype)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None,
    endpoint: bool = True,
) -> Array:  # fmt: skip
    """Returns ``num`` evenly spaced numbers from ``start`` to ``stop``."""
    _here(device)
    return rearrange.linspace(start, stop, num, endpoint, _number(dtype))


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None
) -> Array:
    """Returns a matrix with ones on diagonal ``k`` and zeros elsewhere."""
    _here(device)
    return rearrange.eye(n_rows, n_cols, k, _number(dtype))


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Returns an array of ``shape`` filled with ``fill_value``."""
    _here(device)
    return ops.full(shape, fill_value, dtype)


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Returns an array with the shape of ``x`` filled with ``fill_value``."""
    _here(device)
    return ops.full_like(x, fill_value, dtype)


def _maker(function: Callable[..., Array]) -> Callable[..., Array]:
    def make(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
        _here(device)
        return function(shape, _number(dtype))

    make.__name__, make.__doc__ = function.__name__, function.__doc__
    return make


def _liker(function: Callable[..., Array]) -> Callable[..., Array]:
    def make(x: Any, /, *, dtype: Any = None, device: Any = None) -> Array:
        _here(device)
        return function(x, dtype)

    make.__name__, make.__doc__ = function.__name__, function.__doc__
    return make


zeros, ones, empty = _maker(ops.zeros), _maker(ops.ones), _maker(rearrange.empty)
zeros_like, ones_like = _liker(ops.zeros_like), _liker(ops.ones_like)
empty_like = _liker(rearrange.empty_like)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    """Converts ``x`` to ``dtype``."""
    _here(device)
    return ops.astype(x, dtype)


def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Array:
    """Reshapes ``x``. Traced arrays cannot be written to, so ``copy`` makes no difference."""
    return ops.reshape(x, shape)


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Sorts the elements along ``axis``."""
    return rearrange.sort(x, axis, descending)


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Returns the indices that sort ``x`` along ``axis``."""
    return rearrange.argsort(x, axis, descending)


def _reduction(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
        return function(x if dtype is None else ops.astype(x, dtype), axis, keepdims)

    reduce.__name__, reduce.__doc__ = function.__name__, function.__doc__
    return reduce


sum, prod = _reduction(ops.sum), _reduction(elementwise.prod)


def _spread(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(
        x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False
    ) -> Array:
        return function(x, axis, correction, keepdims)

    reduce.__name__, reduce.__doc__ = function.__name__, function.__doc__
    return reduce


var, std = _spread(ops.var), _spread(ops.std)


def _cumulative(function: Callable[..., Array], first: int) -> Callable[..., Array]:
    @wraps(function)
    def call(
        x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
    ) -> Array:
        y = ops._array(x)
        if axis is None and y.ndim != 1:
            raise ValueError(
                located(f"{function.__name__}: axis is required for an array of {y.ndim} axes")
            )
        at = _normalize_axis(-1 if axis is None else axis, y.ndim, function.__name__)
        y = function(y if dtype is None else y.astype(dtype), at)
        if not include_initial:
            return y
        start = ops.full((*y.shape[:at], 1, *y.shape[at + 1 :]), first, y.dtype)
        return ops.concatenate([start, y], at)

    del call.__wrapped__  # the signature is the standard's
    return call


cumulative_sum = _cumulative(elementwise.cumsum, 0)
cumulative_prod = _cumulative(elementwise.cumprod, 1)


def diff(
    x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None
) -> Array:
    """Returns the differences of consecutive elements along ``axis``, taken ``n`` times."""
    parts = [part for part in (prepend, x, append) if part is not None]
    return elementwise.diff(ops.concatenate(parts, axis) if len(parts) > 1 else x, n, axis)


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Array:
    """Returns the indices in ``x1`` before which the elements of ``x2`` would be inserted.
    ``sorter`` holds the indices that sort ``x1``."""
    return rearrange.searchsorted(x1 if sorter is None else ops.take(x1, sorter), x2, side)


def broadcast_arrays(*arrays: Any) -> list[Array]:
    """Broadcasts the arrays to their common shape."""
    values = [ops._array(x) for x in arrays]
    shape = np.broadcast_shapes(*(x.shape for x in values))
    return [ops.broadcast_to(x, shape) for x in values]


def matrix_transpose(x: Any, /) -> Array:
    """Exchanges the last two axes."""
    return ops._array(x).swapaxes(-1, -2)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Returns True if the type of ``from_`` can be promoted to ``to``."""
    given = dtypes.DTYPES[dtypes.parse(getattr(from_, "dtype", from_))]
    wanted = dtypes.DTYPES[dtypes.parse(to)]
    return given == wanted or bool(np.can_cast(given.dtype, wanted.dtype))


def isdtype(dtype: Any, kind: Any) -> bool:
    """Returns True if ``dtype`` is of a kind: ``"bool"``, ``"signed integer"``, ``"unsigned
    integer"``, ``"integral"``, ``"real floating"``, ``"complex floating"``, ``"numeric"``, a type,
    or a tuple of these."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    name = dtypes.parse(dtype)
    kinds = {
        "bool": {"bool"},
        "signed integer": {"i32", "i64"},
        "unsigned integer": {"u8"},
        "integral": set(dtypes.INTS),
        "real floating": set(dtypes.FLOATS),
        "complex floating": set(),
        "numeric": set(dtypes.INTS | dtypes.FLOATS),
    }
    if isinstance(kind, str) and kind in kinds:
        return name in kinds[kind]
    return name == dtypes.parse(kind)


class _Info:
    def capabilities(self) -> dict[str, Any]:
        """Returns the capabilities that the standard leaves open. The size of a result never
        depends on the values of elements."""
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 8}

    def default_device(self) -> str:
        """Returns ``"step"``, the device of the step that computes an array."""
        return "step"

    def devices(self) -> list[str]:
        """Returns the one device, ``"step"``."""
        return ["step"]

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """Returns the types that functions use without ``dtype=``."""
        _here(device)
        return {
            "real floating": dtypes.DTYPES["f64"], "complex floating": None,
            "integral": dtypes.DTYPES["i64"], "indexing": dtypes.DTYPES["i64"],
        }  # fmt: skip

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        """Returns the types of a kind, by the standard's names."""
        _here(device)
        known = {row.name: row for row in dtypes.DTYPES.values() if row.name[-2:] != "16"}
        return {k: v for k, v in known.items() if kind is None or isdtype(v, kind)}


def __array_namespace_info__() -> _Info:  # noqa: N807  # the standard's name
    """Returns an object that describes devices and types."""
    return _Info()
