"""Names of the operations on arrays, which are ``cutback.<name>`` for users. They are needed before
:mod:`cutback.frontend.ops`, which defines them, is loaded."""

from __future__ import annotations

OPERATIONS = (
    "abs", "absolute", "add", "amax", "amin", "arange", "argmax", "astype", "broadcast_to", "clip",
    "concatenate", "cos", "divide", "equal", "erf", "exp", "expand_dims", "floor", "full",
    "full_like", "greater", "greater_equal", "less", "less_equal", "log", "log1p", "logical_and",
    "logical_not", "logical_or", "matmul", "max", "maximum", "mean", "min", "minimum", "multiply",
    "negative", "not_equal", "ones", "ones_like", "pad", "power", "ravel", "reciprocal", "reshape",
    "rsqrt", "sigmoid", "sign", "sin", "split", "sqrt", "square", "squeeze", "stack", "std",
    "subtract", "sum", "swapaxes", "take", "take_along_axis", "tanh", "transpose", "tril",
    "uniform", "var", "where", "zeros", "zeros_like",
)  # fmt: skip
"""The same names as in NumPy, for the operations that NumPy has."""
