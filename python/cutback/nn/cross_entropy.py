"""Cross entropy with the signature of ``torch.nn.functional``."""

from __future__ import annotations

from .. import dtypes
from ..frontend.ops import _array, where
from ..frontend.tracer import Array, ArrayLike, whole
from ..source import located
from .activations import log_softmax
from .arguments import as_before, classes_last, like, not_built, number, older_names

__all__ = ["cross_entropy"]


@older_names(logits="input", labels="target")
def cross_entropy(
    input: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Array:
    """Returns the negative log-likelihood of ``target[..]`` (integer classes) under the softmax of
    ``input[.., c]``, or, in PyTorch's layout, of ``target[n, ..]`` under the softmax of ``input[n,
    c, ..]``. If both layouts fit, the last axis holds the classes.

    Rows whose class is ``ignore_index`` are ignored; ``"mean"`` divides by the number of the other
    rows, or, with ``weight``, by the sum of their weights.

    Args:
        target: classes, or probabilities of the shape of ``input``, over its last axis.
        weight: ``[c]``, the weight of each class.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: the share of the target, in [0, 1], that is spread evenly over all classes.

    Raises:
        ValueError, TypeError: if the reduction is unknown, shapes do not fit, or classes are not
            integers.
        NotImplementedError: if ``size_average`` or ``reduce`` is given.
    """
    weight, size_average, ignore_index, reduction = as_before(
        weight, size_average, ignore_index, reduction
    )
    not_built(
        "cross_entropy",
        size_average=(size_average, None),
        reduce=(reduce, None),
    )
    if not isinstance(reduction, str) or reduction not in ("mean", "sum", "none"):
        raise ValueError(
            located(f"cross_entropy: reduction={reduction!r} is not 'mean', 'sum' or 'none'")
        )
    logits = _array(input)
    logits = logits.astype(dtypes.floating(logits.dtype))
    labels = logits.graph.lift(target)
    smooth = number("cross_entropy", label_smoothing=label_smoothing)
    if not 0 <= smooth <= 1:
        raise ValueError(located(f"cross_entropy: label_smoothing={smooth} is not in [0, 1]"))
    if labels.dtype in dtypes.FLOATS and labels.shape == logits.shape:
        return _soft_cross_entropy(logits, labels, weight, reduction, smooth)
    if labels.dtype not in ("i32", "i64"):
        if labels.dtype != "u8":
            raise TypeError(
                located(f"cross_entropy: labels must be integer classes, not {labels.dtype}")
            )
        labels = labels.astype("i32")
    logits = classes_last(logits, labels, "cross_entropy")
    ignore = whole(ignore_index, "cross_entropy: ignore_index")
    if weight is not None or smooth:
        return _weighted_cross_entropy(logits, labels, weight, ignore, reduction, smooth)
    dtype = "f64" if logits.dtype == "f64" else "f32"
    # Count first, so that no other operation runs between the loss of a row and its gradient.
    count = (labels != ignore).astype(dtype).sum() if reduction == "mean" else None
    nll = logits._apply("cross_entropy", labels, ignore=ignore)
    if reduction == "none":
        return nll
    return nll.sum() if count is None else nll.sum() / count


def _soft_cross_entropy(
    logits: Array, target: Array, weight: ArrayLike | None, reduction: str, smooth: float
) -> Array:
    """Computes the cross entropy for targets that are probabilities."""
    share = target.astype(logits.dtype)
    if smooth:
        share = share * (1.0 - smooth) + smooth / logits.shape[-1]
    if weight is not None:
        share = share * like(weight, logits, "cross_entropy: weight", logits.shape[-1:])
    loss = -(log_softmax(logits) * share).sum(-1)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def _weighted_cross_entropy(
    logits: Array,
    labels: Array,
    weight: ArrayLike | None,
    ignore: int,
    reduction: str,
    smooth: float,
) -> Array:
    """Computes the cross entropy for classes with weights or smoothed labels, like PyTorch."""
    dtype = "f64" if logits.dtype == "f64" else "f32"
    counted = (labels != ignore).astype(dtype)
    nll = logits._apply("cross_entropy", labels, ignore=ignore)
    share = counted
    if weight is not None:
        w = like(weight, logits, "cross_entropy: weight", logits.shape[-1:]).astype(dtype)
        share = counted * w.take(where(labels != ignore, labels, 0))
        nll = nll * share
    if smooth:
        each = log_softmax(logits).astype(dtype)
        each = each if weight is None else each * w
        flat = -each.sum(-1) * counted / float(logits.shape[-1])
        nll = nll * (1.0 - smooth) + flat * smooth
    if reduction == "none":
        return nll
    return nll.sum() / share.sum() if reduction == "mean" else nll.sum()
