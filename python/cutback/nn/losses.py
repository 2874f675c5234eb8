"""Losses with the signatures of ``torch.nn.functional``, composed of other operations. Class scores
are in the last axis. ``reduction`` is ``"mean"``, ``"sum"`` or ``"none"``."""

from __future__ import annotations

import math

from ..frontend import ops
from ..frontend.elementwise import _float, _pair
from ..frontend.tracer import Array, ArrayLike, common, whole
from ..source import located
from .activations import softplus
from .arguments import classes_last, number

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss",
    "cosine_similarity", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div",
    "l1_loss", "margin_ranking_loss", "mse_loss", "multi_margin_loss", "nll_loss", "normalize",
    "pairwise_distance", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss",
    "triplet_margin_loss",
]  # fmt: skip


def _reduced(name: str, x: Array, reduction: str) -> Array:
    """Applies ``reduction`` to ``x``.

    Raises:
        ValueError: if there is no such reduction.
    """
    if not isinstance(reduction, str) or reduction not in ("mean", "sum", "none"):
        raise ValueError(located(f"{name}: reduction={reduction!r} is not 'mean', 'sum' or 'none'"))
    return x if reduction == "none" else x.mean() if reduction == "mean" else x.sum()


def _same(name: str, input: ArrayLike, target: ArrayLike) -> list[Array]:
    """Converts both to one floating type.

    Raises:
        ValueError: if their shapes differ, which broadcasting would hide.
    """
    x, y = _pair(name, input, target)
    if x.shape != y.shape and y.shape and x.shape:
        raise ValueError(
            located(
                f"{name}: input {x.shape} and target {y.shape} differ; "
                "call cutback.broadcast_to if that is intended"
            )
        )
    return [x, y]


def _weighted(x: Array, weight: ArrayLike | None) -> Array:
    return x if weight is None else x * weight


def mse_loss(
    input: ArrayLike,
    target: ArrayLike,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    weight: ArrayLike | None = None,
) -> Array:
    """Computes ``(input - target)**2``."""
    x, y = _same("mse_loss", input, target)
    return _reduced("mse_loss", _weighted(ops.square(x - y), weight), reduction)


def l1_loss(
    input: ArrayLike,
    target: ArrayLike,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    weight: ArrayLike | None = None,
) -> Array:
    """Computes ``|input - target|``."""
    x, y = _same("l1_loss", input, target)
    return _reduced("l1_loss", _weighted(ops.absolute(x - y), weight), reduction)


def huber_loss(
    input: ArrayLike,
    target: ArrayLike,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: ArrayLike | None = None,
) -> Array:
    """Computes ``d**2 / 2`` for distances d up to ``delta``, and ``delta * (d - delta / 2)``
    beyond."""
    x, y = _same("huber_loss", input, target)
    reach = number("huber_loss", delta=delta)
    d = ops.absolute(x - y)
    near = ops.square(ops.minimum(d, reach)) * 0.5
    loss = ops.where(d < reach, near, (d - 0.5 * reach) * reach)
    return _reduced("huber_loss", _weighted(loss, weight), reduction)


