"""Runs a function on all examples of a batch at once: the graph of :func:`cutback.vmap`.

The function is called once, with arrays that have the axes of one example. Each of them represents
an array of the outer graph, whose first axis goes over examples. An operation on such an array
becomes an operation of the outer graph, by a rule for its name. An operation on values that all
examples share is added unchanged. Gradients inside the function are gradients of the outer graph:
no example depends on another, so the gradient of the sum over examples contains that of each
example."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..policies import OPS
from ..source import located
from .graph import innermost
from .tracer import Array

_POINTWISE, _RANDOM = 1 << 1, 1 << 5  # flags of operations
_Ins = Sequence[Array]
_Attrs = dict[str, Any]


class Batch:
    """A graph of operations on one example. The values of all examples are in the graph
    ``outer``."""

    def __init__(self, outer: Any, size: int) -> None:
        self.outer = outer
        self.size = size
        self.depth: int = getattr(outer, "depth", 0) + 1
        self._values: list[Array] = []  # id of a value -> outer array with the axis of examples

    def __getattr__(self, name: str) -> Any:  # everything unrelated to the axis of examples
        return getattr(self.outer, name)

    def one(self, x: Array) -> Array:
        """Returns the array of one example for ``x``, an array of the outer graph whose first axis
        goes over examples."""
        self._values.append(x)
        return Array(self, len(self._values) - 1, str(x.dtype), x.shape[1:])

    def is_batched(self, x: Array) -> bool:
        """Returns True if ``x`` differs between examples."""
        return x.graph is self

    def inside(self, x: Array) -> Array:
        """Returns the array of the outer graph that ``x`` represents, or ``x`` itself if all
        examples share it."""
        return self._values[x.id] if x.graph is self else x

    def all_of(self, x: Array) -> Array:
        """Returns ``x`` as an array of the outer graph with an axis of examples. If all examples
        share ``x``, it is repeated along that axis."""
        if x.graph is self:
            return self._values[x.id]
        return self.call("expand", x, shape=(self.size, *x.shape))

    def call(self, name: str, *ins: Array, **attrs: Any) -> Array:
        """Adds an operation to the outer graph and returns its only output."""
        result: Array = self.outer.apply(name, ins, attrs)[0]
        return result

    def shaped(self, x: Array, shape: Sequence[int]) -> Array:
        """Reshapes an array of the outer graph."""
        return x if x.shape == tuple(shape) else self.call("reshape", x, shape=tuple(shape))

    def raised(self, x: Array, rank: int) -> Array:
        """Returns the outer graph's array of ``x``, with ``rank`` axes after the axis of examples,
        so that it broadcasts."""
        inside = self.inside(x)
        if inside is x or x.ndim >= rank:
            return inside
        return self.shaped(inside, (self.size, *(1,) * (rank - x.ndim), *x.shape))

    # ---- as Graph --------------------------------------------------------------------------------

    def apply(self, name: str, ins: tuple[Array, ...], attrs: _Attrs) -> tuple[Array, ...]:
        """Adds one operation by the rule for its name."""
        if (
            ins
            and (inner := innermost(ins)) is not self
            and getattr(inner, "depth", 0) >= self.depth
        ):
            found: tuple[Array, ...] = inner.apply(name, ins, attrs)
            return found
        draws = OPS[name][4] & _RANDOM and attrs.get("p", 1) > 0
        if not draws and not any(x.graph is self for x in ins):
            shared: tuple[Array, ...] = self.outer.apply(name, ins, attrs)
            return shared
        rule = _RULES.get(name) or (_pointwise if OPS[name][4] & _POINTWISE else None)
        if rule is None:
            raise NotImplementedError(
                located(
                    f"vmap: {name} has no rule for batches; write the function for arrays with an "
                    "axis of examples instead, with axis= and broadcasting"
                )
            )
        return tuple(self.one(x) for x in rule(self, ins, name, attrs))

    def lift(self, x: Any) -> Array:
        """Returns ``x`` as a value that all examples share."""
        value: Array = self.outer.lift(x)
        return value

    def alias(self, x: Array) -> Array:
        """Returns a copy of ``x`` for each example, by which results can be differentiated."""
        return self.one(self.outer.alias(self.all_of(x)))

    def gradients(self, of: _Ins, given: _Ins, wrt: _Ins) -> list[Array | None]:
        """Returns the gradients of each example with respect to ``wrt``, with None for values that
        no result depends on."""
        rows = [(y, g) for y, g in zip(of, given, strict=True) if y.graph is self]
        found = self.outer.gradients(
            [self.inside(y) for y, _ in rows],
            [self.all_of(g) for _, g in rows],
            [self.inside(x) for x in wrt],
        )
        return [None if x is None else self.one(x) for x in found]

    def state(self, argument: Array, value: Array) -> None:
        """Raises ValueError: all examples would update the same array."""
        raise ValueError(
            located(
                "vmap: the function updates running statistics, which all examples share; update "
                "them outside of vmap"
            )
        )

    def mark(self, value: Array, name: str) -> None:
        """Gives a value a name for policies."""
        self.outer.mark(self.inside(value), name)

    def release(self, value: Array) -> None:
        """Removes a value from its checkpoint region."""
        self.outer.release(self.inside(value))

    def constrain(self, value: Array, decision: Any) -> None:
        """Sets the policy of a value."""
        self.outer.constrain(self.inside(value), decision)


_Rule = Callable[[Batch, _Ins, str, _Attrs], Sequence[Array]]


# ---- rules, on arrays of the outer graph with the axis of examples first -------------------------


def _pointwise(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    rank = max(x.ndim for x in ins)
    return (b.call(name, *(b.raised(x, rank) for x in ins), **attrs),)


def _as_it_is(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    found: Sequence[Array] = b.outer.apply(name, tuple(b.all_of(x) for x in ins), attrs)
    return found


def _along(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    axis = attrs.get("axis", 0)
    axis = axis + ins[0].ndim if axis < 0 else axis
    return _as_it_is(b, ins, name, {**attrs, "axis": axis + 1})


def _uniform(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    return (b.call(name, **{**attrs, "shape": (b.size, *attrs["shape"])}),)


def _reduce(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    (x,) = ins
    axes = attrs.get("axes") or range(x.ndim)
    axes = tuple(a % x.ndim + 1 for a in ((axes,) if isinstance(axes, int) else axes))
    inside = b.inside(x)
    return (b.call(name, inside, **{**attrs, "axes": axes}) if axes else inside,)


def _reshape(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    shape = tuple(attrs["shape"])
    if -1 in shape:
        rest = math.prod(n for n in shape if n != -1)
        shape = tuple(ins[0].size // max(rest, 1) if n == -1 else n for n in shape)
    return (b.call(name, b.inside(ins[0]), shape=(b.size, *shape)),)


def _expand(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    shape = tuple(attrs["shape"])
    return (b.call(name, b.raised(ins[0], len(shape)), shape=(b.size, *shape)),)


def _transpose(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    axes = (0, *(a % ins[0].ndim + 1 for a in attrs["axes"]))
    return (b.call(name, b.inside(ins[0]), axes=axes),)


def _matmul(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    x, y = ins
    rank = max(x.ndim, y.ndim, 2)
    left, right = b.inside(x), b.inside(y)
    if x.ndim == 1:
        left = b.shaped(left, (*left.shape[:-1], 1, left.shape[-1]))
    if y.ndim == 1:
        right = b.shaped(right, (*right.shape, 1))
    if left.ndim < rank + 1 and x.graph is b:
        left = b.shaped(left, (b.size, *(1,) * (rank + 1 - left.ndim), *left.shape[1:]))
    if right.ndim < rank + 1 and y.graph is b:
        right = b.shaped(right, (b.size, *(1,) * (rank + 1 - right.ndim), *right.shape[1:]))
    out = b.call("matmul", left, right)
    rows = () if x.ndim == 1 else out.shape[-2:-1]
    columns = () if y.ndim == 1 else out.shape[-1:]
    return (b.shaped(out, (*out.shape[:-2], *rows, *columns)),)


def _folded(b: Batch, x: Array) -> Array:
    """Merges the axis of examples and the first axis of an example into one axis."""
    inside = b.all_of(x)
    return b.shaped(inside, (b.size * x.shape[0], *x.shape[1:]))


def _fold(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    x = _folded(b, ins[0])
    outs: Sequence[Array] = b.outer.apply(name, (x, *ins[1:]), attrs)
    return [b.shaped(y, (b.size, y.shape[0] // b.size, *y.shape[1:])) for y in outs]


def _in_channels(b: Batch, x: Array) -> Array:
    """Turns ``[n, c, ..]`` of each example into one array ``[n, examples * c, ..]``."""
    turned = b.call("transpose", b.all_of(x), axes=(1, 0, *range(2, x.ndim + 1)))
    return b.shaped(turned, (x.shape[0], b.size * x.shape[1], *x.shape[2:]))


def _out_of_channels(b: Batch, y: Array) -> Array:
    apart = b.shaped(y, (y.shape[0], b.size, y.shape[1] // b.size, *y.shape[2:]))
    return b.call("transpose", apart, axes=(1, 0, *range(2, apart.ndim)))


def _conv2d(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    x, w = ins
    attrs = dict(attrs)
    if w.graph is not b:
        if "shape" in attrs:
            n, *rest = attrs["shape"]
            attrs["shape"] = (b.size * n, *rest)
        return _fold(b, ins, name, attrs)
    # the filters of each example become a group of channels
    attrs["groups"] = attrs.get("groups", 1) * b.size
    if "shape" in attrs:
        n, c, *rest = attrs["shape"]
        attrs["shape"] = (n, b.size * c, *rest)
    return (_out_of_channels(b, b.call(name, _in_channels(b, x), _folded(b, w), **attrs)),)


def _embedding(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    table, index = ins
    if table.graph is not b:
        return (b.call(name, table, b.inside(index)),)
    rows = b.shaped(b.all_of(index), (b.size, index.size, 1))
    wide = b.call("expand", rows, shape=(b.size, index.size, table.shape[1]))
    found = b.call("gather", b.inside(table), wide, axis=1)
    return (b.shaped(found, (b.size, *index.shape, table.shape[1])),)


def _embedding_bwd(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    g, index = ins
    columns = g.shape[1]
    zeros = b.outer.full((b.size, attrs["rows"], columns), 0.0, str(g.dtype))
    rows = b.shaped(b.all_of(index), (b.size, index.size, 1))
    wide = b.call("expand", rows, shape=(b.size, index.size, columns))
    return (b.call("scatter_add", zeros, wide, b.all_of(g), axis=1),)


def _row_norm(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    x, *params = ins
    if not any(p.graph is b for p in params):
        found: Sequence[Array] = b.outer.apply(name, (b.inside(x), *params), attrs)
        return found
    plain = [b.outer.full(p.shape, float(i == 0), str(p.dtype)) for i, p in enumerate(params)]
    y, *statistics = b.outer.apply(name, (b.all_of(x), *plain), attrs)
    y = b.call("mul", y, b.raised(params[0], x.ndim))
    if len(params) > 1:
        y = b.call("add", y, b.raised(params[1], x.ndim))
    return (y, *statistics)


def _batch_norm(b: Batch, ins: _Ins, name: str, attrs: _Attrs) -> Sequence[Array]:
    x, *params = ins
    y, *statistics = b.outer.apply(
        name, (_in_channels(b, x), *(_folded(b, p) for p in params)), attrs
    )
    return (_out_of_channels(b, y), *(b.shaped(s, (b.size, x.shape[1])) for s in statistics))


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("sum", "mean", "amax", "amin"), _reduce),
    **dict.fromkeys(("argmax", "slice", "concat", "pad", "gather", "scatter_add"), _along),
    **dict.fromkeys(
        ("softmax", "log_softmax", "cross_entropy", "attention", "stop_gradient", "custom_vjp",
         "dropout", "tril"),
        _as_it_is,
    ),
    **dict.fromkeys(("conv2d", "conv2d_dgrad"), _conv2d),
    **dict.fromkeys(("max_pool2d", "avg_pool2d"), _fold),
    **dict.fromkeys(("layer_norm", "rms_norm"), _row_norm),
    "uniform": _uniform, "reshape": _reshape, "expand": _expand, "transpose": _transpose,
    "matmul": _matmul, "embedding": _embedding, "embedding_bwd": _embedding_bwd,
    "batch_norm": _batch_norm,
}  # fmt: skip
