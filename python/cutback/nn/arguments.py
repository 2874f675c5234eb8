"""Checks, defaults and older names for arguments of the functions in ``functional.py``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from .. import scalars
from ..frontend.ops import _array
from ..frontend.tracer import Array, ArrayLike
from ..integers import index
from ..source import located, place

P = ParamSpec("P")
T = TypeVar("T")


def older_names(**names: str) -> Callable[[Callable[P, Array]], Callable[P, Array]]:
    """Decorator that also accepts arguments under older names: older name -> name."""

    def decorate(function: Callable[P, Array]) -> Callable[P, Array]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Array:
            given: dict[str, Any] = dict(kwargs)
            for old, new in names.items():
                if old in given:
                    if new in given:
                        raise TypeError(
                            located(
                                f"{function.__name__}: {old} and {new} are the same argument; "
                                "pass only one of them"
                            )
                        )
                    given[new] = given.pop(old)
            return function(*args, **given)

        return call

    return decorate


def not_built(what: str, **options: tuple[Any, Any]) -> None:
    """Checks that options of PyTorch that are not implemented have their defaults. Each option is
    passed as name = (given, default).

    Raises:
        NotImplementedError: if an option differs from its default.
    """
    for name, (given, default) in options.items():
        if given is not default and not (
            isinstance(given, (bool, int, float)) and given == default
        ):
            more = _INSTEAD.get(name, f"only {default!r} is")
            raise NotImplementedError(
                located(f"{what}: {name}={given!r:.60} is not supported; {more}")
            )


_INSTEAD = {
    "inplace": "nothing is written in place: use the result, as in x = f(x)",
    "size_average": "write reduction='mean' or reduction='sum'",
    "reduce": "write reduction='none' for the loss of each element",
}


def classes_last(x: Array, labels: Array, what: str) -> Array:
    """Returns ``x[.., c]`` for ``labels[..]``. If ``x`` has PyTorch's layout, ``x[n, c, ..]`` for
    ``labels[n, ..]``, the classes are moved to the end. If both layouts fit, the last axis holds
    the classes.

    Raises:
        ValueError: if the labels fit neither layout.
    """
    if labels.shape == x.shape[:-1]:
        return x
    second = (x.shape[:1] + x.shape[2:]) if x.ndim > 2 else None
    if labels.shape == second:
        return x.transpose((0, *range(2, x.ndim), 1))
    either = f", or {second} with classes on axis 1" if second else ""
    raise ValueError(
        located(
            f"{what}: scores {x.shape} need labels of shape {x.shape[:-1]}{either}, "
            f"got {labels.shape}"
        )
    )


def is_array(x: Any) -> bool:
    """Returns True for traced arrays and arrays of any library, but not for NumPy scalars."""
    if isinstance(x, np.generic):
        return False
    return isinstance(x, Array) or hasattr(x, "dtype") or hasattr(x, "__dlpack__")


def like(
    value: ArrayLike | None,
    x: Array,
    what: str,
    shape: tuple[int, ...],
    default: float | None = None,
) -> Array:
    """Converts a parameter of an operation on ``x`` to the dtype of ``x``. For None, returns an
    array of ``shape`` filled with ``default``.

    Raises:
        TypeError: if the parameter is None and has no default.
        ValueError: if it has another shape.
    """
    if value is None and default is None:
        raise TypeError(located(f"{what} is missing; pass an array of shape {shape}"))
    if value is None:
        assert default is not None
        return x.graph.full(shape, default, x.dtype)
    value = x.graph.lift(value)
    if value.shape != shape:
        raise ValueError(
            located(
                f"{what} has shape {value.shape}, expected {shape} for an input of shape {x.shape}"
            )
        )
    return value.astype(x.dtype)


def pair(value: int | tuple[int, int], what: str) -> tuple[int, int]:
    """Returns (height, width) from a pair, or from one integer for both."""
    both = value if isinstance(value, (tuple, list)) else (value, value)
    try:
        first, second = (index(n) for n in both)
    except (TypeError, ValueError) as error:
        kind = type(error)
        raise kind(
            located(f"{what} must be an integer or a pair of integers, not {value!r}")
        ) from None
    return first, second


def _placed(check: Callable[[str, str, Any], T], what: str, option: dict[str, Any]) -> T:
    ((name, value),) = option.items()
    try:
        return check(what, name, value)
    except (TypeError, ValueError) as error:
        place(error)
        raise


def number(what: str, **option: Any) -> float:
    """Converts a numeric option, passed as name = value, to a float.

    Raises:
        TypeError, ValueError: if the value is not a number, or not finite.
    """
    value = _placed(scalars.number, what, option)
    if not math.isfinite(value):
        (name,) = option
        raise ValueError(located(f"{what}: {name}={value} is not finite"))
    return value


def flag(what: str, **option: Any) -> bool:
    """Checks and returns a boolean option, passed as name = value.

    Raises:
        TypeError: if the value is neither True nor False.
    """
    return _placed(scalars.flag, what, option)


def images(x: ArrayLike, what: str) -> Array:
    """Converts ``x`` to an array, which must have four axes.

    Raises:
        ValueError: if it has another number of axes.
    """
    x = _array(x)
    if x.ndim != 4:
        raise ValueError(located(f"{what} expects x[n, c, h, w], got shape {x.shape}"))
    return x


def as_before(
    weight: Any, size_average: Any, ignore_index: int, reduction: str
) -> tuple[Any, Any, int, str]:
    """Maps the older positional order ``cross_entropy(logits, labels, ignore_index, reduction)`` to
    the current one."""
    if isinstance(weight, int) and not isinstance(weight, bool):
        weight, ignore_index = None, weight
    if isinstance(size_average, str):
        size_average, reduction = None, size_average
    return weight, size_average, ignore_index, reduction
