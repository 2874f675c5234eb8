"""Follows parts of a model that PyTorch leaves to eager mode into their backward.

What such a part saves can be seen when the forward ends. What its backward makes besides gradients,
such as the values that ``torch.utils.checkpoint`` computes again, can be seen only while it runs.
So the tracker of a measured forward continues in those nodes of the model's autograd graph that are
not compiled. A tracker that stayed on during the whole backward would not work: the engine restores
the modes of a thread before each node.

What compiled nodes make is not seen, so the peak is a lower bound.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import torch

from ..memory import StepTracker

if TYPE_CHECKING:
    from types import FrameType

    from torch import UntypedStorage
    from torch.autograd.graph import Node

MOST_NODES = 10_000
"""Autograd graphs with more nodes are not followed."""


_DATA_PARALLEL = ("/torch/nn/parallel/distributed.py", "/torch/distributed/fsdp/")
_TRACKER = sys.modules[StepTracker.__module__].__file__
_PASSED_ON = (
    "/torch/_compile.py", "/torch/_dynamo/eval_frame.py", "/torch/_ops.py", "/torch/_tensor.py",
    "/torch/utils/", "/torch/distributed/",
)  # fmt: skip
"""Names of code between a data-parallel wrapper and the op that it calls."""


class ForwardTracker(StepTracker):
    """Follows what the forward of a model makes, but not the memory of PyTorch's data-parallel
    wrappers: the gradient buckets of DistributedDataParallel, which it makes again in its second
    forward, and the parameters that FSDP2 gathers. Both come on top of a budget."""

    def _appear(self, storage: UntypedStorage, op: str) -> None:
        if _in_data_parallel():
            self._before.add(storage)
        else:
            super()._appear(storage, op)


def _in_data_parallel() -> bool:
    """True if the running op was called by one of PyTorch's data-parallel wrappers, not by the
    module inside it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename.replace("\\", "/")
        if any(part in file for part in _DATA_PARALLEL):
            return True
        if file != _TRACKER and not any(part in file for part in _PASSED_ON):
            return False
        frame = frame.f_back
    return False


def nodes_of(
    results: Sequence[torch.Tensor], before: Collection[Node] = (), compiled_too: bool = False
) -> tuple[list[Node], list[torch.Tensor]]:
    """Returns the nodes of autograd's graph that are not compiled, and the leaves whose gradients
    they make.

    Args:
        before: the nodes that made the arguments, which belong to another part of the step.
        compiled_too: include nodes that are compiled.
    """
    seen = set(before)
    stack = [t.grad_fn for t in results if t.grad_fn is not None and t.grad_fn not in seen]
    seen.update(stack)
    nodes: list[Node] = []
    leaves: dict[torch.Tensor, None] = {}
    while stack:
        node = stack.pop()
        compiled = not compiled_too and type(node).__name__ == "CompiledFunctionBackward"
        variable = getattr(node, "variable", None)
        if not compiled and variable is None:
            nodes.append(node)
        for other, _ in node.next_functions:
            if other is None:
                continue
            leaf = getattr(other, "variable", None)
            if leaf is not None and not compiled:
                leaves[leaf] = None
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return nodes, list(leaves)


def follow(tracker: StepTracker, nodes: Sequence[Node], on_end: Callable[[int], None]) -> None:
    """Lets the tracker of a forward measure these nodes when they run.

    Args:
        on_end: called at the end of the backward, with the peak since now.
    """
    if not nodes or len(nodes) > MOST_NODES:
        tracker.end()
        return
    tracker.peak_bytes = tracker.live_bytes
    began = ended = False

    def ends() -> None:
        nonlocal ended
        ended = True
        tracker.end()
        on_end(tracker.peak_bytes)

    def enter(gradients: Sequence[torch.Tensor | None]) -> None:
        nonlocal began
        if ended:
            return
        if not began:
            began = True
            torch.autograd.Variable._execution_engine.queue_callback(ends)
        tracker.__enter__()

    def leave(made: Sequence[torch.Tensor | None], given: Sequence[torch.Tensor | None]) -> None:
        if not ended:
            tracker.__exit__(None, None, None)

    for node in nodes:
        node.register_prehook(enter)
        node.register_hook(leave)
