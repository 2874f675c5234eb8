"""Computes the sizes of the storages that hold results.

In a traced graph the size comes from a fake tensor, and so from PyTorch's shape function. Kernels
may differ: some allocate an intermediate and shrink the tensor to its result, or copy the whole
storage of an argument. :data:`RULES` names these ops, as of torch 2.13;
``tests/torch/graph/test_storages.py`` compares it with what kernels allocate, over PyTorch's
operator database.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from .sizes import hint

if TYPE_CHECKING:
    from torch.fx.node import Argument, Target

_aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)


class Result(NamedTuple):
    """One tensor that a call makes."""

    node: fx.Node
    position: int | None  # index in the tuple that the call returns; None if it returns the tensor
    val: torch.Tensor  # fake tensor
    bytes: int  # bytes of its memory, according to the fake tensor
    memory_of: Callable[[fx.Node], int]  # returns the bytes of an argument's storage

    def fake(self, k: int) -> Any:
        """Returns the fake tensor of an argument, or None if it is not a tensor."""
        args = self.node.args
        given = args[k] if k < len(args) else None
        return given.meta.get("val") if isinstance(given, fx.Node) else None


Rule = Callable[[Result], int]
"""Computes the actual bytes of the storage of a result."""


def _reduced_loss(r: Result) -> int:
    """Sizes a reduced loss, which keeps the memory of the array that it reduced."""
    given = [g for g in (r.fake(0), r.fake(1)) if g is not None]
    if r.val.dim() or any(g.dim() == 0 for g in given):
        return r.bytes
    shape = torch.broadcast_shapes(*[tuple(map(hint, g.shape)) for g in given])
    return r.bytes + int((math.prod(shape) - 1) * r.val.element_size())


def _statistics(r: Result) -> int:
    """Sizes statistics. On the CPU, those of half-precision inputs with single-precision weights
    are in single precision."""
    if r.position not in (1, 2) or r.val.dtype not in _HALF or r.val.device.type != "cpu":
        return r.bytes
    weights = [r.fake(k) for k in (1, 2, 3)]
    if any(isinstance(w, torch.Tensor) and w.dtype == torch.float32 for w in weights):
        return r.bytes + int(hint(r.val.numel()) * r.val.element_size())
    return r.bytes


def _of_the_input(r: Result) -> int:
    """Sizes the gradient of the input. It has the input's dtype, while the fake one has that of the
    statistics."""
    x = r.fake(1)
    if r.position != 0 or x is None:
        return r.bytes
    return int(hint(r.val.numel()) * x.element_size())


def _running(r: Result) -> int:
    """Sizes new running statistics. They have the dtype of the old ones; the fake ones are in
    single precision."""
    old = {len(r.node.meta["val"]) - 2: r.fake(3), len(r.node.meta["val"]) - 1: r.fake(4)}
    given = old.get(-1 if r.position is None else r.position)
    if given is None or r.val.device.type != "cpu":
        return _statistics(r)
    return int(hint(r.val.numel()) * given.element_size())


def _bags(r: Result) -> int:
    """Sizes the bags of an embedding bag. On the CPU the kernel makes one more bag, if it needs
    bags. It does not need them for sums of rows, but the shape function disagrees for bfloat16."""
    weight, args = r.fake(0), r.node.args
    mode = args[4] if len(args) > 4 else 0
    padding: Argument = args[8] if len(args) > 8 else -1
    if r.position != 1 or r.val.device.type != "cpu":
        return r.bytes
    if weight.dtype == torch.bfloat16 and mode == 0 and weight.stride(1) == 1 and padding < 0:
        return 0
    return r.bytes + (int(r.val.element_size()) if mode or hint(r.val.numel()) else 0)


def _whole_memory(r: Result) -> int:
    """Sizes a copy with the layout of the first argument, which copies its whole storage, unless
    its elements overlap."""
    base = r.fake(0)
    layout = zip(base.shape, base.stride(), strict=True)
    if any(hint(n) > 1 and hint(stride) == 0 for n, stride in layout):
        return r.bytes
    given = r.node.args[0]
    assert isinstance(given, fx.Node)
    return r.memory_of(given)


def _no_less_than_the_argument(r: Result) -> int:
    """Sizes a result that is allocated like the argument and then resized, which never shrinks
    memory."""
    return max(r.bytes, int(hint(r.fake(0).numel()) * r.val.element_size()))


def _dense(r: Result) -> int:
    """Sizes a copy of the argument without gaps, which is filled with random numbers."""
    return int(hint(r.val.numel()) * r.val.element_size())


def _window(r: Result) -> int:
    """Sizes a window. A periodic window is a symmetric one of one more number, without the last."""
    periodic = r.node.args[1] if len(r.node.args) > 1 else True
    return r.bytes + (int(r.val.element_size()) if periodic and hint(r.val.numel()) > 1 else 0)


RULES: dict[Target, Rule] = {
    **dict.fromkeys((_aten.mse_loss.default, _aten.smooth_l1_loss.default,
                     _aten.binary_cross_entropy.default, _aten.soft_margin_loss.default),
                    _reduced_loss),
    **dict.fromkeys((_aten.native_layer_norm.default, _aten.native_group_norm.default,
                     _aten.native_batch_norm.default, _aten._native_batch_norm_legit.default,
                     _aten._native_batch_norm_legit.no_stats), _statistics),
    **dict.fromkeys((_aten._native_batch_norm_legit_functional.default,
                     _aten._batch_norm_with_update_functional.default), _running),
    _aten.native_group_norm_backward.default: _of_the_input,
    _aten._embedding_bag.default: _bags,
    **dict.fromkeys((_aten.copy.default, _aten.slice_scatter.default, _aten.select_scatter.default,
                     _aten.diagonal_scatter.default, _aten.as_strided_scatter.default),
                    _whole_memory),
    _aten.col2im.default: _no_less_than_the_argument,
    _aten.im2col.default: _no_less_than_the_argument,
    _aten.uniform.default: _dense,
    **dict.fromkeys((_aten.hann_window.default, _aten.hann_window.periodic,
                     _aten.hamming_window.default, _aten.hamming_window.periodic,
                     _aten.hamming_window.periodic_alpha, _aten.hamming_window.periodic_alpha_beta,
                     _aten.bartlett_window.default, _aten.bartlett_window.periodic,
                     _aten.blackman_window.default, _aten.blackman_window.periodic,
                     _aten.kaiser_window.default, _aten.kaiser_window.periodic,
                     _aten.kaiser_window.beta), _window),
}  # fmt: skip


def _said(val: torch.Tensor) -> int:
    """Returns the bytes according to a fake tensor. If the graph frees the memory later, the
    storage is already empty; then this counts the bytes of the elements."""
    n = hint(val.untyped_storage().nbytes())
    if n == 0 and hint(val.numel()) > 0:
        reach = [(hint(k) - 1) * hint(d) for k, d in zip(val.shape, val.stride(), strict=True)]
        n = (hint(val.storage_offset()) + sum(reach) + 1) * val.element_size()
    return n


def bytes_of(
    node: fx.Node, index: int | None, val: torch.Tensor, memory_of: Callable[[fx.Node], int]
) -> int:
    """Returns the bytes of the memory that a call allocates for one of its results.

    Args:
        index: index of the result; None if the node returns one tensor.
        val: the fake tensor of the result.
        memory_of: returns the bytes of the storage of another node's first tensor.
    """
    said = _said(val)
    rule = RULES.get(node.target) if node.op == "call_function" else None
    return said if rule is None else rule(Result(node, index, val, said, memory_of))
