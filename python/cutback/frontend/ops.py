"""Functional operations under NumPy's names, with NumPy's broadcasting and promotion.

They work inside a traced function, on traced arrays and on NumPy arrays and numbers that are
combined with them. All of them are also available as ``cutback.<name>``. An operation that is also
a method of :class:`cutback.Array` behaves like the method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np

from .. import dtypes
from ..integers import index
from ..source import located
from .graph import current
from .tracer import Array, ArrayLike, Axis, _normalize_axis, _shape_of, common, is_weak, whole

__all__ = [
    "abs", "absolute", "add", "amax", "amin", "arange", "argmax", "astype", "broadcast_to", "clip",
    "concatenate", "cos", "divide", "equal", "erf", "exp", "expand_dims", "floor", "full",
    "full_like", "greater", "greater_equal", "less", "less_equal", "log", "log1p", "logical_and",
    "logical_not", "logical_or", "matmul", "max", "maximum", "mean", "min", "minimum", "multiply",
    "negative", "not_equal", "ones", "ones_like", "pad", "power", "ravel", "reciprocal", "reshape",
    "rsqrt", "sigmoid", "sign", "sin", "split", "sqrt", "square", "squeeze", "stack",
    "std", "subtract", "sum", "swapaxes", "take", "take_along_axis", "tanh", "transpose", "tril",
    "uniform", "var", "where", "zeros", "zeros_like",
]  # fmt: skip


def _array(x: ArrayLike) -> Array:
    """Converts ``x`` to a value of the current graph."""
    return x if isinstance(x, Array) else current().lift(x)


def _array_unless_weak(x: ArrayLike, other: ArrayLike) -> Any:
    """Converts ``x`` to a value of the current graph, unless it is a number that takes the dtype of
    ``other``."""
    return x if is_weak(x) and isinstance(other, Array) else _array(x)


def _graph_of(*values: Any) -> Any:
    for x in values:
        if isinstance(x, Array):
            return x.graph
    return current()


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    return _shape_of((shape,))


# ---- making arrays -------------------------------------------------------------------------------


def full(shape: int | Sequence[int], fill_value: bool | int | float, dtype: Any = None) -> Array:
    """Returns an array of ``shape`` filled with ``fill_value``. The default ``dtype`` is that of
    the
    Python number: bool, i64 or f64."""
    if dtype is None:
        is_int = isinstance(fill_value, int)
        dtype = "bool" if isinstance(fill_value, bool) else "i64" if is_int else "f64"
    return current().full(_shape(shape), fill_value, dtypes.parse(dtype))


def zeros(shape: int | Sequence[int], dtype: Any = "f64") -> Array:
    """Returns an array of zeros; the default ``dtype`` is f64, as in NumPy."""
    return full(shape, 0, dtype)


def ones(shape: int | Sequence[int], dtype: Any = "f64") -> Array:
    """Returns an array of ones; the default ``dtype`` is f64, as in NumPy."""
    return full(shape, 1, dtype)


def full_like(x: ArrayLike, fill_value: bool | int | float, dtype: Any = None) -> Array:
    """Returns an array filled with ``fill_value``, with the shape of ``x`` and, by default, its
    ``dtype``."""
    x = _array(x)
    return x.graph.full(x.shape, fill_value, dtypes.parse(x.dtype if dtype is None else dtype))


def zeros_like(x: ArrayLike, dtype: Any = None) -> Array:
    """Returns zeros with the shape and dtype of ``x``."""
    return full_like(x, 0, dtype)


def ones_like(x: ArrayLike, dtype: Any = None) -> Array:
    """Returns ones with the shape and dtype of ``x``."""
    return full_like(x, 1, dtype)


def _no_step() -> NoReturn:
    raise ValueError(located("arange: the step must not be 0"))


def _spaced(start: float, stop: float, step: float) -> Array:
    """Returns ``start``, ``start + step``, ... up to ``stop``, which is not included."""
    if step == 0:
        _no_step()
    n = (stop - start) / step
    if not n < 2**53:
        raise ValueError(located(f"arange: cannot count from {start} to {stop} by {step}"))
    attrs = {"axis": 0, "shape": (math.ceil(n) if n > 0 else 0,), "dtype": "f64"}
    (count,) = current().apply("iota", (), attrs)
    return count * step + start


def arange(start: float, stop: float | None = None, step: float = 1, dtype: Any = None) -> Array:
    """Returns the numbers from ``start`` (0 if only one number is given) up to ``stop``, which is
    not included. The default ``dtype`` is i64 if all arguments are integers, else f64.

    Raises:
        TypeError: if a bound or the step is not a number.
        ValueError: if the step is 0.
    """
    if stop is None:
        start, stop = 0, start
    if any(isinstance(n, (float, np.floating)) for n in (start, stop, step)):
        return _spaced(float(start), float(stop), float(step)).astype(
            "f64" if dtype is None else dtype
        )
    start, stop, step = (index(n) for n in (start, stop, step))
    if step == 0:
        _no_step()
    n = len(range(start, stop, step))
    name = dtypes.parse("i64" if dtype is None else dtype)
    (count,) = current().apply("iota", (), {"axis": 0, "shape": (n,), "dtype": name})
    if step != 1:
        count = count * step
    return count + start if start else count


def uniform(shape: int | Sequence[int], dtype: Any = "f32") -> Array:
    """Returns random multiples of 2**-16 in [0, 1) (of 2**-11 for f16, 2**-8 for bf16). They depend
    only on the step's seed, the step's number and the position of this call in the program."""
    graph = current()
    attrs = {"stream": graph.next_stream(), "shape": _shape(shape), "dtype": dtypes.parse(dtype)}
    x: Array = graph.apply("uniform", (), attrs)[0]
    return x


_BITS = {"f16": 11, "bf16": 8}


def _rounded_down(x: Array, dtype: dtypes.Name) -> Array:
    """Converts numbers below 1 to ``dtype``, rounding down so that none becomes 1."""
    bits = _BITS.get(str(dtype))
    if bits is not None:
        digits = 2.0**bits
        x = floor(x * digits) * (1 / digits)
    return x.astype(dtype)


# ---- elementwise ---------------------------------------------------------------------------------


def exp(x: ArrayLike) -> Array:
    """Returns e**x; integers are converted to f64."""
    return _array(x)._floating("exp")


def log(x: ArrayLike) -> Array:
    """Returns the natural logarithm."""
    return _array(x)._floating("log")


def log1p(x: ArrayLike) -> Array:
    """Returns log(1 + x), accurate near 0."""
    return _array(x)._floating("log1p")


def sqrt(x: ArrayLike) -> Array:
    """Returns the square root."""
    return _array(x)._floating("sqrt")


def rsqrt(x: ArrayLike) -> Array:
    """Returns 1 / sqrt(x)."""
    return _array(x)._floating("rsqrt")


def reciprocal(x: ArrayLike) -> Array:
    """Returns 1 / x."""
    return _array(x)._floating("reciprocal")


def sin(x: ArrayLike) -> Array:
    """Returns the sine of radians."""
    return _array(x)._floating("sin")


def cos(x: ArrayLike) -> Array:
    """Returns the cosine of radians."""
    return _array(x)._floating("cos")


def tanh(x: ArrayLike) -> Array:
    """Returns the hyperbolic tangent."""
    return _array(x)._floating("tanh")


def sigmoid(x: ArrayLike) -> Array:
    """Returns 1 / (1 + e**-x)."""
    return _array(x)._floating("sigmoid")


def erf(x: ArrayLike) -> Array:
    """Returns the error function."""
    return _array(x)._floating("erf")


def floor(x: ArrayLike) -> Array:
    """Returns the largest integer not above x. Integers are returned unchanged."""
    x = _array(x)
    return x if x.dtype not in dtypes.FLOATS else x._apply("floor")


def square(x: ArrayLike) -> Array:
    """Returns x * x."""
    return _array(x)._apply("square")


def sign(x: ArrayLike) -> Array:
    """Returns the sign of each element: -1, 0 or 1; NaN stays NaN."""
    return _array(x)._apply("sign")


def absolute(x: ArrayLike) -> Array:
    """Returns the absolute value of each element."""
    return _array(x)._apply("abs")


abs = absolute


def negative(x: ArrayLike) -> Array:
    """Returns -x."""
    return -_array(x)


def _truth(x: ArrayLike) -> Array:
    x = _array(x)
    return x if x.dtype == "bool" else x != 0


def logical_not(x: ArrayLike) -> Array:
    """Returns True where ``x`` is zero."""
    return ~_truth(x)


def _two(name: str, x: ArrayLike, y: ArrayLike) -> Array:
    a, b = common(_graph_of(x, y), name, (x, y))
    return a._apply(name, b)


def maximum(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns the larger of each pair; NaN if either is NaN."""
    return _two("maximum", x, y)


