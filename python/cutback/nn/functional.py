"""Deep-learning operations under the names and argument order of ``torch.nn.functional``.

Shapes are written as in ``x[n, c, h, w]``; ``..`` stands for any axes. All of them work inside a
traced function. Class scores lie in the last axis everywhere (PyTorch has them in axis 1).
"""

from __future__ import annotations

import math
import operator

from .. import dtypes
from ..ops import _array, expand_dims
from ..source import located
from ..tracer import Array, ArrayLike, _normalize_axis

__all__ = [
    "avg_pool2d", "batch_norm", "causal_mask", "conv2d", "cross_entropy", "dropout", "embedding",
    "evonorm_s0", "gelu", "layer_norm", "linear", "log_softmax", "max_pool2d", "one_hot", "relu",
    "rms_norm", "scaled_dot_product_attention", "sigmoid", "silu", "softmax",

]  # fmt: skip


def _like(
    value: ArrayLike | None,
    x: Array,
    what: str,
    shape: tuple[int, ...],
    default: float | None = None,
) -> Array:
    """A parameter of an operation on ``x``: of its dtype and of ``shape``; ``default`` where it is
    None."""
    if value is None and default is None:
        raise TypeError(located(f"{what} is needed, an array of shape {shape}"))
    if value is None:
        assert default is not None
        return x.graph.full(shape, default, x.dtype)
    value = x.graph.lift(value)
    if value.shape != shape:
        raise ValueError(
            located(
                f"{what} has shape {value.shape}, expected {shape} for an input of shape {x.shape}"
            )
        )
    return value.astype(x.dtype)


def _pair(value: int | tuple[int, int], what: str) -> tuple[int, int]:
    pair = value if isinstance(value, (tuple, list)) else (value, value)
    try:
        first, second = (operator.index(n) for n in pair)
    except (TypeError, ValueError) as error:
        kind = type(error)
        raise kind(located(f"{what} is an integer or a pair of them, not {value!r}")) from None
    return first, second


def _images(x: ArrayLike, what: str) -> Array:
    x = _array(x)
    if x.ndim != 4:
        raise ValueError(located(f"{what} expects x[n, c, h, w], got shape {x.shape}"))
    return x


# ---- activations ---------------------------------------------------------------------------------


def relu(x: ArrayLike) -> Array:
    """max(x, 0); NaN stays NaN."""
    return _array(x)._apply("relu")


