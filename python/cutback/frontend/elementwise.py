"""NumPy's elementwise functions and reductions, composed of the operations of
:mod:`cutback.frontend.ops`. All of them are also available as ``cutback.<name>``."""

from __future__ import annotations

import math

import numpy as np

from .. import dtypes
from ..source import located
from . import ops
from .ops import _array, _graph_of
from .tracer import Array, ArrayLike, Axis, _normalize_axes, _normalize_axis, common, whole

__all__ = [
    "all",
    "allclose",
    "any",
    "arctanh",
    "argmin",
    "average",
    "ceil",
    "copysign",
    "cosh",
    "count_nonzero",
    "cumprod",
    "cumsum",
    "diff",
    "exp2",
    "expm1",
    "fix",
    "hypot",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "log2",
    "log10",
    "logaddexp",
    "logical_xor",
    "logsumexp",
    "nan_to_num",
    "nansum",
    "positive",
    "prod",
    "ptp",
    "round",
    "signbit",
    "sinh",
    "tan",
    "trunc",
]  # fmt: skip


def _float(x: ArrayLike) -> Array:
    """Converts ``x`` to an array of the floating type in which NumPy computes."""
    x = _array(x)
    return x.astype(dtypes.floating(x.dtype))


def _pair(name: str, x: ArrayLike, y: ArrayLike) -> list[Array]:
    """Converts both operands to one floating type."""
    a, b = common(_graph_of(x, y), name, (x, y))
    return [_float(a), _float(b)]


def _truth(x: ArrayLike) -> Array:
    """Returns True where ``x`` is not zero."""
    x = _array(x)
    return x if x.dtype == "bool" else x != 0


# ---- tests ---------------------------------------------------------------------------------------


def isnan(x: ArrayLike) -> Array:
    """Returns True where an element is NaN."""
    x = _array(x)
    return x != x


def isinf(x: ArrayLike) -> Array:
    """Returns True where an element is infinite, of either sign."""
    x = _array(x)
    return ops.absolute(x) == math.inf if x.dtype in dtypes.FLOATS else x != x


def isfinite(x: ArrayLike) -> Array:
    """Returns True where an element is neither infinite nor NaN."""
    x = _array(x)
    return ops.absolute(x) < math.inf if x.dtype in dtypes.FLOATS else x == x


def signbit(x: ArrayLike) -> Array:
    """Returns True where an element is negative, -0.0 included."""
    x = _float(x)
    return (x < 0) | ((x == 0) & (ops.reciprocal(x) < 0))


def isclose(x: ArrayLike, y: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8) -> Array:
    """Returns True where ``|x - y| <= atol + rtol * |y|``; equal infinities are close."""
    a, b = _pair("isclose", x, y)
    near = ops.absolute(a - b) <= ops.absolute(b) * rtol + atol
    return (near & isfinite(b)) | (a == b)


def allclose(x: ArrayLike, y: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8) -> Array:
    """Returns a traced bool: True if :func:`isclose` is true for every element."""
    return all(isclose(x, y, rtol, atol))


