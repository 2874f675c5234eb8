"""Element types: the core's names, NumPy's dtypes, and which type an operation on two of them has.

The core knows eight: ``bool``, ``u8``, ``i32``, ``i64``, ``f16``, ``bf16``, ``f32``, ``f64``. NumPy
has no bf16 of its own; with ``ml_dtypes`` installed it is ``ml_dtypes.bfloat16``, without it arrays
of that type are :class:`cutback.RawArray`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

NAMES = ("bool", "u8", "i32", "i64", "f16", "bf16", "f32", "f64")
FLOATS = frozenset(("f16", "bf16", "f32", "f64"))
INTS = frozenset(("u8", "i32", "i64"))
SIZES = {"bool": 1, "u8": 1, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}

_NUMPY = {"bool": "?", "u8": "u1", "i32": "i4", "i64": "i8", "f16": "f2", "f32": "f4", "f64": "f8"}
_FROM_NUMPY = {np.dtype(code): name for name, code in _NUMPY.items()}
_ALIASES = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
    "uint8": "u8", "int32": "i32", "int64": "i64", "float": "f64", "int": "i64",
}  # fmt: skip


@cache
def bfloat16() -> np.dtype[Any] | None:
    """NumPy's bf16 dtype, from ``ml_dtypes``; None when that is not installed."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def to_numpy(name: str) -> np.dtype[Any]:
    """The NumPy dtype that holds elements of ``name``; for bf16 without ``ml_dtypes``, uint16 (the
    bits)."""
    if name == "bf16":
        return bfloat16() or np.dtype(np.uint16)
    return np.dtype(_NUMPY[name])


def from_numpy(dtype: np.dtype[Any]) -> str | None:
    """The core's name of a NumPy dtype, or None when the core has no such type."""
    name = _FROM_NUMPY.get(dtype)
    if name is None and dtype.name == "bfloat16":
        return "bf16"
    return name


def parse(spec: Any) -> str:
    """A dtype in any spelling (``"f32"``, ``np.float32``, ``"float32"``, ``float``) to the core's
    name.

    Raises:
        TypeError: there is no such type.
    """
    if isinstance(spec, str):
        name = _ALIASES.get(spec, spec)
        if name in SIZES:
            return name
    try:
        found = from_numpy(np.dtype(spec))
    except TypeError:
        found = None
    if found is None:
        raise TypeError(f"{spec!r} is not one of the supported dtypes: {', '.join(NAMES)}")
    return found


@cache
def promote(a: str, b: str) -> str:
    """The type of an operation on arrays of types ``a`` and ``b``, as NumPy's ``promote_types`` has
    it.

    Raises:
        TypeError: NumPy (with ``ml_dtypes``) has no common type for the two, such as bf16 with f16
            or i32.
    """
    if a == b:
        return a
    if "bf16" in (a, b):
        other = b if a == "bf16" else a
        if other in ("bool", "u8"):
            return "bf16"
        if other in ("f32", "f64"):
            return other
        raise TypeError(f"{a} and {b} have no common type; convert one of them with .astype(...)")
    found = from_numpy(np.promote_types(to_numpy(a), to_numpy(b)))
    if found is None:
        raise TypeError(f"{a} and {b} have no common type among {', '.join(NAMES)}")
    return found


def with_scalar(dtype: str, value: bool | int | float) -> str:
    """The type of an operation between an array of ``dtype`` and a Python scalar, which is weak: it
    adapts to the array unless it is of a higher kind (bool < int < float), as NumPy's promotion has
    it."""
    if dtype in FLOATS or isinstance(value, bool):
        return dtype
    if isinstance(value, int):
        return "i64" if dtype == "bool" else dtype
    return "f64"


@cache
def floating(dtype: str) -> str:
    """The type in which NumPy computes exp, sqrt and their like of ``dtype``."""
    if dtype in FLOATS:
        return dtype
    return "f16" if dtype in ("bool", "u8") else "f64"


def accumulator(dtype: str) -> str:
    """The type of a sum of ``dtype``: integers and bool add up in i64 (NumPy has u64 for u8; the
    core does not)."""
    return "i64" if dtype in INTS or dtype == "bool" else dtype
