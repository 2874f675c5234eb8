"""Shapes that differ in sizes only, and the canonical sizes at which they are planned.

Arguments with the same structure, dtypes, constants and parameters are one family. Axes of its data
in which its shapes have differed are said to vary. All shapes of a family are planned at canonical
sizes: varying axes are rounded up to one of eight sizes between powers of two. Which axes vary, and
so the plan of each shape, does not depend on the order in which the shapes come. A family of one
shape has no varying axes, and its plan is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..octaves import rounded_up
from ..run.compiling import Decisions
from .tracing import Call

_BYTES_OF_KEY = 1024  # about; shapes share most of it with programs
_NEAR = 2  # sizes that differ by no more may belong together: tokens and targets, say

Shapes = tuple[tuple[int, ...] | None, ...]
"""The shape of each leaf; None: a constant."""


def rounded(sizes: Iterable[int], linked: bool) -> dict[int, int]:
    """The canonical size of each of these sizes of one shape. Equal sizes stay equal. ``linked``:
    so do differences of at most 2 from the next smaller size that is rounded."""
    result: dict[int, int] = {}
    base: int | None = None
    for size in sorted(set(sizes)):
        if linked and base is not None and size - base <= _NEAR:
            result[size] = result[base] + size - base
        else:
            base = size
            result[size] = rounded_up(size)
    return result


def shapes_of(call: Call) -> Shapes:
    """The shape of each leaf of a call."""
    return tuple(None if array is None else tuple(array.shape) for array in call.arrays)


def family_key(call: Call, fixed: frozenset[int]) -> Any:
    """Equal for calls that differ in sizes of data only. ``fixed``: leaves whose sizes count."""
    rows = []
    for i, (array, spec) in enumerate(zip(call.arrays, call.key[1], strict=True)):
        rows.append(spec if array is None or i in fixed else (spec[0], len(array.shape)))
    return call.tree, tuple(rows)


class Family:
    """Calls that differ in sizes of data only."""

    def __init__(self, key: Any, first: Shapes) -> None:
        self.key = key
        self._first = first
        self.varying: set[tuple[int, int]] = set()
        """Leaf and axis of each size in which shapes have differed; it only grows."""

    def add(self, shapes: Shapes) -> None:
        """Notes a shape."""
        for leaf, (one, other) in enumerate(zip(self._first, shapes, strict=True)):
            if one is None or other is None or one == other:
                continue
            axes = enumerate(zip(one, other, strict=True))
            self.varying.update((leaf, axis) for axis, (a, b) in axes if a != b)

    def canonical(self, shapes: Shapes, linked: bool = False) -> Shapes:
        """``shapes`` at their canonical sizes."""
        if not self.varying:
            return shapes
        sizes = [shapes[leaf][axis] for leaf, axis in self.varying]  # type: ignore[index]
        to = rounded(sizes, linked)
        return tuple(
            shape
            if shape is None
            else tuple(to[n] if (i, axis) in self.varying else n for axis, n in enumerate(shape))
            for i, shape in enumerate(shapes)
        )

    def canonical_ways(self, shapes: Shapes) -> tuple[Shapes, ...]:
        """Canonical sizes to try, the best first."""
        ways = (self.canonical(shapes), self.canonical(shapes, linked=True))
        return ways if ways[0] != ways[1] else ways[:1]


class Decided:
    """What was decided at canonical sizes of a family, and kept in a cache of programs."""

    def __init__(self, family: Family, takes_sizes: bool, decisions: Decisions | None) -> None:
        self.family = family  # which lives as long as something that was made for it
        self.takes_sizes = takes_sizes  # the function can be traced at these sizes
        self.native = None if decisions is None else decisions.native
        """None: it cannot, or no plan meets the budget."""
        self.nbytes = _BYTES_OF_KEY + (0 if decisions is None else decisions.nbytes)


class _Shaped:
    """Stands for a traced array; it has only a shape."""

    __slots__ = ("shape",)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


class Resized(Call):
    """A call as it would be with arrays of other shapes. It can be traced, and nothing else."""

    __slots__ = ()

    def __init__(self, call: Call, shapes: Sequence[tuple[int, ...] | None]) -> None:
        self.function = call.function
        self.stream = call.stream
        self.leaves, self.tree = call.leaves, call.tree
        self.given, self.scalars = [], []
        self._names = call.names()
        self.fitting = None
        self.arrays = [None if shape is None else _Shaped(shape) for shape in shapes]
        specs = zip(call.key[1], shapes, strict=True)
        self.key = (
            call.tree,
            tuple([spec if shape is None else (spec[0], shape) for spec, shape in specs]),
        )
