"""Finds a lower bound of the memory of a loss that is computed outside of a compiled model.

A plan covers the compiled graph. The loss of a script such as ``criterion(step(x), y)`` is eager
code between the forward and the backward. It keeps results of its own, and its backward makes
gradients of the size of the model's results while the model holds what it saved. When the backward
of the graph begins, that of the loss has run, and what its nodes saved is gone. But the nodes still
exist, and each knows the shapes of the gradients that it received and made. A lower bound follows
from these shapes, without measuring anything.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils._pytree import tree_iter

from ... import budgets
from ..graph.sizes import hint

if TYPE_CHECKING:
    from types import FrameType

    from torch.autograd.graph import Node

MOST_NODES = 1000
"""Autograd graphs with more nodes are not examined."""

LEAST = 64 * 1024
"""A step that is over its budget by fewer bytes is not worth a warning."""

_COMPILED = "CompiledFunctionBackward"

_PASS_ON = frozenset(
    f"{name}Backward0"
    for name in (
        "Add", "Sub", "View", "UnsafeView", "ReshapeAlias", "Alias", "T", "Transpose", "Permute",
        "Unsqueeze", "Squeeze", "Clone", "AsStrided", "ToCopy", "Expand",
    )
) | {"SubBackward1", "AddBackward1", "TransposeBackward1", "SqueezeBackward1"}  # fmt: skip
"""Nodes whose gradients are, or may be, the one that they received."""

_EXPAND = frozenset({"SumBackward0", "SumBackward1"})
"""Nodes whose gradients may be a few elements that are repeated."""

_KEEP_RESULT = frozenset(
    f"{name}Backward0" for name in ("LogSoftmax", "Softmax", "Sigmoid", "Tanh", "Exp", "Sqrt")
)
"""Nodes that keep the result of their op, which is as large as the gradient that they receive."""

_KEEP_INPUT = frozenset(
    f"{name}Backward0"
    for name in (
        "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "SoftMarginLoss",
        "BinaryCrossEntropyWithLogits", "Pow", "Abs", "Log", "Gelu", "Silu",
    )
)  # fmt: skip
"""Nodes that keep the input whose gradient they make. Their op has a new result."""

_FORWARD_TAKES_TWO = frozenset({"BinaryCrossEntropyWithLogitsBackward0"})
"""Nodes whose op, on a CPU, has two temporary arrays of the size of its input at once."""

_DENSE = frozenset({"SubBackward0", "AddBackward0", "MulBackward0", "DivBackward0", _COMPILED})
"""Nodes whose results are not a few elements that are repeated."""


def losses_of_backward() -> list[torch.Tensor]:
    """Returns the tensors that the backward in this thread began with. Returns an empty list if it
    was begun in another thread, or not from Python."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.autograd":
            names = {"backward": "tensors", "grad": "outputs"}
            roots = frame.f_locals.get(names.get(frame.f_code.co_name, ""))
            if roots is not None:
                return [t for t in tree_iter(roots) if isinstance(t, torch.Tensor)]
        frame = frame.f_back
    return []


class _Gradient(NamedTuple):
    bytes: int
    dtype: torch.dtype


def _gradients_of(node: Node) -> list[_Gradient]:
    """Returns the gradients that a node receives."""
    metas = getattr(node, "_input_metadata", ())
    sizes = (math.prod(map(hint, meta.shape)) * meta.dtype.itemsize for meta in metas)
    return [_Gradient(size, meta.dtype) for size, meta in zip(sizes, metas, strict=True)]


def _in_order(losses: list[torch.Tensor]) -> Iterator[Node]:
    """Yields the nodes of losses outside of compiled graphs, each after those that give it a
    gradient. Yields nothing if the graph has too many nodes."""
    done: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = [(t.grad_fn, False) for t in losses if t.grad_fn is not None]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            done[node] = None
            continue
        if node in seen or type(node).__name__ == _COMPILED:
            continue
        seen.add(node)
        if len(seen) > MOST_NODES:
            return
        stack.append((node, True))
        stack.extend((other, False) for other, _ in node.next_functions if other is not None)
    yield from reversed(done)


def _bytes_of_roots(losses: list[torch.Tensor]) -> int:
    """Returns the bytes of losses whose op has a new result. Some ops, such as a mean, keep an
    array of the size of their input."""
    new = (t for t in losses if t.grad_fn is not None and t.grad_fn.name() in _KEEP_INPUT)
    return sum(t.untyped_storage().nbytes() for t in new)


def least_bytes(losses: list[torch.Tensor], gone: int = 0) -> int:
    """Returns a lower bound of the bytes that losses and their backward take, down to the compiled
    graph: the gradient that a node receives, those that it makes, and the result or input that it
    keeps; or the input and the temporary arrays of its forward, if they are known.

    Args:
        gone: bytes of the graph's results that nothing holds any more. A node may have kept them
            until its backward ran. Results that are alive are not part of the bound.
    """
    most = 0
    arrived: dict[Node, int] = {}
    for node in _in_order(losses):
        name, came, own = node.name(), arrived.get(node, 0), _gradients_of(node)
        makes = inputs = 0
        for other, k in node.next_functions:
            gradients = [] if other is None else _gradients_of(other)
            if other is None or k >= len(gradients):
                continue
            size, dtype = gradients[k]
            if name in _EXPAND:
                size = 0
            elif name in _PASS_ON and dtype in {gradient.dtype for gradient in own}:
                size = min(size, came)
            else:
                makes += size
            arrived[other] = max(size, arrived.get(other, 0))
            if name in _KEEP_INPUT and type(other).__name__ in _DENSE:
                inputs += size
        keeps = sum(gradient.bytes for gradient in own) if name in _KEEP_RESULT else 0
        temporary = 2 * makes if name in _FORWARD_TAKES_TWO else 0
        most = max(most, max(came + keeps + makes, temporary) + min(gone, inputs))
    return most + _bytes_of_roots(losses)


def tell(least: int, held: int, budget: str) -> None:
    """Warns that a loss takes the step over its budget.

    Args:
        least: see :func:`least_bytes`.
        held: bytes that the graph holds at the same time.
        budget: the budget in force as text.
    """
    taken = least + held
    warnings.warn(
        "the loss is computed outside of the compiled model, where no plan counts it, and takes "
        f"the step over the {budget}: while it or its backward runs, at least "
        f"{budgets.text(taken)} ({taken} bytes) are alive, {budgets.text(least)} of them its own. "
        "Compile a function or module that returns the loss, so that the budget bounds the whole "
        "step",
        stacklevel=4,
    )
