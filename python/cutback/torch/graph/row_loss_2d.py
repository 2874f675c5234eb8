"""Turns cross entropies of ``[batch, classes, tokens]`` into those of rows.

``cross_entropy(logits.transpose(1, 2), labels)`` is the usual way to write losses of token models
for labels with two axes. Its log-softmax runs along the middle axis of a transposed view;
:func:`to_rows` makes it run along the rows of the logits ``[batch * tokens, classes]`` instead.
"""

from __future__ import annotations

import math
import operator
from typing import NamedTuple

import torch
from torch import fx

from .graphs import eliminate_dead_code
from .writing import Calls

_aten = torch.ops.aten


class _Found(NamedTuple):
    softmax: fx.Node
    logits: fx.Node
    """[batch, tokens, classes]"""
    choice: fx.Node
    choice_backward: fx.Node | None
    backward: fx.Node | None
    back: list[fx.Node]
    """Transposed gradients: [batch, tokens, classes]."""


def _turned(node: fx.Node) -> fx.Node | None:
    """Returns x if a node is x.transpose(1, 2)."""
    if node.target is not _aten.transpose.int or node.meta["val"].dim() != 3:
        return None
    return node.args[0] if {a % 3 for a in node.args[1:]} == {1, 2} else None


def _only(nodes: list[fx.Node], target: object) -> fx.Node | None:
    found = [n for n in nodes if n.target is target]
    return found[0] if len(found) == 1 else None


def _find(choice: fx.Node) -> _Found | None:
    flat = choice.args[0]
    softmax = flat.args[0] if flat.target is _aten.view.default else flat
    if softmax.target is not _aten._log_softmax.default or softmax.args[1] != 1:
        return None
    logits = _turned(softmax.args[0])
    sizes = () if logits is None else logits.meta["val"].shape
    if logits is None or not all(isinstance(n, int) for n in sizes) or choice.args[3] == 0:
        return None
    readers: list[fx.Node] = []
    for node in (todo := [softmax]):
        for user in node.users:
            is_alias = user.target is _aten.detach.default or user is flat
            (todo if is_alias else readers).append(user)
    backward = _only(readers, _aten._log_softmax_backward_data.default)
    choice_backward = _only(readers, _aten.nll_loss2d_backward.default)
    others = set(readers) - {choice, backward, choice_backward}
    if others or (backward is None) != (choice_backward is None):
        return None
    if backward is None or choice_backward is None:
        return _Found(softmax, logits, choice, None, None, [])
    given = backward.args[0]
    if (given.args[0] if given.target is _aten.view.default else given) is not choice_backward:
        return None
    back = list(backward.users)
    if len(choice_backward.users) != 1 or any(_turned(u) is None for u in back):
        return None
    return _Found(softmax, logits, choice, choice_backward, backward, back)


def _rewrite(graph: fx.Graph, found: _Found) -> None:
    calls = Calls(graph)
    batch, tokens, classes = found.logits.meta["val"].shape
    choice, like = found.choice, found.choice
    _, labels, *rest = choice.args
    with graph.inserting_before(choice):
        rows = calls.viewed(like, found.logits, [batch * tokens, classes])
        softmax = calls.call(like, _aten._log_softmax.default, rows, 1, found.softmax.args[2])
        labels = calls.viewed(like, labels, [batch * tokens])
        both = calls.call(like, _aten.nll_loss_forward.default, softmax, labels, *rest)
        results = [calls.call(like, operator.getitem, both, k) for k in (0, 1)]
    for part in list(choice.users):
        calls.take_place(part, results[part.args[1]], list(part.users))
    if found.backward is None or found.choice_backward is None:
        return
    like, tangent = found.backward, found.choice_backward.args[0]
    with graph.inserting_before(like):
        chosen = calls.call(
            like, _aten.nll_loss_backward.default, tangent, softmax, labels, *rest, results[1]
        )
        made = calls.call(
            like, _aten._log_softmax_backward_data.default, chosen, softmax, 1, like.args[3]
        )
        made = calls.call(like, _aten.view.default, made, [batch, tokens, classes])
    for turned in found.back:
        calls.take_place(turned, made, list(turned.users))


def to_rows(gm: fx.GraphModule, least_rows: int) -> int:
    """Rewrites such cross entropies of a joint graph, in place. Returns their number.

    Args:
        least_rows: cross entropies of fewer rows stay as they are.
    """
    number = 0
    target = _aten.nll_loss2d_forward.default
    for choice in gm.graph.find_nodes(op="call_function", target=target):
        found = _find(choice)
        if found is not None and math.prod(found.logits.meta["val"].shape[:2]) >= least_rows:
            _rewrite(gm.graph, found)
            number += 1
    if number:
        eliminate_dead_code(gm.graph)
    return number
