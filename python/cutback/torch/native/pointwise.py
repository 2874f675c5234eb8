"""Rows of the table for operations that work element by element."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import fx

from ..graph.draws import KEEP_MASK
from .arrays import NAMES, Array, Graph, Number, computed_in, is_float
from .building import Builder, Results, Value, tensors_of
from .layouts import axes_of

aten = torch.ops.aten

Check = Callable[[fx.Node], str | None]
"""Returns why a call stays with PyTorch, or None if it may run in our kernels."""


class Row(NamedTuple):
    """An operation expressed in ours."""

    build: Callable[[Builder, fx.Node], Results]
    check: Check
    exact: bool = False
    """True if PyTorch's kernel gives the same bits in f32 and f64."""
    by_element: bool = False
    """True if it computes element by element, and needs no memory besides its result."""
    scratch: float = 0.125
    """How much scratch it may need, as a share of what it reads and returns."""


Kind = Literal["float", "compare", "select", "logical"]
Formula = Callable[..., Array]
"""Takes the graph, then the call's arguments: arrays for tensors, and numbers as they are."""


def _common(node: fx.Node) -> torch.dtype:
    """Returns the type in which PyTorch compares the arguments of a call."""
    given: list[Any] = []
    for a in node.args:
        if isinstance(a, fx.Node):
            val = a.meta["val"]
            given.append(torch.empty((1,) * val.dim(), dtype=val.dtype, device="meta"))
        else:
            given.append(a)
    return torch.result_type(*given)


def _dtypes(node: fx.Node, kind: Kind, dtype: str) -> list[str]:
    """Returns the type that each argument is converted to."""
    if kind == "compare":
        common = NAMES[_common(node)]
        return [common] * len(node.args)
    if kind == "logical":
        return ["bool"] * len(node.args)
    if kind == "select":
        vals = [a.meta["val"].dtype if isinstance(a, fx.Node) else None for a in node.args]
        return ["bool" if v == torch.bool and dtype != "bool" else dtype for v in vals]
    return [computed_in(dtype)] * len(node.args)


def _build(b: Builder, node: fx.Node, f: Formula, kind: Kind) -> Value:
    meta = b.meta(node)
    axes = axes_of(meta)
    assert axes is not None
    rank, dtype = len(meta.shape), NAMES[meta.dtype]
    given: list[Any] = []
    for a, wanted in zip(node.args, _dtypes(node, kind, dtype), strict=True):
        if isinstance(a, fx.Node):
            given.append(b.framed(b.value(a), axes, rank).cast(wanted))
        else:
            given.append(a)
    kwargs = {k: v for k, v in node.kwargs.items() if k in ("approximate",)}
    made = f(b.graph, *given, **kwargs).cast(dtype)
    frame = tuple(meta.shape[a] for a in axes)
    if made.shape != frame:
        made = made.expand(frame).copy()
    elif any(isinstance(x, Array) and x.id == made.id for x in given):
        made = made.copy()
    return Value(made, axes, meta)


_IGNORED = frozenset({"memory_format", "layout", "device", "pin_memory", "non_blocking", "dtype"})
"""Keyword arguments whose effect is visible in the result's fake tensor."""
_NEUTRAL = {"alpha": 1, "rounding_mode": None}


def _numbers(node: fx.Node) -> str | None:
    for a in node.args:
        if not isinstance(a, (fx.Node, bool, int, float, type(None), torch.dtype)):
            return f"an argument is a {type(a).__name__}"
        if isinstance(a, fx.Node) and not isinstance(a.meta.get("val"), torch.Tensor):
            return f"an argument is a {type(a.meta.get('val')).__name__}"
    for k, v in node.kwargs.items():
        if k in _NEUTRAL and v != _NEUTRAL[k]:
            return f"{k}={v!r}"
        if k not in _IGNORED and k not in _NEUTRAL and k != "approximate":
            return f"the argument {k}"
    return None


def _check(node: fx.Node, kind: Kind) -> str | None:
    why = _numbers(node)
    if why is not None:
        return why
    out = tensors_of(node)[0].dtype
    if kind in ("float", "select") and not is_float(NAMES.get(out, "")):
        return f"its result is {out}"
    if kind == "compare" and _common(node) not in NAMES:
        return f"it compares {_common(node)}"
    if kind == "logical":
        for a in node.all_input_nodes:
            if a.meta["val"].dtype != torch.bool:
                return f"an argument is {a.meta['val'].dtype}"
    return None


