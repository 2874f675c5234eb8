"""Predicts the problem of a step at all batch sizes from traces at a few.

The bytes and work of most steps are linear functions of the batch size. Two traces give these
functions, and a third trace, or a trace of only the forward at a third batch, checks them. If a
size is not linear, or the graph depends on the batch, every batch is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from ..problem import Inlining, Member, Op, Problem, Storage, Value

FIRST, SECOND = 88, 104
"""The batches that are traced. They are not small, because a batch of 1 may give a different graph:
axes of size 1 broadcast. They are multiples of 8, because some sizes are rounded to 64 bytes. Few
models have an axis of these sizes: at such a batch, equal constants of both axes would be merged,
and the graph would differ from that of all other batches."""

_ROUNDED = 64  # sizes may differ by this much from a linear function

_WORK = ("flops", "bytes", "time_ps", "workspace")
_FIELDS: dict[type, tuple[str, ...]] = {
    Storage: ("bytes",), Value: ("bytes",), Op: _WORK, Member: ("size", *_WORK), Inlining: _WORK,
    Problem: ("static_bytes",),
}  # fmt: skip


def _parts(problem: Problem) -> Iterator[Any]:
    """Yields all parts that have sizes, in a fixed order."""
    yield problem
    yield from problem.storages
    for op in problem.ops:
        yield op
        yield from op.outputs
        yield from op.inside
    yield from problem.inlinings


def numbers_of(problem: Problem) -> list[int | float | None]:
    """Returns all sizes and amounts of work, in a fixed order."""
    return [getattr(part, name) for part in _parts(problem) for name in _FIELDS[type(part)]]


def structure_of(problem: Problem) -> str:
    """Returns a text of everything but the sizes. Schedules of a problem are valid for all problems
    of equal structure. The flag "reduction" is left out, because it depends on sizes and only
    changes the modelled time."""
    ops = [
        (op.kind, op.inputs, sorted(op.flags - {"reduction"}), op.work, op.group, op.region,
         list(op.over),
         [(v.storage, v.constraint, v.member) for v in op.outputs],
         [(m.reads, m.uses, m.work, sorted(m.flags)) for m in op.inside])
        for op in problem.ops
    ]  # fmt: skip
    rest = (
        [sorted(s.flags) for s in problem.storages], problem.forward_outputs,
        problem.backward_outputs, problem.backward_starts, problem.align, problem.reruns,
        problem.keep_saved,
        [(i.value, i.op, i.work) for i in problem.inlinings],
    )  # fmt: skip
    return repr((ops, rest))


def _copy(problem: Problem) -> Problem:
    """Returns a copy whose sizes may be set. The types of values, which are only displayed, are
    left out."""
    ops = [
        replace(
            op,
            outputs=[replace(v, type="") for v in op.outputs],
            inside=[replace(m) for m in op.inside],
        )
        for op in problem.ops
    ]
    storages = [replace(s) for s in problem.storages]
    inlinings = [replace(i) for i in problem.inlinings]
    return replace(problem, ops=ops, storages=storages, inlinings=inlinings)


def _with_numbers(problem: Problem, numbers: list[int | float | None]) -> Problem:
    result, source = _copy(problem), iter(numbers)
    for part in _parts(result):
        for name in _FIELDS[type(part)]:
            setattr(part, name, next(source))
    return result


class Forward(NamedTuple):
    """The structure and sizes of a forward, which is cheaper to trace than a step."""

    structure: str
    """Equal for two batches if the same operations read the same values."""
    sizes: list[int]
    """The sizes of all values, in a fixed order."""


class Family:
    """The problems of one step at all batch sizes.

    Args:
        trace: returns the problem of a batch.
        forward: returns the forward of a batch, for the check; None: the check traces the step.
    """

    def __init__(
        self, trace: Callable[[int], Problem], forward: Callable[[int], Forward] | None = None
    ) -> None:
        self._trace = trace
        self._forward = forward
        self._traced: dict[int, Problem] = {}
        self._linear: bool | None = None  # None: not known yet
        self._base: list[int | float | None] = []
        self._slopes: list[int | float] = []

    @property
    def is_linear(self) -> bool:
        """True if sizes are linear, so that the problems of other batches can be predicted."""
        if self._linear is None:
            self._linear = self._compare()
        return self._linear

    def _compare(self) -> bool:
        """Traces two batches and computes the growth of all numbers. Returns True if all are
        linear."""
        first, second = self.traced(FIRST), self.traced(SECOND)
        if structure_of(first) != structure_of(second):
            return False
        self._base = numbers_of(first)
        pairs = zip(self._base, numbers_of(second), strict=True)
        slopes = [_slope(a, b) for a, b in pairs]
        self._slopes = [slope for slope in slopes if slope is not None]
        return len(slopes) == len(self._slopes)

    def traced(self, batch: int) -> Problem:
        """Returns the problem of a batch from a trace."""
        if batch not in self._traced:
            self._traced[batch] = self._trace(batch)
        return self._traced[batch]

    @property
    def n_traced(self) -> int:
        """Number of batches traced so far."""
        return len(self._traced)

    def is_traced(self, batch: int) -> bool:
        """Returns True if this batch has been traced."""
        return batch in self._traced

    def problem(self, batch: int) -> Problem:
        """Returns the problem of a batch, predicted if sizes are linear, else traced."""
        if batch in self._traced or batch == 1 or not self.is_linear:
            return self.traced(batch)
        return _with_numbers(self._traced[FIRST], self._predicted(batch))

    def _predicted(self, batch: int) -> list[int | float | None]:
        steps = batch - FIRST
        return [
            None if base is None else max(0, base + steps * slope)
            for base, slope in zip(self._base, self._slopes, strict=True)
        ]

    def check(self, batch: int) -> bool:
        """Traces a third batch and returns True if it has the predicted sizes. If not, every batch
        is traced from then on."""
        if not self.is_linear or batch in (FIRST, SECOND):
            return self.is_linear
        if self._forward is not None and batch not in self._traced:
            first, second, third = map(self._forward, (FIRST, SECOND, batch))
            self._linear = _are_linear(first, second, third, batch)
            return self._linear
        traced = self.traced(batch)
        pairs = zip(numbers_of(traced), self._predicted(batch), strict=False)
        is_same_step = structure_of(traced) == structure_of(self._traced[FIRST])
        self._linear = is_same_step and all(_are_alike(*pair) for pair in pairs)
        return self._linear


def _are_linear(first: Forward, second: Forward, third: Forward, batch: int) -> bool:
    """Returns True if the third forward has the same structure and the sizes that the first two
    predict."""
    if not first.structure == second.structure == third.structure:
        return False
    steps = SECOND - FIRST
    return all(
        (c - a) * steps == (b - a) * (batch - FIRST)
        for a, b, c in zip(first.sizes, second.sizes, third.sizes, strict=True)
    )


def _slope(first: int | float | None, second: int | float | None) -> int | float | None:
    """Returns the growth of a number per example, or None if it is not linear."""
    if first is None or second is None:
        return 0 if first is second else None
    growth, steps = second - first, SECOND - FIRST
    if isinstance(growth, int):
        return growth // steps if growth % steps == 0 else None
    return growth / steps


def _are_alike(traced: int | float | None, predicted: int | float | None) -> bool:
    if traced is None or predicted is None:
        return traced is predicted
    return abs(traced - predicted) <= max(_ROUNDED, 1e-9 * abs(traced))
