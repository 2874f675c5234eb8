"""Memory layouts of tensors, as autograd compares them."""

from __future__ import annotations

from torch import Tensor

from .sizes import hint


def is_dense(t: Tensor) -> bool:
    """True if the tensor covers a contiguous piece of memory and each element appears once."""
    expected = 1
    sizes = [(hint(s), hint(n)) for s, n in zip(t.stride(), t.shape, strict=True)]
    for stride, n in sorted((s, n) for s, n in sizes if n != 1):
        if stride != expected:
            return False
        expected *= n
    return True


def is_like(gradient: Tensor, leaf: Tensor) -> bool:
    """True if a gradient has the memory layout that autograd expects for a leaf."""
    if not is_dense(leaf):
        return bool(gradient.is_contiguous())
    strides = [hint(s) for s in gradient.stride()]
    triples = zip(strides, leaf.stride(), leaf.shape, strict=True)
    return all(s != 0 if hint(n) == 1 else s == hint(wanted) for s, wanted, n in triples)
