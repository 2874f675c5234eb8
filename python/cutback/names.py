"""Names of the operations on arrays, which are ``cutback.<name>`` for users, and of those that are
not built. They are needed before the modules that define them are loaded."""

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
    **dict.fromkeys(_PRODUCTS, "frontend.products"),
    **dict.fromkeys(_REARRANGE, "frontend.rearrange"),
}
"""The module of each operation."""
OPERATIONS = tuple(sorted(HOMES))
"""The same names as in NumPy, for the operations that NumPy has."""
CONSTANTS = (
    "bfloat16", "bool_", "e", "float16", "float32", "float64", "inf", "int32", "int64", "nan",
    "newaxis", "pi", "uint8",
)  # fmt: skip
"""Constants and element types, in :mod:`cutback.frontend.namespace`."""

_UNKNOWN_SIZE = "its result has a size that depends on elements"
_NEEDS = "it needs an operation that the core does not have"
_INEXACT = "a composition of existing operations would not be exact; it needs its own operation"
NOT_BUILT = {
    "arccos": _NEEDS, "arccosh": _INEXACT, "arcsin": _NEEDS, "arcsinh": _INEXACT,
    "arctan": _NEEDS, "arctan2": _NEEDS, "bincount": "use segment_sum(ones, x, n)",
    "cbrt": _INEXACT, "compress": _UNKNOWN_SIZE, "extract": _UNKNOWN_SIZE,
    "fft": "there are no complex numbers",
    "flatnonzero": _UNKNOWN_SIZE, "floor_divide": _INEXACT, "fmod": _INEXACT,
    "histogram": "compare with the edges and sum", "mod": _INEXACT, "nonzero": _UNKNOWN_SIZE,
    "remainder": _INEXACT, "unique": _UNKNOWN_SIZE,
    "put": "nothing writes into a traced array; use cutback.where",
    "segment_max": _NEEDS, "segment_min": _NEEDS, "segment_prod": _NEEDS,
    "scan": "write a Python loop over the steps", "cond": "use cutback.where",
    "while_loop": "the number of rounds must be known: write a Python loop",
    "fori_loop": "write a Python loop", "jit": "cutback.compile(f, argnums=None) compiles f",
    "tensor": "cutback.asarray makes an array",
    "no_grad": "cutback.stop_gradient(x) makes x a constant to gradients",
    **{
        f"linalg.{name}": "singular vectors and eigenvectors need an operation that the core does "
        "not have; find the largest by power iteration"
        for name in ("eig", "eigh", "eigvals", "eigvalsh", "svd", "svdvals")
    },
    "linalg.qr": "factorize with cutback.linalg.cholesky(x.T @ x, upper=True)",
    "linalg.lstsq": "cutback.linalg.solve(x.T @ x, x.T @ y)",
    "linalg.pinv": "cutback.linalg.solve(x.T @ x, x.T)",
    "linalg.matrix_rank": "it needs singular values",
    "linalg.cond": "it needs singular values",
    "linalg.cho_factor": "(cutback.linalg.cholesky(a), True)",
    "linalg.cholesky_solve": "cutback.linalg.cho_solve((factor, True), b)",
    "tree_map": "write cutback.tree.map(f, x)", "tree_util": "write cutback.tree",
    "jacobian": "cutback.jacrev(f)", "linearize": "cutback.jvp(f, primals, tangents)",
    "save": "numpy.savez saves arrays", "load": "numpy.load loads arrays",
}  # fmt: skip
"""Names that users look for and that do not exist, with the reason or with what to write."""


def operation(name: str) -> Any:
    """The operation ``name``, or ``"linalg"``, whose module is loaded now."""
    if name == "linalg":
        return import_module("cutback.frontend.linalg")
    return getattr(import_module(f"cutback.{HOMES[name]}"), name)
