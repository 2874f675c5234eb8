"""The table that says how each ATen operation is expressed in our operations, or why it stays with
PyTorch. The choice depends only on the operation and on the shapes, strides and dtypes of its
tensors, and not on the budget, the plan or the number of threads. A node and its reruns therefore
use one kernel, and bits do not depend on the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ..graph.sizes import hint
from . import attention, norms, pointwise, reductions
from .arrays import NAMES
from .building import tensors_of
from .layouts import axes_of, meta_of, repeats
from .masks import draw
from .pointwise import Row

aten = torch.ops.aten

ROWS: dict[Any, Row] = {
    **pointwise.ROWS, **reductions.ROWS, **norms.ROWS, **attention.ROWS,
}  # fmt: skip
"""Operations that are expressed in ours."""

_PRODUCT = "products stay with PyTorch"
_RANDOM = "PyTorch draws its random numbers"
_LOOKUP = "lookups by index stay with PyTorch"
_COPY = "filling and copying does not fuse"
FASTER = "PyTorch's kernel is faster"
"""The reason if PyTorch's kernel was measured to be faster."""

FOREIGN: dict[Any, str] = {
    **dict.fromkeys((aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default,
                     aten.mv.default, aten.dot.default), _PRODUCT),
    **dict.fromkeys((aten.convolution.default, aten.convolution_backward.default),
                    "convolutions stay with PyTorch"),
    **dict.fromkeys((draw, aten.native_dropout.default, aten.bernoulli.p, aten.rand.default),
                    _RANDOM),
    **dict.fromkeys((aten.embedding.default, aten.embedding_dense_backward.default,
                     aten.index.Tensor, aten.index_put.default, aten.gather.default,
                     aten.scatter_add.default, aten.nll_loss_forward.default,
                     aten.nll_loss_backward.default), _LOOKUP),
    **dict.fromkeys((aten.slice_backward.default, aten.select_backward.default,
                     aten.constant_pad_nd.default), _COPY),
    aten.native_group_norm_backward.default: FASTER,
}  # fmt: skip
"""Operations that stay with PyTorch, and why."""

_TINY = 1 << 13  # number of elements below which only the number of calls matters
_LARGE = 1 << 19  # number of elements that exceeds the second-level cache


def _elements(node: fx.Node) -> int:
    given = node.args[0]
    assert isinstance(given, fx.Node)
    return math.prod(map(hint, given.meta["val"].shape))


def _by_erf(node: fx.Node) -> bool:
    by_erf = node.kwargs.get("approximate", "none") == "none"
    return bool(by_erf and _elements(node) >= _TINY)


def _in_cache(node: fx.Node) -> bool:
    return _TINY <= _elements(node) < _LARGE


def _is_half(node: fx.Node) -> bool:
    return tensors_of(node)[0].dtype in (torch.bfloat16, torch.float16)


def _never(node: fx.Node) -> bool:
    return False


def _sees_all(node: fx.Node) -> bool:
    return not attention.is_causal(node)


def _always(node: fx.Node) -> bool:
    return True


SLOWER: dict[Any, Callable[[fx.Node], bool]] = {
    aten.gelu.default: _by_erf,  # PyTorch's kernel takes 0.4 to 0.5 of our time
    aten.gelu_backward.default: _by_erf,  # 0.8
    aten.native_layer_norm_backward.default: _in_cache,  # 0.7; 1.5 for large tensors
    **dict.fromkeys(attention.ROWS, _sees_all),  # 0.9 to 1.14
    aten._log_softmax_backward_data.default: _always,  # 0.8 to 0.97
    aten._softmax_backward_data.default: _always,  # 0.9
    aten.sum.dim_IntList: _is_half,  # 0.6
    aten.sum.default: _is_half,
}
"""Calls that stay with PyTorch if nothing is measured (:mod:`native.choosing`). PyTorch's kernels
were faster on one thread of an AMD EPYC, both on their own and next to the operations that surround
them in transformers."""


def why_not_ours(val: torch.Tensor) -> str | None:
    """Returns why our kernels cannot read a tensor, whatever its strides, or None."""
    if val.layout is not torch.strided:
        return f"a tensor has layout {val.layout}"
    if val.dtype not in NAMES:
        return f"a tensor is {val.dtype}"
    if val.device.type not in ("cpu", "meta"):
        return f"it is on {val.device}"
    if val.is_neg() or val.is_conj():
        return "a tensor is negated or conjugated lazily"
    return None


def why_no_array(val: torch.Tensor) -> str | None:
    """Returns why a tensor cannot be an argument or a result, or None."""
    why = why_not_ours(val)
    if why is None and axes_of(meta_of(val, hint)) is None:
        return "a tensor has gaps between its elements"
    return why


def _results(node: fx.Node) -> str | None:
    for val in tensors_of(node):
        if repeats(meta_of(val, hint)):
            return "its result shares elements"
    return None


def why_foreign(
    node: fx.Node, is_block: Callable[[fx.Node], bool], everything: bool = False
) -> str | None:
    """Returns why a call stays with PyTorch, or None if it runs in our kernels.

    Args:
        is_block: tells whether a node is a view that is a block of an array.
        everything: True also runs operations in our kernels that were faster in PyTorch's.
    """
    row = ROWS.get(node.target)
    if row is None:
        return FOREIGN.get(node.target, "it has no row in the table")
    given = [n for n in node.all_input_nodes if not is_block(n)]
    vals = [v for n in (*given, node) for v in tensors_of(n)]
    why = next(filter(None, map(why_no_array, vals)), None) or _results(node) or row.check(node)
    if why is None and not everything and SLOWER.get(node.target, _never)(node):
        return FASTER
    return why


def is_exact(node: fx.Node) -> bool:
    """True if PyTorch's kernel gives the same bits."""
    vals = [v for n in (*node.all_input_nodes, node) for v in tensors_of(n)]
    floats = {v.dtype for v in vals if v.dtype.is_floating_point}
    wide = floats <= {torch.float32, torch.float64} and len(floats) <= 1
    return ROWS[node.target].exact and wide