def gelu(x: ArrayLike, approximate: str = "none") -> Array:
    """x * Phi(x) by erf, or by tanh with ``approximate="tanh"`` (Hendrycks, Gimpel 2016).

    Raises:
        ValueError: another ``approximate``.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(located(f"gelu: approximate={approximate!r} is neither 'none' nor 'tanh'"))
    return _array(x)._floating("gelu" if approximate == "none" else "gelu_tanh")


def silu(x: ArrayLike) -> Array:
    """x * sigmoid(x)."""
    return _array(x)._floating("silu")


def sigmoid(x: ArrayLike) -> Array:
    """1 / (1 + e**-x)."""
    return _array(x)._floating("sigmoid")


def _over_axis(name: str, x: ArrayLike, axis: int) -> Array:
    x = _array(x)
    x = x.astype(dtypes.floating(x.dtype))
    number = _normalize_axis(axis, x.ndim, name)
    if number == x.ndim - 1:
        return x._apply(name)
    return x.swapaxes(number, -1)._apply(name).swapaxes(number, -1)


def softmax(x: ArrayLike, axis: int = -1) -> Array:
    """e**x over its sum along ``axis``, computed relative to the largest element."""
    return _over_axis("softmax", x, axis)


def log_softmax(x: ArrayLike, axis: int = -1) -> Array:
    """Logarithm of :func:`softmax`."""
    return _over_axis("log_softmax", x, axis)


# ---- linear, embedding ---------------------------------------------------------------------------


def linear(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Array:
    """``x[.., in] @ weight[out, in].T + bias[out]``."""
    x = _array(x)
    y = x @ x.graph.lift(weight).T
    return y if bias is None else y + bias


def embedding(index: ArrayLike, weight: ArrayLike) -> Array:
    """``weight[index]``: rows of ``weight[rows, columns]`` at integer ``index[..]``; negative ones
    are an error."""
    weight = _array(weight)
    return weight._apply("embedding", weight.graph.lift(index))


def one_hot(index: ArrayLike, num_classes: int) -> Array:
    """1 (i64) where the class is ``index[..]``, 0 elsewhere, in a new last axis of size
    ``num_classes``."""
    index = _array(index)
    if index.dtype not in dtypes.INTS:
        raise TypeError(located(f"one_hot: expected integer classes, got {index.dtype}"))
    attrs = {"axis": 0, "shape": (num_classes,), "dtype": index.dtype}
    (classes,) = index.graph.apply("iota", (), attrs)
    return (expand_dims(index, -1) == classes).astype("i64")


# ---- normalisation -------------------------------------------------------------------------------


def layer_norm(
    x: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None, eps: float = 1e-5
) -> Array:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last axis (Ba, Kiros, Hinton 2016).

    Args:
        x: ``[.., c]``.
        weight, bias: ``[c]``, or None for ones and zeros.
    """
    x = _array(x)
    if not x.ndim:
        raise ValueError(located("layer_norm: expected x[.., c], got an array without axes"))
    width = (x.shape[-1],)
    w, b = (
        _like(weight, x, "layer_norm: weight", width, 1.0),
        _like(bias, x, "layer_norm: bias", width, 0.0),
    )
    return x._apply("layer_norm", w, b, eps=float(eps))


def rms_norm(x: ArrayLike, weight: ArrayLike | None = None, eps: float = 1e-6) -> Array:
    """``x / sqrt(mean(x**2) + eps) * weight`` over the last axis (Zhang, Sennrich 2019). Shapes as
    layer_norm."""
    x = _array(x)
    if not x.ndim:
        raise ValueError(located("rms_norm: expected x[.., c], got an array without axes"))
    return x._apply(
        "rms_norm", _like(weight, x, "rms_norm: weight", (x.shape[-1],), 1.0), eps=float(eps)
    )


def _channels(v: Array, ndim: int) -> Array:
    """``v[c]`` so that it broadcasts over axis 1 of an array with ``ndim`` axes."""
    return v.reshape((1, -1) + (1,) * (ndim - 2))


