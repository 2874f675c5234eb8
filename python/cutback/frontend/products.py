"""Products of arrays over axes: einsum, functions based on it, and norms. All of them are also
available as ``cutback.<name>``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..source import located
from . import ops
from .ops import _array, _graph_of
from .tracer import Array, ArrayLike, _normalize_axes, _normalize_axis, common, whole

__all__ = [
    "convolve", "cross", "dot", "einsum", "inner", "kron", "matvec", "outer", "tensordot", "vdot",
    "vecdot",
]  # fmt: skip

_MOST = 8
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _parse(subscripts: str, arrays: Sequence[Array]) -> tuple[list[str], str]:
    """Returns the labels of each operand and of the result; an ellipsis is replaced by unused
    letters."""
    text = subscripts.replace(" ", "")
    given, arrow, result = text.partition("->")
    terms = given.split(",")
    if len(terms) != len(arrays):
        raise ValueError(
            located(f"einsum: {subscripts!r} names {len(terms)} operands, got {len(arrays)}")
        )
    free = [c for c in _LETTERS if c not in text]
    most = 0
    labels = []
    for term, x in zip(terms, arrays, strict=True):
        hidden = x.ndim - len(term.replace("...", ""))
        if hidden < 0 or (hidden and "..." not in term):
            raise ValueError(
                located(f"einsum: {term!r} does not fit an operand of shape {x.shape}")
            )
        most = max(most, hidden)
        labels.append((term, hidden))
    dots = "".join(free[:most])
    full = [term.replace("...", dots[most - hidden :]) for term, hidden in labels]
    if not arrow:
        every = "".join(full)
        result = dots + "".join(sorted(c for c in set(every) - set(dots) if every.count(c) == 1))
    result = result.replace("...", dots)
    bad = [c for c in "".join(full) + result if c not in _LETTERS]
    unknown = [c for c in result if c not in "".join(full)]
    if bad or unknown or len(set(result)) != len(result):
        raise ValueError(located(f"einsum: {subscripts!r} is not valid"))
    return full, result


def _once(x: Array, labels: str) -> tuple[Array, str]:
    """Takes the diagonal over the axes of each repeated label."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            n = x.shape[first]
            order = [a for a in range(x.ndim) if a not in (first, second)]
            x = x.transpose([first, second, *order])
            rest = x.shape[2:]
            x = x.reshape((n * n, *rest))[:: n + 1] if n else x.reshape((0, *rest))
            labels = label + "".join(labels[a] for a in order)
    return x, labels


def _summed(x: Array, labels: str, kept: str) -> tuple[Array, str]:
    """Sums over the labels that are not in ``kept``."""
    alone = [a for a, c in enumerate(labels) if c not in kept]
    if not alone:
        return x, labels
    return x.sum(alone), "".join(c for c in labels if c in kept)


def _ordered(x: Array, labels: str, order: str) -> Array:
    """Puts the axes in the given order, with size 1 for labels that ``x`` does not have."""
    there = [c for c in order if c in labels]
    x = x.transpose([labels.index(c) for c in there])
    sizes = iter(x.shape)
    return x.reshape([next(sizes) if c in labels else 1 for c in order])


def _for_each(
    a: tuple[Array, str], b: tuple[Array, str], result: str, sizes: dict[str, int]
) -> tuple[Array, str] | None:
    """Multiplies ``a`` with each matrix of a stack ``b``, as in ``nd,edh->enh``, without copying
    operands or result. Returns None if the labels are not in such an order, or if the gradient of
    ``a``, a sum over the stack, would take more memory than the copies."""
    (x, p), (y, q) = a, b
    stack, rows, ends, columns = q[:-2], p[:-1], p[-1:], q[-1:]
    if not (len(p) >= 2 and len(q) >= 3 and q[-2] == ends) or set(p) & set(stack + columns):
        return None
    order = "".join(c for c in result if c in p + q)
    if order != stack + rows + columns or sizes[ends] > sizes[columns]:
        return None
    flat = x.reshape((1,) * len(stack) + (-1, sizes[ends]))
    return (flat @ y).reshape([sizes[c] for c in order]), order


def _contract(
    a: tuple[Array, str], b: tuple[Array, str], kept: str, sizes: dict[str, int]
) -> tuple[Array, str]:
    """Multiplies two operands: as matrices if the product sums over labels, else element by
    element."""
    found = _for_each(a, b, kept, sizes) or _for_each(b, a, kept, sizes)
    if found is not None:
        return found
    (x, p), (y, q) = a, b
    both = [c for c in p if c in q]
    ends = "".join(c for c in both if c not in kept)
    batch = "".join(c for c in both if c in kept)
    left = "".join(c for c in p if c not in q)
    right = "".join(c for c in q if c not in p)
    order = batch + left + right
    if not ends:
        return _ordered(x, p, order) * _ordered(y, q, order), order

    def size(labels: str) -> int:
        return math.prod(sizes[c] for c in labels)

    front = [sizes[c] for c in batch]
    rows = x.transpose([p.index(c) for c in batch + left + ends])
    columns = y.transpose([q.index(c) for c in batch + ends + right])
    product = rows.reshape([*front, size(left), size(ends)]) @ columns.reshape(
        [*front, size(ends), size(right)]
    )
    return product.reshape([sizes[c] for c in order]), order


