"""Arrays of one of our graphs, with the operators used by rows of the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ... import _native, budgets, dtypes

Number = bool | int | float

NAMES: dict[torch.dtype, str] = {
    torch.bool: "bool", torch.uint8: "u8", torch.int32: "i32", torch.int64: "i64",
    torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64",
}  # fmt: skip
"""Our names of the types that our kernels support."""

_SECONDS = 1.0  # time limit for finding a plan within a budget

HALVES = frozenset(("f16", "bf16"))


class Array:
    """A value of a graph under construction.

    Operators take arrays of one dtype, and numbers, which become constants of that dtype; shapes
    broadcast as in NumPy.
    """

    __slots__ = ("dtype", "graph", "id", "shape")

    def __init__(self, graph: Graph, id: int, dtype: str, shape: tuple[int, ...]) -> None:
        self.graph, self.id, self.dtype, self.shape = graph, id, dtype, shape

    def op(self, name: str, *others: Array | Number, **attrs: Any) -> Array:
        """Adds an operation with one result, whose first input is this array."""
        rest = [y if isinstance(y, Array) else self.number(y) for y in others]
        return self.graph.op(name, self, *rest, **attrs)[0]

    def number(self, value: Number) -> Array:
        """Makes a constant of this dtype."""
        return self.graph.full((), value, self.dtype)

    def cast(self, dtype: str) -> Array:
        """Converts to another dtype."""
        return self if dtype == self.dtype else self.op("cast", dtype=dtype)

    def reshape(self, shape: Sequence[int]) -> Array:
        """Returns the same elements with another shape."""
        return self if tuple(shape) == self.shape else self.op("reshape", shape=tuple(shape))

    def expand(self, shape: Sequence[int]) -> Array:
        """Repeats the array along axes of size 1."""
        return self if tuple(shape) == self.shape else self.op("expand", shape=tuple(shape))

    def transpose(self, axes: Sequence[int]) -> Array:
        """Permutes axes: axis k of the result is axis axes[k] of this array."""
        in_order = tuple(axes) == tuple(range(len(self.shape)))
        return self if in_order else self.op("transpose", axes=tuple(axes))

    def part(self, axis: int, start: int, n: int) -> Array:
        """Returns ``n`` elements along an axis."""
        if n == self.shape[axis]:
            return self
        return self.op("slice", axis=axis, start=start, stop=start + n, step=1)

    def copy(self) -> Array:
        """Returns a row-major copy."""
        return self.op("contiguous")

    def reduce(self, name: str, axes: Sequence[int], keepdims: bool = False) -> Array:
        """Reduces over some axes by ``sum``, ``mean``, ``amax`` or ``amin``. Without axes, returns
        the array itself."""
        return self.op(name, axes=tuple(axes), keepdims=int(keepdims)) if axes else self

    def __neg__(self) -> Array:
        return self.op("neg")

    def __add__(self, y: Array | Number) -> Array:
        return self.op("add", y)

    def __sub__(self, y: Array | Number) -> Array:
        return self.op("sub", y)

    def __mul__(self, y: Array | Number) -> Array:
        return self.op("mul", y)

    def __truediv__(self, y: Array | Number) -> Array:
        return self.op("div", y)

    def __radd__(self, y: Number) -> Array:
        return self.number(y) + self

    def __rsub__(self, y: Number) -> Array:
        return self.number(y) - self

    def __rmul__(self, y: Number) -> Array:
        return self.number(y) * self

    def __rtruediv__(self, y: Number) -> Array:
        return self.number(y) / self

    def __lt__(self, y: Array | Number) -> Array:
        return self.op("lt", y)

    def __le__(self, y: Array | Number) -> Array:
        return self.op("le", y)

    def __gt__(self, y: Array | Number) -> Array:
        return self.op("gt", y)

    def __ge__(self, y: Array | Number) -> Array:
        return self.op("ge", y)


class Graph:
    """A forward graph of ours under construction."""

    def __init__(self) -> None:
        self.native = _native.Graph()
        self.n_inputs = 0
        self.n_outputs = 0

    def input(self, shape: Sequence[int], dtype: str) -> Array:
        """Adds the next argument."""
        shape = tuple(shape)
        id = self.native.input(f"x{self.n_inputs}", shape, dtype, 0)
        self.n_inputs += 1
        return Array(self, id, dtype, shape)

    def output(self, x: Array) -> None:
        """Adds the next result."""
        self.native.output(f"y{self.n_outputs}", x.id)
        self.n_outputs += 1

    def op(self, name: str, *ins: Array, **attrs: Any) -> tuple[Array, ...]:
        """Adds an operation; returns all its results."""
        rows = self.native.op(name, [x.id for x in ins], attrs, None, 0, None)
        return tuple(Array(self, *row) for row in rows)

    def full(self, shape: Sequence[int], value: Number, dtype: str) -> Array:
        """Makes a constant."""
        return self.op("full", value=float(value), shape=tuple(shape), dtype=dtype)[0]

    def where(self, condition: Array, x: Array | Number, y: Array | Number) -> Array:
        """Selects ``x`` where the condition holds, and ``y`` elsewhere; at least one of them is an
        array."""
        kind = next(a for a in (x, y) if isinstance(a, Array))
        a, b = (v if isinstance(v, Array) else kind.number(v) for v in (x, y))
        return self.op("where", condition, a, b)[0]

    def compile(self, room: int | None) -> _native.Step:
        """Plans and lowers the graph.

        Args:
            room: the bytes that a run may need besides arguments and results; None means any
            number.

        Raises:
            BudgetError: no plan fits in `room`.
        """
        if room is None:
            return self.native.compile((), groups="auto")
        bound = budgets.parse(room, "arena")
        return self.native.compile((), groups="found", budget=bound, time_limit=_SECONDS)


def computed_in(dtype: str) -> str:
    """Returns the type in which operations on this one are computed. Halves are rounded once, at
    the end."""
    return "f32" if dtype in HALVES else dtype


def is_float(dtype: str) -> bool:
    """True for a floating-point type that we support."""
    return dtype in dtypes.FLOATS
