"""Recognises the cross entropy of rows of logits in a joint graph.

PyTorch's cross entropy is a log-softmax, the choice of labels, and their two gradients, which make
three more values as large as the logits. :func:`use_row_losses` replaces them by the operators of
:mod:`row_loss_ops`, which keep one number per row, so that the logits may be computed again piece
by piece:

    logp, lse = row_loss(logits, labels)             loss = -sum(logp * w) / sum(w)
    dlogits = row_loss_backward(w * tangent / sum(w), logits, lse, labels)

``w`` is 0 for an ignored label, otherwise the weight of its class. Label smoothing reads the sum of
each row of the log-softmax, which follows from that of the logits.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import fx

from .graphs import eliminate_dead_code
from .row_loss_ops import ROW_LOSS, ROW_LOSS_BACKWARD, accumulated
from .writing import Calls

if TYPE_CHECKING:
    from torch.fx.node import Argument

_aten = torch.ops.aten

_MEAN, _SUM = 1, 2
"""PyTorch's numbers of reductions; 0 means no reduction."""


@dataclass
class _Found:
    """The nodes of one cross entropy."""

    softmax: fx.Node
    aliases: list[fx.Node]
    """The log-softmax and its detached copies."""
    choice: fx.Node
    loss: fx.Node
    """The first result of ``choice``."""
    sums: list[fx.Node] = field(default_factory=list)
    """Sums of each row of the log-softmax."""
    choice_backward: fx.Node | None = None
    backward: fx.Node | None = None
    uniform: fx.Node | None = None
    """The gradient [rows] that each element of a row gets in addition to the gradient of its
    label."""

    @property
    def gone(self) -> set[fx.Node]:
        """The nodes that read the log-softmax, which the rewrite removes."""
        own = [*self.aliases, self.choice, *self.sums, self.choice_backward, self.backward]
        return {n for n in own if n is not None}


def _aliases(node: fx.Node) -> list[fx.Node]:
    found = [node]
    for alias in found:
        found += [u for u in alias.users if u.target is _aten.detach.default]
    return found


def _is_last(axes: Argument, dims: int) -> bool:
    axes = axes if isinstance(axes, (list, tuple)) else [axes]
    return [a % dims for a in axes] == [dims - 1]


def _uniform(gradient: fx.Node, choice_backward: fx.Node) -> fx.Node | None:
    """Returns the gradients [rows] that are added to those of the labels, if a gradient of the
    log-softmax is such a sum."""
    if gradient.target is not _aten.add.Tensor or gradient.kwargs:
        return None
    others = [n for n in gradient.args if n is not choice_backward]
    if len(others) != 1 or not isinstance(others[0], fx.Node):
        return None
    wide = others[0]
    column = wide.args[0] if wide.target is _aten.expand.default else None
    if not isinstance(column, fx.Node) or column.target is not _aten.unsqueeze.default:
        return None
    rows = column.args[0]
    return rows if _is_last(column.args[1], 2) and rows.meta["val"].dim() == 1 else None


def _find_backward(found: _Found) -> bool:
    """Adds the gradients to a cross entropy. Returns False if they have another form."""
    choice, backward = found.choice_backward, found.backward
    if choice is None or backward is None:
        return choice is backward
    same = tuple(choice.args[2:6]) == tuple(found.choice.args[1:5])
    if not same or len(choice.users) != 1 or backward.args[1] not in found.aliases:
        return False
    gradient = backward.args[0]
    if gradient is choice:
        return True
    found.uniform = _uniform(gradient, choice)
    return found.uniform is not None and len(gradient.users) == 1


def _find(softmax: fx.Node) -> _Found | None:
    """Returns the cross entropy that a log-softmax belongs to, or None if something else reads
    it."""
    val = softmax.meta["val"]
    if val.dim() != 2 or not _is_last(softmax.args[1], 2) or not val.is_floating_point():
        return None
    aliases = _aliases(softmax)
    readers = [u for a in aliases for u in a.users if u not in aliases]
    sums: list[fx.Node] = []
    others: dict[object, fx.Node] = {}
    for reader in dict.fromkeys(readers):
        if reader.target is _aten.sum.dim_IntList and _is_last(reader.args[1], 2):
            if len(reader.args) > 2 or reader.kwargs:
                return None
            sums.append(reader)
        elif reader.target in others:
            return None
        else:
            others[reader.target] = reader
    choice = others.pop(_aten.nll_loss_forward.default, None)
    if choice is None or choice.args[1].meta["val"].dim() != 1:
        return None
    results = {u.args[1]: u for u in choice.users if u.target is operator.getitem}
    if 0 not in results or len(results) != len(choice.users):
        return None
    found = _Found(
        softmax, aliases, choice, results[0], sums,
        others.pop(_aten.nll_loss_backward.default, None),
        others.pop(_aten._log_softmax_backward_data.default, None),
    )  # fmt: skip
    total = results.get(1)
    if others or (total is not None and set(total.users) - {found.choice_backward}):
        return None
    return found if _find_backward(found) else None


