"""The module that ``Array.__array_namespace__`` returns: NumPy's names and those that the array API
standard adds, constants and element types. Constants and types are also available as ``cutback.pi``
and so on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import dtypes, names

pi, e, inf, nan, newaxis = math.pi, math.e, math.inf, math.nan, None

# the standard's element types; each compares equal to NumPy's type of the same name
bool_ = dtypes.DTYPES["bool"]
uint8, int32, int64 = (dtypes.DTYPES[name] for name in ("u8", "i32", "i64"))
float16, bfloat16 = dtypes.DTYPES["f16"], dtypes.DTYPES["bf16"]
float32, float64 = dtypes.DTYPES["f32"], dtypes.DTYPES["f64"]

_ALIASES = {
    "abs": "absolute", "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh",
    "atan": "arctan", "atan2": "arctan2", "atanh": "arctanh", "concat": "concatenate",
    "permute_dims": "transpose",
    "pow": "power", "bitwise_and": "logical_and", "bitwise_or": "logical_or",
    "bitwise_invert": "logical_not", "bitwise_xor": "logical_xor",
}  # fmt: skip
__array_api_version__ = "2024.12"
_STANDARD = (
    "arange", "argsort", "astype", "broadcast_arrays", "can_cast", "cumulative_prod",
    "cumulative_sum", "diff", "empty", "empty_like", "eye", "full", "full_like", "isdtype",
    "linspace", "matrix_transpose", "ones", "ones_like", "prod", "reshape", "searchsorted", "sort",
    "std", "sum", "var", "zeros", "zeros_like", "__array_namespace_info__",
)  # fmt: skip


def finfo(dtype: Any) -> Any:
    """Returns NumPy's ``finfo`` of a floating type."""
    return np.finfo(dtypes.to_numpy(dtypes.parse(getattr(dtype, "dtype", dtype))))


def iinfo(dtype: Any) -> Any:
    """Returns NumPy's ``iinfo`` of an integer type."""
    return np.iinfo(dtypes.to_numpy(dtypes.parse(getattr(dtype, "dtype", dtype))))


def result_type(*values: Any) -> dtypes.DType:
    """Returns the type that arrays and types are promoted to."""
    found = [dtypes.parse(getattr(x, "dtype", x)) for x in values]
    name = found[0]
    for other in found[1:]:
        name = str(dtypes.promote(dtypes.DTYPES[name], dtypes.DTYPES[other]))
    return dtypes.DTYPES[name]


def __getattr__(name: str) -> Any:
    name = _ALIASES.get(name, name)
    if name in _STANDARD:
        from . import standard

        return getattr(standard, name)
    if name == "bool":
        return bool_
    if name == "linalg" or name in names.HOMES:
        return names.operation(name)
    from ..foreign import missing  # here, because only errors need it

    raise missing("cutback", name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_ALIASES, *_STANDARD, *names.OPERATIONS, "linalg", "bool"})
