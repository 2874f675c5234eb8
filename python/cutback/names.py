"""The public names of the package and the modules that define them, which are loaded on first
use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_OPS = (
    "abs", "absolute", "add", "amax", "amin", "arange", "argmax", "astype", "broadcast_to",
    "clip", "concatenate", "cos", "divide", "equal", "erf", "exp", "expand_dims", "floor",
    "full", "full_like", "greater", "greater_equal", "less", "less_equal", "log", "log1p",
    "logical_and", "logical_not", "logical_or", "matmul", "max", "maximum", "mean", "min",
    "minimum", "multiply", "negative", "not_equal", "ones", "ones_like", "pad", "power",
    "ravel", "reciprocal", "reshape", "rsqrt", "sigmoid", "sign", "sin", "split", "sqrt",
    "square", "squeeze", "stack", "std", "subtract", "sum", "swapaxes", "take",
    "take_along_axis", "tanh", "transpose", "tril", "uniform", "var", "where", "zeros",
    "zeros_like",
)  # fmt: skip
_ELEMENTWISE = (
    "all", "allclose", "any", "arctanh", "argmin", "average", "ceil", "copysign", "cosh",
    "count_nonzero", "cumprod", "cumsum", "diff", "exp2", "expm1", "fix", "hypot",
    "isclose", "isfinite", "isinf", "isnan", "log10", "log2", "logaddexp", "logical_xor",
    "logsumexp", "nan_to_num", "nansum", "positive", "prod", "ptp", "round", "signbit",
    "sinh", "tan", "trunc",
)  # fmt: skip
_INVERSE = (
    "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "cbrt", "divmod",
    "floor_divide", "fmod", "mod", "remainder",
)  # fmt: skip
_PRODUCTS = (
    "convolve", "cross", "dot", "einsum", "inner", "kron", "matvec", "outer", "tensordot",
    "vdot", "vecdot",
)  # fmt: skip
_REARRANGE = (
    "argsort", "array", "array_split", "asarray", "atleast_1d", "atleast_2d", "atleast_3d",
    "column_stack", "copy", "diag", "diagonal", "dstack", "empty", "empty_like", "eye",
    "flip", "fliplr", "flipud", "hsplit", "hstack", "identity", "interp", "linspace",
    "median", "meshgrid", "moveaxis", "ndim", "percentile", "quantile", "repeat", "roll",
    "rot90", "searchsorted", "segment_sum", "shape", "size", "sort", "tile", "top_k", "tri", "triu",
    "unstack", "vsplit", "vstack",
)  # fmt: skip

TRANSFORMS = (
    "custom_vjp", "hessian", "jacfwd", "jacrev", "jvp", "stop_gradient", "vjp", "vmap",
)  # fmt: skip
"""Transformations of functions."""

HOMES = {
    **dict.fromkeys(_OPS, "frontend.ops"),
    **dict.fromkeys(_ELEMENTWISE, "frontend.elementwise"),
    **dict.fromkeys(_INVERSE, "frontend.inverse"),
    **dict.fromkeys(_PRODUCTS, "frontend.products"),
    **dict.fromkeys(_REARRANGE, "frontend.rearrange"),
}
"""The module of each operation."""
OPERATIONS = tuple(sorted(HOMES))
"""The names of all operations; those that NumPy also has are named as in NumPy."""
CONSTANTS = (
    "bfloat16", "bool_", "e", "float16", "float32", "float64", "inf", "int32", "int64", "nan",
    "newaxis", "pi", "uint8",
)  # fmt: skip
"""Constants and element types, in :mod:`cutback.frontend.namespace`."""

PUBLIC = {
    "Array": "frontend.tracer", "BudgetError": "errors", "CheckpointPolicy": "policies",
    "DeviceArray": "device_arrays", "Estimate": "planner.estimating",
    "Frontier": "planner.tradeoffs", "Graph": "frontend.graph",
    "Memory": "run.memory", "MemoryLimitError": "run.memory", "memory": "run.memory",
    "Plan": "planner.plan", "Stats": "run.measures", "Step": "frontend.step",
    "Traced": "frontend.tracing", "checkpoint": "frontend.regions",
    "checkpoint_name": "frontend.regions", "compile": "frontend.training",
    "estimate": "frontend.estimating", "frontier": "frontend.planning",
    "grad": "frontend.training", "plan": "frontend.planning",
    "plans": "planner.search", "release_memory": "run.memory", "trace": "frontend.training",
    "value_and_grad": "frontend.training", "with_packed": "planner.packed",
    "with_slices": "planner.sliced",
    **dict.fromkeys(TRANSFORMS, "frontend.transforms"),
    "linalg": "frontend.linalg", "random": "frontend.random", **HOMES,
    **dict.fromkeys(CONSTANTS, "frontend.namespace"),
}  # fmt: skip
"""The module of each public name."""
MODULES = (
    "budgets", "constraints", "devices", "dtypes", "files", "frontend", "integers", "nn", "optim",
    "policies", "problem", "report", "run", "schedule", "source", "tree",
)  # fmt: skip
"""Modules that are attributes of the package."""


def operation(name: str) -> Any:
    """Imports and returns the operation ``name``, or the module ``"linalg"``."""
    if name == "linalg":
        return import_module("cutback.frontend.linalg")
    return getattr(import_module(f"cutback.{HOMES[name]}"), name)
