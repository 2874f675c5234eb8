"""Softmax over an axis that is not the last, without a transposed copy if groups allow it."""

from __future__ import annotations

import math

from ..frontend.tracer import Array


def over_inner_axis(name: str, x: Array, axis: int) -> Array:
    """Computes ``"softmax"`` or ``"log_softmax"`` over an axis that is not the last."""
    if _lies_across(x, axis):
        across = _softmax_across if name == "softmax" else _log_softmax_across
        if x.dtype in ("f32", "f64"):
            return across(x, axis)
        return across(x.astype("float32"), axis).astype(x.dtype)
    return x.swapaxes(axis, -1)._apply(name).swapaxes(axis, -1)


def _lies_across(x: Array, axis: int) -> bool:
    """Returns True if fused groups can reduce this axis without a transposed copy
    (`csrc/fuse/domain.h`)."""
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    length = x.shape[axis]
    is_wide = after >= 24 or (after >= 4 and length * after >= 512)
    return before > 1 and 4 <= length <= 4096 and is_wide


def _softmax_across(x: Array, axis: int) -> Array:
    """Computes softmax with operations that need no transposed copy. The shift only has to be near
    the largest element, so it is rounded down, and no gradient flows through it."""
    terms = _shifted(x, axis)._apply("exp")
    return terms * (1.0 / terms.sum(axis, keepdims=True))


def _log_softmax_across(x: Array, axis: int) -> Array:
    below = _shifted(x, axis)
    return below - below._apply("exp").sum(axis, keepdims=True)._apply("log")


def _shifted(x: Array, axis: int) -> Array:
    return x - x.max(axis, keepdims=True)._apply("floor")
