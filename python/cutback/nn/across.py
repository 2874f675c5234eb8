"""Softmax over an inner axis, where possible by operations that groups run where the axis is."""

from __future__ import annotations

import math

from ..frontend.tracer import Array


def over_inner_axis(name: str, x: Array, axis: int) -> Array:
    """``"softmax"`` or ``"log_softmax"`` over an axis that is not the last."""
    if name == "softmax" and _lies_across(x, axis):
        return _softmax_across(x, axis)
    return x.swapaxes(axis, -1)._apply(name).swapaxes(axis, -1)


def _lies_across(x: Array, axis: int) -> bool:
    """True if groups reduce this axis where it is (`csrc/fuse/domain.h`). 16-bit floats are left
    out: each operation would round."""
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    is_inner = before > 1 and 4 <= x.shape[axis] <= 1024 and after >= 64
    return is_inner and x.dtype in ("f32", "f64")


def _softmax_across(x: Array, axis: int) -> Array:
    """By operations that need no transposed copy. Any shift near the largest element will do; it is
    rounded down because `floor` has no gradient."""
    terms = (x - x.max(axis, keepdims=True)._apply("floor"))._apply("exp")
    return terms * (1.0 / terms.sum(axis, keepdims=True))
