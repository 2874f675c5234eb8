"""Random numbers, ``cutback.random``, for use inside traced functions.

Each number depends only on the step's seed, the number of the step, the position of the call in the
program and the index of the element. So the same seed repeats a run, under any plan and on any
device. All functions are composed of :func:`cutback.uniform`, whose numbers are multiples of
2**-16; where more digits matter, two draws make one number of 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

from .. import dtypes
from ..source import located
from . import ops
from .ops import _array
from .rearrange import argsort
from .tracer import Array, ArrayLike, _normalize_axis, whole

__all__ = [
    "bernoulli", "categorical", "choice", "exponential", "gumbel", "normal", "permutation", "rand",
    "randint", "randn", "standard_normal", "truncated_normal", "uniform",
]  # fmt: skip

Shape = int | Sequence[int]


def _open(shape: Shape, dtype: Any) -> Array:
    """Returns uniform numbers in (0, 1], with 32 random bits, or as many as the dtype holds."""
    wide = "f64" if dtypes.parse(dtype) == "f64" else "f32"
    fine = ops.uniform(shape, wide) + 2.0**-17
    return ops.uniform(shape, wide) + fine * 2.0**-16


def uniform(
    shape: Shape = (), low: ArrayLike = 0.0, high: ArrayLike = 1.0, dtype: Any = "f32"
) -> Array:
    """Returns uniform numbers in [low, high), with 32 random bits in f64 and 24 in f32. Unless the
    bounds are 0 and 1, rounding may give ``high``."""
    wide = "f64" if dtypes.parse(dtype) == "f64" else "f32"
    # 24 bits fill an f32 exactly, so that 1 is never reached
    digits = 16 if wide == "f64" else 8
    fine = ops.floor(ops.uniform(shape, wide) * 2.0**digits)
    x = ops.uniform(shape, wide) + fine * 2.0 ** -(16 + digits)
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and (low, high) == (0, 1):
        return ops._rounded_down(x, dtypes.parse(dtype))
    if not (isinstance(low, (int, float)) and low == 0 and isinstance(high, (int, float))):
        return (x * ops.subtract(high, low) + low).astype(dtype)
    return (x * float(high)).astype(dtype)


def normal(
    shape: Shape = (), mean: ArrayLike = 0.0, std: ArrayLike = 1.0, dtype: Any = "f32"
) -> Array:
    """Returns normally distributed numbers with mean ``mean`` and standard deviation ``std`` (Box,
    Muller 1958): ``sqrt(-2 log u) cos(2 pi v)``. As u has 32 bits, no standard normal number is
    larger than 6.8.

    Raises:
        TypeError: if ``std`` is a shape, which is NumPy's third argument.
    """
    if isinstance(std, (tuple, list)):
        raise TypeError(
            located(
                "normal: the shape must come first; write cutback.random.normal(shape, mean, std)"
            )
        )
    radius = ops.sqrt(ops.log(_open(shape, dtype)) * -2.0)
    x = radius * ops.cos(uniform(shape, dtype=radius.dtype) * (2 * math.pi))
    if not (isinstance(std, (int, float)) and std == 1):
        x = x * std
    if not (isinstance(mean, (int, float)) and mean == 0):
        x = x + mean
    return x.astype(dtype)


def standard_normal(shape: Shape = (), dtype: Any = "f32") -> Array:
    """Returns normally distributed numbers with mean 0 and standard deviation 1."""
    return normal(shape, dtype=dtype)


def randn(*shape: int) -> Array:
    """Returns standard normal numbers (f32); the arguments are the shape, as in ``randn(2, 3)``."""
    return normal(shape)


def rand(*shape: int) -> Array:
    """Returns uniform numbers (f32) in [0, 1); the arguments are the shape, as in ``rand(2,
    3)``."""
    return uniform(shape)


def exponential(shape: Shape = (), scale: ArrayLike = 1.0, dtype: Any = "f32") -> Array:
    """Returns exponentially distributed numbers with mean ``scale``."""
    return (-ops.log(_open(shape, dtype)) * scale).astype(dtype)


def gumbel(shape: Shape = (), dtype: Any = "f32") -> Array:
    """Returns numbers with the standard Gumbel distribution."""
    # u = 1 would give infinity, and _open may round up to 1
    draws = ops.minimum(_open(shape, dtype), 1.0 - 2.0**-24)
    return (-ops.log(-ops.log(draws))).astype(dtype)


def truncated_normal(
    shape: Shape = (), low: float = -2.0, high: float = 2.0, dtype: Any = "f32"
) -> Array:
    """Returns standard normal numbers in [low, high]. Numbers outside are drawn again, at most 7
    times, and then moved to the nearest bound; with bounds of -2 and 2 that is one in 10**10."""
    x = normal(shape, dtype=dtype)
    for _ in range(7):
        x = ops.where((x < low) | (x > high), normal(shape, dtype=dtype), x)
    return x.clip(low, high)


def bernoulli(p: ArrayLike = 0.5, shape: Shape | None = None) -> Array:
    """Returns bools that are True with probability ``p``; the default ``shape`` is that of
    ``p``."""
    if shape is None:
        shape = p.shape if hasattr(p, "shape") else ()
    wide = "f64" if isinstance(p, Array) and p.dtype == "f64" else "f32"
    return uniform(shape, dtype=wide) < p


def randint(low: int, high: int | None = None, shape: Shape = (), dtype: Any = "i64") -> Array:
    """Returns random integers from ``low`` (0 if only one number is given) up to ``high``, which is
    not included. The range has at most 2**31 numbers."""
    if high is None:
        low, high = 0, low
    begin, end = whole(low, "randint: low"), whole(high, "randint: high")
    if not 0 < end - begin <= 2**31:
        raise ValueError(
            located(
                f"randint: the range from {begin} up to {end} has {end - begin} numbers, "
                "not 1 to 2**31"
            )
        )
    draws = ops.floor(uniform(shape, dtype="f64") * float(end - begin))
    return draws.astype(dtype) + begin


def permutation(x: int | ArrayLike, axis: int = 0) -> Array:
    """Returns the integers 0 .. x-1, or the slices of an array along ``axis``, in random order."""
    if isinstance(x, int):
        return argsort(uniform(x, dtype="f64"))
    x = _array(x)
    number = _normalize_axis(axis, x.ndim, "permutation")
    return x.take(permutation(x.shape[number]), number)


def categorical(logits: ArrayLike, shape: Shape | None = None) -> Array:
    """Draws classes (i64) with probabilities softmax(logits[.., c]). By default it draws one class
    for each distribution; ``shape`` must end in the shape of ``logits`` without its last axis."""
    x = _array(logits)
    x = x.astype(dtypes.floating(x.dtype))
    if not x.ndim:
        raise ValueError(located("categorical: expected logits[.., c], got an array without axes"))
    sizes = x.shape if shape is None else (*ops._shape(shape), x.shape[-1])
    return (x + gumbel(sizes, x.dtype)).argmax(-1)


def choice(x: int | ArrayLike, shape: Shape = ()) -> Array:
    """Draws integers from 0 .. x-1, or elements of a vector ``x``, with replacement."""
    if isinstance(x, int):
        return randint(x, shape=shape)
    x = _array(x)
    return x.take(randint(x.shape[0], shape=shape), 0)


def __getattr__(name: str) -> NoReturn:
    from ..foreign import missing  # here, because only errors need it

    raise missing("cutback.random", name)