def logical_xor(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns True where exactly one of the two is not zero."""
    return _truth(x) ^ _truth(y)


# ---- functions of an element ---------------------------------------------------------------------


def positive(x: ArrayLike) -> Array:
    """Returns x, as NumPy's unary plus does."""
    return _array(x)


def tan(x: ArrayLike) -> Array:
    """Returns the tangent of radians."""
    x = _float(x)
    return ops.sin(x) / ops.cos(x)


def expm1(x: ArrayLike) -> Array:
    """Returns e**x - 1, accurate near 0. Where \\|x\\| < 1 it is computed as ``2 t / (1 - t)`` with
    ``t = tanh(x / 2)``."""
    x = _float(x)
    t = ops.tanh(x.clip(-1.0, 1.0) * 0.5)
    return ops.where(ops.absolute(x) < 1.0, t * 2.0 / (1.0 - t), ops.exp(x) - 1.0)


def sinh(x: ArrayLike) -> Array:
    """Returns the hyperbolic sine, computed with :func:`expm1`."""
    x = _float(x)
    # half of each exponential, so that the result overflows where sinh does
    far = ops.exp(x - math.log(2.0)) - ops.exp(-x - math.log(2.0))
    near = expm1(x.clip(-1.0, 1.0))
    return ops.where(ops.absolute(x) < 1.0, 0.5 * (near + near / (near + 1.0)), far)


def cosh(x: ArrayLike) -> Array:
    """Returns the hyperbolic cosine."""
    x = _float(x)
    return ops.exp(x) * 0.5 + ops.exp(-x) * 0.5


def arctanh(x: ArrayLike) -> Array:
    """Returns the inverse hyperbolic tangent."""
    x = _float(x)
    return (ops.log1p(x) - ops.log1p(-x)) * 0.5


def exp2(x: ArrayLike) -> Array:
    """Returns 2**x."""
    return ops.power(2.0, _float(x))


def log2(x: ArrayLike) -> Array:
    """Returns the logarithm to base 2."""
    return ops.log(x) / math.log(2.0)


def log10(x: ArrayLike) -> Array:
    """Returns the logarithm to base 10."""
    return ops.log(x) / math.log(10.0)


def logaddexp(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns log(e**x + e**y), without overflow."""
    a, b = _pair("logaddexp", x, y)
    distance = ops.where(a == b, 0.0, a - b)  # 0 also for equal infinities
    return ops.maximum(a, b) + ops.log1p(ops.exp(-ops.absolute(distance)))


def hypot(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns sqrt(x**2 + y**2). Unlike in NumPy, the squares may overflow."""
    a, b = _pair("hypot", x, y)
    return ops.sqrt(a * a + b * b)


def copysign(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns \\|x\\| with the sign of y."""
    a, b = _pair("copysign", x, y)
    size = ops.absolute(a)
    return ops.where(signbit(b), -size, size)


def ceil(x: ArrayLike) -> Array:
    """Returns the smallest integer not below x. Integers are returned unchanged."""
    x = _array(x)
    return -ops.floor(-x) if x.dtype in dtypes.FLOATS else x


def trunc(x: ArrayLike) -> Array:
    """Returns the integer part. Integers are returned unchanged."""
    x = _array(x)
    return ops.where(x < 0, ceil(x), ops.floor(x)) if x.dtype in dtypes.FLOATS else x


fix = trunc


def round(x: ArrayLike, decimals: int = 0) -> Array:
    """Rounds to the nearest multiple of 10**-decimals, as NumPy computes it; halves are rounded to
    even. Negative ``decimals`` raise NotImplementedError for integers."""
    x = _array(x)
    places = whole(decimals, "round: decimals")
    if x.dtype not in dtypes.FLOATS:
        if places < 0:
            raise NotImplementedError(located("round: negative decimals need a float array"))
        return x
    if places:
        scale = 10.0 ** abs(places)
        return round(x * scale) / scale if places > 0 else round(x / scale) * scale
    low = ops.floor(x)
    rest, half = x - low, low * 0.5
    odd = half != ops.floor(half)
    up = (rest > 0.5) | ((rest == 0.5) & odd)
    return low + up.astype(x.dtype)


def nan_to_num(
    x: ArrayLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Array:
    """Replaces NaN by ``nan`` and infinities by ``posinf`` and ``neginf`` (None: the largest finite
    numbers)."""
    x = _array(x)
    if x.dtype not in dtypes.FLOATS:
        return x
    largest = _LARGEST[str(x.dtype)]
    x = ops.where(x != x, nan, x)
    x = ops.where(x == math.inf, largest if posinf is None else posinf, x)
    return ops.where(x == -math.inf, -largest if neginf is None else neginf, x)


_LARGEST = {
    "f16": 65504.0,
    "bf16": (2 - 2.0**-7) * 2.0**127,
    "f32": float(np.finfo(np.float32).max),
    "f64": float(np.finfo(np.float64).max),
}


# ---- reductions ----------------------------------------------------------------------------------


def any(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Returns True where any element over ``axis`` (None: all axes) is not zero."""
    return count_nonzero(x, axis, keepdims) > 0


def all(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Returns True where no element over ``axis`` (None: all axes) is zero."""
    return count_nonzero(~_truth(x), axis, keepdims) == 0


def count_nonzero(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Returns the number (i64) of elements that are not zero."""
    return _truth(x).astype("i64").sum(axis, keepdims)


def argmin(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """Returns the index (i64) of the first smallest element along ``axis``. NaN counts as the
    smallest."""
    x = _array(x)
    if x.dtype in dtypes.FLOATS:
        return (-x).argmax(axis, keepdims)
    return (-1 - x.astype("i64")).argmax(axis, keepdims)


def ptp(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Returns the largest minus the smallest element over axes."""
    x = _array(x)
    return x.max(axis, keepdims) - x.min(axis, keepdims)


def nansum(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Returns the sum over axes, with NaN counted as zero."""
    x = _array(x)
    return ops.where(x != x, 0, x).sum(axis, keepdims)


def average(
    x: ArrayLike, axis: Axis = None, weights: ArrayLike | None = None, keepdims: bool = False
) -> Array:
    """Returns the weighted mean over axes. ``weights`` has the shape of ``x``, or is a vector for
    one axis. Other shapes raise ValueError."""
    x = _array(x)
    if weights is None:
        return x.mean(axis, keepdims)
    w = x.graph.lift(weights)
    if w.shape != x.shape:
        axes = _normalize_axes(axis, x.ndim, "average")
        if axis is None or len(axes) != 1 or w.shape != (x.shape[axes[0]],):
            raise ValueError(
                located(f"average: weights of shape {w.shape} do not fit {x.shape}, axis={axis}")
            )
        w = w.reshape([n if a == axes[0] else 1 for a, n in enumerate(x.shape)])
    w = ops.broadcast_to(w, x.shape)
    return (x * w).sum(axis, keepdims) / w.sum(axis, keepdims)


def logsumexp(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Returns log(sum(e**x)) over axes, computed relative to the largest element to avoid
    overflow."""
    x = _float(x)
    axes = _normalize_axes(axis, x.ndim, "logsumexp")
    top = x.max(axes, keepdims=True)
    top = ops.where(isfinite(top), top, 0.0)
    result = ops.log(ops.exp(x - top).sum(axes, keepdims=True)) + top
    return result if keepdims else result.squeeze(axes)


def _along(x: Array, axis: int, begin: int, end: int) -> Array:
    return x[(slice(None),) * axis + (slice(begin, end),)]


def prod(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Returns the product over axes (None: all), multiplied in pairs. Bools and integers are
    multiplied in i64."""
    x = _array(x)
    x = x.astype(dtypes.accumulator(x.dtype))
    for number in _normalize_axes(axis, x.ndim, "prod"):
        while x.shape[number] > 1:
            half = x.shape[number] // 2
            both = _along(x, number, 0, half) * _along(x, number, half, 2 * half)
            rest = _along(x, number, 2 * half, x.shape[number])
            x = ops.concatenate([both, rest], number) if rest.shape[number] else both
        if not x.shape[number]:
            x = ops.ones([1 if a == number else n for a, n in enumerate(x.shape)], x.dtype)
    axes = _normalize_axes(axis, x.ndim, "prod")
    return x if keepdims else x.squeeze(axes)


def _scan(x: ArrayLike, axis: int | None, name: str, start: float) -> Array:
    """Returns the sum or product of all elements up to each one, in log2(n) rounds of doubling."""
    x = _array(x)
    x = x.astype(dtypes.accumulator(x.dtype))
    if axis is None:
        x, axis = x.ravel(), 0
    number = _normalize_axis(axis, x.ndim, name)
    n, reach = x.shape[number], 1
    while reach < n:
        before = _along(x, number, 0, n - reach)
        widths = [(reach if a == number else 0, 0) for a in range(x.ndim)]
        shifted = ops.pad(before, widths, constant_values=start)
        x = x + shifted if name == "cumsum" else x * shifted
        reach *= 2
    return x


def cumsum(x: ArrayLike, axis: int | None = None) -> Array:
    """Returns the cumulative sum along ``axis`` (None: over all elements in row-major order)."""
    return _scan(x, axis, "cumsum", 0.0)


def cumprod(x: ArrayLike, axis: int | None = None) -> Array:
    """Returns the cumulative product along ``axis`` (None: over all elements in row-major
    order)."""
    return _scan(x, axis, "cumprod", 1.0)


def diff(x: ArrayLike, n: int = 1, axis: int = -1) -> Array:
    """Returns the differences of consecutive elements along ``axis``, taken ``n`` times."""
    x = _array(x)
    number = _normalize_axis(axis, x.ndim, "diff")
    for _ in range(min(whole(n, "diff: n"), x.shape[number])):
        size = x.shape[number]
        x = _along(x, number, 1, size) - _along(x, number, 0, max(size - 1, 0))
    return x
