"""Inverses of trigonometric and hyperbolic functions, cube roots, and division with a remainder,
composed of the operations of :mod:`cutback.frontend.ops`. All of them are also available as
``cutback.<name>``."""

from __future__ import annotations

import math
from collections.abc import Callable

from .. import dtypes
from . import ops
from .elementwise import _float, _pair, copysign, signbit
from .ops import _array, _graph_of
from .tracer import Array, ArrayLike, common
from .transforms import custom_vjp

__all__ = [
    "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "cbrt", "divmod",
    "floor_divide", "fmod", "mod", "remainder",
]  # fmt: skip

_LN2 = math.log(2.0)
# Argument reduction of the arc tangent (fdlibm's s_atan.c): from this size on, this center, whose
# arc tangent is the sum of these two numbers.
_CENTERS = (
    (7 / 16, 0.5, 4.63647609000806093515e-01, 2.26987774529616870924e-17),
    (11 / 16, 1.0, 7.85398163397448278999e-01, 3.06161699786838301793e-17),
    (19 / 16, 1.5, 9.82793723247329054082e-01, 1.39033110312309984516e-17),
    (39 / 16, math.inf, 1.57079632679489655800e00, 6.12323399573676603587e-17),
)
_ODD = (
    -1.99999999998764832476e-01, -1.11111104054623557880e-01, -7.69187620504482999495e-02,
    -5.83357013379057348645e-02, -3.65315727442169155270e-02,
)  # fmt: skip
_EVEN = (
    3.33333333333329318027e-01, 1.42857142725034663711e-01, 9.09088713343650656196e-02,
    6.66107313738753120669e-02, 4.97687799461593236017e-02, 1.62858201153657823623e-02,
)  # fmt: skip


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    result = x * coefficients[-1] + coefficients[-2]
    for c in reversed(coefficients[:-2]):
        result = result * x + c
    return result


def _arctan_value(x: Array) -> Array:
    """Computes atan(c) for a center c near a = \\|x\\|, plus a polynomial in (a - c) / (1 + c
    a)."""
    size = ops.absolute(x)
    above, below = size, x.graph.full((), 1.0, x.dtype)
    high, low = x.graph.full((), 0.0, x.dtype), x.graph.full((), 0.0, x.dtype)
    for start, center, first, second in _CENTERS:
        far = size >= start
        if center == math.inf:
            above, below = ops.where(far, -1.0, above), ops.where(far, size, below)
        else:
            above = ops.where(far, size - center, above)
            below = ops.where(far, size * center + 1.0, below)
        high, low = ops.where(far, first, high), ops.where(far, second, low)
    t = above / below
    z = t * t
    w = z * z
    rest = t * (z * _polynomial(w, _EVEN) + w * _polynomial(w, _ODD))
    found = high - ((rest - low) - t)
    return ops.where(x == 0, x, ops.where(x < 0, -found, found))


def _with_slope(
    value: Callable[[Array], Array], slope: Callable[[Array], Array]
) -> Callable[[ArrayLike], Array]:
    """Returns an elementwise function, computed in f32 or f64, whose derivative is ``slope``."""
    rule = custom_vjp(value)
    rule.defvjp(lambda x: (value(x), x), lambda x, g: (g * slope(x),))

    def call(x: ArrayLike) -> Array:
        given = _float(x)
        wide = given.astype("f64" if given.dtype == "f64" else "f32")
        result: Array = rule(wide)
        return result.astype(given.dtype)

    return call


_arctan = _with_slope(_arctan_value, lambda x: ops.reciprocal(x * x + 1.0))


def arctan(x: ArrayLike) -> Array:
    """Returns the inverse tangent in radians, between -pi/2 and pi/2."""
    return _arctan(x)


_arcsin = _with_slope(
    lambda x: _arctan_value(x / ops.sqrt((1.0 - x) * (x + 1.0))),
    lambda x: ops.rsqrt((1.0 - x) * (x + 1.0)),
)


def arcsin(x: ArrayLike) -> Array:
    """Returns the inverse sine in radians, between -pi/2 and pi/2; NaN outside of [-1, 1]."""
    return _arcsin(x)