def batch_norm(
    x: ArrayLike,
    running_mean: ArrayLike | None,
    running_var: ArrayLike | None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Array:
    """Normalises ``x[n, c, ..]`` for each channel (Ioffe, Szegedy 2015).

    With ``training``, by the mean and (biased) variance of this batch; and if the running
    statistics, ``[c]`` each, are given, the arrays passed for them are updated **in place** after
    the step: ``running = (1 - momentum) * running + momentum * batch``, with the unbiased variance.
    They must be arguments of the traced function. Without ``training``, by the running statistics.

    Raises:
        ValueError: shapes that do not fit, or statistics missing where they are needed.
    """
    x = _array(x)
    if x.ndim < 2:
        raise ValueError(located(f"batch_norm: expected x[n, c, ..], got shape {x.shape}"))
    c = (x.shape[1],)
    w, b = (
        _like(weight, x, "batch_norm: weight", c, 1.0),
        _like(bias, x, "batch_norm: bias", c, 0.0),
    )
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError(
                located("batch_norm: without training=True it needs running_mean and running_var")
            )
        mean = _like(running_mean, x, "batch_norm: running_mean", c)
        scale = (_like(running_var, x, "batch_norm: running_var", c) + float(eps))._apply(
            "rsqrt"
        ) * w
        return (x - _channels(mean, x.ndim)) * _channels(scale, x.ndim) + _channels(b, x.ndim)
    y, mean, var, _ = x.graph.apply("batch_norm", (x, w, b), {"eps": float(eps)})
    n = x.size // max(x.shape[1], 1)
    unbias = n / (n - 1) if n > 1 else 1.0
    for running, batch in ((running_mean, mean), (running_var, var * unbias)):
        if running is not None:
            old = x.graph.lift(running)
            if old.shape != c:
                raise ValueError(
                    located(f"batch_norm: running statistics of shape {old.shape}, expected {c}")
                )
            x.graph.state(old, old * (1.0 - momentum) + batch.astype(old.dtype) * float(momentum))
    return y


def evonorm_s0(
    x: ArrayLike,
    v: ArrayLike,
    gamma: ArrayLike,
    beta: ArrayLike,
    groups: int = 32,
    eps: float = 1e-5,
) -> Array:
    """``x * sigmoid(v * x) / std_of_group(x) * gamma + beta`` (Liu et al. 2020, EvoNorm-S0).

    Args:
        x: ``[n, c, h, w]``; the standard deviation is that of each sample's group of c / groups
            channels.
        v, gamma, beta: ``[c]``.

    Raises:
        ValueError: ``groups`` does not divide c.
    """
    x = _images(x, "evonorm_s0")
    n, c, h, w = x.shape
    if groups < 1 or c % groups:
        raise ValueError(located(f"evonorm_s0: {c} channels do not divide into {groups} groups"))
    grouped = x.reshape(n, groups, c // groups, h, w)
    scale = (grouped.var((2, 3, 4), keepdims=True) + float(eps))._apply("rsqrt")
    scaled = (grouped * scale).reshape(x.shape)
    gate, g, b = (
        _channels(_like(p, x, f"evonorm_s0: {k}", (c,)), 4)
        for p, k in ((v, "v"), (gamma, "gamma"), (beta, "beta"))
    )
    return scaled * (x * gate)._apply("sigmoid") * g + b


# ---- convolution and pooling ---------------------------------------------------------------------


def conv2d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> Array:
    """Cross-correlation of ``x[n, c, h, w]`` with ``weight[o, c / groups, kh, kw]``, plus
    ``bias[o]``."""
    x = _images(x, "conv2d")
    w = x.graph.lift(weight).astype(x.dtype)
    (sh, sw), (ph, pw) = _pair(stride, "conv2d: stride"), _pair(padding, "conv2d: padding")
    dh, dw = _pair(dilation, "conv2d: dilation")
    y = x._apply(
        "conv2d",
        w,
        stride_h=sh,
        stride_w=sw,
        pad_h=ph,
        pad_w=pw,
        dilation_h=dh,
        dilation_w=dw,
        groups=groups,
    )
    return y if bias is None else y + _channels(_like(bias, y, "conv2d: bias", (y.shape[1],)), 4)


def _window(
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None,
    padding: int | tuple[int, int],
    what: str,
) -> dict[str, int]:
    kh, kw = _pair(kernel_size, f"{what}: kernel_size")
    sh, sw = (kh, kw) if stride is None else _pair(stride, f"{what}: stride")
    ph, pw = _pair(padding, f"{what}: padding")
    return {
        "kernel_h": kh,
        "kernel_w": kw,
        "stride_h": sh,
        "stride_w": sw,
        "pad_h": ph,
        "pad_w": pw,
    }


def max_pool2d(
    x: ArrayLike,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
) -> Array:
    """Largest of each window of ``x[n, c, h, w]``; ``stride`` is ``kernel_size`` unless given."""
    return _images(x, "max_pool2d")._apply(
        "max_pool2d", **_window(kernel_size, stride, padding, "max_pool2d")
    )


def avg_pool2d(
    x: ArrayLike,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
) -> Array:
    """Mean of each window of ``x[n, c, h, w]``, padding counted as zeros; ``stride`` is
    ``kernel_size`` unless given."""
    return _images(x, "avg_pool2d")._apply(
        "avg_pool2d", **_window(kernel_size, stride, padding, "avg_pool2d")
    )


# ---- dropout and attention -----------------------------------------------------------------------


def dropout(x: ArrayLike, p: float = 0.5, training: bool = True) -> Array:
    """``x / (1 - p)`` with probability 1 - p, else 0.

    The mask is a function of the step's seed, the number of the step and the place of this call in
    the program alone: recomputing it gives the same mask, and the same seed repeats a training run
    bit for bit.

    Raises:
        ValueError: ``p`` outside [0, 1].
    """
    x = _array(x)
    if not 0 <= p <= 1:
        raise ValueError(located(f"dropout: p={p} is not in [0, 1]"))
    if not training or p == 0:
        return x
    if p == 1:
        return x * 0.0
    x = x.astype(dtypes.floating(x.dtype))
    return x._apply("dropout", p=float(p), stream=x.graph.next_stream())


def causal_mask(x: ArrayLike) -> Array:
    """Attention scores ``x[.., query, key]`` with -inf where the key comes after the query."""
    return _array(x)._apply("tril", k=0, fill=-math.inf)


def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    attn_mask: ArrayLike | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Array:
    """``softmax(query @ key.T * scale + mask) @ value`` (Vaswani et al. 2017).

    Args:
        query: ``[.., l, e]``; key: ``[.., s, e]``; value: ``[.., s, v]``.
        attn_mask: bool (True: may attend) or a float to be added, broadcast to ``[.., l, s]``.
        scale: 1 / sqrt(e) unless given.

    Raises:
        ValueError: ``attn_mask`` together with ``is_causal``.
    """
    from ..ops import where

    if attn_mask is not None and is_causal:
        raise ValueError(
            located("scaled_dot_product_attention: give attn_mask or is_causal, not both")
        )
    query = _array(query)
    if query.ndim < 2:
        raise ValueError(
            located(
                f"scaled_dot_product_attention: expected query[.., l, e], got shape {query.shape}"
            )
        )
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    scores = (query * factor) @ query.graph.lift(key).swapaxes(-1, -2)
    if is_causal:
        scores = causal_mask(scores)
    elif attn_mask is not None:
        mask = query.graph.lift(attn_mask)
        scores = (
            where(mask, scores, -math.inf)
            if mask.dtype == "bool"
            else scores + mask.astype(scores.dtype)
        )
    return dropout(softmax(scores), dropout_p) @ value


# ---- losses --------------------------------------------------------------------------------------


def cross_entropy(
    logits: ArrayLike, labels: ArrayLike, ignore_index: int = -100, reduction: str = "mean"
) -> Array:
    """Negative log-likelihood of ``labels[..]`` (integer classes) under softmax of ``logits[..,
    c]``.

    Rows whose label is ``ignore_index`` count nothing; ``"mean"`` divides by the number of the
    others.

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ValueError, TypeError: another reduction, shapes that do not fit, labels that are no
            integers.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(
            located(f"cross_entropy: reduction={reduction!r} is not 'mean', 'sum' or 'none'")
        )
    logits = _array(logits)
    logits = logits.astype(dtypes.floating(logits.dtype))
    labels = logits.graph.lift(labels)
    if labels.dtype not in ("i32", "i64"):
        if labels.dtype != "u8":
            raise TypeError(
                located(f"cross_entropy: labels must be integer classes, not {labels.dtype}")
            )
        labels = labels.astype("i32")
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            located(
                f"cross_entropy: logits {logits.shape} need labels of shape {logits.shape[:-1]}, "
                f"got {labels.shape}"
            )
        )
    nll = logits._apply("cross_entropy", labels, ignore=int(ignore_index))
    if reduction == "none":
        return nll
    total = nll.sum()
    return total if reduction == "sum" else total / (labels != ignore_index).astype(nll.dtype).sum()
