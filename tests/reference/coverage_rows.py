"""Has a row for each composed operation, with a call of it and the equivalent in NumPy or
``torch.nn.functional``. Rows are called on arrays of three shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import cutback
import cutback.nn.functional as F

SHAPES = ((4, 6), (3, 5, 8), (2, 7))
IMAGES = ((2, 4, 6, 6), (1, 8, 4, 8), (3, 4, 8, 4))
LINES = ((2, 4, 6), (1, 8, 9), (3, 4, 5))


class Row(NamedTuple):
    name: str
    call: Callable[[Any, Any], Any]
    """Called with the namespace (cutback, or the oracle's) and an array."""
    oracle: str = "numpy"
    domain: str = "any"
    """``"any"``, ``"positive"``, ``"unit"`` (between -1 and 1), or ``"integers"``."""
    shapes: tuple[tuple[int, ...], ...] = SHAPES
    smooth: bool = True
    """True if it has a gradient that is compared."""
    digits: float = 1e-12


def _rows(names: str, **options: Any) -> list[Row]:
    return [Row(n, lambda m, x, n=n: getattr(m, n)(x), **options) for n in names.split()]


def _torch(name: str, *args: Any, **options: Any) -> Row:
    fixed = {k: options.pop(k) for k in ("shapes", "domain", "smooth", "digits") if k in options}
    return Row(name, lambda m, x: getattr(m, name)(x, *args, **options), "torch", **fixed)


NUMPY = [
    *_rows("abs absolute cos cosh exp exp2 expm1 negative positive sin sinh square tanh"),
    *_rows("log log10 log1p log2 reciprocal sqrt", domain="positive"),
    *_rows("arctanh tan arcsin arccos", domain="unit"),
    *_rows("arctan arcsinh"),
    Row("arccosh", lambda m, x: m.arccosh(x + 1), domain="positive"),
    Row("cbrt", lambda m, x: m.cbrt(x), domain="positive"),
    Row("arctan2", lambda m, x: m.arctan2(x, x * 2 + 1)),
    Row("remainder", lambda m, x: m.remainder(x, 0.3) + m.mod(7, x * x + 1), smooth=False),
    Row("fmod", lambda m, x: m.fmod(x, -0.3), smooth=False),
    Row("floor_divide", lambda m, x: m.floor_divide(x, 0.3) + (-x) // 2, smooth=False),
    Row("divmod", lambda m, x: m.divmod(x, 2)[0] + 10 * m.divmod(x, 2)[1] + x % -2, smooth=False),
    *_rows("any all count_nonzero argmax argmin argsort", smooth=False),
    *_rows("ceil floor fix trunc round sign isnan isinf isfinite signbit", smooth=False),
    *_rows("sum mean max min amax amin var std prod ptp median cumsum cumprod nansum"),
    *_rows("ravel transpose squeeze sort diff nan_to_num copy atleast_1d atleast_2d atleast_3d"),
    *_rows("triu tril flip flipud fliplr rot90 asarray array diagonal"),
    *_rows("ones_like zeros_like logical_not", smooth=False),
    Row("all of an axis", lambda m, x: m.all(x > -1, axis=-1), smooth=False),
    Row("average", lambda m, x: m.average(x, axis=-1, weights=m.arange(x.shape[-1]) + 1)),
    Row("clip", lambda m, x: m.clip(x, None, 0.3)),
    Row("isclose", lambda m, x: m.isclose(x, x + 1e-7), smooth=False),
    Row("allclose", lambda m, x: m.allclose(x, x), smooth=False),
    Row("logical_xor", lambda m, x: m.logical_xor(x > 0, x > 1), smooth=False),
    Row("logaddexp", lambda m, x: m.logaddexp(x, x * x)),
    Row("hypot", lambda m, x: m.hypot(x, x * 2 + 1)),
    Row("copysign", lambda m, x: m.copysign(x * x, x)),
    Row("add", lambda m, x: m.add(x, m.multiply(x, m.subtract(x, 2.0)))),
    Row("divide", lambda m, x: m.divide(x, m.power(m.maximum(x, 0.5), 1.5))),
    Row("less", lambda m, x: m.less(x, 0) | m.greater_equal(x, 1), smooth=False),
    Row("equal", lambda m, x: m.equal(x, x) & m.not_equal(x, 0), smooth=False),
    Row("where", lambda m, x: m.where(x > 0, x, m.minimum(x * 2, -0.1))),
    Row("einsum product", lambda m, x: m.einsum("...ij,...kj->...ik", x, x)),
    Row("einsum sum", lambda m, x: m.einsum("...i->...", x)),
    Row("einsum three", lambda m, x: m.einsum("...i,...i,...j->...j", x, x, x)),
    Row("einsum diagonal", lambda m, x: m.einsum("ii->i", x[..., :2, :2].reshape(-1, 2)[:2])),
    Row("einsum trace", lambda m, x: m.einsum("ii", x[..., :2, :2].reshape(-1, 2)[:2])),
    Row("tensordot", lambda m, x: m.tensordot(x, x, axes=((0,), (0,)))),
    Row("tensordot number", lambda m, x: m.tensordot(x, m.transpose(x), axes=1)),
    Row("dot", lambda m, x: m.dot(x, x[..., 0, :].reshape(-1)[: x.shape[-1]])),
    Row("inner", lambda m, x: m.inner(x, x)),
    Row("vdot", lambda m, x: m.vdot(x, x + 1)),
    Row("outer", lambda m, x: m.outer(x, x + 1)),
    Row("kron", lambda m, x: m.kron(x, m.array([[1.0, 2.0]]))),
    Row("cross", lambda m, x: m.cross(x[..., :3].reshape(-1)[:3], m.array([1.0, 2.0, 4.0]))),
    Row("convolve", lambda m, x: m.convolve(x.reshape(-1), m.array([1.0, 2.0, 0.5]))),
    Row("convolve same", lambda m, x: m.convolve(x.reshape(-1), m.array([1.0, 2.0]), "same")),
    Row("norm", lambda m, x: m.linalg.norm(x)),
    Row("norm rows", lambda m, x: m.linalg.norm(x, axis=-1, keepdims=True)),
    Row("norm 1", lambda m, x: m.linalg.norm(x, 1, axis=0)),
    Row("norm inf", lambda m, x: m.linalg.norm(x, np.inf, axis=0)),
    Row("norm 3", lambda m, x: m.linalg.norm(x, 3, axis=-1)),
    Row("matrix norm", lambda m, x: m.linalg.norm(x.reshape(x.shape[0], -1), 1)),
    Row("multi_dot", lambda m, x: m.linalg.multi_dot([x.reshape(x.shape[0], -1)] * 1
        + [x.reshape(x.shape[0], -1).T, x.reshape(x.shape[0], -1)])),
    Row("linalg.trace", lambda m, x: m.linalg.trace(x.reshape(-1)[:4].reshape(2, 2))),
    Row("moveaxis", lambda m, x: m.moveaxis(x, 0, -1)),
    Row("swapaxes", lambda m, x: m.swapaxes(x, 0, 1)),
    Row("expand_dims", lambda m, x: m.expand_dims(x, (0, 2))),
    Row("reshape", lambda m, x: m.reshape(x, (-1, 1))),
    Row("broadcast_to", lambda m, x: m.broadcast_to(x, (2, *x.shape))),
    Row("concatenate", lambda m, x: m.concatenate([x, x * 2], axis=1)),
    Row("stack", lambda m, x: m.stack([x, x * 2], axis=1)),
    Row("hstack", lambda m, x: m.hstack([x, x])),
    Row("vstack", lambda m, x: m.vstack([x, x])),
    Row("dstack", lambda m, x: m.dstack([x, x])),
    Row("column_stack", lambda m, x: m.column_stack([x.reshape(-1), x.reshape(-1)])),
    Row("split", lambda m, x: m.split(x, [1, 3], axis=-1)[1]),
    Row("array_split", lambda m, x: m.array_split(x, 3, axis=-1)[0]),
    Row("hsplit", lambda m, x: m.hsplit(x, [2])[0]),
    Row("vsplit", lambda m, x: m.vsplit(x, [1])[1]),
    Row("tile", lambda m, x: m.tile(x, (2, 1, 3))),
    Row("repeat", lambda m, x: m.repeat(x, 3, axis=0)),
    Row("repeat all", lambda m, x: m.repeat(x, 2)),
    Row("roll", lambda m, x: m.roll(x, 2, axis=-1)),
    Row("roll all", lambda m, x: m.roll(x, -3)),
    Row("diag", lambda m, x: m.diag(x.reshape(-1)[:5], 1)),
    Row("diag of a matrix", lambda m, x: m.diag(x.reshape(x.shape[0], -1), -1)),
    Row("triu 1", lambda m, x: m.triu(x, 1)),
    Row("take", lambda m, x: m.take(x, [0, 1, 1], axis=0)),
    Row("take_along_axis broadcast", lambda m, x: m.take_along_axis(
        x, np.arange(3).reshape((1,) * (x.ndim - 1) + (3,)), axis=-1)),
    Row("take_along_axis", lambda m, x: m.take_along_axis(x, m.argsort(x, axis=-1), axis=-1)),
    Row("pad", lambda m, x: m.pad(x, 2)),
    Row("pad edge", lambda m, x: m.pad(x, 1, mode="edge")),
    Row("pad reflect", lambda m, x: m.pad(x, 1, mode="reflect")),
    Row("pad wrap", lambda m, x: m.pad(x, 1, mode="wrap")),
    Row("meshgrid", lambda m, x: m.meshgrid(x[0].reshape(-1), x[1].reshape(-1))[0]),
    Row("percentile", lambda m, x: m.percentile(x, [10, 50], axis=0)),
    Row("median keepdims", lambda m, x: m.median(x, axis=-1, keepdims=True)),
    Row("searchsorted", lambda m, x: m.searchsorted(m.arange(5.0) - 2, x), smooth=False),
    Row("interp", lambda m, x: m.interp(x, m.arange(5.0) - 2, m.arange(5.0) ** 2)),
    Row("diff 2", lambda m, x: m.diff(x, 2, axis=0)),
    Row("cumsum axis", lambda m, x: m.cumsum(x, axis=0)),
    Row("round 2", lambda m, x: m.round(x, 2), smooth=False),
    Row("argsort axis", lambda m, x: m.argsort(x, axis=0), smooth=False),
    Row("sort all", lambda m, x: m.sort(x, axis=None)),
    Row("eye", lambda m, x: x[..., :2] @ m.eye(2, 3, 1)),
    Row("identity", lambda m, x: x @ m.identity(x.shape[-1])),
    Row("linspace", lambda m, x: x * m.linspace(0, 1, x.shape[-1])),
    Row("arange", lambda m, x: x * m.arange(0.0, x.shape[-1])),
    Row("full_like", lambda m, x: m.full_like(x, 2.0) * x),
    Row("full", lambda m, x: m.full(x.shape, 2.0) * m.ones(x.shape) * x + m.zeros(x.shape)),
    Row("empty", lambda m, x: x * m.empty(x.shape).shape[0] * m.empty_like(x).ndim),
    Row("tri", lambda m, x: x * m.tri(x.shape[-2], x.shape[-1])),
    Row("size", lambda m, x: x * (m.size(x) + m.ndim(x) + m.shape(x)[0])),
    Row("matmul", lambda m, x: m.matmul(x, m.swapaxes(x, -1, -2))),
    Row("newaxis", lambda m, x: x[m.newaxis] * m.pi),
]  # fmt: skip

_W = np.random.default_rng(5).standard_normal((4, 4, 3, 3)) * 0.3
_T = np.random.default_rng(6).random((64, 64, 64))


def _target(x: Any) -> Any:
    """Returns a fixed target in [0, 1) with the shape of ``x``."""
    return np.resize(_T.ravel(), x.shape)


def _loss(name: str, **options: Any) -> Row:
    domain = options.pop("domain", "any")
    return Row(
        name, lambda m, x: getattr(m, name)(x, m.given(_target(x)), **options), "torch", domain
    )


def _classes(name: str, **options: Any) -> Row:
    def call(m: Any, x: Any) -> Any:
        flat = x.reshape(-1, x.shape[-1])
        labels = np.arange(flat.shape[0]) % flat.shape[-1]
        more = {k: m.given(v(flat)) if callable(v) else v for k, v in options.items()}
        return getattr(m, name)(flat, m.given(labels), **more)

    return Row(name, call, "torch")


def _signs(name: str, n: int) -> Row:
    def call(m: Any, x: Any) -> Any:
        flat = x.reshape(-1, x.shape[-1])
        size = flat.shape if name == "hinge_embedding_loss" else flat.shape[:1]
        signs = np.where(np.arange(int(np.prod(size))).reshape(size) % 2, 1.0, -1.0)
        if name == "margin_ranking_loss":
            return getattr(m, name)(flat[:, 0], flat[:, 1], m.given(signs), margin=0.3)
        parts = (flat, m.given(_target(flat)))[:n]
        return getattr(m, name)(*parts, m.given(signs), margin=0.2)

    return Row(name, call, "torch")


def _weight(x: Any) -> Any:
    return np.linspace(0.5, 1.5, x.shape[-1])


TORCH = [
    *(_torch(n) for n in ["celu", "elu", "gelu", "hardswish", "hardtanh", "leaky_relu"]),
    *(_torch(n) for n in ["logsigmoid", "mish", "relu", "relu6", "selu", "silu", "softplus"]),
    *(_torch(n) for n in ["softshrink", "hardshrink", "softsign", "tanh", "tanhshrink"]),
    *(_torch(n, dim=-1) for n in ["softmax", "log_softmax", "softmin"]),
    _torch("glu", dim=0, shapes=((4, 6), (2, 5, 8))),
    _torch("hardsigmoid", digits=1e-8),  # PyTorch has 1 / 6 in f32
    _torch("threshold", 0.1, 0.3),
    _torch("rrelu"),
    Row("prelu", lambda m, x: m.prelu(x, m.given(np.array([0.2]))), "torch"),
    _torch("normalize", dim=-1), _torch("normalize", p=1.0, dim=0),
    *(_loss(n) for n in ["mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"]),
    _loss("binary_cross_entropy", domain="share"),
    _loss("binary_cross_entropy_with_logits", reduction="sum"),
    _loss("kl_div", reduction="batchmean"), _loss("poisson_nll_loss"),
    _loss("soft_margin_loss"),
    Row("gaussian_nll_loss", lambda m, x: m.gaussian_nll_loss(
        x, m.given(_target(x)), m.given(_target(x) + 0.1)), "torch"),
    _classes("cross_entropy"), _classes("cross_entropy", label_smoothing=0.1),
    _classes("cross_entropy", weight=_weight, label_smoothing=0.2),
    _classes("cross_entropy", weight=_weight, reduction="none"),
    _classes("nll_loss"), _classes("nll_loss", weight=_weight, ignore_index=1),
    _classes("multi_margin_loss"), _classes("multi_margin_loss", p=2, weight=_weight),
    _signs("cosine_embedding_loss", 2), _signs("hinge_embedding_loss", 1),
    _signs("margin_ranking_loss", 2),
    Row("cosine_similarity", lambda m, x: m.cosine_similarity(
        x, m.given(_target(x)), dim=-1), "torch"),
    Row("pairwise_distance", lambda m, x: m.pairwise_distance(x, m.given(_target(x))), "torch"),
    Row("triplet_margin_loss", lambda m, x: m.triplet_margin_loss(
        x, x * 0.5, m.given(_target(x)), swap=True), "torch"),
    _torch("group_norm", 2, shapes=IMAGES),
    _torch("instance_norm", shapes=IMAGES),
    _torch("local_response_norm", 3, shapes=IMAGES),
    Row("group_norm affine", lambda m, x: m.group_norm(
        x, 4, m.given(np.linspace(1, 2, x.shape[1])), m.given(np.ones(x.shape[1]))), "torch",
        shapes=IMAGES),
    _torch("avg_pool1d", 2, shapes=LINES), _torch("max_pool1d", 2, shapes=LINES),
    _torch("adaptive_avg_pool1d", 3, shapes=LINES), _torch("adaptive_avg_pool2d", 1, shapes=IMAGES),
    _torch("adaptive_avg_pool2d", (3, 2), shapes=IMAGES),
    _torch("adaptive_max_pool2d", (3, 2), shapes=IMAGES),
    _torch("adaptive_max_pool1d", 3, shapes=LINES),
    _torch("avg_pool2d", 2, shapes=IMAGES), _torch("max_pool2d", 2, shapes=IMAGES),
    _torch("lp_pool2d", 2.0, 2, shapes=IMAGES),
    _torch("unfold", (3, 2), padding=1, shapes=IMAGES),
    Row("fold", lambda m, x: m.fold(m.unfold(x, 2, stride=2), x.shape[2:], 2, stride=2), "torch",
        shapes=IMAGES),
    _torch("pixel_shuffle", 2, shapes=IMAGES), _torch("pixel_unshuffle", 2, shapes=IMAGES),
    _torch("channel_shuffle", 2, shapes=IMAGES),
    _torch("interpolate", scale_factor=2, shapes=IMAGES),
    _torch("interpolate", size=(5, 7), shapes=IMAGES),
    _torch("interpolate", scale_factor=2, mode="bilinear", shapes=IMAGES),
    _torch("interpolate", size=(5, 7), mode="bilinear", align_corners=True, shapes=IMAGES),
    _torch("interpolate", size=(2, 2), mode="area", shapes=IMAGES),
    _torch("pad", (1, 2), shapes=SHAPES),
    _torch("pad", (1, 2, 0, 1), mode="reflect", shapes=IMAGES),
    _torch("pad", (1, 1, 1, 1), mode="replicate", shapes=IMAGES),
    _torch("pad", (1, 1), mode="circular", shapes=LINES), _torch("pad", (-1, 2), shapes=LINES),
    Row("conv1d", lambda m, x: m.conv1d(
        x[:, :4], m.given(_W[:, :, 0]), padding=1), "torch", shapes=LINES),
    Row("conv2d", lambda m, x: m.conv2d(x[:, :4], m.given(_W), stride=2), "torch", shapes=IMAGES),
    Row("conv_transpose1d", lambda m, x: m.conv_transpose1d(
        x[:, :4], m.given(_W[:, :, 0]), stride=2, output_padding=1), "torch", shapes=LINES),
    Row("conv_transpose2d", lambda m, x: m.conv_transpose2d(
        x[:, :4], m.given(_W), m.given(np.ones(4)), stride=2, padding=1), "torch", shapes=IMAGES),
    Row("bilinear", lambda m, x: m.bilinear(
        x[..., :3], x[..., :4], m.given(np.ones((2, 3, 4)))), "torch", shapes=((4, 6), (3, 5, 8))),
    Row("linear", lambda m, x: m.linear(x[..., :3], m.given(_W[0, :, :, 0])), "torch"),
    Row("layer_norm", lambda m, x: m.layer_norm(x, (x.shape[-1],)), "torch"),
    Row("rms_norm", lambda m, x: m.rms_norm(x, (x.shape[-1],)), "torch"),
    Row("embedding_bag", lambda m, x: m.embedding_bag(
        m.given(np.array([[0, 1], [1, 1]])), x.reshape(-1, x.shape[-1])), "torch"),
    Row("embedding", lambda m, x: m.embedding(
        m.given(np.array([[0, 1], [1, 1]])), x.reshape(-1, x.shape[-1])), "torch"),
]  # fmt: skip


def drawn(row: Row, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    # distinct numbers, not so close to a kink that finite differences would cross it
    n = int(np.prod(shape))
    x = np.random.default_rng(7).permutation(np.linspace(-2.0137, 1.9871, n)).reshape(shape)
    if row.domain == "positive":
        x = np.abs(x) + 0.1
    elif row.domain == "unit":
        x = np.tanh(x) * 0.9
    elif row.domain == "share":
        x = 1 / (1 + np.exp(-x))
    return x.astype(dtype)


class Ours:
    """cutback.nn.functional, with constants unchanged."""

    given = staticmethod(lambda x: x)

    def __getattr__(self, name: str) -> Any:
        return getattr(F, name)


def ours(row: Row, x: Any) -> Any:
    return row.call(cutback if row.oracle == "numpy" else Ours(), x)


def weighted(y: Any) -> Any:
    """Returns a scalar to differentiate: each element has a different weight."""
    w = np.linspace(0.5, 1.5, y.size).reshape(y.shape)
    return (y * w).sum()
