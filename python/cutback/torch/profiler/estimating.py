"""Implements ``cutback.torch.estimate``, which estimates a PyTorch step for each batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ...planner.estimating import MOST, Estimate, Way, estimate_with
from ...planner.scaling import Forward
from ...problem import Problem
from ..compiler.compiled import uncompiled
from ..compiler.preparing import Preparation
from ..compiler.totals import account
from ..flags import check_flags
from ..graph.taking_over import separate
from .making import made_step
from .tracing import trace_forward, trace_with


def _forward_of(gm: torch.fx.GraphModule) -> Forward:
    """Returns the values of a graph and of the graphs inside it."""
    structure: list[Any] = []
    sizes: list[int] = []
    for part in gm.modules():
        if not isinstance(part, torch.fx.GraphModule):
            continue
        places = {node: place for place, node in enumerate(part.graph.nodes)}
        for node in places:
            leaves = tree_leaves(node.meta.get("example_value"))
            made = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            name = getattr(node.target, "__qualname__", None) or str(node.target)
            reads = [places[read] for read in node.all_input_nodes]
            structure.append((node.op, name, reads, [(t.dtype, t.dim()) for t in made]))
            sizes += [int(n) for t in made for n in t.shape]
    return Forward(repr(structure), sizes)


def estimate(
    make_step: Callable[[int], Any],
    budget: int | str | None = None,
    *,
    device: Any = None,
    measure: str = "total",
    batches: Sequence[int] | None = None,
    most: int = MOST,
    slices: bool = False,
) -> Estimate:
    """Estimates the training step of a model at each batch size, and the largest batch within a
    budget. Nothing runs and no memory is allocated. See :func:`cutback.estimate`.

    Args:
        make_step: as for :func:`max_batch`; the optimizer is optional, and counts with
            ``measure="total"``.
        budget, device, batches, most: as for :func:`cutback.estimate`.
        measure: ``"total"`` (parameters, buffers, gradients, optimizer states if there is an
            optimizer, and the step), ``"live"`` or ``"arena"`` (the step alone).
        slices: see :class:`Partitioner`.

    Returns:
        The estimate, as for :func:`cutback.estimate`.

    Raises:
        ValueError, TypeError: if an argument or the result of make_step is invalid.
        UnsupportedGraphError: if the step cannot be planned.

    >>> def make_step(batch):
    ...     return torch.nn.Linear(8, 8), (torch.randn(batch, 8),)
    >>> print(cutback.torch.estimate(make_step, "1MiB", device="a100", most=64))
    """

    check_flags(slices=slices)
    how = Preparation(sliced=(lambda found: None) if slices else None)
    rehearsed: dict[str, tuple[int, int]] = {}  # optimizers seldom depend on the batch
    forwards: dict[int, Forward] = {}

    def keep(batch: int) -> Callable[[torch.fx.GraphModule], None]:
        return lambda gm: forwards.__setitem__(batch, _forward_of(gm))

    def forward_of(batch: int) -> Forward:
        if batch not in forwards:
            made = made_step(make_step, batch)
            trace_forward(uncompiled(made.step), made.inputs, made.keywords, keep(batch))
        return forwards[batch]

    def problem_of(batch: int) -> Problem:
        made = made_step(make_step, batch)
        step, total = uncompiled(made.step), None
        if made.optimizer is not None and measure == "total":
            total = account(step, made.optimizer, rehearsed)
        noting = replace(how, seen=keep(batch))
        return trace_with(step, made.inputs, made.keywords, noting, total, dynamic=False).problem

    forward = None if slices else forward_of  # the number of pieces grows with the rows
    way = Way(problem_of, device, measure, (None, "torch-compat"), separate, forward)
    return estimate_with(way, budget, batches, most)
