"""Lets losses of some of the tokens read the logits of all tokens.

A causal language model predicts the next token, so its last logits have no label, and many models
leave them out: ``logits[:, :-1]``. That selection copies the logits, and its rows are not one
contiguous range. :func:`take_all_tokens` makes the loss read the rows of all tokens; those without
a label get the label that is ignored, and a gradient of zero.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import fx

from .graphs import eliminate_dead_code
from .row_loss_ops import ROW_LOSS, ROW_LOSS_BACKWARD
from .writing import Calls

if TYPE_CHECKING:
    from torch.fx.node import Argument, Target

_aten = torch.ops.aten

_SHAPES: frozenset[Target] = frozenset(
    {
        _aten.view.default, _aten._unsafe_view.default, _aten.reshape.default, _aten.clone.default,
        _aten.detach.default, _aten._to_copy.default,
    }
)  # fmt: skip
"""Operations that may be between a selection and its reader: they keep the order of elements."""

_ALL = 2**62
"""Selections that end here or later end at the end of the axis."""


class _Shift(NamedTuple):
    """A loss that reads some tokens."""

    loss: fx.Node
    whole: fx.Node
    """The logits of all tokens [batch, tokens, vocabulary]."""
    first: int
    end: int
    """The range of tokens that it reads."""


def _range(node: Argument) -> tuple[int, int] | None:
    """Returns the tokens that a node selects, or None."""
    if not isinstance(node, fx.Node) or node.target is not _aten.slice.Tensor:
        return None
    shape = node.args[0].meta["val"].shape
    if len(shape) != 3 or not all(isinstance(n, int) for n in shape):
        return None
    given = [*node.args[1:], *(0, None, None, 1)[len(node.args) - 1 :]]
    axis, first, end, step = given
    if axis != 1 or step != 1:
        return None
    begin, stop, _ = slice(first, None if end is None or end >= _ALL else end).indices(shape[1])
    return (begin, stop) if begin < stop else None


def _find(loss: fx.Node) -> _Shift | None:
    node = loss.args[0]
    while node.target in _SHAPES:
        node = node.args[0]
    selected = _range(node)
    if selected is None:
        return None
    batch, _, width = node.meta["val"].shape
    if tuple(loss.args[0].meta["val"].shape) != (batch * (selected[1] - selected[0]), width):
        return None
    return _Shift(loss, node.args[0], *selected)


class _Rewriter:
    def __init__(self, graph: fx.Graph, shift: _Shift) -> None:
        self.graph, self.shift = graph, shift
        self.calls = Calls(graph)
        self.batch, self.tokens, self.width = shift.whole.meta["val"].shape
        self.like = shift.loss

    def _call(self, target: Target, *args: Argument, **kwargs: Argument) -> fx.Node:
        return self.calls.call(self.like, target, *args, **kwargs)

    def _rows(self) -> fx.Node:
        """Returns the logits of all tokens as rows, in the type that the loss reads."""
        dtype = self.shift.loss.args[0].meta["val"].dtype
        whole = self.shift.whole
        if whole.meta["val"].dtype != dtype:
            whole = self._call(_aten._to_copy.default, whole, dtype=dtype)
        return self.calls.viewed(self.like, whole, [self.batch * self.tokens, self.width])

    def _padded(self, rows: fx.Node, value: float) -> fx.Node:
        """Returns values of the selected tokens, and ``value`` for the others: [batch * tokens]."""
        shift = self.shift
        each = self.calls.viewed(self.like, rows, [self.batch, shift.end - shift.first])
        sides = [shift.first, self.tokens - shift.end]
        padded = self._call(_aten.constant_pad_nd.default, each, sides, value)
        return self._call(_aten.view.default, padded, [self.batch * self.tokens])

    def forward(self) -> None:
        shift = self.shift
        _, labels, ignored = shift.loss.args
        results = {u.args[1]: u for u in shift.loss.users}
        with self.graph.inserting_before(shift.loss):
            self.logits = self._rows()
            self.labels = self._padded(labels, ignored)
            both = self._call(ROW_LOSS, self.logits, self.labels, ignored)
            parts = {k: self._call(operator.getitem, both, k) for k in results}
            for k, part in parts.items():
                each = self._call(_aten.view.default, part, [self.batch, self.tokens])
                some = self._call(_aten.slice.Tensor, each, 1, shift.first, shift.end)
                made = self._call(_aten.clone.default, some)
                made = self._call(_aten.view.default, made, list(results[k].meta["val"].shape))
                others = [u for u in results[k].users if u.target is not ROW_LOSS_BACKWARD]
                self.calls.take_place(results[k], made, others)
        self.lse = parts.get(1)

    def backward(self, old: fx.Node, spread: fx.Node) -> None:
        """
        Args:
            old: the gradient of the selected logits.
            spread: the gradient of all logits, made from it.
        """
        weight, uniform, *_, ignored = old.args
        self.like = old
        with self.graph.inserting_before(spread):
            uniform = None if uniform is None else self._padded(uniform, 0.0)
            made = self._call(
                ROW_LOSS_BACKWARD, self._padded(weight, 0.0), uniform, self.logits, self.lse,
                self.labels, ignored,
            )  # fmt: skip
            val = spread.meta["val"]
            made = self._call(_aten.view.default, made, list(val.shape))
            if made.meta["val"].dtype != val.dtype:
                made = self._call(_aten._to_copy.default, made, dtype=val.dtype)
        self.calls.take_place(spread, made, list(spread.users))


def _spread(node: fx.Node, shift: _Shift) -> fx.Node | None:
    """Returns the gradient of all logits that is made from that of the selected ones, if nothing
    else reads the latter."""
    while True:
        if len(node.users) != 1:
            return None
        (node,) = node.users
        if node.target is _aten.slice_backward.default:
            _, shape, axis, first, end, step = node.args
            whole = tuple(shift.whole.meta["val"].shape)
            begin, stop, _ = slice(first, end).indices(whole[1])
            same = tuple(shape) == whole and (axis, step) == (1, 1)
            return node if same and (begin, stop) == (shift.first, shift.end) else None
        if node.target not in _SHAPES:
            return None


def take_all_tokens(gm: fx.GraphModule) -> int:
    """Rewrites the losses of a joint graph that read some of the tokens, in place. Returns their
    number."""
    number = 0
    for loss in gm.graph.find_nodes(op="call_function", target=ROW_LOSS):
        shift = _find(loss)
        if shift is None:
            continue
        gradients = [n for u in loss.users for n in u.users if n.target is ROW_LOSS_BACKWARD]
        spread = [_spread(n, shift) for n in gradients]
        if len(gradients) > 1 or None in spread:
            continue
        rewriter = _Rewriter(gm.graph, shift)
        rewriter.forward()
        for gradient, whole in zip(gradients, spread, strict=True):
            assert whole is not None
            rewriter.backward(gradient, whole)
        number += 1
    if number:
        eliminate_dead_code(gm.graph)
    return number
