"""Rows of the table for scaled dot product attention and its gradient.

Both keep one number per row of queries, the log-sum-exp of its scores, as PyTorch's kernels do. So
plans hold the same bytes for either kernel, and a forward may run in one and its backward in the
other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from .arrays import NAMES, Array, is_float
from .building import Builder, Results, argument
from .pointwise import Row

aten = torch.ops.aten

_LARGEST_HEAD = 256  # elements (csrc/ir/infer_nn.c)


class _Call(NamedTuple):
    """The arguments of a call besides its tensors."""

    causal: Any
    p: Any
    mask: Any
    scale: Any


def _call(node: fx.Node, first: int) -> _Call:
    """Reads the arguments from position `first` on."""
    p, causal = argument(node, first, "dropout_p", 0.0), argument(node, first + 1, "is_causal", 0)
    return _Call(causal, p, node.kwargs.get("attn_mask"), node.kwargs.get("scale"))


def _attrs(call: _Call, q: Array) -> dict[str, Any]:
    scale = q.shape[-1] ** -0.5 if call.scale is None else call.scale
    return {"scale": float(scale), "causal": int(call.causal)}


def _mask(b: Builder, call: _Call, q: Array, k: Array) -> list[Array]:
    if call.mask is None:
        return []
    mask = b.logical(b.value(call.mask))
    shape = (*q.shape[:-1], k.shape[-2])
    aligned = mask.reshape((1,) * (len(shape) - len(mask.shape)) + mask.shape)
    return [aligned.expand(shape)]


def _forward(b: Builder, node: fx.Node) -> Results:
    call = _call(node, 3)
    q, k, v = (b.logical(b.tensor(node, i)) for i in range(3))
    made = b.graph.op("attention", q, k, v, *_mask(b, call, q, k), **_attrs(call, q))
    return [b.result(array, b.meta(node, i)) for i, array in enumerate(made)]


def _backward(b: Builder, node: fx.Node) -> Results:
    call = _call(node, 6)
    given = [b.logical(b.tensor(node, i)) for i in range(6)]
    q, k = given[1:3]
    attrs = _attrs(call, q)
    made = b.graph.op("attention_bwd", *given, *_mask(b, call, q, k), **attrs)
    return [b.result(array, b.meta(node, i)) for i, array in enumerate(made)]


def _check(node: fx.Node, first: int, q: int) -> str | None:
    call = _call(node, first)
    if call.p != 0:
        return "it drops weights"
    given = [node.args[i] for i in (q, q + 1, q + 2)]
    vals = [n.meta["val"] for n in given if isinstance(n, fx.Node)]
    if not is_float(NAMES.get(vals[0].dtype, "")) or len({v.dtype for v in vals}) > 1:
        return f"it computes in {vals[0].dtype}"
    if any(v.dim() != 4 or v.numel() == 0 for v in vals):
        return "it has no heads"
    if vals[0].shape[-1] > _LARGEST_HEAD:
        return f"a head has more than {_LARGEST_HEAD} elements"
    if isinstance(call.mask, fx.Node) and call.mask.meta["val"].dtype != vals[0].dtype:
        return f"its mask is {call.mask.meta['val'].dtype}"
    return None


def is_causal(node: fx.Node) -> bool:
    """True if a query sees only keys up to its own position. Our kernels skip the others."""
    first = len([a for a in node.args if isinstance(a, fx.Node)])
    return bool(_call(node, first).causal)


ROWS: dict[Any, Row] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default:
        Row(_forward, lambda node: _check(node, 3, 0), scratch=1.0),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default:
        Row(_backward, lambda node: _check(node, 6, 1), scratch=1.0),
}  # fmt: skip