def einsum(subscripts: str, *operands: ArrayLike) -> Array:
    """Returns the sum of products over labelled axes of at most 8 operands, like ``numpy.einsum``.

    Pairs are contracted in the order that keeps each intermediate result smallest. A pair that is
    summed over some of its labels is one matrix product.

    Raises:
        ValueError: if the subscripts do not fit the operands, or a label has two sizes.
        TypeError: if ``subscripts`` is not a string.

    For example ``cutback.einsum("nd,de->ne", x, w)`` is ``x @ w``.
    """
    if not isinstance(subscripts, str):
        raise TypeError(located("einsum: the first argument must be a string such as 'ij,jk->ik'"))
    if not 1 <= len(operands) <= _MOST:
        raise ValueError(located(f"einsum: expected 1 to {_MOST} operands, got {len(operands)}"))
    arrays = common(_graph_of(*operands), "einsum", operands)
    labels, result = _parse(subscripts, arrays)
    sizes: dict[str, int] = {}
    for x, term in zip(arrays, labels, strict=True):
        for n, label in zip(x.shape, term, strict=True):
            if sizes.setdefault(label, n) != n:
                raise ValueError(
                    located(f"einsum {subscripts!r}: axis {label} has sizes {sizes[label]} and {n}")
                )
    parts = [_once(x, term) for x, term in zip(arrays, labels, strict=True)]
    while len(parts) > 1:
        parts = _smallest_pair(parts, result, sizes)
    x, last = _summed(*parts[0], result)
    return x.transpose([last.index(c) for c in result])


def _smallest_pair(
    parts: list[tuple[Array, str]], result: str, sizes: dict[str, int]
) -> list[tuple[Array, str]]:
    best: tuple[int, int, int] | None = None
    for i in range(len(parts)):
        for j in range(i + 1, len(parts)):
            kept = result + "".join(q for k, (_, q) in enumerate(parts) if k not in (i, j))
            made = math.prod(sizes[c] for c in set(parts[i][1] + parts[j][1]) if c in kept)
            if best is None or made < best[0]:
                best = (made, i, j)
    assert best is not None
    _, i, j = best
    kept = result + "".join(q for k, (_, q) in enumerate(parts) if k not in (i, j))
    a = _summed(*parts[i], kept + parts[j][1])
    b = _summed(*parts[j], kept + a[1])
    rest = [part for k, part in enumerate(parts) if k not in (i, j)]
    return [*rest, _contract(a, b, kept, sizes)]


def tensordot(x: ArrayLike, y: ArrayLike, axes: Any = 2) -> Array:
    """Returns the sum of products over ``axes``: a number n (the last n axes of ``x`` with the
    first n of ``y``), or a pair with the axes of each. Different sizes raise ValueError."""
    a, b = common(_graph_of(x, y), "tensordot", (x, y))
    if isinstance(axes, int):
        left = list(range(a.ndim - axes, a.ndim))
        right = list(range(axes))
    else:
        ours, theirs = axes
        left = list(ours) if isinstance(ours, (tuple, list)) else [ours]
        right = list(theirs) if isinstance(theirs, (tuple, list)) else [theirs]
    left = [_normalize_axis(n, a.ndim, "tensordot") for n in left]
    right = [_normalize_axis(n, b.ndim, "tensordot") for n in right]
    if [a.shape[n] for n in left] != [b.shape[n] for n in right]:
        raise ValueError(
            located(f"tensordot: shapes {a.shape} and {b.shape} differ over axes={axes}")
        )
    first = list(_LETTERS[: a.ndim])
    second = list(_LETTERS[a.ndim : a.ndim + b.ndim])
    for m, n in zip(left, right, strict=True):
        second[n] = first[m]
    rest = [c for k, c in enumerate(first) if k not in left]
    rest += [c for k, c in enumerate(second) if k not in right]
    return einsum(f"{''.join(first)},{''.join(second)}->{''.join(rest)}", a, b)


