"""Shapes that differ only in sizes, and the canonical sizes at which they are planned.

Calls with the same structure, dtypes, constants and parameters form a family. An axis of the data
is varying if its size has differed between calls. All shapes of a family are planned at canonical
sizes: the sizes of varying axes are rounded up to one of eight sizes between powers of two. The set
of varying axes, and so the plan of each shape, does not depend on the order of the calls. A family
of one shape has no varying axes, so its plan is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..octaves import rounded_up
from ..run.compiling import Decisions
from .tracing import Call

_BYTES_OF_KEY = 1024  # an estimate; programs share most of a key
_NEAR = 2  # sizes this close may be related, such as the numbers of tokens and of targets

Shapes = tuple[tuple[int, ...] | None, ...]
"""The shape of each leaf; None for a constant."""


def rounded(sizes: Iterable[int], linked: bool) -> dict[int, int]:
    """Returns the canonical size for each of the sizes of one shape. Equal sizes stay equal. If
    ``linked``, differences of at most 2 from the next smaller rounded size are kept too."""
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
    """Returns the shape of each leaf of a call."""
    return tuple(None if array is None else tuple(array.shape) for array in call.arrays)


def family_key(call: Call, fixed: frozenset[int]) -> Any:
    """Returns a key that is equal for calls that differ only in sizes of data. The sizes of leaves
    in ``fixed`` are part of the key."""
    rows = []
    for i, (array, spec) in enumerate(zip(call.arrays, call.key[1], strict=True)):
        rows.append(spec if array is None or i in fixed else (spec[0], len(array.shape)))
    return call.tree, tuple(rows)


class Family:
    """Calls that differ only in sizes of data."""

    def __init__(self, key: Any, first: Shapes) -> None:
        self.key = key
        self._first = first
        self.varying: set[tuple[int, int]] = set()
        """(leaf, axis) of each varying axis. Axes are added, but never removed."""

    def add(self, shapes: Shapes) -> None:
        """Adds the axes in which ``shapes`` differ from the first call to the varying ones."""
        for leaf, (one, other) in enumerate(zip(self._first, shapes, strict=True)):
            if one is None or other is None or one == other:
                continue
            axes = enumerate(zip(one, other, strict=True))
            self.varying.update((leaf, axis) for axis, (a, b) in axes if a != b)

    def canonical(self, shapes: Shapes, linked: bool = False) -> Shapes:
        """Returns ``shapes`` with canonical sizes."""
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
        """Returns the canonical sizes to try, best first."""
        ways = (self.canonical(shapes), self.canonical(shapes, linked=True))
        return ways if ways[0] != ways[1] else ways[:1]


class Decided:
    """The decisions made at canonical sizes of a family, as stored in a cache of programs."""

    def __init__(self, family: Family, takes_sizes: bool, decisions: Decisions | None) -> None:
        self.family = family  # keeps the family alive
        self.takes_sizes = takes_sizes  # the function can be traced at these sizes
        self.native = None if decisions is None else decisions.native
        """None if the function cannot be traced at these sizes, or if no plan meets the budget."""
        self.nbytes = _BYTES_OF_KEY + (0 if decisions is None else decisions.nbytes)


class _Shaped:
    """A placeholder for an array that has only a shape."""

    __slots__ = ("shape",)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


class Resized(Call):
    """A copy of a call with arrays of other shapes. It can only be traced."""

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