_arccos = _with_slope(
    lambda x: _arctan_value(ops.sqrt((1.0 - x) / (x + 1.0))) * 2.0,
    lambda x: -ops.rsqrt((1.0 - x) * (x + 1.0)),
)


def arccos(x: ArrayLike) -> Array:
    """Returns the inverse cosine in radians, between 0 and pi; NaN outside of [-1, 1]."""
    return _arccos(x)


_LARGE = 2.0**28  # x * x + 1 rounds to x * x from here on


def _arcsinh_value(x: Array) -> Array:
    size = ops.absolute(x)
    near = ops.minimum(size, _LARGE)
    square = near * near
    found = ops.log1p(near + square / (ops.sqrt(square + 1.0) + 1.0))
    return copysign(ops.where(size > _LARGE, ops.log(size) + _LN2, found), x)


_arcsinh = _with_slope(_arcsinh_value, lambda x: ops.rsqrt(x * x + 1.0))


def arcsinh(x: ArrayLike) -> Array:
    """Returns the inverse hyperbolic sine."""
    return _arcsinh(x)


def _arccosh_value(x: Array) -> Array:
    near = ops.minimum(x, _LARGE) - 1.0
    found = ops.log1p(near + ops.sqrt(near) * ops.sqrt(near + 2.0))
    return ops.where(x > _LARGE, ops.log(x) + _LN2, found)


_arccosh = _with_slope(_arccosh_value, lambda x: ops.rsqrt(x - 1.0) * ops.rsqrt(x + 1.0))


def arccosh(x: ArrayLike) -> Array:
    """Returns the inverse hyperbolic cosine, not negative; NaN below 1."""
    return _arccosh(x)


def _cbrt_value(x: Array) -> Array:
    size = ops.absolute(x)
    known = (size == 0) | (size == math.inf)
    safe = ops.where(known, 1.0, size)
    root = ops.power(safe, 1.0 / 3.0)
    root = root - (root - safe / (root * root)) / 3.0  # a Newton step, as 1/3 is not exact
    return ops.where(known, x, copysign(root, x))


def _cbrt_slope(x: Array) -> Array:
    root = _cbrt_value(x)
    return ops.reciprocal(root * root * 3.0)


_cbrt = _with_slope(_cbrt_value, _cbrt_slope)


def cbrt(x: ArrayLike) -> Array:
    """Returns the cube root, with the sign of x."""
    return _cbrt(x)


def _arctan2_value(y: Array, x: Array) -> Array:
    up, along = ops.absolute(y), ops.absolute(x)
    ratio = ops.where(up == along, 1.0, up / along)  # 1 also for two infinities
    angle = _arctan_value(ops.where(up == 0, 0.0, ratio))
    left = math.pi - (angle - 2 * _CENTERS[-1][3])
    return copysign(ops.where(signbit(x), left, angle), y)


_arctan2 = custom_vjp(_arctan2_value)


def _arctan2_backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    y, x = saved
    share = g / (x * x + y * y)
    return x * share, -y * share


_arctan2.defvjp(lambda y, x: (_arctan2_value(y, x), (y, x)), _arctan2_backward)


def _shaped(a: Array, b: Array) -> list[Array]:
    """Broadcasts both arrays to their common shape."""
    shape = ops.where(a == b, a, b).shape if a.shape != b.shape else a.shape
    return [ops.broadcast_to(a, shape), ops.broadcast_to(b, shape)]


def arctan2(y: ArrayLike, x: ArrayLike) -> Array:
    """Returns the angle in radians of the point (x, y), between -pi and pi."""
    a, b = _shaped(*_pair("arctan2", y, x))
    wide = "f64" if a.dtype == "f64" else "f32"
    result: Array = _arctan2(a.astype(wide), b.astype(wide))
    return result.astype(a.dtype)


# ---- division with a remainder -------------------------------------------------------------------


def _halves(x: Array) -> tuple[Array, Array]:
    """Splits an f64 into the sum of two numbers of 26 bits (Veltkamp 1968)."""
    scaled = x * 134217729.0
    high = scaled - (scaled - x)
    return high, x - high


def _residual(x: Array, q: Array, y: Array) -> Array:
    """Computes x - q * y for q near x / y with one rounding, by adding the product's error (Dekker
    1971)."""
    p = q * y
    (q_high, q_low), (y_high, y_low) = _halves(q), _halves(y)
    error = ((q_high * y_high - p) + q_high * y_low + q_low * y_high) + q_low * y_low
    return (x - p) - error