def dot(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns the sum of products over the last axis of ``x`` and the second to last of ``y``.
    Multiplies if one of them has no axes."""
    a, b = _array(x), _array(y)
    if not a.ndim or not b.ndim:
        return a * b
    return tensordot(a, b, ((-1,), (-2 if b.ndim > 1 else -1,)))


def inner(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns the sum of products over the last axis of both arrays."""
    a, b = _array(x), _array(y)
    return a * b if not a.ndim or not b.ndim else tensordot(a, b, ((-1,), (-1,)))


def vdot(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns the sum of products of all elements."""
    return (_array(x).ravel() * _array(y).ravel()).sum()


def vecdot(x: ArrayLike, y: ArrayLike, axis: int = -1) -> Array:
    """Returns the sum of products over ``axis``, with broadcasting."""
    return ops.multiply(x, y).sum(axis)


def matvec(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns the products of matrices ``x[.., n, k]`` and vectors ``y[.., k]``."""
    return (_array(x) @ ops.expand_dims(y, -1)).squeeze(-1)


def outer(x: ArrayLike, y: ArrayLike) -> Array:
    """Products of each element of ``x`` with each of ``y``, both flattened."""
    return _array(x).ravel()[:, None] * _array(y).ravel()[None, :]


def kron(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns the kronecker product."""
    a, b = _array(x), _array(y)
    n = max(a.ndim, b.ndim)
    a = a.reshape((1,) * (n - a.ndim) + a.shape)
    b = b.reshape((1,) * (n - b.ndim) + b.shape)
    left = a.reshape([s for size in a.shape for s in (size, 1)])
    right = b.reshape([s for size in b.shape for s in (1, size)])
    return (left * right).reshape([p * q for p, q in zip(a.shape, b.shape, strict=True)])


def cross(x: ArrayLike, y: ArrayLike, axis: int = -1) -> Array:
    """Returns the cross product of vectors of three elements along ``axis``. Other sizes raise
    ValueError."""
    a, b = common(_graph_of(x, y), "cross", (x, y))
    p, q = _normalize_axis(axis, a.ndim, "cross"), _normalize_axis(axis, b.ndim, "cross")
    if a.shape[p] != 3 or b.shape[q] != 3:
        raise ValueError(
            located(f"cross: expected vectors of 3 elements, got shapes {a.shape} and {b.shape}")
        )
    u = [a[(slice(None),) * p + (i,)] for i in range(3)]
    v = [b[(slice(None),) * q + (i,)] for i in range(3)]
    parts = [u[i] * v[j] - u[j] * v[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return ops.stack(parts, axis)


def convolve(x: ArrayLike, y: ArrayLike, mode: str = "full") -> Array:
    """Returns the convolution of two vectors. ``mode`` is ``"full"``, ``"same"`` or ``"valid"``.
    Other modes, and arrays that are empty or not vectors, raise ValueError."""
    a, b = common(_graph_of(x, y), "convolve", (x, y))
    if a.ndim != 1 or b.ndim != 1 or not a.size or not b.size:
        raise ValueError(
            located(f"convolve: expected two vectors, got shapes {a.shape} and {b.shape}")
        )
    if mode not in ("full", "same", "valid"):
        raise ValueError(located(f"convolve: mode={mode!r} is not 'full', 'same' or 'valid'"))
    if a.size < b.size:
        a, b = b, a
    reach = b.size - 1
    images = ops.pad(a, reach).reshape(1, 1, 1, -1)
    attrs = {"stride_h": 1, "stride_w": 1, "pad_h": 0, "pad_w": 0, "dilation_h": 1}
    attrs |= {"dilation_w": 1, "groups": 1}
    full = images._apply("conv2d", b[::-1].reshape(1, 1, 1, -1), **attrs).ravel()
    if mode == "full":
        return full
    size = a.size if mode == "same" else a.size - reach
    begin = (full.size - size) // 2
    return full[begin : begin + size]


def norm(
    x: ArrayLike, ord: Any = None, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> Array:
    """Returns the norm over ``axis``, by default the root of the sum of squares. For one axis,
    ``ord`` is inf, -inf, 0, 1, 2 or another p; for two axes, None, ``"fro"``, 1, -1, inf or
    -inf."""
    from .elementwise import _float, count_nonzero

    x = _float(x)
    axes = _normalize_axes(axis, x.ndim, "norm")
    size = ops.absolute(x)
    if ord is None or ord == "fro" or (ord == 2 and len(axes) == 1):
        return ops.sqrt((x * x).sum(axes, keepdims))
    if len(axes) == 2 and ord in (1, -1, math.inf, -math.inf):
        rows, columns = axes if axis is None or isinstance(axis, int) else tuple(axis)
        over = whole(rows if ord in (1, -1) else columns, "norm: an axis") % x.ndim
        sums = size.sum(over, keepdims=True)
        result = sums.max(axes, keepdims=True) if ord > 0 else sums.min(axes, keepdims=True)
        return result if keepdims else result.squeeze(axes)
    if len(axes) != 1 or isinstance(ord, str):
        raise NotImplementedError(
            located(f"norm: ord={ord!r} over {len(axes)} axes is not supported (singular values)")
        )
    if ord in (math.inf, -math.inf):
        return size.max(axes, keepdims) if ord > 0 else size.min(axes, keepdims)
    if ord == 0:
        return count_nonzero(x, axes, keepdims).astype(x.dtype)
    if ord == 1:
        return size.sum(axes, keepdims)
    return ops.power(ops.power(size, float(ord)).sum(axes, keepdims), 1.0 / float(ord))