def row(f: Formula, kind: Kind = "float", check: Check | None = None, exact: bool = False) -> Row:
    """Makes the row of an operation on elements.

    Args:
        kind: ``"float"`` converts numbers to the type of the result, and computes halves in f32;
            ``"compare"`` converts them to the type that PyTorch compares in; ``"select"`` selects
            elements unchanged, by a condition; with ``"logical"`` everything is bool.
        check: a further condition.
    """

    def checked(node: fx.Node) -> str | None:
        return _check(node, kind) or (None if check is None else check(node))

    return Row(lambda b, node: _build(b, node, f, kind), checked, exact, by_element=True)


# ---- formulas -----------------------------------------------------------------------------------


def _op(name: str) -> Formula:
    return lambda g, x, *rest: x.op(name, *rest)


def _of_two(f: Callable[[Any, Any], Any]) -> Formula:
    return lambda g, x, y: f(x, y)


def _gelu(g: Graph, x: Array, approximate: str = "none") -> Array:
    return x.op("gelu_tanh" if approximate == "tanh" else "gelu")


def _gelu_backward(g: Graph, dy: Array, x: Array, approximate: str = "none") -> Array:
    return dy.op("gelu_tanh_bwd" if approximate == "tanh" else "gelu_bwd", x)


def _clamp(g: Graph, x: Array, low: Number | None = None, high: Number | None = None) -> Array:
    x = x if low is None else x.op("maximum", low)
    return x if high is None else x.op("minimum", high)


def _power(g: Graph, x: Array, exponent: Number) -> Array:
    return _POWERS[float(exponent)](x)


_POWERS: dict[float, Callable[[Array], Array]] = {
    2.0: lambda x: x.op("square"),
    3.0: lambda x: x.op("square") * x,
    0.5: lambda x: x.op("sqrt"),
    -0.5: lambda x: x.op("rsqrt"),
    -1.0: lambda x: x.op("reciprocal"),
    -2.0: lambda x: x.op("square").op("reciprocal"),
    1.0: lambda x: x,
}


def _known_power(node: fx.Node) -> str | None:
    exponent = node.args[1]
    known = isinstance(exponent, (int, float)) and float(exponent) in _POWERS
    return None if known else f"exponent {exponent}"


def _threshold_backward(g: Graph, dy: Array, x: Array, threshold: Number) -> Array:
    if threshold == 0:
        return dy.op("relu_bwd", x)
    return g.where(x <= threshold, 0.0, dy)


def _leaky(g: Graph, x: Array, slope: Number = 0.01) -> Array:
    return g.where(x > 0, x, x * slope)


def _leaky_backward(g: Graph, dy: Array, x: Array, slope: Number, of_result: bool) -> Array:
    return g.where(x > 0, dy, dy * slope)


def _hardtanh(g: Graph, x: Array, low: Number = -1.0, high: Number = 1.0) -> Array:
    return x.op("maximum", low).op("minimum", high)


def _hardtanh_backward(g: Graph, dy: Array, x: Array, low: Number, high: Number) -> Array:
    return g.where(x > low, g.where(x < high, dy, 0.0), 0.0)


def _masked(g: Graph, x: Array, mask: Array, scale: Number) -> Array:
    return x * mask.cast(x.dtype) * scale


def _finite_scale(node: fx.Node) -> str | None:
    scale = node.args[2]
    return None if isinstance(scale, (int, float)) and math.isfinite(scale) else f"scale {scale}"


def _mse_backward_check(node: fx.Node) -> str | None:
    return None if node.args[3] in (0, 1) else "this reduction"


def _where(g: Graph, condition: Array, x: Any, y: Any) -> Array:
    return g.where(condition, x, y)


def _is_bool(position: int) -> Check:
    def check(node: fx.Node) -> str | None:
        given = node.args[position]
        is_mask = isinstance(given, fx.Node) and given.meta["val"].dtype == torch.bool
        return None if is_mask else "its condition is not bool"

    return check


def _both(first: Check, second: Check) -> Check:
    return lambda node: first(node) or second(node)


