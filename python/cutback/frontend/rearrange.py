"""NumPy's functions that create, join, move and sort arrays, composed of the operations of
:mod:`cutback.frontend.ops`. All of them are also available as ``cutback.<name>``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import dtypes
from ..integers import index
from ..source import located
from . import ops
from .ops import _array, _graph_of
from .tracer import Array, ArrayLike, Axis, _normalize_axes, _normalize_axis, common, whole

__all__ = [
    "argsort", "array", "array_split", "asarray", "atleast_1d", "atleast_2d", "atleast_3d",
    "column_stack", "copy", "diag", "diagonal", "dstack", "empty", "empty_like", "eye", "flip",
    "fliplr", "flipud", "hsplit", "hstack", "identity", "interp", "linspace", "median",
    "meshgrid", "moveaxis", "ndim", "percentile", "quantile", "repeat", "roll", "rot90",
    "searchsorted", "segment_sum", "shape", "size", "sort", "tile", "top_k", "tri", "triu",
    "unstack", "vsplit", "vstack",
]  # fmt: skip


# ---- making arrays -------------------------------------------------------------------------------


def asarray(x: Any, dtype: Any = None) -> Array:
    """Converts ``x`` to a traced array. It may be an array, a number, or nested lists of traced
    arrays and numbers."""
    if isinstance(x, (list, tuple)):
        if _has_traced(x):
            result = ops.stack([asarray(item) for item in x])
        else:
            result = _array(np.asarray(x))
    else:
        result = _array(x)
    return result if dtype is None else result.astype(dtype)


def _has_traced(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return any(_has_traced(item) for item in x)
    return isinstance(x, Array)


array = asarray


def copy(x: ArrayLike) -> Array:
    """Returns ``x``. Traced arrays cannot be written to, so no copy is needed."""
    return _array(x)


def empty(shape: int | Sequence[int], dtype: Any = "f64") -> Array:
    """Returns zeros, because a traced array has no undefined elements."""
    return ops.zeros(shape, dtype)


def empty_like(x: ArrayLike, dtype: Any = None) -> Array:
    """Returns zeros with the shape and dtype of ``x``."""
    return ops.zeros_like(x, dtype)


def shape(x: ArrayLike) -> tuple[int, ...]:
    """Returns the size of each axis, as Python integers."""
    return _array(x).shape


def size(x: ArrayLike, axis: int | None = None) -> int:
    """Returns the number of elements, or the size of ``axis``, as a Python integer."""
    x = _array(x)
    return x.size if axis is None else x.shape[_normalize_axis(axis, x.ndim, "size")]


def ndim(x: ArrayLike) -> int:
    """Returns the number of axes."""
    return _array(x).ndim


def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: Any = None,
) -> Array:
    """Returns ``num`` evenly spaced numbers from ``start`` to ``stop``; the default ``dtype`` is
    f64."""
    n = whole(num, "linspace: num")
    steps = max(n - 1 if endpoint else n, 1)
    if isinstance(start, (int, float)) and isinstance(stop, (int, float)):
        made = np.linspace(start, stop, n, bool(endpoint))
        result = _array(made)
    else:
        share = ops.arange(n).astype("f64") / float(steps)
        result = ops.multiply(ops.subtract(stop, start), share) + start
    return result if dtype is None else result.astype(dtype)


def _lower(rows: int, columns: int, k: int) -> Array:
    """Returns True where column <= row + k."""
    return ops.arange(columns) <= ops.arange(rows)[:, None] + k


def tri(n: int, m: int | None = None, k: int = 0, dtype: Any = "f64") -> Array:
    """Returns a matrix with ones where column <= row + k and zeros elsewhere."""
    return _lower(index(n), index(n if m is None else m), whole(k, "tri: k")).astype(dtype)


def eye(n: int, m: int | None = None, k: int = 0, dtype: Any = "f64") -> Array:
    """Returns an ``[n, m]`` matrix (None: m = n) with ones on diagonal ``k`` and zeros elsewhere;
    the default ``dtype`` is f64."""
    rows, columns = index(n), index(n if m is None else m)
    mask = ops.arange(columns) == ops.arange(rows)[:, None] + whole(k, "eye: k")
    return mask.astype(dtype)


def identity(n: int, dtype: Any = "f64") -> Array:
    """Returns the identity matrix ``[n, n]``."""
    return eye(n, dtype=dtype)


def meshgrid(*vectors: ArrayLike, indexing: str = "xy") -> list[Array]:
    """Returns the coordinates of a grid, one array for each vector. An ``indexing`` other than
    ``"xy"`` or ``"ij"`` raises ValueError."""
    parts = [_array(v).ravel() for v in vectors]
    if indexing not in ("xy", "ij"):
        raise ValueError(located(f"meshgrid: indexing={indexing!r} is not 'xy' or 'ij'"))
    sizes = tuple(p.size for p in parts)
    grids = []
    for i, p in enumerate(parts):
        place = [sizes[i] if a == i else 1 for a in range(len(parts))]
        grid = ops.broadcast_to(p.reshape(place), sizes)
        grids.append(grid.swapaxes(0, 1) if indexing == "xy" and len(parts) > 1 else grid)
    return grids


# ---- triangles and diagonals ---------------------------------------------------------------------


def triu(x: ArrayLike, k: int = 0) -> Array:
    """Returns the upper triangle of the last two axes: the elements with column >= row + k, and
    zeros elsewhere. Fewer than two axes raise ValueError."""
    x = _array(x)
    if x.ndim < 2:
        raise ValueError(located(f"triu: expected two axes or more, got shape {x.shape}"))
    return ops.where(_lower(x.shape[-2], x.shape[-1], whole(k, "triu: k") - 1), 0, x)


def diagonal(x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Returns the elements with ``j = i + offset`` along two axes, in a new last axis. Equal axes
    raise ValueError."""
    x = _array(x)
    a, b = (_normalize_axis(n, x.ndim, "diagonal") for n in (axis1, axis2))
    if a == b:
        raise ValueError(located(f"diagonal: axes {axis1} and {axis2} are the same"))
    k = whole(offset, "diagonal: offset")
    rest = [n for n in range(x.ndim) if n not in (a, b)]
    x = x.transpose([*rest, a, b])
    rows, columns = x.shape[-2:]
    begin = k if k >= 0 else -k * columns
    length = max(min(rows, columns - k) if k >= 0 else min(rows + k, columns), 0)
    flat = x.reshape((*x.shape[:-2], rows * columns))
    if not length:
        return flat[..., :0]
    return flat[..., begin : begin + (length - 1) * (columns + 1) + 1 : columns + 1]


