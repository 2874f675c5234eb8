"""``cutback.torch.estimate``: batches of a PyTorch step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...planner.estimating import MOST, Estimate, Way, estimate_with
from ...problem import Problem
from ..compiler.compiled import uncompiled
from ..compiler.preparing import Preparation
from ..compiler.totals import account
from ..flags import check_flags
from ..graph.taking_over import separate
from .batches import made_step
from .tracing import trace_with


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

    def problem_of(batch: int) -> Problem:
        step, inputs, optimizer = made_step(make_step, batch)
        step, total = uncompiled(step), None
        if optimizer is not None and measure == "total":
            total = account(step, optimizer, rehearsed)
        return trace_with(step, inputs, {}, how, total, dynamic=False).problem

    way = Way(problem_of, device, measure, (None, "torch-compat"), separate)
    return estimate_with(way, budget, batches, most)