def _keep_mask(b: Builder, node: fx.Node) -> Value:
    """Builds the mask that :mod:`graph.draws` gives: the op "dropout" keeps the same elements."""
    seed, stream, _, p, _ = node.args
    assert isinstance(seed, fx.Node)
    assert b.seed in (None, seed), "a graph has one seed"
    b.seed = seed
    meta = b.meta(node)
    axes = axes_of(meta)
    assert axes is not None
    ones = b.graph.full([meta.shape[a] for a in axes], 1.0, "f32")
    return Value(ones.op("dropout", p=p, stream=stream) > 0, axes, meta)


def _some_kept(node: fx.Node) -> str | None:
    p = node.args[3]
    assert isinstance(p, float)
    return None if 0 < round(p * 2**16) < 2**16 else "it keeps all elements or none"


_UNARY = {
    aten.exp.default: "exp", aten.log.default: "log", aten.log1p.default: "log1p",
    aten.sqrt.default: "sqrt", aten.rsqrt.default: "rsqrt",
    aten.sin.default: "sin", aten.cos.default: "cos",
    aten.tanh.default: "tanh", aten.sigmoid.default: "sigmoid", aten.erf.default: "erf",
    aten.silu.default: "silu", aten.tanh_backward.default: "tanh_bwd",
    aten.sigmoid_backward.default: "sigmoid_bwd", aten.silu_backward.default: "silu_bwd",
}  # fmt: skip
_EXACT = {
    aten.neg.default: "neg", aten.abs.default: "abs", aten.floor.default: "floor",
    aten.relu.default: "relu", aten.reciprocal.default: "reciprocal",
    aten.maximum.default: "maximum", aten.minimum.default: "minimum",
    aten.clamp_min.default: "maximum", aten.clamp_max.default: "minimum",
    aten.clamp_min.Tensor: "maximum", aten.clamp_max.Tensor: "minimum",
}  # fmt: skip
_ARITHMETIC = {"add": operator.add, "sub": operator.sub, "mul": operator.mul,
               "div": operator.truediv}  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _named(name: str, overload: str) -> Any:
    return getattr(getattr(aten, name), overload)


ROWS: dict[Any, Row] = {
    **{op: row(_op(name)) for op, name in _UNARY.items()},
    **{op: row(_op(name), exact=True) for op, name in _EXACT.items()},
    **{_named(name, overload): row(_of_two(f), exact=True)
       for name, f in _ARITHMETIC.items() for overload in ("Tensor", "Scalar")},
    **{_named(name, overload): row(_op(name), "compare", exact=True)
       for name in _COMPARISONS for overload in ("Tensor", "Scalar")},
    **{op: row(_op(name), "logical", exact=True)
       for op, name in ((aten.logical_not.default, "logical_not"),
                        (aten.bitwise_not.default, "logical_not"),
                        (aten.logical_and.default, "logical_and"),
                        (aten.bitwise_and.Tensor, "logical_and"),
                        (aten.logical_or.default, "logical_or"),
                        (aten.bitwise_or.Tensor, "logical_or"))},
    aten.rsub.Scalar: row(lambda g, x, y: y - x, exact=True),
    aten.pow.Tensor_Scalar: row(_power, check=_known_power),
    aten.gelu.default: row(_gelu),
    aten.gelu_backward.default: row(_gelu_backward),
    aten.clamp.default: row(_clamp, exact=True),
    aten.hardtanh.default: row(_hardtanh, exact=True),
    aten.hardtanh_backward.default: row(_hardtanh_backward, exact=True),
    aten.leaky_relu.default: row(_leaky, exact=True),
    aten.leaky_relu_backward.default: row(_leaky_backward, exact=True),
    aten.threshold_backward.default: row(_threshold_backward, exact=True),
    aten.native_dropout_backward.default: row(_masked, "select", _both(_is_bool(1), _finite_scale)),
    KEEP_MASK: Row(_keep_mask, _some_kept, exact=True, by_element=True),
    aten.where.self: row(_where, "select", _is_bool(0), exact=True),
    aten.masked_fill.Scalar: row(lambda g, x, mask, y: g.where(mask, y, x), "select", _is_bool(1),
                                 exact=True),
    aten.clone.default: row(lambda g, x: x, "select", exact=True),
    aten._to_copy.default: row(lambda g, x: x, exact=True),
    torch.ops.prims.convert_element_type.default: row(lambda g, x, dtype: x, exact=True),
}  # fmt: skip