def _float_division(x: Array, y: Array) -> tuple[Array, Array]:
    """Returns the quotient, rounded down, and the remainder, in f64."""
    q = ops.floor(x / y)
    rest = ops.where(ops.absolute(y) == math.inf, x - q * 0.0, _residual(x, q, y))
    below = ops.where(y < 0, rest > 0, rest < 0)
    beyond = ops.where(y < 0, rest <= y, rest >= y)
    q = ops.where(below, q - 1.0, ops.where(beyond, q + 1.0, q))
    rest = ops.where(below, rest + y, ops.where(beyond, rest - y, rest))
    return q, ops.where(rest == 0, copysign(0.0, y), rest)


def _float_remainder(x: Array, y: Array) -> tuple[Array, tuple[Array]]:
    q, rest = _float_division(x.astype("f64"), y.astype("f64"))
    return rest.astype(x.dtype), (q.astype(x.dtype),)


_remainder = custom_vjp(lambda x, y: _float_remainder(x, y)[0])
_remainder.defvjp(_float_remainder, lambda saved, g: (g, -g * saved[0]))


# A quotient in f64 has 53 bits, and 2**63 does not fit in i64, so i64 needs three rounds.
_ROUNDS = {"i64": (3, -(2.0**62), 2.0**62), "i32": (1, -(2.0**31), 2.0**31 - 1)}


def _whole_division(x: Array, y: Array) -> tuple[Array, Array]:
    """Returns the quotient, rounded down, and the remainder of integers; both are 0 where y is
    0."""
    zero = y == 0
    x, y = ops.where(zero, 0, x), ops.where(zero, 1, y)
    q, rest = x * 0, x
    rounds, lowest, highest = _ROUNDS[str(x.dtype)]
    for _ in range(rounds):
        ratio = ops.floor(rest.astype("f64") / y.astype("f64")).clip(lowest, highest)
        part = ratio.astype(x.dtype)
        q, rest = q + part, rest - part * y
    below = ops.where(y < 0, rest > 0, rest < 0)
    beyond = ops.where(y < 0, rest <= y, rest >= y)
    moved = beyond.astype(x.dtype) - below.astype(x.dtype)
    return q + moved, rest - moved * y


def _operands(name: str, x: ArrayLike, y: ArrayLike) -> list[Array]:
    a, b = _shaped(*common(_graph_of(x, y), name, (x, y)))
    return [v.astype("i32") if v.dtype == "bool" else v for v in (a, b)]


def _whole(a: Array, b: Array) -> tuple[Array, Array]:
    wide = "i64" if a.dtype == "i64" else "i32"
    q, rest = _whole_division(a.astype(wide), b.astype(wide))
    return q.astype(a.dtype), rest.astype(a.dtype)


def floor_divide(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns x / y rounded down, for quotients below 2**53. For integers the result is 0 where y
    is 0."""
    a, b = _operands("floor_divide", x, y)
    if a.dtype not in dtypes.FLOATS:
        return _whole(a, b)[0]
    wide = [v._apply("stop_gradient").astype("f64") for v in (a, b)]
    return _float_division(*wide)[0].astype(a.dtype)


def remainder(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns the remainder of :func:`floor_divide`. It has the sign of y, and is exact for
    quotients below 2**53."""
    a, b = _operands("remainder", x, y)
    if a.dtype not in dtypes.FLOATS:
        return _whole(a, b)[1]
    return _remainder(a, b)  # type: ignore[no-any-return]


mod = remainder


def divmod(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """Returns the results of :func:`floor_divide` and :func:`remainder`."""
    return floor_divide(x, y), remainder(x, y)


def fmod(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns the remainder with the sign of x, as in C."""
    a, b = _operands("fmod", x, y)
    if a.dtype not in dtypes.FLOATS:
        rest = remainder(a, b)
        return ops.where((rest != 0) & ((a < 0) ^ (b < 0)), rest - b, rest)
    rest = remainder(ops.absolute(a), ops.absolute(b))
    return ops.where(signbit(_array(a)), -rest, rest)
