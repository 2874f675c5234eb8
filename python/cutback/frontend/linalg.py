"""Linear algebra: ``cutback.linalg``, with the names of ``numpy.linalg`` and the array API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from ..source import located
from .ops import _array, matmul
from .products import cross, einsum, norm, outer, tensordot, vecdot
from .rearrange import diagonal, eye, trace
from .systems import cho_solve, cholesky, det, inv, slogdet, solve, solve_triangular
from .tracer import Array, ArrayLike, whole

__all__ = [
    "cho_solve", "cholesky", "cross", "det", "diagonal", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_transpose", "multi_dot", "norm", "outer", "slogdet", "solve",
    "solve_triangular", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


def matrix_transpose(x: ArrayLike) -> Array:
    """Exchanges the last two axes."""
    return _array(x).swapaxes(-1, -2)


def vector_norm(
    x: ArrayLike, axis: int | None = None, keepdims: bool = False, ord: Any = 2
) -> Array:
    """Returns the norm of order ``ord`` of vectors along ``axis`` (None: of all elements)."""
    x = _array(x)
    if axis is not None:
        return norm(x, ord, axis, keepdims)
    flat = norm(x.ravel(), ord, 0)
    return flat.reshape((1,) * x.ndim) if keepdims else flat


def matrix_norm(x: ArrayLike, keepdims: bool = False, ord: Any = "fro") -> Array:
    """Returns the norm of the matrices in the last two axes. ``ord`` is ``"fro"``, 1, -1, inf or
    -inf."""
    return norm(x, ord, (-2, -1), keepdims)


def matrix_power(x: ArrayLike, n: int) -> Array:
    """Returns the ``n``-th power of square matrices, by repeated squaring; negative ``n`` uses the
    inverse."""
    x = _array(x)
    count = whole(n, "matrix_power: n")
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(located(f"matrix_power: expected square matrices, got shape {x.shape}"))
    if count < 0:
        x, count = inv(x), -count
    result: Array | None = None
    while count:
        if count & 1:
            result = x if result is None else result @ x
        count >>= 1
        x = x @ x if count else x
    return eye(x.shape[-1], dtype=x.dtype) if result is None else result


def multi_dot(arrays: Sequence[ArrayLike]) -> Array:
    """Returns the product of two to eight matrices, multiplied in the order that keeps intermediate
    results small."""
    letters = "abcdefghijkl"
    terms = [letters[i : i + 2] for i in range(len(arrays))]
    if not 2 <= len(arrays) <= 8:
        raise ValueError(located(f"multi_dot: expected 2 to 8 matrices, got {len(arrays)}"))
    return einsum(f"{','.join(terms)}->{letters[0]}{terms[-1][1]}", *arrays)


def __getattr__(name: str) -> NoReturn:
    from ..foreign import missing  # here, because only errors need it

    raise missing("cutback.linalg", name)
