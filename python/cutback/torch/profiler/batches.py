"""Finds the largest batch for a budget without running or allocating anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import BudgetError, budgets
from ...planner.plan import Plan
from ...schedule import bytes_of
from ..compiler.options import MEASURES
from ..compiler.wishes import Policy
from .making import made_step
from .tracing import trace

BEYOND = 3
"""Number of larger batches tried after the first that does not fit."""


class MaxBatch:
    """The result of :func:`max_batch`.

    >>> found = max_batch(lambda n: (model, (torch.randn(n, 3, 224, 224),)), "1MiB", most=4)
    >>> print(found.batch)
    """

    def __init__(
        self, batch: int, plan: Plan, budget_bytes: int, measure: str, tried: dict[int, int]
    ) -> None:
        self.batch = batch
        """The largest batch that fits."""
        self.plan = plan
        """The plan of its step, within the budget."""
        self.budget_bytes = budget_bytes
        self.measure = measure
        self.tried = dict(sorted(tried.items()))
        """Maps each batch to the bytes of its plan, or to the smallest peak found if it does not
        fit."""
        self.next_bytes: int | None = tried.get(batch + 1)
        """The smallest peak found for a batch larger by one; None if that batch was not tried."""

    def __str__(self) -> str:
        n = self.plan.numbers
        extra = 100 * (n["time_ps"] - n["once_ps"]) / max(1, n["once_ps"])
        text = (
            f"batch {self.batch}: {budgets.text(bytes_of(n, self.measure))} of "
            f"{budgets.text(self.budget_bytes)} ({self.measure}), {extra:.1f} % more time than "
            "running everything once"
        )
        if self.next_bytes is not None:
            text += f"\nbatch {self.batch + 1} would need {budgets.text(self.next_bytes)}"
        return text

    def __repr__(self) -> str:
        return f"<cutback.torch.MaxBatch {self.batch}, {len(self.tried)} tried>"


class _Search:
    def __init__(
        self,
        make_step: Callable[[int], Any],
        budget: int | str,
        measure: str,
        tracing: dict[str, Any],
        options: dict[str, Any],
        progress: Callable[[int, int, bool], object] | None,
    ) -> None:
        self.make_step = make_step
        self.budget = budget
        self.measure = measure
        self.tracing = tracing
        self.options = {k: v for k, v in options.items() if v is not None}
        self.progress = progress
        self.plans: dict[int, Plan] = {}  # of batches that fit
        self.limits: dict[int, int] = {}  # the budget in bytes, by batch
        self.tried: dict[int, int] = {}
        self.failed: BudgetError | None = None
        self.stopped = False

    def fits(self, batch: int) -> bool:
        """True if a plan for the batch meets the budget."""
        if batch not in self.tried:
            self.tried[batch], plan = self._try(batch)
            if plan is not None:
                self.plans[batch] = plan
            if self.progress is not None:
                self.stopped |= self.progress(batch, self.tried[batch], plan is not None) is True
        return batch in self.plans

    def _try(self, batch: int) -> tuple[int, Plan | None]:
        made = made_step(self.make_step, batch)
        if (self.measure == "total") != (made.optimizer is not None):
            raise ValueError(
                f"measure={self.measure!r}: make_step must return an optimizer for 'total', and "
                "only for 'total'"
            )
        tracing = {"dynamic": False, "optimizer": made.optimizer, **self.tracing}
        step = trace(made.step, *made.inputs, **tracing, **made.keywords)
        try:
            plan = step.plan(self.budget, measure=self.measure, **self.options)
            limit = plan.numbers["budget_bytes"] or 0
        except BudgetError as error:
            self.failed, limit = error, error.budget_bytes or 0
            if self.options.get("offload") == "only":
                return max(error.smallest_bytes or 0, limit + 1), None
            least = {k: v for k, v in self.options.items() if k not in ("offload", "pinned")}
            plan = step.plan("smallest", measure=self.measure, **least)
        need, self.limits[batch] = bytes_of(plan.numbers, self.measure), limit
        return need, plan if need <= limit else None

    def run(self, start: int, most: int) -> int:
        """Returns the largest batch that fits."""
        if not self.fits(start):
            assert self.failed is not None
            raise self.failed.replace(batch=start)
        low, high = start, 2 * start
        while not self.stopped:
            while high <= most and not self.stopped and self.fits(high):
                low, high = high, 2 * high
            high = min(high, most + 1)
            while high - low > 1 and not self.stopped:
                middle = (low + high) // 2
                if self.fits(middle):
                    low = middle
                else:
                    high = middle
            further = range(low + 2, min(low + 1 + BEYOND, most) + 1)
            larger = [n for n in further if not self.stopped and self.fits(n)]
            if not larger:
                break
            low, high = larger[-1], larger[-1] + 1  # a larger batch needs less memory: go on
        return max(self.plans)


def _checked(budget: int | str) -> int | str:
    """Checks that the budget can rule out a batch: a bound in bytes or a share.

    Raises:
        ValueError, TypeError: if it cannot, or is invalid.
    """
    spec = budgets.parse(budget, "live")
    if budgets.is_position(spec):
        raise ValueError(
            f"budget={budget!r} is a position between the smallest plan and saving everything, "
            "which every batch meets: give bytes, '6GiB' or a share such as '0.4x'"
        )
    if spec is None or spec[0] not in budgets.BOUNDS:
        raise ValueError(f"budget={budget!r}: give bytes, '6GiB' or a share such as '0.4x'")
    return budget


def max_batch(
    make_step: Callable[[int], Any],
    budget: int | str,
    *,
    measure: str = "live",
    policy: Policy = None,
    device: Any = None,
    offload: bool | str | None = None,
    pinned: int | str | None = None,
    start: int = 1,
    most: int = 1 << 20,
    progress: Callable[[int, int, bool], object] | None = None,
    slices: bool = False,
) -> MaxBatch:
    """Finds the largest batch whose training step fits a budget, according to the planner.

    Steps are traced with fake tensors and planned. Nothing runs and no memory is allocated, so the
    model may be larger than this machine's memory. The batch is doubled until it does not fit, then
    bisected. A larger batch may need less memory, so a few batches beyond the first that does not
    fit are tried as well; if one of them fits, the search continues from there.

    Args:
        make_step: ``make_step(batch)`` returns a module or function and its inputs, as a tuple,
            ``(model, (x, y))``, or by name, ``(model, {"input_ids": x, "labels": y})``, and for
            ``measure="total"`` the optimizer as third. It is called under a fake tensor mode, so
            tensors and modules made there take no memory. A model made outside is used unchanged.
        budget: bytes, or ``"6GiB"``; or a share such as ``"0.4x"`` of the bytes that each batch
            needs without a budget. A position from 0 to 1 is an error, because every batch meets
            it.
        measure, policy, device, offload, pinned: as for :func:`compile`.
        start: the first batch to try.
        most: the largest batch to try.
        progress: called with ``(batch, bytes, fits)`` after each try, where the bytes are those of
            the plan, or the smallest peak found. Returning True ends the search with the best batch
            so far.
        slices: see :class:`Partitioner`.

    Returns:
        The batch, its plan, the budget in bytes, and the bytes of every batch that was tried.

    Raises:
        BudgetError: if ``start`` does not fit; its attributes give the smallest budget that works.
        ValueError, TypeError: if an argument or the result of make_step is invalid.
        UnsupportedGraphError: if the step cannot be planned.

    >>> found = max_batch(lambda n: (model, (torch.randn(n, 3, 224, 224),)), "6GiB")
    >>> print(found)  # found.batch, found.plan, found.next_bytes
    """
    if measure not in MEASURES:
        raise ValueError(f"measure={measure!r} is not one of {', '.join(MEASURES)}")
    budget = _checked(budget)
    if not 1 <= start <= most:
        raise ValueError(f"start={start} and most={most}: need 1 <= start <= most")
    options = {"device": device, "offload": offload, "pinned": pinned}
    tracing = {"policy": policy, "slices": slices}
    search = _Search(make_step, budget, measure, tracing, options, progress)
    batch = search.run(start, most)
    return MaxBatch(batch, search.plans[batch], search.limits[batch], measure, search.tried)
