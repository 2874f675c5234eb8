"""Element types: the core's names, NumPy's dtypes, and type promotion.

The core has eight types: ``bool``, ``u8``, ``i32``, ``i64``, ``f16``, ``bf16``, ``f32``, ``f64``.
NumPy does not have bf16. If ``ml_dtypes`` is installed, bf16 is ``ml_dtypes.bfloat16``; otherwise,
bf16 arrays are :class:`cutback.run.arrays.RawArray`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

NAMES = ("bool", "u8", "i32", "i64", "f16", "bf16", "f32", "f64")
FLOATS = frozenset(("f16", "bf16", "f32", "f64"))
INTS = frozenset(("u8", "i32", "i64"))
SIZES = {"bool": 1, "u8": 1, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}
EPS = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}
"""Machine epsilon: the distance from 1 to the next larger number."""

_NUMPY = {"bool": "?", "u8": "u1", "i32": "i4", "i64": "i8", "f16": "f2", "f32": "f4", "f64": "f8"}
_FROM_NUMPY = {np.dtype(code): name for name, code in _NUMPY.items()}
_ALIASES = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
    "uint8": "u8", "int32": "i32", "int64": "i64", "float": "f64", "int": "i64",
}  # fmt: skip


@cache
def bfloat16() -> np.dtype[Any] | None:
    """Returns the bf16 dtype of ``ml_dtypes``; None if that is not installed."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def to_numpy(name: str) -> np.dtype[Any]:
    """Returns the NumPy dtype that holds elements of the core's type ``name``; for bf16 without
    ``ml_dtypes``, uint16 (the bits)."""
    if name == "bf16":
        return bfloat16() or np.dtype(np.uint16)
    return np.dtype(_NUMPY[name])


def from_numpy(dtype: np.dtype[Any]) -> str | None:
    """Returns the core's name of a NumPy dtype, or None if the core does not have the type."""
    name = _FROM_NUMPY.get(dtype)
    if name is None and dtype.name == "bfloat16":
        return "bf16"
    return name


def parse(spec: Any) -> str:
    """Converts a dtype in any spelling (``"f32"``, ``np.float32``, ``"float32"``, ``float``) to the
    core's name.

    Raises:
        TypeError: if the type is not supported.
    """
    if isinstance(spec, DType):
        return spec.core
    if isinstance(spec, str):
        name = _ALIASES.get(spec, spec)
        if name in SIZES:
            return str(name)
    try:
        found = from_numpy(np.dtype(spec))
    except (TypeError, ValueError, SyntaxError, OverflowError):  # NumPy's errors for invalid specs
        found = None
    if found is None:
        raise TypeError(f"{spec!r} is not one of the supported dtypes: {', '.join(NAMES)}")
    return found


class DType:
    """The dtype of a traced array. It compares equal to each of its spellings (``np.float32``,
    ``np.dtype("float32")``, ``"float32"``, ``"f32"``) from either side, and NumPy accepts it as a
    dtype. Its ``str`` is the core's name, ``"f32"``, and it hashes like that name. The other
    spellings have different hashes, so they do not find it as a key of a dict.
    """

    __slots__ = ("core",)

    def __init__(self, core: str) -> None:
        self.core = core

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's dtype. For bf16 without ``ml_dtypes`` this raises an AttributeError, so that
        NumPy does not treat it as a dtype."""
        if self.core == "bf16" and bfloat16() is None:
            raise AttributeError("NumPy has no bf16 without ml_dtypes")
        return to_numpy(self.core)

    @property
    def name(self) -> str:
        """NumPy's name: ``"float32"``."""
        return "bfloat16" if self.core == "bf16" else to_numpy(self.core).name

    @property
    def kind(self) -> str:
        """``"b"``, ``"i"``, ``"u"`` or ``"f"``, as in NumPy; ``"f"`` for bf16."""
        return "f" if self.core == "bf16" else to_numpy(self.core).kind

    @property
    def itemsize(self) -> int:
        """Size of an element in bytes."""
        return SIZES[self.core]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self.core == other.core
        if isinstance(other, str) and other in SIZES:
            return self.core == other
        if other is None:  # parse(None) would give f64, as np.dtype(None) does
            return False
        try:
            return parse(other) == self.core
        except TypeError:
            return False

    def __hash__(self) -> int:
        return hash(self.core)

    def __str__(self) -> str:
        return self.core

    def __format__(self, spec: str) -> str:
        return format(self.core, spec)

    def __repr__(self) -> str:
        return repr(self.core)

    def __reduce__(self) -> tuple[Any, ...]:
        return DType, (self.core,)


Name = str | DType
"""A core's name, or the dtype of a traced array."""

DTYPES = {name: DType(name) for name in NAMES}


@cache
def promote(a: Name, b: Name) -> str:
    """Returns the result type of an operation on arrays of types ``a`` and ``b``, like NumPy's
    ``promote_types``.

    Raises:
        TypeError: if NumPy (with ``ml_dtypes``) has no common type for the two, for example for
            bf16 and f16, or bf16 and i32.
    """
    a, b = str(a), str(b)
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


def with_scalar(dtype: Name, value: bool | int | float) -> str:
    """Returns the result type of an operation on an array of ``dtype`` and the Python scalar
    ``value``. The scalar is weak, as in NumPy: it adapts to the array unless it is of a higher kind
    (bool < int < float)."""
    if dtype in FLOATS or isinstance(value, bool):
        return str(dtype)
    if isinstance(value, int):
        return "i64" if dtype == "bool" else str(dtype)
    return "f64"


@cache
def floating(dtype: Name) -> str:
    """Returns the type in which NumPy computes functions such as exp and sqrt of ``dtype``."""
    if dtype in FLOATS:
        return str(dtype)
    return "f16" if dtype in ("bool", "u8") else "f64"


def accumulator(dtype: Name) -> str:
    """Returns the type of a sum of ``dtype``: i64 for integers and bool, else ``dtype``. (For u8
    NumPy uses u64, which the core does not have.)"""
    return "i64" if dtype in INTS or dtype == "bool" else str(dtype)
