"""Factorizations, inverses and linear systems of small matrices, composed of other operations.

The number of operations grows with the number of rows (about 8 per row for ``cholesky``, 20 for
``inv``), so matrices have at most :data:`MOST_ROWS` rows. Axes before the last two are batches.
A matrix without a factorization or an inverse gives NaN or infinity where NumPy raises.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import dtypes
from ..source import located
from .ops import (
    _array,
    absolute,
    argmax,
    astype,
    broadcast_to,
    concatenate,
    log,
    ones,
    sign,
    sqrt,
    take_along_axis,
    where,
    zeros,
)  # fmt: skip
from .tracer import Array, ArrayLike
from .transforms import custom_vjp

MOST_ROWS = 128
"""Limit on the rows of a matrix that is factorized or inverted."""


def _square(name: str, a: ArrayLike) -> Array:
    x = _array(a)
    x = x if x.dtype in dtypes.FLOATS else x.astype("f64")
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(located(f"{name}: expected square matrices, got shape {x.shape}"))
    if x.shape[-1] > MOST_ROWS:
        raise NotImplementedError(
            located(
                f"{name}: matrices may have at most {MOST_ROWS} rows, got {x.shape[-1]}; each row "
                f"adds operations to the step. Call numpy.linalg.{name} outside of the step if the "
                "matrix is constant"
            )
        )
    return x


def _flip(x: Array) -> Array:
    return x.swapaxes(-1, -2)


def _column(x: Array, j: int) -> Array:
    return x[..., j : j + 1]


def _halved(x: Array) -> Array:
    """Returns the lower triangle, with the diagonal halved."""
    n = x.shape[-1]
    return x * _array(np.tril(np.ones((n, n)), -1) + np.eye(n) / 2).astype(x.dtype)


def _factor(a: Array) -> Array:
    """Computes the Cholesky factor column by column; the outer product of each column is subtracted
    from the rest of the matrix."""
    n = a.shape[-1]
    rest, columns = a, []
    for j in range(n):
        column = _column(rest, j)
        column = column / sqrt(column[..., j : j + 1, :])
        columns.append(column)
        if j < n - 1:
            rest = rest - column * _flip(column)
    lower = concatenate(columns, -1) if columns else a
    return where(np.tril(np.ones((n, n), bool)), lower, 0)


def _invert_lower(a: Array) -> Array:
    """Inverts a lower triangular matrix by inverting blocks on the diagonal whose size doubles: the
    inverse of [[a, 0], [b, c]] has -c^-1 b a^-1 below its diagonal. All pairs of blocks of the same
    size are processed at once."""
    n = a.shape[-1]
    eye = np.eye(n, dtype=bool)
    rows = np.arange(n)
    joined = rows[:, None] ^ rows  # its highest bit is the size of the blocks that meet there
    lower = rows[:, None] > rows
    inverse = where(eye, 1 / where(eye, a, 1), 0)
    size = 1
    while size < n:
        between = where(lower & (joined >= size) & (joined < 2 * size), a, 0)
        inverse = inverse - inverse @ between @ inverse
        size *= 2
    return inverse


def _cholesky_forward(a: Array) -> tuple[Array, Array]:
    lower = _factor(a)
    return lower, lower


def _cholesky_backward(lower: Array, g: Array) -> tuple[Array]:
    inverse = _invert_lower(lower)
    middle = _halved(_flip(lower) @ g)
    gradient = _flip(inverse) @ middle @ inverse
    return ((gradient + _flip(gradient)) / 2,)


_cholesky = custom_vjp(_factor)
_cholesky.defvjp(_cholesky_forward, _cholesky_backward)


def cholesky(a: ArrayLike, *, upper: bool = False) -> Array:
    """Returns the lower triangular ``l`` with ``l @ l.T == a``, for symmetric positive definite
    matrices of at most 128 rows. Only the lower triangle of ``a`` is read. With ``upper``, returns
    ``l.T``. The gradient is symmetric, as in PyTorch.

    Raises:
        ValueError: if the last two axes are not square.
        NotImplementedError: if the matrices have more than 128 rows.

    Example:
        >>> a = np.array([[4.0, 2.0], [2.0, 5.0]])
        >>> cutback.compile(cutback.linalg.cholesky, argnums=None)(a).tolist()
        [[2.0, 0.0], [1.0, 2.0]]
    """
    lower: Array = _cholesky(_square("cholesky", a))
    return _flip(lower) if upper else lower


def _eliminate(a: Array) -> tuple[Array, Array, Array]:
    """Runs Gauss-Jordan elimination of [a | 1] with partial pivoting, without exchanging rows.
    Returns the inverse, the pivots, and the row of each pivot as a column of indices."""
    n = a.shape[-1]
    work = concatenate([a, broadcast_to(astype(np.eye(n), a.dtype), a.shape)], -1)
    rows = np.arange(n)[:, None]
    used, pivots, places = None, [], []
    for j in range(n):
        column = _column(work, j)
        size = absolute(column)
        place = argmax(size if used is None else where(used, -1, size), -2, keepdims=True)
        mask = place == rows
        row = where(mask, work, 0).sum(-2, keepdims=True)
        pivot = _column(row, j)
        row = row / where(pivot == 0, 1, pivot)
        work = where(mask, row, work - column * row)
        used = mask if used is None else used | mask
        pivots.append(pivot)
        places.append(place)
    order = concatenate(places, -2)
    right = work[..., n:]
    inverse = take_along_axis(right, broadcast_to(order, right.shape), -2)
    found = concatenate(pivots, -2)[..., 0]
    exists = where((found == 0).any(-1), 0, 1).astype(a.dtype)
    return inverse / exists[..., None, None], found, order


def _inverse(a: Array) -> Array:
    return _eliminate(a)[0] if a.shape[-1] else a


def _inv_forward(a: Array) -> tuple[Array, Array]:
    inverse = _inverse(a)
    return inverse, inverse


def _inv_backward(inverse: Array, g: Array) -> tuple[Array]:
    turned = _flip(inverse)
    return (-(turned @ g @ turned),)


_inv = custom_vjp(_inverse)
_inv.defvjp(_inv_forward, _inv_backward)


def inv(a: ArrayLike) -> Array:
    """Returns the inverse of square matrices of at most 128 rows.

    Raises:
        ValueError: if the last two axes are not square.
        NotImplementedError: if the matrices have more than 128 rows.

    Example:
        >>> a = np.array([[2.0, 0.0], [0.0, 4.0]])
        >>> cutback.compile(cutback.linalg.inv, argnums=None)(a).tolist()
        [[0.5, 0.0], [0.0, 0.25]]
    """
    result: Array = _inv(_square("inv", a))
    return result


def _apply(inverse: Array, b: ArrayLike) -> Array:
    right = _array(b)
    if right.ndim == 1:
        return (inverse @ right[:, None])[..., 0]
    return inverse @ right


def solve(a: ArrayLike, b: ArrayLike) -> Array:
    """Solves ``a @ x == b`` for ``x``, with square matrices ``a`` of at most 128 rows. ``b`` is a
    vector, or matrices with the same number of rows as ``a``.

    Raises:
        ValueError: if ``a`` is not square or the shapes do not fit.
        NotImplementedError: if the matrices have more than 128 rows.
    """
    return _apply(_inv(_square("solve", a)), b)


def solve_triangular(
    a: ArrayLike, b: ArrayLike, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False
) -> Array:
    """Solves ``a @ x == b`` for ``x``, with triangular matrices ``a``. The other triangle is not
    read.

    If ``trans`` is 1, 2, "T" or "C", solves ``a.T @ x == b``. ``unit_diagonal`` assumes ones on the
    diagonal. Source: ``scipy.linalg.solve_triangular``; for PyTorch's ``upper=True`` pass
    ``lower=False``.

    Raises:
        ValueError: if ``a`` is not square, the shapes do not fit, or ``trans`` is invalid.
        NotImplementedError: if the matrices have more than 128 rows.
    """
    if trans not in (0, 1, 2, "N", "T", "C"):
        raise ValueError(
            located(f"solve_triangular: trans={trans!r} must be 0, 1, 2, 'N', 'T' or 'C'")
        )
    x = _square("solve_triangular", a)
    n = x.shape[-1]
    x = x if lower else _flip(x)
    x = where(np.tril(np.ones((n, n), bool)), x, 0)
    if unit_diagonal:
        x = where(np.eye(n, dtype=bool), 1, x)
    inverse = _invert_lower(x)
    return _apply(inverse if lower == (trans in (0, "N")) else _flip(inverse), b)


def cho_solve(c_and_lower: tuple[ArrayLike, bool], b: ArrayLike) -> Array:
    """Solves ``a @ x == b`` for ``x``, given ``(cholesky(a), True)`` or ``(cholesky(a, upper=True),
    False)`` as ``c_and_lower``. Source: ``scipy.linalg.cho_solve``.

    Raises:
        ValueError: if the factor is not square or the shapes do not fit.
    """
    factor, is_lower = c_and_lower
    x = _square("cho_solve", factor)
    inverse = _invert_lower(x if is_lower else _flip(x))
    return _apply(_flip(inverse) @ inverse, b)


class SlogdetResult(NamedTuple):
    """Sign and logarithm of the absolute value of a determinant."""

    sign: Array
    logabsdet: Array


def _sign(order: Array, pivots: Array) -> Array:
    """Returns the sign of the determinant: the product of the signs of the pivots, negated once for
    each pair of pivots whose rows are exchanged."""
    n = pivots.shape[-1]
    exchanged = (order > _flip(order)) & np.tril(np.ones((n, n), bool)).T
    pairs = where(exchanged, -1, 1).astype(pivots.dtype)
    return pairs.prod((-2, -1)) * sign(pivots).prod(-1)


def _slogdet_forward(a: Array) -> tuple[tuple[Array, Array], Array]:
    inverse, pivots, order = _eliminate(a)
    return (_sign(order, pivots), log(absolute(pivots)).sum(-1)), inverse


def _slogdet_backward(inverse: Array, g: tuple[Array, Array]) -> tuple[Array]:
    return (_flip(inverse) * g[1][..., None, None],)


_slogdet = custom_vjp(lambda a: _slogdet_forward(a)[0])
_slogdet.defvjp(_slogdet_forward, _slogdet_backward)


def slogdet(a: ArrayLike) -> SlogdetResult:
    """Returns ``(sign, logabsdet)`` of the determinants of square matrices of at most 128 rows.

    Raises:
        ValueError: if the last two axes are not square.
        NotImplementedError: if the matrices have more than 128 rows.
    """
    x = _square("slogdet", a)
    if not x.shape[-1]:
        return SlogdetResult(ones(x.shape[:-2], x.dtype), zeros(x.shape[:-2], x.dtype))
    return SlogdetResult(*_slogdet(x))


def _det_forward(a: Array) -> tuple[Array, tuple[Array, Array]]:
    inverse, pivots, order = _eliminate(a)
    value = _sign(order, pivots) * absolute(pivots).prod(-1)
    return value, (inverse, value)


def _det_backward(saved: tuple[Array, Array], g: Array) -> tuple[Array]:
    inverse, value = saved
    return (_flip(inverse) * (g * value)[..., None, None],)


_det = custom_vjp(lambda a: _det_forward(a)[0])
_det.defvjp(_det_forward, _det_backward)


def det(a: ArrayLike) -> Array:
    """Returns the determinants of square matrices of at most 128 rows. For a singular matrix the
    gradient is NaN.

    Raises:
        ValueError: if the last two axes are not square.
        NotImplementedError: if the matrices have more than 128 rows.
    """
    x = _square("det", a)
    return _det(x) if x.shape[-1] else ones(x.shape[:-2], x.dtype)
