"""Attention with the signature of ``torch.nn.functional``. It uses the core's op ``attention`` if
possible, otherwise products and softmax."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .. import dtypes
from ..frontend.graph import composes, random_graph
from ..frontend.ops import _array, broadcast_to, expand_dims, where
from ..frontend.tracer import Array, ArrayLike, common
from ..source import located
from .arguments import flag, number

_LARGEST_HEAD, _MOST_AXES = 256, 7  # limits of the op ``attention``


class _Options(NamedTuple):
    """The scale of the scores, the probability of dropout, and a flag that masks keys after the
    query."""

    factor: float
    p: float
    is_causal: bool


def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    attn_mask: ArrayLike | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """Computes ``softmax(query @ key.T * scale + mask) @ value`` (Vaswani et al. 2017).

    Heads of up to 256 elements run as one op, ``attention``, which keeps one number for each query
    and never stores the scores (Dao 2023).

    Args:
        query: ``[.., l, e]``; key: ``[.., s, e]``; value: ``[.., s, v]``.
        attn_mask: bool (True: may attend) or a float that is added to the scores, broadcast to
            ``[.., l, s]``. Fully masked queries give 0, as in PyTorch.
        dropout_p: probability with which a weight is dropped.
        is_causal: mask keys after the query.
        scale: factor of the scores; default 1 / sqrt(e).
        enable_gqa: query ``[.., h, l, e]`` may have n times as many heads as key and value; n
            consecutive query heads share a head of key and value.

    Raises:
        ValueError: if ``attn_mask`` is given together with ``is_causal``, or shapes do not match.
        TypeError: if ``attn_mask`` has an integer dtype.

    Example::

        def loss(q, k, v):  # [batch, heads, time, size]
            return (F.scaled_dot_product_attention(q, k, v, is_causal=True) ** 2).mean()
    """
    what = "scaled_dot_product_attention"
    is_causal = flag(what, is_causal=is_causal)
    grouped = flag(what, enable_gqa=enable_gqa)
    if attn_mask is not None and is_causal:
        raise ValueError(located(f"{what}: pass attn_mask or is_causal, not both"))
    query = _array(query)
    if query.ndim < 2:
        raise ValueError(located(f"{what}: expected query[.., l, e], got shape {query.shape}"))
    graph = query.graph
    key, value = graph.lift(key), graph.lift(value)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else number(what, scale=scale)
    p = number(what, dropout_p=dropout_p)
    if not 0 <= p <= 1:
        raise ValueError(located(f"{what}: dropout_p={p} is not in [0, 1]"))
    mask = None if attn_mask is None else _attention_mask(graph.lift(attn_mask))
    if grouped:
        _check_groups(query, key, value)
    operands = _heads(query, key, value, mask, grouped)
    options = _Options(factor, p, is_causal)
    if operands is None or p == 1 or (composes() and not p):
        if grouped:
            key, value = (_repeated(x, query.shape[-3] // x.shape[-3]) for x in (key, value))
        return _composed(query, key, value, mask, options)
    graph = random_graph(query) if p else graph
    stream = graph.next_stream() if p else 0
    attrs = {"scale": factor, "p": p, "stream": stream, "causal": int(is_causal)}
    return graph.apply("attention", operands, attrs)[0]


def _attention_mask(mask: Array) -> Array:
    """Checks that a mask is bool or floating.

    Raises:
        TypeError: if it has an integer dtype.
    """
    if mask.dtype == "bool" or dtypes.floating(mask.dtype) == mask.dtype:
        return mask
    raise TypeError(
        located(
            f"scaled_dot_product_attention: attn_mask must be bool or floating, not {mask.dtype}; "
            "pass mask.astype(bool), True where a query may attend"
        )
    )


def _check_groups(query: Array, key: Array, value: Array) -> None:
    """Raises ValueError unless key and value have the same number of heads, and the query has a
    multiple of it."""
    few = [x.shape[-3] if x.ndim >= 3 else 0 for x in (query, key, value)]
    if few[1] > 0 and few[1] == few[2] and few[0] % few[1] == 0:
        return
    raise ValueError(
        located(
            f"scaled_dot_product_attention: enable_gqa: query {query.shape}, key {key.shape}, "
            f"value {value.shape}: the heads, axis -3, of the query must be a multiple of those of "
            "key and value"
        )
    )


def _heads(
    query: Array, key: Array, value: Array, mask: Array | None, grouped: bool
) -> tuple[Array, ...] | None:
    """Converts operands for the op ``attention`` to one dtype, with the same axes before the last
    two (except for grouped heads). Returns None if the op does not apply."""
    q, k, v = common(query.graph, "matmul", (query, key, value))
    kind = dtypes.floating(q.dtype)
    q, k, v = (x.astype(kind) for x in (q, k, v))
    ranks = {x.ndim for x in (q, k, v)}
    sizes = (q.shape[-1], v.shape[-1])
    if min(ranks) < 2 or max(ranks) > _MOST_AXES or max(sizes) > _LARGEST_HEAD:
        return None
    before = [x.shape[:-2] for x in (q, k, v)]
    if grouped:
        if len(ranks) > 1 or len({shape[:-1] for shape in before}) > 1:
            return None
    else:
        try:
            shape = np.broadcast_shapes(*before)
        except ValueError:
            return None  # the product raises a clearer error
        q, k, v = (broadcast_to(x, (*shape, *x.shape[-2:])) for x in (q, k, v))
    scores = (*q.shape[:-1], k.shape[-2])
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        return None
    if mask is None:
        return q, k, v
    try:
        if np.broadcast_shapes(mask.shape, scores) != scores:
            return None
    except ValueError:
        return None
    mask = mask if mask.dtype == "bool" else mask.astype(kind)
    return q, k, v, broadcast_to(mask, scores)


def _composed(
    query: Array, key: Array, value: Array, mask: Array | None, options: _Options
) -> Array:
    """Computes attention from products and softmax."""
    factor, p, is_causal = options
    scores = (query * factor) @ key.swapaxes(-1, -2)
    scores = scores.astype(dtypes.floating(scores.dtype))
    if mask is not None:
        weights = _masked_softmax(scores, mask)
    else:
        scores = scores._apply("tril", k=0, fill=-math.inf) if is_causal else scores
        weights = scores._apply("softmax")
    if p == 1:
        weights = weights * 0.0
    elif p > 0:
        graph = random_graph(weights)
        (weights,) = graph.apply("dropout", (weights,), {"p": p, "stream": graph.next_stream()})
    return weights @ value


def _repeated(x: Array, n: int) -> Array:
    """Repeats each head n times."""
    shape = x.shape
    apart = (*shape[:-2], n, *shape[-2:])
    x = broadcast_to(expand_dims(x, -3), apart)
    return x.reshape((*shape[:-3], n * shape[-3], *shape[-2:]))


def _masked_softmax(scores: Array, mask: Array) -> Array:
    """Computes softmax with a mask. Fully masked rows give zeros, and zero gradients. As softmax of
    a row of -inf is NaN, such rows are computed without the mask and then set to zero."""
    if mask.dtype == "bool":
        is_open = mask.astype(scores.dtype).max(-1, keepdims=True) > 0
        scores = where(mask, scores, where(is_open, -math.inf, 0.0).astype(scores.dtype))
    else:
        mask = mask.astype(scores.dtype)
        is_open = mask.max(-1, keepdims=True) != -math.inf
        scores = where(is_open, scores + mask, 0.0)
    return where(is_open, scores._apply("softmax"), 0.0)
