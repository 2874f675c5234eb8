"""How tensors lie in memory, as autograd looks at it."""

from __future__ import annotations

from torch import Tensor

from .sizes import hint


def is_dense(t: Tensor) -> bool:
    """Is each element of a piece of memory one of the tensor's, once?"""
    expected = 1
    sizes = [(hint(s), hint(n)) for s, n in zip(t.stride(), t.shape, strict=True)]
    for stride, n in sorted((s, n) for s, n in sizes if n != 1):
        if stride != expected:
            return False
        expected *= n
    return True


def is_like(gradient: Tensor, leaf: Tensor) -> bool:
    """Does a gradient lie in memory as autograd wants it for a leaf?"""
    if not is_dense(leaf):
        return bool(gradient.is_contiguous())
    strides = [hint(s) for s in gradient.stride()]
    triples = zip(strides, leaf.stride(), leaf.shape, strict=True)
    return all(s != 0 if hint(n) == 1 else s == hint(wanted) for s, wanted, n in triples)