def minimum(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns the smaller of each pair; NaN if either is NaN."""
    return _two("minimum", x, y)


def add(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns x + y."""
    return _array(x) + y if isinstance(x, Array) else _two("add", x, y)


def subtract(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns x - y."""
    return _two("sub", x, y)


def multiply(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns x * y."""
    return _two("mul", x, y)


def divide(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns x / y; integers are divided in f64."""
    return _array_unless_weak(x, y) / y  # type: ignore[no-any-return]


def power(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns x ** y."""
    return _array_unless_weak(x, y) ** y  # type: ignore[no-any-return]


def matmul(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns the matrix product over the last two axes; vectors and batches work as in NumPy."""
    return _two("matmul", x, y)


def equal(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns x == y."""
    return _two("eq", x, y)


def not_equal(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns x != y."""
    return _two("ne", x, y)


def less(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns x < y."""
    return _two("lt", x, y)


def less_equal(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns x <= y."""
    return _two("le", x, y)


def greater(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns x > y."""
    return _two("gt", x, y)


def greater_equal(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns x >= y."""
    return _two("ge", x, y)


def logical_and(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns True where neither is zero."""
    return _truth(x) & _truth(y)


def logical_or(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns True where one of them is not zero."""
    return _truth(x) | _truth(y)


def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Array:
    """Returns ``x`` where ``condition`` (bool) is true, and ``y`` elsewhere.

    Raises:
        TypeError: if ``condition`` is not bool.
    """
    graph = _graph_of(condition, x, y)
    mask = graph.lift(condition)
    if mask.dtype != "bool":
        raise TypeError(
            located(
                f"where: the condition must be bool, not {mask.dtype}; compare it, as in x != 0"
            )
        )
    a, b = common(graph, "where", (x, y))
    return mask._apply("where", a, b)  # type: ignore[no-any-return]


def clip(
    x: ArrayLike,
    min: ArrayLike | None = None,  # NumPy's names
    max: ArrayLike | None = None,
) -> Array:
    """Limits elements to [min, max]; None means no limit."""
    return _array(x).clip(min, max)


def astype(x: ArrayLike, dtype: Any) -> Array:
    """Converts the elements to another dtype."""
    return _array(x).astype(dtype)


# ---- reductions ----------------------------------------------------------------------------------


def sum(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Returns the sum over axes (None: all)."""
    return _array(x).sum(axis, keepdims)


def mean(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Returns the mean over axes (None: all)."""
    return _array(x).mean(axis, keepdims)


def var(x: ArrayLike, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Array:
    """Returns the variance over axes (None: all), with divisor n - ddof."""
    return _array(x).var(axis, ddof, keepdims)


def std(x: ArrayLike, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Array:
    """Returns the square root of :func:`var`."""
    return _array(x).std(axis, ddof, keepdims)


def max(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Returns the largest element over axes (None: all)."""
    return _array(x).max(axis, keepdims)


def min(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Returns the smallest element over axes (None: all)."""
    return _array(x).min(axis, keepdims)


amax, amin = max, min


def argmax(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """Returns the index of the first largest element along ``axis``."""
    return _array(x).argmax(axis, keepdims)


# ---- shapes --------------------------------------------------------------------------------------


def reshape(x: ArrayLike, shape: int | Sequence[int]) -> Array:
    """Returns the same elements, in row-major order, in another shape; one size may be -1."""
    return _array(x).reshape(shape)


def ravel(x: ArrayLike) -> Array:
    """Flattens ``x`` to one axis."""
    return _array(x).ravel()


def transpose(x: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Reorders the axes; without ``axes``, reverses them."""
    return _array(x).transpose(axes)


def swapaxes(x: ArrayLike, axis1: int, axis2: int) -> Array:
    """Exchanges two axes."""
    return _array(x).swapaxes(axis1, axis2)


def squeeze(x: ArrayLike, axis: Axis = None) -> Array:
    """Removes axes of size 1 (all of them, or the given ones)."""
    return _array(x).squeeze(axis)


def expand_dims(x: ArrayLike, axis: int | Sequence[int]) -> Array:
    """Inserts axes of size 1 at the given positions of the result. A position that is given twice
    raises ValueError."""
    x = _array(x)
    places = axis if isinstance(axis, (tuple, list)) else (axis,)
    ndim = x.ndim + len(places)
    new = {_normalize_axis(a, ndim, "expand_dims") for a in places}
    if len(new) != len(places):
        raise ValueError(located(f"expand_dims: axis={axis} has the same position twice"))
    sizes = iter(x.shape)
    return x.reshape(tuple(1 if a in new else next(sizes) for a in range(ndim)))


def broadcast_to(x: ArrayLike, shape: int | Sequence[int]) -> Array:
    """Broadcasts ``x`` to ``shape``, by NumPy's rules."""
    x = _array(x)
    target = _shape(shape)
    return x if x.shape == target else x._apply("expand", shape=target)


# ---- joining and moving --------------------------------------------------------------------------


def concatenate(arrays: Sequence[ArrayLike], axis: int | None = 0) -> Array:
    """Joins arrays along ``axis`` (None: joins the flattened arrays).

    Raises:
        ValueError: if there are no arrays, or their shapes differ in another axis.
    """
    if not len(arrays):
        raise ValueError(located("concatenate: needs at least one array"))
    parts = common(_graph_of(*arrays), "concatenate", arrays)
    if axis is None:
        parts, axis = [p.ravel() for p in parts], 0
    if not parts[0].shape:
        raise ValueError(located("concatenate: arrays without axes cannot be joined; use stack"))
    number = _normalize_axis(axis, parts[0].ndim, "concatenate")
    return parts[0]._apply("concat", *parts[1:], axis=number)


def stack(arrays: Sequence[ArrayLike], axis: int = 0) -> Array:
    """Joins arrays of the same shape along a new axis at position ``axis`` of the result. No
    arrays, or different shapes, raise ValueError."""
    if not len(arrays):
        raise ValueError(located("stack: needs at least one array"))
    parts = common(_graph_of(*arrays), "stack", arrays)
    if any(p.shape != parts[0].shape for p in parts):
        raise ValueError(located(f"stack: shapes differ: {', '.join(str(p.shape) for p in parts)}"))
    number = _normalize_axis(axis, parts[0].ndim + 1, "stack")
    return concatenate([expand_dims(p, number) for p in parts], number)


def split(x: ArrayLike, sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Cuts ``x`` along ``axis`` into ``sections`` equal parts, or at the given indices. Returns the
    parts.

    Raises:
        ValueError: if the axis does not divide into equal parts.
    """
    x = _array(x)
    number = _normalize_axis(axis, x.ndim, "split")
    n = x.shape[number]
    if isinstance(sections, int):
        sections = whole(sections, "split: sections")
        if sections < 1 or n % sections:
            raise ValueError(
                located(
                    f"split: axis {axis} of size {n} does not divide into {sections} equal parts"
                )
            )
        edges = [i * (n // sections) for i in range(sections + 1)]
    else:
        edges = [0, *sections, n]
    before = (slice(None),) * number
    return [x[(*before, slice(a, b))] for a, b in pairwise(edges)]


def pad(
    x: ArrayLike, pad_width: Any, mode: str | float = "constant", constant_values: float = 0.0
) -> Array:
    """Adds elements around ``x``. ``pad_width`` is a number, a pair, or a pair for each axis.

    Args:
        mode: ``"constant"``, or ``"edge"``, ``"reflect"``, ``"symmetric"`` or ``"wrap"`` for copies
            of elements, as in NumPy.

    Raises:
        ValueError: if the widths do not fit the axes or are negative, or the mode is unknown.
    """
    x = _array(x)
    if isinstance(mode, (int, float)):  # older versions took constant_values in this position
        constant_values, mode = float(mode), "constant"
    if isinstance(pad_width, int):
        pad_width = whole(pad_width, "pad: a width")
        widths = [(pad_width, pad_width)] * x.ndim
    elif len(pad_width) == 2 and all(isinstance(w, int) for w in pad_width):
        widths = [(pad_width[0], pad_width[1])] * x.ndim
    else:
        widths = [(low, high) for low, high in pad_width]
    if len(widths) != x.ndim:
        raise ValueError(located(f"pad: got {len(widths)} pairs of widths for {x.ndim} axes"))
    for axis, pair in enumerate(widths):
        low, high = (whole(n, "pad: a width") for n in pair)
        if mode != "constant":
            x = _copied(x, axis, low, high, mode)
        elif low or high:
            x = x._apply(
                "pad", axis=axis, low=low, high=high, interior=0, value=float(constant_values)
            )
    return x


def _copied(x: Array, axis: int, low: int, high: int, mode: str) -> Array:
    """Adds copies of elements before and after ``x`` along one axis."""
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        raise ValueError(
            located(f"pad: mode={mode!r} is not constant, edge, reflect, symmetric or wrap")
        )
    if low < 0 or high < 0 or not x.shape[axis]:
        raise ValueError(
            located(f"pad: widths ({low}, {high}) do not fit an axis of {x.shape[axis]} elements")
        )
    if not low and not high:
        return x
    rows: np.ndarray[Any, Any] = np.pad(np.arange(x.shape[axis]), (low, high), mode=mode)  # type: ignore[call-overload]
    return x.take(rows, axis)


def tril(x: ArrayLike, k: int = 0) -> Array:
    """Returns the lower triangle of the last two axes: the elements with column <= row + k, and
    zeros elsewhere."""
    return _array(x)._apply("tril", k=whole(k, "tril: k"), fill=0.0)


def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Array:
    """Returns the elements, or the slices along ``axis``, at integer ``indices``. None takes from
    the flattened array."""
    return _array(x).take(indices, axis)


def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int = -1) -> Array:
    """Returns ``out[.., i, ..] = x[.., indices[.., i, ..], ..]``. Indices must not be negative; the
    other axes broadcast."""
    x = _array(x)
    index = x.graph.lift(indices)
    number = _normalize_axis(axis, x.ndim, "take_along_axis")
    if index.ndim == x.ndim:  # otherwise the core raises the error
        rows, columns = list(x.shape), list(index.shape)
        for n in range(x.ndim):
            if n != number and 1 in (rows[n], columns[n]):
                rows[n] = columns[n] = rows[n] * columns[n]
        x, index = broadcast_to(x, rows), broadcast_to(index, columns)
    return x._apply("gather", index, axis=number)