class _Rewriter:
    def __init__(self, graph: fx.Graph, calls: Calls, found: _Found) -> None:
        self.graph, self.calls, self.found = graph, calls, found
        self.logits: fx.Node = found.softmax.args[0]
        self.dtype = accumulated(self.logits.meta["val"].dtype)
        _, self.labels, self.classes, self.reduction, self.ignored = found.choice.args

    def _call(self, target: object, *args: Argument, **kwargs: Argument) -> fx.Node:
        return self.calls.call(self.like, target, *args, **kwargs)

    def _as(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        if node.meta["val"].dtype == dtype:
            return node
        return self._call(_aten._to_copy.default, node, dtype=dtype)

    def _weights(self) -> fx.Node:
        """Returns the weight of each row."""
        counts = self._as(self._call(_aten.ne.Scalar, self.labels, self.ignored), self.dtype)
        if self.classes is None:
            return counts
        ignored = self._call(_aten.eq.Scalar, self.labels, self.ignored)
        label = self._call(_aten.masked_fill.Scalar, self.labels, ignored, 0)
        chosen = self._call(_aten.index_select.default, self.classes, 0, label)
        return self._call(_aten.mul.Tensor, self._as(chosen, self.dtype), counts)

    def forward(self) -> None:
        """Replaces the loss and the row sums."""
        found, self.like = self.found, self.found.choice
        with self.graph.inserting_before(found.choice):
            both = self._call(ROW_LOSS, self.logits, self.labels, self.ignored)
            logp = self._call(operator.getitem, both, 0)
            self.lse = self._call(operator.getitem, both, 1)
            self.weights = self._weights()
            loss = self._call(_aten.neg.default, self._call(_aten.mul.Tensor, logp, self.weights))
            if self.reduction in (_MEAN, _SUM):
                loss = self._call(_aten.sum.default, loss)
            if self.reduction == _MEAN:
                self.total = self._call(_aten.sum.default, self.weights)
                loss = self._call(_aten.div.Tensor, loss, self.total)
            loss = self._as(loss, found.loss.meta["val"].dtype)
        self.calls.take_place(found.loss, loss, list(found.loss.users))
        for row_sum in found.sums:
            self._replace_sum(row_sum)

    def _replace_sum(self, row_sum: fx.Node) -> None:
        self.like = row_sum
        with self.graph.inserting_before(row_sum):
            whole = self._call(_aten.sum.dim_IntList, self.logits, [1], dtype=self.dtype)
            width = self.logits.meta["val"].shape[1]
            lost = self._call(_aten.mul.Tensor, self.lse, width)
            made = self._call(_aten.sub.Tensor, whole, lost)
            made = self._as(made, row_sum.meta["val"].dtype)
        self.calls.take_place(row_sum, made, list(row_sum.users))

    def backward(self) -> None:
        """Replaces the gradient of the logits."""
        found = self.found
        if found.backward is None or found.choice_backward is None:
            return
        self.like = found.backward
        with self.graph.inserting_before(found.backward):
            tangent = self._as(found.choice_backward.args[0], self.dtype)
            if self.reduction == _MEAN:
                tangent = self._call(_aten.div.Tensor, tangent, self.total)
            weight = self._call(_aten.mul.Tensor, self.weights, tangent)
            uniform = found.uniform
            if uniform is not None:
                uniform = self._as(uniform, self.dtype)
            made = self._call(
                ROW_LOSS_BACKWARD, weight, uniform, self.logits, self.lse, self.labels,
                self.ignored,
            )  # fmt: skip
            made = self._as(made, found.backward.meta["val"].dtype)
        self.calls.take_place(found.backward, made, list(found.backward.users))


def use_row_losses(gm: fx.GraphModule, least_rows: int) -> int:
    """Replaces cross entropies in a joint graph, in place. Returns their number.

    Args:
        least_rows: cross entropies of fewer rows stay as they are.
    """
    graph, number = gm.graph, 0
    calls = Calls(graph)
    order = {n: k for k, n in enumerate(graph.nodes)}
    for softmax in graph.find_nodes(op="call_function", target=_aten._log_softmax.default):
        found = _find(softmax)
        if found is None:
            continue
        rows = softmax.meta["val"].shape[0]
        early = all(order[found.choice] < order[s] for s in found.sums)
        if not isinstance(rows, int) or rows < least_rows or not early:
            continue
        rewriter = _Rewriter(graph, calls, found)
        rewriter.forward()
        rewriter.backward()
        number += 1
    if number:
        eliminate_dead_code(graph)
    return number