def diag(x: ArrayLike, k: int = 0) -> Array:
    """Returns a matrix with the vector ``x`` on diagonal ``k``, or that diagonal of a matrix. Other
    numbers of axes raise ValueError."""
    x = _array(x)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ValueError(located(f"diag: expected one or two axes, got shape {x.shape}"))
    k = whole(k, "diag: k")
    n = x.size + abs(k)
    row = ops.pad(x, (max(k, 0), max(-k, 0)))
    return ops.where(eye(n, k=k, dtype="bool"), row[None, :], ops.zeros((), x.dtype))


def trace(x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Returns the sum of a diagonal. ``cutback.trace`` traces a function, so this function is only
    available as ``cutback.linalg.trace`` and as the method ``x.trace()``."""
    return diagonal(x, offset, axis1, axis2).sum(-1)


# ---- axes ----------------------------------------------------------------------------------------


def moveaxis(x: ArrayLike, source: Axis, destination: Axis) -> Array:
    """Moves axes to other positions; the others keep their order. Raises ValueError if the numbers
    of axes and positions differ."""
    x = _array(x)
    sources = source if isinstance(source, (tuple, list)) else (source,)
    places = destination if isinstance(destination, (tuple, list)) else (destination,)
    if len(sources) != len(places):
        raise ValueError(located(f"moveaxis: got {len(sources)} axes for {len(places)} positions"))
    begin = [_normalize_axis(a, x.ndim, "moveaxis") for a in sources]
    end = [_normalize_axis(a, x.ndim, "moveaxis") for a in places]
    order = [a for a in range(x.ndim) if a not in begin]
    for place, axis in sorted(zip(end, begin, strict=True)):
        order.insert(place, axis)
    return x.transpose(order)


def _at_least(x: ArrayLike, before: Sequence[int]) -> Array:
    x = _array(x)
    return ops.expand_dims(x, list(before)) if before else x


def atleast_1d(x: ArrayLike) -> Array:
    """Reshapes ``x`` to at least one axis."""
    x = _array(x)
    return x if x.ndim else x.reshape(1)


def atleast_2d(x: ArrayLike) -> Array:
    """Reshapes ``x`` to at least two axes; a vector becomes a row."""
    x = _array(x)
    return x if x.ndim > 1 else x.reshape(1, -1)


def atleast_3d(x: ArrayLike) -> Array:
    """Reshapes ``x`` to at least three axes, like NumPy."""
    x = _array(x)
    if x.ndim == 1:
        return x.reshape(1, -1, 1)
    return x if x.ndim > 2 else x.reshape((*atleast_2d(x).shape, 1))


# ---- joining and cutting -------------------------------------------------------------------------


def hstack(arrays: Sequence[ArrayLike]) -> Array:
    """Joins arrays along axis 1, or vectors along axis 0."""
    parts = [atleast_1d(x) for x in arrays]
    return ops.concatenate(parts, 0 if parts and parts[0].ndim == 1 else 1)


def vstack(arrays: Sequence[ArrayLike]) -> Array:
    """Joins arrays along axis 0; vectors become rows."""
    return ops.concatenate([atleast_2d(x) for x in arrays], 0)


def dstack(arrays: Sequence[ArrayLike]) -> Array:
    """Joins arrays along axis 2."""
    return ops.concatenate([atleast_3d(x) for x in arrays], 2)


def column_stack(arrays: Sequence[ArrayLike]) -> Array:
    """Joins arrays along axis 1; vectors become columns."""
    parts = [_array(x) for x in arrays]
    return ops.concatenate([p if p.ndim > 1 else p.reshape(-1, 1) for p in parts], 1)


def array_split(x: ArrayLike, sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Cuts like :func:`split`, but returns parts whose sizes differ by one if the axis does not
    divide evenly. Fewer than one section raises ValueError."""
    x = _array(x)
    if isinstance(sections, int):
        n = x.shape[_normalize_axis(axis, x.ndim, "array_split")]
        if sections < 1:
            raise ValueError(located(f"array_split: sections={sections} must be at least 1"))
        small, more = divmod(n, sections)
        sections = [i * small + min(i, more) for i in range(1, sections)]
    return ops.split(x, sections, axis)


def hsplit(x: ArrayLike, sections: int | Sequence[int]) -> list[Array]:
    """Returns the parts of ``x``, cut along axis 1, or along axis 0 for a vector."""
    x = _array(x)
    return ops.split(x, sections, 0 if x.ndim == 1 else 1)


def vsplit(x: ArrayLike, sections: int | Sequence[int]) -> list[Array]:
    """Returns the parts of ``x``, cut along axis 0."""
    return ops.split(x, sections, 0)


def unstack(x: ArrayLike, axis: int = 0) -> tuple[Array, ...]:
    """Returns the slices along ``axis``, which have one axis less."""
    return tuple(moveaxis(x, axis, 0))


def tile(x: ArrayLike, reps: int | Sequence[int]) -> Array:
    """Repeats the whole array ``reps`` times along each axis."""
    x = _array(x)
    counts = tuple(index(n) for n in (reps if isinstance(reps, (tuple, list)) else (reps,)))
    n = max(x.ndim, len(counts))
    counts = (1,) * (n - len(counts)) + counts
    sizes = (1,) * (n - x.ndim) + x.shape
    spread = [s for count, size in zip(counts, sizes, strict=True) for s in (count, size)]
    single = [s for size in sizes for s in (1, size)]
    result = ops.broadcast_to(x.reshape(single), spread)
    return result.reshape([c * s for c, s in zip(counts, sizes, strict=True)])


def repeat(x: ArrayLike, repeats: Any, axis: int | None = None) -> Array:
    """Repeats each element, or each slice along ``axis``. ``repeats`` is a number, or a number for
    each slice; traced numbers raise TypeError."""
    x = _array(x)
    if axis is None:
        x, axis = x.ravel(), 0
    number = _normalize_axis(axis, x.ndim, "repeat")
    if isinstance(repeats, Array):
        raise TypeError(
            located(
                "repeat: repeats must not be traced, because the size of the result would "
                "be unknown"
            )
        )
    if np.ndim(repeats):
        return x.take(np.repeat(np.arange(x.shape[number]), repeats), number)
    count = whole(repeats, "repeat: repeats")
    spread = list(x.shape)
    spread.insert(number + 1, count)
    final = [count * n if a == number else n for a, n in enumerate(x.shape)]
    return ops.broadcast_to(ops.expand_dims(x, number + 1), spread).reshape(final)


def roll(x: ArrayLike, shift: Any, axis: Axis = None) -> Array:
    """Moves elements by ``shift`` along axes; elements that leave at the end enter at the start."""
    x = _array(x)
    if axis is None:
        return roll(x.ravel(), shift, 0).reshape(x.shape)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    for by, one in zip(shifts, axes, strict=True):
        number = _normalize_axis(one, x.ndim, "roll")
        n = x.shape[number]
        begin = -whole(by, "roll: shift") % n if n else 0
        if begin:
            before = (slice(None),) * number
            parts = [x[(*before, slice(begin, n))], x[(*before, slice(0, begin))]]
            x = ops.concatenate(parts, number)
    return x


def flip(x: ArrayLike, axis: Axis = None) -> Array:
    """Reverses the order of elements along axes (None: all)."""
    x = _array(x)
    axes = _normalize_axes(axis, x.ndim, "flip")
    return x[tuple(slice(None, None, -1 if a in axes else 1) for a in range(x.ndim))]


def flipud(x: ArrayLike) -> Array:
    """Reverses the order of elements along axis 0."""
    return flip(x, 0)


def fliplr(x: ArrayLike) -> Array:
    """Reverses the order of elements along axis 1."""
    return flip(x, 1)


def rot90(x: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """Rotates by 90 degrees ``k`` times, from the first of ``axes`` to the second."""
    x = _array(x)
    turns = whole(k, "rot90: k") % 4
    if turns == 2:
        return flip(x, axes)
    if turns == 1:
        return flip(x, axes[1]).swapaxes(*axes)
    return flip(x.swapaxes(*axes), axes[1]) if turns == 3 else x


# ---- order ---------------------------------------------------------------------------------------


def _exchange(keys: Array, rows: Array, distance: int, block: int) -> tuple[Array, Array]:
    """Runs one round of a bitonic sorting network over the last axis, whose size is a power of two.
    It puts elements that are ``distance`` apart in ascending order, or, in every second block of
    ``block`` elements, in descending order. ``rows`` decides between equal keys."""
    front, n = keys.shape[:-1], keys.shape[-1]
    pairs = (*front, n // (2 * distance), 2, distance)
    a, b = (x[..., i, :] for x in (keys.reshape(pairs),) for i in (0, 1))
    p, q = (x[..., i, :] for x in (rows.reshape(pairs),) for i in (0, 1))
    starts = np.arange(0, n, 2 * distance)
    down = keys.graph.lift(((starts // block) % 2 == 1)[:, None])
    # NaN sorts last, as in NumPy
    nan_a, nan_b = a != a, b != b
    tie = (a == b) | (nan_a & nan_b)
    after = (a > b) | (nan_a & ~nan_b) | (tie & (p > q))
    swap = after ^ down
    low, high = ops.where(swap, b, a), ops.where(swap, a, b)
    first, second = ops.where(swap, q, p), ops.where(swap, p, q)
    shape = keys.shape
    return (
        ops.stack([low, high], -2).reshape(shape),
        ops.stack([first, second], -2).reshape(shape),
    )


def argsort(x: ArrayLike, axis: int | None = -1, descending: bool = False) -> Array:
    """Returns the indices (i64) that sort ``x`` along ``axis`` (None: the flattened array). The
    order is stable, with NaN last.

    It is computed by a bitonic network, with ``log2(n) * (log2(n) + 1) / 2`` rounds of comparisons.
    An array without axes raises ValueError.
    """
    x = _array(x)
    if axis is None:
        x, axis = x.ravel(), 0
    if not x.ndim:
        raise ValueError(located("argsort: an array without axes has no order"))
    number = _normalize_axis(axis, x.ndim, "argsort")
    if x.dtype in ("bool", "u8"):
        x = x.astype("i32")
    keys = moveaxis(x, number, -1)
    if descending:
        keys = -1 - keys if x.dtype in dtypes.INTS else -keys
    n = keys.shape[-1]
    size = 1 << max(n - 1, 0).bit_length()
    rows = ops.broadcast_to(ops.arange(size), (*keys.shape[:-1], size))
    if size > n:  # pad with keys that sort last; their row numbers are larger than all others
        widths = [(0, 0)] * (keys.ndim - 1) + [(0, size - n)]
        keys = _filled(keys, widths, n)
    block = 2
    while block <= size and n:
        distance = block // 2
        while distance:
            keys, rows = _exchange(keys, rows, distance, block)
            distance //= 2
        block *= 2
    return moveaxis(rows[..., :n], -1, number)


def _filled(keys: Array, widths: list[tuple[int, int]], n: int) -> Array:
    """Pads keys with values that sort last: NaN, or the largest integer."""
    if keys.dtype in dtypes.FLOATS:
        return ops.pad(keys, widths, constant_values=math.nan)
    wide = ops.pad(keys.astype("i64"), widths)
    rows = ops.arange(wide.shape[-1])
    half = ops.full((), 2**62)
    return ops.where(rows < n, wide, half + (half - 1))  # the largest i64


def sort(x: ArrayLike, axis: int | None = -1, descending: bool = False) -> Array:
    """Sorts elements in ascending order along ``axis`` (None: the flattened array), with NaN last.
    The gradient of each position goes to the element that was moved there."""
    x = _array(x)
    if axis is None:
        x, axis = x.ravel(), 0
    number = _normalize_axis(axis, x.ndim, "sort")
    return ops.take_along_axis(x, argsort(x, number, descending), number)


def top_k(x: ArrayLike, k: int) -> tuple[Array, Array]:
    """Returns the ``k`` largest elements of the last axis in descending order, and their indices.
    Raises ValueError if the axis has fewer elements."""
    x = _array(x)
    count = whole(k, "top_k: k")
    if not x.ndim or not 0 <= count <= x.shape[-1]:
        raise ValueError(located(f"top_k: k={count} does not fit an input of shape {x.shape}"))
    found = argsort(x, -1, descending=True)[..., :count]
    return ops.take_along_axis(x, found, -1), found


def quantile(x: ArrayLike, q: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """Returns quantiles over axes at ``q``, numbers in [0, 1], with linear interpolation. A traced
    ``q`` raises TypeError, and a number outside [0, 1] raises ValueError."""
    x = _array(x)
    x = x.astype(dtypes.floating(x.dtype))
    axes = _normalize_axes(axis, x.ndim, "quantile")
    rest = [a for a in range(x.ndim) if a not in axes]
    flat = x.transpose([*rest, *axes]).reshape([*(x.shape[a] for a in rest), -1])
    if isinstance(q, Array):
        raise TypeError(
            located("quantile: q must be a number or a list of numbers, not a traced array")
        )
    places = np.asarray(q, np.float64)
    if places.size and not (places.min() >= 0 and places.max() <= 1):
        raise ValueError(located(f"quantile: q={q!r:.60} is not in [0, 1]"))
    ordered = sort(flat, -1)
    at = places * (flat.shape[-1] - 1)
    low = np.floor(at).astype(np.int64)
    high = np.minimum(low + 1, flat.shape[-1] - 1)
    share = (at - low).ravel()
    parts = []
    for i, j, t in zip(low.ravel(), high.ravel(), share, strict=True):
        a, b = ordered[..., int(i)], ordered[..., int(j)]
        one = a + (b - a) * float(t) if t < 0.5 else b - (b - a) * float(1 - t)
        one = ops.where(ops.not_equal(ordered[..., -1], ordered[..., -1]), math.nan, one)
        if keepdims:
            one = one.reshape([1 if a in axes else n for a, n in enumerate(x.shape)])
        parts.append(one)
    if not places.ndim:
        return parts[0]
    return ops.stack(parts).reshape((*places.shape, *parts[0].shape))


def percentile(x: ArrayLike, q: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """Returns percentiles over axes at ``q``, numbers in [0, 100]. A traced ``q`` raises
    TypeError."""
    if isinstance(q, Array):
        raise TypeError(
            located("percentile: q must be a number or a list of numbers, not a traced array")
        )
    return quantile(x, np.asarray(q, np.float64) / 100.0, axis, keepdims)


def median(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Returns the median over axes: the middle element, or the mean of the two in the middle."""
    return quantile(x, 0.5, axis, keepdims)


def searchsorted(x: ArrayLike, v: ArrayLike, side: str = "left") -> Array:
    """Returns, for each element of ``v``, the index (i64) in the sorted vector ``x`` before which
    it would be inserted. Each element of ``v`` is compared with each of ``x``. A ``side`` other
    than ``"left"`` or ``"right"``, or an ``x`` that is not a vector, raises ValueError."""
    if side not in ("left", "right"):
        raise ValueError(located(f"searchsorted: side={side!r} is not 'left' or 'right'"))
    a, b = common(_graph_of(x, v), "searchsorted", (x, v))
    if a.ndim != 1:
        raise ValueError(located(f"searchsorted: expected a sorted vector, got shape {a.shape}"))
    wanted = ops.expand_dims(b, -1)
    before = a < wanted if side == "left" else a <= wanted
    return before.astype("i64").sum(-1)


def interp(x: ArrayLike, xp: ArrayLike, fp: ArrayLike) -> Array:
    """Interpolates linearly at ``x`` between the points ``(xp, fp)``, with ``xp`` ascending.
    Outside the points the result is constant. Raises ValueError unless ``xp`` and ``fp`` are
    vectors of the same length, at least 1."""
    a, p, f = (_array(v) for v in common(_graph_of(x, xp, fp), "interp", (x, xp, fp)))
    if p.ndim != 1 or p.shape != f.shape or not p.size:
        raise ValueError(
            located(
                f"interp: xp and fp must be vectors of the same length, got shapes "
                f"{p.shape} and {f.shape}"
            )
        )
    if p.size == 1:
        return ops.broadcast_to(f, a.shape) if a.ndim else f[0]
    at = (searchsorted(p, a, "right") - 1).clip(0, p.size - 2)
    x0, x1, f0, f1 = (v.take(k) for v, k in ((p, at), (p, at + 1), (f, at), (f, at + 1)))
    inside = ops.minimum(ops.maximum(a, p[0]), p[-1])
    return f0 + (f1 - f0) * ((inside - x0) / (x1 - x0))


def segment_sum(data: ArrayLike, segment_ids: ArrayLike, num_segments: int) -> Array:
    """Sums the slices of ``data`` along its first axis that have the same id, in their order:
    ``out[s] = sum of data[i] where segment_ids[i] == s``, of shape ``[num_segments, ..]``.

    An id outside 0 .. num_segments - 1 raises an error when the step runs. Source:
    ``jax.ops.segment_sum``; PyTorch's ``index_add``; NumPy's ``np.add.at``.

    Raises:
        ValueError: if ``segment_ids`` does not have one id for each slice.
        TypeError: if ``data`` is not floating-point.
    """
    x = _array(data)
    index = x.graph.lift(segment_ids)
    if not x.ndim or index.shape != x.shape[:1]:
        raise ValueError(
            located(
                f"segment_sum: segment_ids needs one id for each of the "
                f"{x.shape[0] if x.ndim else 0} slices of data {x.shape}, but "
                f"its shape is {index.shape}"
            )
        )
    if x.dtype not in dtypes.FLOATS:
        raise TypeError(
            located(f"segment_sum: data must be floating, not {x.dtype}; pass data.astype('f32')")
        )
    count = whole(num_segments, "segment_sum: num_segments")
    rows = x.reshape((x.shape[0], math.prod(x.shape[1:])))
    return rows._apply("embedding_bwd", index, rows=count).reshape((count, *x.shape[1:]))