def smooth_l1_loss(
    input: ArrayLike,
    target: ArrayLike,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Array:
    """Computes ``d**2 / (2 beta)`` for distances d below ``beta``, and ``d - beta / 2`` beyond."""
    b = number("smooth_l1_loss", beta=beta)
    if b == 0:
        return l1_loss(input, target, reduction=reduction)
    return huber_loss(input, target, reduction, b) / b


def binary_cross_entropy(
    input: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Array:
    """Computes ``-(y log p + (1 - y) log(1 - p))`` for probabilities p; logarithms are limited to
    at least -100."""
    p, y = _same("binary_cross_entropy", input, target)
    yes, no = ops.maximum(ops.log(p), -100.0), ops.maximum(ops.log1p(-p), -100.0)
    loss = -(y * yes + (1.0 - y) * no)
    return _reduced("binary_cross_entropy", _weighted(loss, weight), reduction)


def binary_cross_entropy_with_logits(
    input: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    pos_weight: ArrayLike | None = None,
) -> Array:
    """Computes the binary cross entropy of sigmoid(input), without overflow. ``pos_weight``
    multiplies the term of positive targets."""
    x, y = _same("binary_cross_entropy_with_logits", input, target)
    tail = ops.log1p(ops.exp(-ops.absolute(x)))
    if pos_weight is None:
        loss = ops.maximum(x, 0.0) - x * y + tail
    else:
        more = (ops.subtract(pos_weight, 1.0)) * y + 1.0
        loss = (1.0 - y) * x + more * (tail + ops.maximum(-x, 0.0))
    return _reduced("binary_cross_entropy_with_logits", _weighted(loss, weight), reduction)


def nll_loss(
    input: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
) -> Array:
    """Returns the negative log-probability ``input[.., c]`` (or ``input[n, c, ..]``) of the class
    ``target[..]``, as in :func:`cross_entropy`. Targets equal to ``ignore_index`` are ignored.
    ``weight[c]`` scales each class; the mean is weighted too."""
    x = _float(input)
    labels = x.graph.lift(target)
    x = classes_last(x, labels, "nll_loss")
    counted = labels != whole(ignore_index, "nll_loss: ignore_index")
    safe = ops.where(counted, labels, 0)
    found = ops.take_along_axis(x, ops.expand_dims(safe, -1), -1).squeeze(-1)
    share = counted.astype(x.dtype)
    if weight is not None:
        share = share * x.graph.lift(weight).astype(x.dtype).take(safe)
    loss = ops.where(counted, -found * share, 0.0)
    if reduction == "mean":
        return loss.sum() / share.sum()
    return _reduced("nll_loss", loss, reduction)


def kl_div(
    input: ArrayLike,
    target: ArrayLike,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Array:
    """Computes ``target * (log(target) - input)`` for log-probabilities ``input``; 0 where the
    target is 0. ``reduction`` may be ``"batchmean"``: the sum divided by the size of axis 0."""
    x, y = _same("kl_div", input, target)
    if log_target:
        loss = ops.exp(y) * (y - x)
    else:
        positive = y > 0
        loss = ops.where(positive, y * (ops.log(ops.where(positive, y, 1.0)) - x), 0.0)
    if reduction == "batchmean":
        return loss.sum() / float(x.shape[0] if x.shape else 1)
    return _reduced("kl_div", loss, reduction)


def poisson_nll_loss(
    input: ArrayLike,
    target: ArrayLike,
    log_input: bool = True,
    full: bool = False,
    size_average: None = None,
    eps: float = 1e-8,
    reduce: None = None,
    reduction: str = "mean",
) -> Array:
    """Computes ``e**x - y x`` or, without ``log_input``, ``x - y log(x + eps)``. ``full`` adds
    Stirling's term where y > 1."""
    x, y = _same("poisson_nll_loss", input, target)
    loss = ops.exp(x) - y * x if log_input else x - y * ops.log(x + eps)
    if full:
        safe = ops.maximum(y, 1.0)
        term = safe * ops.log(safe) - safe + ops.log(safe * (2 * math.pi)) * 0.5
        loss = loss + ops.where(y > 1, term, 0.0)
    return _reduced("poisson_nll_loss", loss, reduction)


def gaussian_nll_loss(
    input: ArrayLike,
    target: ArrayLike,
    var: ArrayLike,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Array:
    """Computes ``(log(var) + (input - target)**2 / var) / 2``, with var limited to at least
    ``eps``."""
    x, y = _same("gaussian_nll_loss", input, target)
    v = ops.maximum(common(x.graph, "gaussian_nll_loss", (x, var))[1], eps)
    loss = (ops.log(v) + ops.square(x - y) / v) * 0.5
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return _reduced("gaussian_nll_loss", loss, reduction)


# ---- distances and margins -----------------------------------------------------------------------


def normalize(
    input: ArrayLike, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None
) -> Array:
    """Divides ``input`` by its p-norm along ``dim``, which is limited to at least ``eps``."""
    x = _float(input)
    small = number("normalize", eps=eps)
    if p == 2:
        # the root of a clipped square, so that the gradient of a zero vector is finite
        size = ops.sqrt(ops.maximum(ops.square(x).sum(dim, keepdims=True), small * small))
    else:
        from ..frontend.products import norm

        size = ops.maximum(norm(x, p, dim, keepdims=True), small)
    return x / size


def cosine_similarity(x1: ArrayLike, x2: ArrayLike, dim: int = 1, eps: float = 1e-8) -> Array:
    """Returns the sum of products along ``dim`` divided by both norms, which are limited to at
    least ``eps``."""
    x, y = _pair("cosine_similarity", x1, x2)
    small = number("cosine_similarity", eps=eps) ** 2
    sizes = [ops.sqrt(ops.maximum(ops.square(v).sum(dim), small)) for v in (x, y)]
    return (x * y).sum(dim) / (sizes[0] * sizes[1])


def pairwise_distance(
    x1: ArrayLike, x2: ArrayLike, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Array:
    """Returns the p-norm of ``x1 - x2 + eps`` along the last axis."""
    from ..frontend.products import norm

    x, y = _pair("pairwise_distance", x1, x2)
    return norm(x - y + eps, p, -1, keepdim)


def cosine_embedding_loss(
    input1: ArrayLike,
    input2: ArrayLike,
    target: ArrayLike,
    margin: float = 0.0,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Array:
    """Computes ``1 - cos`` where the target is 1, and ``max(0, cos - margin)`` where it is -1."""
    x, y = _pair("cosine_embedding_loss", input1, input2)
    # like PyTorch: a small offset is added to the squares, and nothing is clipped
    small = 1e-12
    product, a, b = (x * y).sum(-1), ops.square(x).sum(-1) + small, ops.square(y).sum(-1) + small
    cosine = product / ops.sqrt(a * b)
    label = x.graph.lift(target)
    far = ops.maximum(cosine - margin, 0.0)
    loss = ops.where(label == 1, 1.0 - cosine, ops.where(label == -1, far, 0.0))
    return _reduced("cosine_embedding_loss", loss, reduction)


def hinge_embedding_loss(
    input: ArrayLike,
    target: ArrayLike,
    margin: float = 1.0,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Array:
    """Computes ``input`` where the target is 1, and ``max(0, margin - input)`` where it is -1."""
    x = _float(input)
    label = x.graph.lift(target)
    far = ops.maximum(margin - x, 0.0)
    loss = ops.where(label == 1, x, ops.where(label == -1, far, x + far))
    return _reduced("hinge_embedding_loss", loss, reduction)


def margin_ranking_loss(
    input1: ArrayLike,
    input2: ArrayLike,
    target: ArrayLike,
    margin: float = 0.0,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Array:
    """Computes ``max(0, margin - target * (input1 - input2))``."""
    x, y = _pair("margin_ranking_loss", input1, input2)
    loss = ops.maximum(margin - (x - y) * target, 0.0)
    return _reduced("margin_ranking_loss", loss, reduction)


def soft_margin_loss(
    input: ArrayLike,
    target: ArrayLike,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Array:
    """Computes ``log(1 + e**(-target * input))``."""
    x, y = _same("soft_margin_loss", input, target)
    return _reduced("soft_margin_loss", softplus(-x * y), reduction)


def multi_margin_loss(
    input: ArrayLike,
    target: ArrayLike,
    p: int = 1,
    margin: float = 1.0,
    weight: ArrayLike | None = None,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Array:
    """Returns the mean over the other classes of ``max(0, margin - x[target] + x[other])**p``."""
    x = _float(input)
    labels = x.graph.lift(target)
    chosen = ops.expand_dims(labels, -1)
    right = ops.take_along_axis(x, chosen, -1)
    excess = ops.maximum(x - right + margin, 0.0)
    excess = excess if p == 1 else ops.square(excess)
    if weight is not None:
        excess = excess * ops.expand_dims(x.graph.lift(weight).take(labels), -1)
    other = ops.arange(x.shape[-1]) != chosen
    loss = ops.where(other, excess, 0.0).sum(-1) / float(x.shape[-1])
    return _reduced("multi_margin_loss", loss, reduction)


def triplet_margin_loss(
    anchor: ArrayLike,
    positive: ArrayLike,
    negative: ArrayLike,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Array:
    """Computes ``max(0, d(anchor, positive) - d(anchor, negative) + margin)`` for distances d along
    the last axis. With ``swap``, d(positive, negative) is used instead of d(anchor, negative) if it
    is smaller."""
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = ops.minimum(far, pairwise_distance(positive, negative, p, eps))
    loss = ops.maximum(near - far + margin, 0.0)
    return _reduced("triplet_margin_loss", loss, reduction)
