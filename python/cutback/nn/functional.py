"""Deep-learning operations with the signatures of ``torch.nn.functional``.

Shapes are written as in ``x[n, c, h, w]``; ``..`` stands for any axes. All functions work inside a
traced function and return traced arrays. Class scores are in the last axis everywhere (in PyTorch
they are in axis 1). Shapes and values that do not fit raise ValueError, and arguments of a wrong
type or dtype raise TypeError; the message names the argument and the source line. Options of
PyTorch that are not supported raise NotImplementedError. Older names of arguments (``x``, ``axis``,
``index``, ``logits``, ``labels``) are still accepted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

from .. import dtypes
from ..frontend.graph import random_graph
from ..frontend.ops import _array, expand_dims, where
from ..frontend.tracer import Array, ArrayLike, whole
from ..integers import index
from ..source import located
from .activations import (
    celu,
    elu,
    gelu,
    glu,
    gumbel_softmax,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    log_softmax,
    logsigmoid,
    mish,
    prelu,
    relu,
    relu6,
    rrelu,
    selu,
    sigmoid,
    silu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    threshold,
)  # fmt: skip
from .arguments import flag, images, is_array, like, not_built, number, older_names, pair
from .attention import scaled_dot_product_attention
from .cross_entropy import cross_entropy
from .losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    cosine_similarity,
    gaussian_nll_loss,
    hinge_embedding_loss,
    huber_loss,
    kl_div,
    l1_loss,
    margin_ranking_loss,
    mse_loss,
    multi_margin_loss,
    nll_loss,
    normalize,
    pairwise_distance,
    poisson_nll_loss,
    smooth_l1_loss,
    soft_margin_loss,
    triplet_margin_loss,
)  # fmt: skip
from .resampling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    alpha_dropout,
    bilinear,
    channel_shuffle,
    conv_transpose1d,
    conv_transpose2d,
    dropout1d,
    dropout2d,
    embedding_bag,
    feature_dropout,
    fold,
    group_norm,
    instance_norm,
    interpolate,
    local_response_norm,
    lp_pool2d,
    pad,
    pixel_shuffle,
    pixel_unshuffle,
    unfold,
    upsample,
)  # fmt: skip

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "alpha_dropout", "avg_pool1d", "avg_pool2d", "batch_norm",
    "bilinear", "binary_cross_entropy", "binary_cross_entropy_with_logits", "causal_mask",
    "celu", "channel_shuffle", "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d",
    "cosine_embedding_loss", "cosine_similarity", "cross_entropy", "dropout", "dropout1d",
    "dropout2d", "elu", "embedding", "embedding_bag", "evonorm_s0", "feature_dropout",
    "fold", "gaussian_nll_loss", "gelu", "glu", "group_norm", "gumbel_softmax",
    "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hinge_embedding_loss",
    "huber_loss", "instance_norm", "interpolate", "kl_div", "l1_loss", "layer_norm",
    "leaky_relu", "linear", "local_response_norm", "log_softmax", "logsigmoid", "lp_pool2d",
    "margin_ranking_loss", "max_pool1d", "max_pool2d", "mish", "mse_loss",
    "multi_margin_loss", "nll_loss", "normalize", "one_hot", "pad", "pairwise_distance",
    "pixel_shuffle", "pixel_unshuffle", "poisson_nll_loss", "prelu", "relu", "relu6",
    "rms_norm", "rrelu", "scaled_dot_product_attention", "selu", "sigmoid", "silu",
    "smooth_l1_loss", "soft_margin_loss", "softmax", "softmin", "softplus", "softshrink",
    "softsign", "tanh", "tanhshrink", "threshold", "triplet_margin_loss", "unfold",
    "upsample",
]  # fmt: skip


_NOT_BUILT = {
    "conv3d": "the core has convolutions of one and two axes",
    "ctc_loss": "write the forward algorithm with logaddexp in a loop over the steps",
    "grid_sample": "it needs an operation that the core does not have; interpolate resizes",
    "max_unpool2d": "max_pool2d does not return indices; interpolate enlarges",
    "multi_head_attention_forward": "project with linear and call scaled_dot_product_attention",
}
"""Names of PyTorch that do not exist here, each with the reason or an alternative."""


def __getattr__(name: str) -> NoReturn:
    from ..foreign import missing  # here, because only errors need it

    if name in _NOT_BUILT:
        text = f"cutback.nn.functional has no {name}: {_NOT_BUILT[name]}"
        raise AttributeError(text, name=name)
    raise missing("cutback.nn.functional", name)


# ---- linear, embedding ---------------------------------------------------------------------------


@older_names(x="input")
def linear(input: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Array:
    """Computes ``input[.., in] @ weight[out, in].T + bias[out]``."""
    x = _array(input)
    y = x @ x.graph.lift(weight).T
    return y if bias is None else y + bias


@older_names(index="input")
def embedding(
    input: ArrayLike,
    weight: ArrayLike,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    """Returns ``weight[input]``: the rows of ``weight[rows, columns]`` at integer ``input[..]``.
    Negative integers are an error. The row ``padding_idx`` gets no gradient."""
    not_built(
        "embedding",
        max_norm=(max_norm, None),
        scale_grad_by_freq=(scale_grad_by_freq, False),
        sparse=(sparse, False),
    )
    weight = _array(weight)
    index = weight.graph.lift(input)
    rows = weight._apply("embedding", index)
    if padding_idx is None:
        return rows
    padding = whole(padding_idx, "embedding: padding_idx")
    if not -weight.shape[0] <= padding < weight.shape[0]:
        raise ValueError(
            located(f"embedding: padding_idx={padding} is not one of {weight.shape[0]} rows")
        )
    padded = expand_dims(index == padding % weight.shape[0], -1)
    return where(padded, rows._apply("stop_gradient"), rows)


@older_names(index="tensor")
def one_hot(tensor: ArrayLike, num_classes: int = -1) -> Array:
    """Adds a last axis of size ``num_classes``, with 1 (i64) at the class ``tensor[..]`` and 0
    elsewhere. ``num_classes`` is required, because the largest class is not known while tracing."""
    labels = _array(tensor)
    if labels.dtype not in dtypes.INTS:
        raise TypeError(located(f"one_hot: expected integer classes, got {labels.dtype}"))
    size = whole(num_classes, "one_hot: num_classes")
    if size == -1:
        raise ValueError(located("one_hot: num_classes is required"))
    attrs = {"axis": 0, "shape": (size,), "dtype": labels.dtype}
    (classes,) = labels.graph.apply("iota", (), attrs)
    return (expand_dims(labels, -1) == classes).astype("i64")


# ---- normalisation -------------------------------------------------------------------------------


def _last(x: Array, normalized_shape: Any, what: str) -> tuple[int, ...]:
    """Returns the sizes of the axes to normalise over; None means the last axis.

    Raises:
        ValueError, TypeError: if the last axes of the array have other sizes.
    """
    if not x.ndim:
        raise ValueError(located(f"{what}: expected input[.., c], got an array without axes"))
    if normalized_shape is None:
        return x.shape[-1:]
    several = isinstance(normalized_shape, (tuple, list))
    try:
        shape = tuple(index(n) for n in (normalized_shape if several else (normalized_shape,)))
    except TypeError:
        raise TypeError(
            located(f"{what}: normalized_shape={normalized_shape!r:.60} is not a tuple of sizes")
        ) from None
    if not shape or x.shape[-len(shape) :] != shape:
        raise ValueError(
            located(f"{what}: normalized_shape={shape} does not fit an input of shape {x.shape}")
        )
    return shape


def _flat(x: Array, shape: tuple[int, ...]) -> Array:
    """Merges the axes to normalise over into one axis."""
    return x if len(shape) == 1 else x.reshape((*x.shape[: x.ndim - len(shape)], math.prod(shape)))


@older_names(x="input")
def layer_norm(
    input: ArrayLike,
    normalized_shape: int | Sequence[int] | None = None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> Array:
    """Computes ``(x - mean) / sqrt(var + eps) * weight + bias`` over the last axes (Ba, Kiros,
    Hinton 2016).

    Args:
        input: ``[.., *normalized_shape]``.
        normalized_shape: sizes of the axes to normalise over; None: the last axis. If it is an
            array, the arguments are taken in the older order: ``weight``, ``bias``, ``eps``.
        weight, bias: arrays of ``normalized_shape``, or None for ones and zeros.
        eps: added to the variance.
    """
    x = _array(input)
    if isinstance(bias, float):  # eps in the older order of arguments
        eps, bias = bias, None
    if is_array(normalized_shape):
        bias = bias if weight is None else weight
        normalized_shape, weight = None, normalized_shape
    shape = _last(x, normalized_shape, "layer_norm")
    w = like(weight, x, "layer_norm: weight", shape, 1.0)
    b = like(bias, x, "layer_norm: bias", shape, 0.0)
    flat = _flat(x, shape)
    eps = number("layer_norm", eps=eps)
    y = flat._apply("layer_norm", _flat(w, shape), _flat(b, shape), eps=eps)
    return y.reshape(x.shape)


@older_names(x="input")
def rms_norm(
    input: ArrayLike,
    normalized_shape: int | Sequence[int] | None = None,
    weight: ArrayLike | None = None,
    eps: float | None = None,
) -> Array:
    """Computes ``x / sqrt(mean(x**2) + eps) * weight`` over the last axes (Zhang, Sennrich 2019).
    The arguments are those of :func:`layer_norm`. By default ``eps`` is the machine epsilon of the
    dtype, as in PyTorch, or 1e-6 if ``normalized_shape`` is not given."""
    x = _array(input)
    if is_array(normalized_shape) or (normalized_shape is None and isinstance(weight, float)):
        eps = weight if isinstance(weight, float) else eps
        normalized_shape, weight = None, normalized_shape
    shape = _last(x, normalized_shape, "rms_norm")
    if eps is None:
        eps = 1e-6 if normalized_shape is None else dtypes.EPS.get(str(x.dtype), 1e-6)
    w = like(weight, x, "rms_norm: weight", shape, 1.0)
    eps = number("rms_norm", eps=eps)
    return _flat(x, shape)._apply("rms_norm", _flat(w, shape), eps=eps).reshape(x.shape)


def _channels(v: Array, ndim: int) -> Array:
    """Reshapes ``v[c]`` so that it broadcasts over axis 1 of an array with ``ndim`` axes."""
    return v.reshape((1, -1) + (1,) * (ndim - 2))


@older_names(x="input")
def batch_norm(
    input: ArrayLike,
    running_mean: ArrayLike | None,
    running_var: ArrayLike | None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Array:
    """Normalises ``input[n, c, ..]`` for each channel (Ioffe, Szegedy 2015).

    With ``training``, it uses the mean and (biased) variance of this batch. If the running
    statistics, ``[c]`` each, are given, the arrays passed for them are updated **in place** after
    the step: ``running = (1 - momentum) * running + momentum * batch``, with the unbiased variance.
    They must be arguments of the traced function. Without ``training``, it uses the running
    statistics.

    Raises:
        ValueError: if shapes do not fit, or running statistics are needed but missing.
    """
    x = _array(input)
    momentum, eps = number("batch_norm", momentum=momentum), number("batch_norm", eps=eps)
    training = flag("batch_norm", training=training)
    if x.ndim < 2:
        raise ValueError(located(f"batch_norm: expected x[n, c, ..], got shape {x.shape}"))
    c = (x.shape[1],)
    w, b = (
        like(weight, x, "batch_norm: weight", c, 1.0),
        like(bias, x, "batch_norm: bias", c, 0.0),
    )
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError(
                located("batch_norm: without training=True it needs running_mean and running_var")
            )
        mean = like(running_mean, x, "batch_norm: running_mean", c)
        scale = (like(running_var, x, "batch_norm: running_var", c) + eps)._apply("rsqrt") * w
        return (x - _channels(mean, x.ndim)) * _channels(scale, x.ndim) + _channels(b, x.ndim)
    if x.size == 0:  # an empty array has no statistics
        return x * _channels(w, x.ndim) + _channels(b, x.ndim)
    y, mean, var, _ = x.graph.apply("batch_norm", (x, w, b), {"eps": eps})
    n = x.size // x.shape[1]
    unbias = n / (n - 1) if n > 1 else 1.0
    for running, batch in ((running_mean, mean), (running_var, var * unbias)):
        if running is not None:
            old = x.graph.lift(running)
            if old.shape != c:
                raise ValueError(
                    located(
                        f"batch_norm: running statistics have shape {old.shape}, "
                        f"expected {c} elements"
                    )
                )
            x.graph.state(old, old * (1.0 - momentum) + batch.astype(old.dtype) * momentum)
    return y


def evonorm_s0(
    x: ArrayLike,
    v: ArrayLike,
    gamma: ArrayLike,
    beta: ArrayLike,
    groups: int = 32,
    eps: float = 1e-5,
) -> Array:
    """Computes ``x * sigmoid(v * x) / std_of_group(x) * gamma + beta`` (Liu et al. 2020,
    EvoNorm-S0).

    Args:
        x: ``[n, c, h, w]``; the standard deviation is that of each sample's group of c / groups
            channels.
        v, gamma, beta: ``[c]``.

    Raises:
        ValueError: if ``groups`` does not divide c.
    """
    x = images(x, "evonorm_s0")
    n, c, h, w = x.shape
    groups = whole(groups, "evonorm_s0: groups")
    if groups < 1 or c % groups:
        raise ValueError(located(f"evonorm_s0: {c} channels do not divide into {groups} groups"))
    grouped = x.reshape(n, groups, c // groups, h, w)
    scale = (grouped.var((2, 3, 4), keepdims=True) + number("evonorm_s0", eps=eps))._apply("rsqrt")
    scaled = (grouped * scale).reshape(x.shape)
    gate, g, b = (
        _channels(like(p, x, f"evonorm_s0: {k}", (c,)), 4)
        for p, k in ((v, "v"), (gamma, "gamma"), (beta, "beta"))
    )
    return scaled * (x * gate)._apply("sigmoid") * g + b


# ---- convolution and pooling ---------------------------------------------------------------------


def _padding(padding: Any, stride: tuple[int, int], reach: tuple[int, int]) -> tuple[int, int]:
    """Converts ``"valid"`` and ``"same"`` to numbers. ``reach`` is the extent of a kernel minus
    one."""
    if not isinstance(padding, str):
        return pair(padding, "conv2d: padding")
    if padding == "valid":
        return 0, 0
    if padding != "same":
        raise ValueError(located(f"conv2d: padding={padding!r:.40} is not 'valid' or 'same'"))
    if stride != (1, 1):
        raise ValueError(located(f"conv2d: padding='same' needs stride 1, not {stride}"))
    if reach[0] % 2 or reach[1] % 2:
        raise NotImplementedError(
            located("conv2d: padding='same' does not support kernels of even size; call pad first")
        )
    return reach[0] // 2, reach[1] // 2


@older_names(x="input")
def conv2d(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | str = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> Array:
    """Computes the cross-correlation of ``input[n, c, h, w]`` with ``weight[o, c / groups, kh,
    kw]``, plus ``bias[o]``. ``padding`` may be ``"valid"`` or ``"same"``."""
    x = images(input, "conv2d")
    w = x.graph.lift(weight).astype(x.dtype)
    sh, sw = pair(stride, "conv2d: stride")
    dh, dw = pair(dilation, "conv2d: dilation")
    kh, kw = w.shape[-2:] if w.ndim == 4 else (1, 1)
    ph, pw = _padding(padding, (sh, sw), (dh * (kh - 1), dw * (kw - 1)))
    y = x._apply(
        "conv2d",
        w,
        stride_h=sh,
        stride_w=sw,
        pad_h=ph,
        pad_w=pw,
        dilation_h=dh,
        dilation_w=dw,
        groups=whole(groups, "conv2d: groups"),
    )
    return y if bias is None else y + _channels(like(bias, y, "conv2d: bias", (y.shape[1],)), 4)


def _window(
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None,
    padding: int | tuple[int, int],
    what: str,
) -> dict[str, int]:
    kh, kw = pair(kernel_size, f"{what}: kernel_size")
    sh, sw = (kh, kw) if stride is None else pair(stride, f"{what}: stride")
    ph, pw = pair(padding, f"{what}: padding")
    return {
        "kernel_h": kh,
        "kernel_w": kw,
        "stride_h": sh,
        "stride_w": sw,
        "pad_h": ph,
        "pad_w": pw,
    }


@older_names(x="input")
def max_pool2d(
    input: ArrayLike,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Array:
    """Returns the largest element of each window of ``input[n, c, h, w]``; by default ``stride`` is
    ``kernel_size``."""
    not_built(
        "max_pool2d",
        dilation=(1 if dilation in ((1, 1), [1, 1]) else dilation, 1),
        ceil_mode=(ceil_mode, False),
        return_indices=(return_indices, False),
    )
    return images(input, "max_pool2d")._apply(
        "max_pool2d", **_window(kernel_size, stride, padding, "max_pool2d")
    )


@older_names(x="input")
def avg_pool2d(
    input: ArrayLike,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    """Returns the mean of each window of ``input[n, c, h, w]``, with padding counted as zeros; by
    default ``stride`` is ``kernel_size``."""
    not_built(
        "avg_pool2d",
        ceil_mode=(ceil_mode, False),
        count_include_pad=(count_include_pad, True),
        divisor_override=(divisor_override, None),
    )
    return images(input, "avg_pool2d")._apply(
        "avg_pool2d", **_window(kernel_size, stride, padding, "avg_pool2d")
    )


def _rows(x: ArrayLike, what: str) -> Array:
    """Converts ``x[n, c, l]`` to images of one row."""
    x = _array(x)
    if x.ndim != 3:
        raise ValueError(located(f"{what} expects x[n, c, l], got shape {x.shape}"))
    return expand_dims(x, 2)


def _single(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value


def conv1d(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: int = 1,
    padding: int | str = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Array:
    """Computes :func:`conv2d` for ``input[n, c, l]`` and ``weight[o, c / groups, k]``."""
    x = _rows(input, "conv1d")
    w = expand_dims(x.graph.lift(weight), 2)
    s, p, d = (_single(v) for v in (stride, padding, dilation))
    around = p if isinstance(p, str) else (0, p)
    return conv2d(x, w, bias, (1, s), around, (1, d), groups).squeeze(2)


def max_pool1d(
    input: ArrayLike,
    kernel_size: int,
    stride: int | None = None,
    padding: int = 0,
    dilation: int = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Array:
    """Returns the largest element of each window of ``input[n, c, l]``."""
    k, s, p = (_single(v) for v in (kernel_size, stride, padding))
    x = _rows(input, "max_pool1d")
    return max_pool2d(
        x, (1, k), None if s is None else (1, s), (0, p), dilation, ceil_mode, return_indices
    ).squeeze(2)


def avg_pool1d(
    input: ArrayLike,
    kernel_size: int,
    stride: int | None = None,
    padding: int = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Array:
    """Returns the mean of each window of ``input[n, c, l]``, with padding counted as zeros."""
    k, s, p = (_single(v) for v in (kernel_size, stride, padding))
    x = _rows(input, "avg_pool1d")
    return avg_pool2d(
        x, (1, k), None if s is None else (1, s), (0, p), ceil_mode, count_include_pad
    ).squeeze(2)


# ---- dropout and attention -----------------------------------------------------------------------


@older_names(x="input")
def dropout(
    input: ArrayLike, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Array:
    """Returns ``input / (1 - p)`` with probability 1 - p, else 0.

    The mask depends only on the step's seed, the number of the step and the position of this call
    in the program. So recomputation gives the same mask, and the same seed repeats a training run
    bit for bit.

    Raises:
        ValueError: if ``p`` is outside [0, 1].
    """
    not_built("dropout", inplace=(inplace, False))
    x, p, training = _array(input), number("dropout", p=p), flag("dropout", training=training)
    if not 0 <= p <= 1:
        raise ValueError(located(f"dropout: p={p} is not in [0, 1]"))
    if not training or p == 0:
        return x
    if p == 1:
        return x * 0.0
    x = x.astype(dtypes.floating(x.dtype))
    graph = random_graph(x)
    result: Array = graph.apply("dropout", (x,), {"p": p, "stream": graph.next_stream()})[0]
    return result


def causal_mask(x: ArrayLike) -> Array:
    """Returns attention scores ``x[.., query, key]`` with -inf where the key comes after the
    query."""
    return _array(x)._apply("tril", k=0, fill=-math.inf)
