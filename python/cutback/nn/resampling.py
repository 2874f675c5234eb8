"""Transposed convolutions, pooling, resizing and normalisation of channels, with the signatures of
``torch.nn.functional``, composed of other operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..frontend import ops
from ..frontend.elementwise import _float
from ..frontend.graph import random_graph
from ..frontend.ops import _array
from ..frontend.tracer import Array, ArrayLike, whole
from ..source import located
from .arguments import flag, images, like, not_built, number, pair

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "alpha_dropout", "bilinear", "channel_shuffle", "conv_transpose1d", "conv_transpose2d",
    "dropout1d", "dropout2d", "embedding_bag", "feature_dropout", "fold", "group_norm",
    "instance_norm", "interpolate", "local_response_norm", "lp_pool2d", "pad", "pixel_shuffle",
    "pixel_unshuffle", "unfold", "upsample",
]  # fmt: skip


_MOST = 4096  # limit on the number of windows, each of which adds operations to the graph


# ---- norms ---------------------------------------------------------------------------------------


def _per_channel(x: Array, v: ArrayLike, what: str) -> Array:
    return like(v, x, what, (x.shape[1],)).reshape((1, -1) + (1,) * (x.ndim - 2))


def _affine(x: Array, weight: ArrayLike | None, bias: ArrayLike | None, what: str) -> Array:
    if weight is not None:
        x = x * _per_channel(x, weight, f"{what}: weight")
    return x if bias is None else x + _per_channel(x, bias, f"{what}: bias")


def group_norm(
    input: ArrayLike,
    num_groups: int,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> Array:
    """Normalises ``input[n, c, ..]`` over each of ``num_groups`` groups of channels and all
    positions (Wu, He 2018); ``weight`` and ``bias`` are ``[c]``.

    Raises:
        ValueError: if the groups do not divide c.
    """
    x = _float(input)
    groups = whole(num_groups, "group_norm: num_groups")
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(
            located(f"group_norm: {groups} groups do not divide the channels of {x.shape}")
        )
    flat = x.reshape(x.shape[0], groups, x.size // max(x.shape[0] * groups, 1))
    one = x.graph.full(flat.shape[-1:], 1.0, x.dtype)
    zero = x.graph.full(flat.shape[-1:], 0.0, x.dtype)
    y = flat._apply("layer_norm", one, zero, eps=number("group_norm", eps=eps))
    return _affine(y.reshape(x.shape), weight, bias, "group_norm")


def instance_norm(
    input: ArrayLike,
    running_mean: None = None,
    running_var: None = None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Array:
    """Normalises ``input[n, c, ..]`` over the positions of each channel of each sample (Ulyanov et
    al. 2016). Running statistics are not supported."""
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise NotImplementedError(located("instance_norm: running statistics are not supported"))
    x = _float(input)
    if x.ndim < 3:
        raise ValueError(located(f"instance_norm: expected input[n, c, ..], got {x.shape}"))
    return group_norm(x, x.shape[1], weight, bias, eps)


def local_response_norm(
    input: ArrayLike, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Array:
    """Divides ``x`` by ``(k + alpha * mean of squares over size channels)**beta`` (as AlexNet)."""
    x = _float(input)
    n = whole(size, "local_response_norm: size")
    if x.ndim < 3 or not 0 < n <= _MOST:
        raise ValueError(
            located(f"local_response_norm: size {n} does not fit an input of {x.shape}")
        )
    widths = [(0, 0)] * x.ndim
    widths[1] = (n // 2, (n - 1) // 2)
    squares = ops.pad(ops.square(x), widths)
    total = squares[:, : x.shape[1]]
    for i in range(1, n):
        total = total + squares[:, i : i + x.shape[1]]
    return x / ops.power(total * (alpha / n) + k, beta)


# ---- convolution ---------------------------------------------------------------------------------


def conv_transpose2d(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    output_padding: int | tuple[int, int] = 0,
    groups: int = 1,
    dilation: int | tuple[int, int] = 1,
) -> Array:
    """Computes the gradient of conv2d with respect to its input, for ``input[n, c, h, w]``,
    ``weight[c, o / groups, kh, kw]`` and ``bias[o]``."""
    x = images(input, "conv_transpose2d")
    w = x.graph.lift(weight).astype(x.dtype)
    if w.ndim != 4 or w.shape[0] != x.shape[1]:
        raise ValueError(
            located(f"conv_transpose2d: weight {w.shape} does not fit an input of {x.shape}")
        )
    n_groups = whole(groups, "conv_transpose2d: groups")
    s, p, o, d = (
        pair(v, f"conv_transpose2d: {k}")
        for k, v in (
            ("stride", stride), ("padding", padding),
            ("output_padding", output_padding), ("dilation", dilation),
        )
    )  # fmt: skip
    places = tuple(
        (x.shape[2 + i] - 1) * s[i] - 2 * p[i] + d[i] * (w.shape[2 + i] - 1) + o[i] + 1
        for i in (0, 1)
    )
    y = x._apply(
        "conv2d_dgrad",
        w,
        stride_h=s[0],
        stride_w=s[1],
        pad_h=p[0],
        pad_w=p[1],
        dilation_h=d[0],
        dilation_w=d[1],
        groups=n_groups,
        shape=(x.shape[0], w.shape[1] * n_groups, *places),
    )
    return _affine(y, None, bias, "conv_transpose2d")


def _one(value: Any, what: str) -> int:
    if isinstance(value, (tuple, list)) and len(value) == 1:
        value = value[0]
    return whole(value, what)


def conv_transpose1d(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: int = 1,
    padding: int = 0,
    output_padding: int = 0,
    groups: int = 1,
    dilation: int = 1,
) -> Array:
    """Computes :func:`conv_transpose2d` for ``input[n, c, l]`` and ``weight[c, o / groups, k]``."""
    x = _array(input)
    s, p, o, d = (
        _one(v, f"conv_transpose1d: {k}")
        for k, v in (
            ("stride", stride), ("padding", padding),
            ("output_padding", output_padding), ("dilation", dilation),
        )
    )  # fmt: skip
    rows = ops.expand_dims(x, 2)
    w = ops.expand_dims(x.graph.lift(weight), 2)
    y = conv_transpose2d(rows, w, bias, (1, s), (0, p), (0, o), groups, (1, d))
    return y.squeeze(2)


# ---- pooling -------------------------------------------------------------------------------------


def _sizes(x: Array, wanted: Any, n: int, what: str) -> list[int]:
    """Returns the sizes of the last n axes of the result; None keeps the size of an axis."""
    given = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted] * n
    if len(given) != n or x.ndim < n + 1:
        raise ValueError(
            located(f"{what}: output_size={wanted!r} does not fit an input of {x.shape}")
        )
    here = x.shape[-n:]
    return [
        m if s is None else whole(s, f"{what}: a size") for s, m in zip(given, here, strict=True)
    ]


def _adaptive(x: Array, axis: int, size: int, name: str) -> Array:
    """Returns the mean or largest element of ``size`` windows over an axis, like PyTorch."""
    n = x.shape[axis]
    if size == n:
        return x
    if not 0 < size <= _MOST:
        raise ValueError(
            located(f"an adaptive pool supports 1 to {_MOST} outputs along an axis, not {size}")
        )
    if n % size == 0:
        split = x.reshape([*x.shape[:axis], size, n // size, *x.shape[axis + 1 :]])
        return split.mean(axis + 1) if name == "mean" else split.max(axis + 1)
    parts = []
    for i in range(size):
        window = x[(slice(None),) * axis + (slice(i * n // size, -(-(i + 1) * n // size)),)]
        parts.append(window.mean(axis) if name == "mean" else window.max(axis))
    return ops.stack(parts, axis)


def _adaptive_pool(input: ArrayLike, wanted: Any, n: int, name: str, what: str) -> Array:
    x = _float(input)
    for i, size in enumerate(_sizes(x, wanted, n, what)):
        x = _adaptive(x, x.ndim - n + i, size, name)
    return x


def adaptive_avg_pool1d(input: ArrayLike, output_size: int | Sequence[int]) -> Array:
    """Returns the means of ``output_size`` windows of ``input[.., l]``."""
    return _adaptive_pool(input, output_size, 1, "mean", "adaptive_avg_pool1d")


def adaptive_avg_pool2d(input: ArrayLike, output_size: Any) -> Array:
    """Returns the means of ``output_size`` windows (one size, or two) of ``input[.., h, w]``. A
    size of 1 gives the mean of all positions."""
    return _adaptive_pool(input, output_size, 2, "mean", "adaptive_avg_pool2d")


def adaptive_max_pool1d(
    input: ArrayLike, output_size: int | Sequence[int], return_indices: bool = False
) -> Array:
    """Returns the largest elements of ``output_size`` windows of ``input[.., l]``; equal elements
    share the gradient."""
    not_built("adaptive_max_pool1d", return_indices=(return_indices, False))
    return _adaptive_pool(input, output_size, 1, "max", "adaptive_max_pool1d")


def adaptive_max_pool2d(input: ArrayLike, output_size: Any, return_indices: bool = False) -> Array:
    """Returns the largest elements of ``output_size`` windows of ``input[.., h, w]``; equal
    elements share the gradient."""
    not_built("adaptive_max_pool2d", return_indices=(return_indices, False))
    return _adaptive_pool(input, output_size, 2, "max", "adaptive_max_pool2d")


def lp_pool2d(
    input: ArrayLike,
    norm_type: float,
    kernel_size: Any,
    stride: Any = None,
    ceil_mode: bool = False,
) -> Array:
    """Returns the p-norm of each window of ``input[n, c, h, w]``."""
    if ceil_mode:
        raise NotImplementedError(located("lp_pool2d: ceil_mode=True is not supported"))
    p, (kh, kw) = number("lp_pool2d", norm_type=norm_type), pair(kernel_size, "lp_pool2d")
    sh, sw = (kh, kw) if stride is None else pair(stride, "lp_pool2d: stride")
    window = {
        "kernel_h": kh,
        "kernel_w": kw,
        "stride_h": sh,
        "stride_w": sw,
        "pad_h": 0,
        "pad_w": 0,
    }
    x = images(input, "lp_pool2d")
    total = ops.power(x, p)._apply("avg_pool2d", **window) * float(kh * kw)
    return ops.power(total, 1.0 / p)


# ---- windows -------------------------------------------------------------------------------------


def _places(x: Array, kernel: Any, dilation: Any, padding: Any, stride: Any, what: str) -> Any:
    return [
        pair(v, f"{what}: {k}")
        for k, v in (
            ("kernel_size", kernel), ("dilation", dilation),
            ("padding", padding), ("stride", stride),
        )
    ]  # fmt: skip


def unfold(
    input: ArrayLike, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Array:
    """Returns the windows of ``input[n, c, h, w]`` as columns: ``[n, c * kh * kw, windows]``."""
    x = images(input, "unfold")
    k, d, p, s = _places(x, kernel_size, dilation, padding, stride, "unfold")
    x = ops.pad(x, [(0, 0), (0, 0), (p[0], p[0]), (p[1], p[1])])
    out = [(x.shape[2 + i] - d[i] * (k[i] - 1) - 1) // s[i] + 1 for i in (0, 1)]
    if min(out) < 1 or min(k) < 1 or k[0] * k[1] > _MOST:
        raise ValueError(located(f"unfold: windows of {k} do not fit an input of {x.shape}"))
    parts = []
    for i in range(k[0]):
        for j in range(k[1]):
            rows = slice(i * d[0], i * d[0] + (out[0] - 1) * s[0] + 1, s[0])
            columns = slice(j * d[1], j * d[1] + (out[1] - 1) * s[1] + 1, s[1])
            parts.append(x[:, :, rows, columns])
    n, c = x.shape[:2]
    return ops.stack(parts, 2).reshape(n, c * k[0] * k[1], out[0] * out[1])


def fold(
    input: ArrayLike,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Array:
    """Adds columns ``[n, c * kh * kw, windows]`` where :func:`unfold` takes them from."""
    x = _float(input)
    k, d, p, s = _places(x, kernel_size, dilation, padding, stride, "fold")
    size = [m + 2 * q for m, q in zip(pair(output_size, "fold: output_size"), p, strict=True)]
    out = [(size[i] - d[i] * (k[i] - 1) - 1) // s[i] + 1 for i in (0, 1)]
    if min(k) < 1 or k[0] * k[1] > _MOST:
        raise ValueError(located(f"fold: windows must have 1 to {_MOST} elements, got {k}"))
    if x.ndim != 3 or x.shape[1] % (k[0] * k[1]) or x.shape[2] != out[0] * out[1]:
        raise ValueError(
            located(f"fold: columns {x.shape} do not fit {out[0]} x {out[1]} windows of {k}")
        )
    blocks = x.reshape(x.shape[0], x.shape[1] // (k[0] * k[1]), k[0], k[1], *out)
    total: Array | None = None
    for i in range(k[0]):
        for j in range(k[1]):
            part = blocks[:, :, i, j]
            for axis, begin in ((0, i * d[0]), (1, j * d[1])):
                reach = begin + (out[axis] - 1) * s[axis] + 1
                part = part._apply(
                    "pad",
                    axis=2 + axis,
                    low=begin,
                    high=size[axis] - reach,
                    interior=s[axis] - 1,
                    value=0.0,
                )
            total = part if total is None else total + part
    assert total is not None
    return total[:, :, p[0] : size[0] - p[0], p[1] : size[1] - p[1]]


def pixel_shuffle(input: ArrayLike, upscale_factor: int) -> Array:
    """Rearranges ``[n, c * r * r, h, w]`` to ``[n, c, h * r, w * r]``."""
    x = images(input, "pixel_shuffle")
    r = whole(upscale_factor, "pixel_shuffle: upscale_factor")
    n, c, h, w = x.shape
    if r < 1 or c % (r * r):
        raise ValueError(located(f"pixel_shuffle: {c} channels are not a multiple of {r * r}"))
    parts = x.reshape(n, c // (r * r), r, r, h, w).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, c // (r * r), h * r, w * r)


def pixel_unshuffle(input: ArrayLike, downscale_factor: int) -> Array:
    """Rearranges ``[n, c, h * r, w * r]`` to ``[n, c * r * r, h, w]``."""
    x = images(input, "pixel_unshuffle")
    r = whole(downscale_factor, "pixel_unshuffle: downscale_factor")
    n, c, h, w = x.shape
    if r < 1 or h % r or w % r:
        raise ValueError(located(f"pixel_unshuffle: {h} x {w} are not multiples of {r}"))
    parts = x.reshape(n, c, h // r, r, w // r, r).transpose(0, 1, 3, 5, 2, 4)
    return parts.reshape(n, c * r * r, h // r, w // r)


def channel_shuffle(input: ArrayLike, groups: int) -> Array:
    """Interleaves the channels of ``groups`` groups of ``[n, c, ..]``."""
    x = _array(input)
    g = whole(groups, "channel_shuffle: groups")
    if x.ndim < 2 or g < 1 or x.shape[1] % g:
        raise ValueError(located(f"channel_shuffle: {g} groups do not divide {x.shape}"))
    parts = x.reshape(x.shape[0], g, x.shape[1] // g, *x.shape[2:])
    return parts.swapaxes(1, 2).reshape(x.shape)


def pad(
    input: ArrayLike, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Array:
    """Adds elements around ``input``. ``pad`` has two widths for the last axis, then two for the
    one before it, and so on; negative widths remove elements. ``mode`` is ``"constant"``,
    ``"reflect"``, ``"replicate"`` or ``"circular"``."""
    x = _array(input)
    widths = [whole(n, "pad: a width") for n in pad]
    if len(widths) % 2 or len(widths) > 2 * x.ndim:
        raise ValueError(
            located(f"pad: {len(widths)} widths do not fit an input of shape {x.shape}")
        )
    pairs = [(0, 0)] * x.ndim
    for i in range(len(widths) // 2):
        pairs[-1 - i] = (widths[2 * i], widths[2 * i + 1])
    cut = tuple(
        slice(max(-low, 0), n - max(-high, 0))
        for n, (low, high) in zip(x.shape, pairs, strict=True)
    )
    x = x[cut]
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if mode not in names:
        raise ValueError(located(f"pad: mode={mode!r} is not one of {', '.join(names)}"))
    more = [(max(low, 0), max(high, 0)) for low, high in pairs]
    return ops.pad(x, more, names[mode], 0.0 if value is None else value)


# ---- resizing ------------------------------------------------------------------------------------


def _nearest(x: Array, axis: int, size: int, scale: float, exact: bool) -> Array:
    n = x.shape[axis]
    if size % n == 0 and scale == size / n:
        spread = [*x.shape[: axis + 1], size // n, *x.shape[axis + 1 :]]
        wide = ops.broadcast_to(ops.expand_dims(x, axis + 1), spread)
        return wide.reshape([*x.shape[:axis], size, *x.shape[axis + 1 :]])
    rows = np.floor((np.arange(size) + (0.5 if exact else 0.0)) / scale).astype(np.int64)
    return x.take(np.minimum(rows, n - 1), axis)


def _linear(x: Array, axis: int, size: int, scale: float, corners: bool) -> Array:
    """Interpolates linearly along one axis, at positions that are known while tracing."""
    n = x.shape[axis]
    if corners:
        at = np.arange(size) * ((n - 1) / (size - 1) if size > 1 else 0.0)
    else:
        at = np.maximum((np.arange(size) + 0.5) / scale - 0.5, 0.0)
    low = np.minimum(np.floor(at).astype(np.int64), n - 1)
    high = np.minimum(low + 1, n - 1)
    share = x.graph.lift((at - low).reshape([-1 if a == axis else 1 for a in range(x.ndim)]))
    share = share.astype(x.dtype)
    return x.take(low, axis) * (1.0 - share) + x.take(high, axis) * share


def interpolate(
    input: ArrayLike,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Array:
    """Resizes ``input[n, c, ..]`` to ``size``, or to ``scale_factor`` times its size.

    Args:
        mode: ``"nearest"``, ``"nearest-exact"``, ``"linear"`` (one axis), ``"bilinear"`` (two),
            ``"trilinear"`` (three) or ``"area"``.

    Raises:
        ValueError: if both or neither of ``size`` and ``scale_factor`` are given, or the mode does
            not fit.
        NotImplementedError: for ``"bicubic"`` and ``antialias``.
    """
    x = _float(input)
    n = x.ndim - 2
    if n < 1 or (size is None) == (scale_factor is None):
        raise ValueError(
            located("interpolate: expected input[n, c, ..], and either size or scale_factor")
        )
    if mode == "bicubic" or antialias:
        raise NotImplementedError(located("interpolate: bicubic and antialias are not supported"))
    linear = {"linear": 1, "bilinear": 2, "trilinear": 3}
    if mode not in ("nearest", "nearest-exact", "area") and linear.get(mode) != n:
        raise ValueError(located(f"interpolate: mode={mode!r} does not fit an input of {x.shape}"))
    if size is not None:
        sizes = _sizes(x, size, n, "interpolate")
        scales = [s / m for s, m in zip(sizes, x.shape[2:], strict=True)]
    else:
        given = scale_factor if isinstance(scale_factor, (tuple, list)) else [scale_factor] * n
        scales = [float(s) for s in given]
        sizes = [math.floor(m * s) for m, s in zip(x.shape[2:], scales, strict=True)]
        if recompute_scale_factor:
            scales = [s / m for s, m in zip(sizes, x.shape[2:], strict=True)]
    if mode == "area":
        return _adaptive_pool(x, sizes, n, "mean", "interpolate")
    for i, (one, scale) in enumerate(zip(sizes, scales, strict=True)):
        if mode in linear:
            x = _linear(x, 2 + i, one, scale, bool(align_corners))
        else:
            x = _nearest(x, 2 + i, one, scale, mode == "nearest-exact")
    return x


def upsample(
    input: ArrayLike,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Array:
    """Resizes like :func:`interpolate`; this is its older name."""
    return interpolate(input, size, scale_factor, mode, align_corners)


# ---- others --------------------------------------------------------------------------------------


def bilinear(
    input1: ArrayLike, input2: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None
) -> Array:
    """Computes ``input1[.., i] weight[o, i, j] input2[.., j] + bias[o]``."""
    from ..frontend.products import einsum

    y = einsum("...i,oij,...j->...o", input1, weight, input2)
    return y if bias is None else y + bias


def embedding_bag(
    input: ArrayLike,
    weight: ArrayLike,
    offsets: None = None,
    max_norm: None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: ArrayLike | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Array:
    """Returns the mean, sum or largest elements of the rows of ``weight`` at each row of ``input[n,
    m]``. ``offsets`` are not supported, because the sizes of bags would be unknown."""
    if offsets is not None or max_norm is not None or scale_grad_by_freq or sparse:
        raise NotImplementedError(
            located(
                "embedding_bag: offsets, max_norm, scale_grad_by_freq and sparse are not supported"
            )
        )
    not_built(
        "embedding_bag",
        include_last_offset=(include_last_offset, False),
        padding_idx=(padding_idx, None),
    )
    table = _array(weight)
    found = table._apply("embedding", table.graph.lift(input))
    if found.ndim != 3:
        raise ValueError(located("embedding_bag: expected input[n, m]"))
    if per_sample_weights is not None:
        found = found * ops.expand_dims(per_sample_weights, -1)
    if mode not in ("mean", "sum", "max"):
        raise ValueError(located(f"embedding_bag: mode={mode!r} is not 'mean', 'sum' or 'max'"))
    if mode == "mean":
        return ops.mean(found, 1)
    return ops.max(found, 1) if mode == "max" else ops.sum(found, 1)


def _dropped(input: ArrayLike, p: float, training: bool, what: str) -> Array:
    """Drops whole channels of ``input[n, c, ..]``."""
    x = _float(input)
    share = number(what, p=p)
    if not 0 <= share <= 1:
        raise ValueError(located(f"{what}: p={share} is not in [0, 1]"))
    if not flag(what, training=training) or share == 0:
        return x
    if share == 1:
        return x * 0.0
    ones = x.graph.full(x.shape[:2], 1.0, x.dtype)
    graph = random_graph(x)
    mask: Array = graph.apply("dropout", (ones,), {"p": share, "stream": graph.next_stream()})[0]
    return x * mask.reshape([*mask.shape, *[1] * (x.ndim - 2)])


def dropout1d(
    input: ArrayLike, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Array:
    """Drops whole channels of ``input[n, c, l]`` with probability ``p``."""
    not_built("dropout1d", inplace=(inplace, False))
    return _dropped(input, p, training, "dropout1d")


def dropout2d(
    input: ArrayLike, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Array:
    """Drops whole channels of ``input[n, c, h, w]`` with probability ``p``."""
    not_built("dropout2d", inplace=(inplace, False))
    return _dropped(input, p, training, "dropout2d")


feature_dropout = dropout2d


def alpha_dropout(
    input: ArrayLike, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Array:
    """Sets elements to SELU's lower bound with probability ``p``, keeping mean and variance."""
    not_built("alpha_dropout", inplace=(inplace, False))
    x, share = _float(input), number("alpha_dropout", p=p)
    if not training or share == 0:
        return x
    low = -1.7580993408473766
    a = ((1 - share) * (1 + share * low * low)) ** -0.5
    kept = ops.uniform(x.shape, "f32") >= share
    return ops.where(kept, x, low) * a + (-a * share * low)  # type: ignore[no-any-return]
