"""Detects writes to returned views whose memory the backward reads.

The caller may overwrite such a tensor before ``backward()``. Eager PyTorch detects this by the
version counter, which a view shares with the saved tensor. The tensor that AOTAutograd and Inductor
return for a view has a separate counter, so the saved tensor does not show the write. The counter
of the returned tensor does; it is checked when the backward begins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from .together import compiled_node

if TYPE_CHECKING:
    from ..types import GraphFunction, GraphInput, GraphValue


class _Witness(NamedTuple):
    """Shares the version counter of a returned tensor, but not its memory."""

    position: int
    shape: tuple[int, ...]
    counter: torch.Tensor
    version: int


def _witness(position: int, out: torch.Tensor) -> _Witness:
    counter = out.detach()  # the same counter
    counter.data = out.detach().new_empty(0)  # the counter stays, the memory is freed
    return _Witness(position, tuple(out.shape), counter, out._version)


def _check(witnesses: Sequence[_Witness], gradients: Sequence[torch.Tensor | None]) -> None:
    """Hook at the start of a backward.

    Raises:
        RuntimeError: if a returned tensor was overwritten.
    """
    for position, shape, counter, version in witnesses:
        if counter._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: output {position} of the compiled graph, a view of shape "
                f"{list(shape)} whose memory the backward reads, is at version "
                f"{counter._version}; expected version {version} instead. Write into a clone of "
                "it (out.clone()), or after backward()"
            )


def watch_views(run: GraphFunction, views: Callable[[], Sequence[int]]) -> GraphFunction:
    """Wraps a function so that its backward raises RuntimeError if a returned view was overwritten.

    Args:
        run: a compiled graph.
        views: the positions among its outputs of views whose memory the backward reads, under the
            plan that the next run follows.
    """

    @functools.wraps(run)
    def call(*args: GraphInput) -> Sequence[GraphValue]:
        watched = views()
        outputs = run(*args)
        node = compiled_node(outputs) if watched else None
        if node is not None:
            found = [_witness(i, outputs[i]) for i in watched if type(outputs[i]) is torch.Tensor]
            node.register_prehook(functools.partial(_check, found))
        return outputs

    return call
