"""Has a row for every differentiable operation of the core, for tests of gradients in traced
functions: the shapes of the arguments, whose elements are in (0.2, 0.9), and a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutback.policies import OPS

_POINTWISE = 1 << 1
Shapes = tuple[tuple[int, ...], ...]

_WINDOW = {"kernel_h": 2, "kernel_w": 2, "stride_h": 1, "stride_w": 2, "pad_h": 1, "pad_w": 0}
_CONV = {"stride_h": 2, "stride_w": 1, "pad_h": 1, "pad_w": 0, "dilation_h": 1, "dilation_w": 1,
         "groups": 2}  # fmt: skip
_HEADS = ((2, 3, 4), (2, 5, 4), (2, 5, 3))


def _named(names: str, shapes: Shapes, **attrs: Any) -> dict[str, tuple[Shapes, Any]]:
    return {
        name: (shapes, lambda op, *xs, name=name: op(name, *xs, **attrs)) for name in names.split()
    }


def _index(x: Any, shape: tuple[int, ...], limit: int) -> Any:
    """Returns integers below ``limit``."""
    count = x.graph.op("iota", axis=len(shape) - 1, shape=shape, dtype="i64")
    return x.graph.op("minimum", count, x.graph.op("full", shape=(), value=limit - 1, dtype="i64"))


def _attention(op: Callable[..., Any], q: Any, k: Any, v: Any) -> Any:
    return op("attention", q, k, v, scale=0.5, causal=1)[0]


def _attention_bwd(op: Callable[..., Any], g: Any, q: Any, k: Any, v: Any) -> Any:
    y, lse = op("attention", q, k, v, scale=0.5, causal=1)
    return op("attention_bwd", g, q, k, v, y, lse, scale=0.5, causal=1)


def _norm_bwd(name: str) -> Callable[..., Any]:
    def call(op: Callable[..., Any], g: Any, x: Any, w: Any) -> Any:
        bias = (w,) if name != "rms_norm" else ()
        _, *statistics = op(name, x, w, *bias, eps=1e-5)
        if name == "batch_norm":
            statistics = [statistics[0], statistics[2]]
        return op(f"{name}_bwd", g, x, w, *statistics)

    return call


def _plain() -> dict[str, tuple[Shapes, Any]]:
    """Returns the rows of pointwise operations on one or two arrays, without attributes."""
    names = [
        (name, n)
        for name, n, most, outs, flags, attributes, _, differentiable in OPS.values()
        if differentiable
        and flags & _POINTWISE
        and not attributes
        and (most, outs) in ((1, 1), (2, 1))
    ]
    return {name: row for name, n in names for name, row in _named(name, ((3, 4),) * n).items()}


ROWS: dict[str, tuple[Shapes, Callable[..., Any]]] = {
    **_plain(),
    **_named("softmax_bwd log_softmax_bwd", ((3, 4), (3, 4))),
    **_named("sum mean amax amin", ((3, 4),), axes=(1,), keepdims=0),
    **_named("softmax log_softmax", ((3, 4),)),
    **_named("matmul", ((2, 3, 4), (2, 4, 5))),
    **_named("matmul_add", ((2, 3, 4), (2, 4, 5), (2, 3, 5))),
    **_named("reshape", ((3, 4),), shape=(2, 6)),
    **_named("transpose", ((2, 3, 4),), axes=(2, 0, 1)),
    **_named("expand", ((3, 1),), shape=(2, 3, 4)),
    **_named("slice", ((3, 5),), axis=1, start=1, stop=5, step=2),
    **_named("concat", ((3, 2), (3, 1)), axis=1),
    **_named("pad", ((3, 2),), axis=1, low=1, high=2, interior=1, value=0.5),
    **_named("tril", ((3, 4),), k=0, fill=0.25),
    **_named("dropout", ((3, 4),), p=0.4, stream=3),
    **_named("cast", ((3, 4),), dtype="f64"),
    **_named("conv2d", ((1, 4, 5, 4), (4, 2, 3, 2)), **_CONV),
    **_named("conv2d_dgrad", ((1, 4, 3, 3), (4, 2, 3, 2)), **_CONV, shape=(1, 4, 5, 4)),
    **_named("conv2d_wgrad", ((1, 4, 3, 3), (1, 4, 5, 4)), **_CONV, shape=(4, 2, 3, 2)),
    **_named("avg_pool2d", ((1, 2, 4, 4),), **_WINDOW),
    **_named("avg_pool2d_bwd", ((1, 2, 5, 2),), **_WINDOW, shape=(1, 2, 4, 4)),
    **_named("layer_norm", ((3, 4), (4,), (4,)), eps=1e-5),
    **_named("rms_norm", ((3, 4), (4,)), eps=1e-5),
    **_named("batch_norm", ((3, 2, 2), (2,), (2,)), eps=1e-5),
    **_named("batch_norm_stats", ((3, 2, 2),), eps=1e-5),
    **_named("batch_norm_apply", ((3, 2), (1, 2), (1, 2), (1, 2), (1, 2))),
    "max_pool2d": (((1, 2, 4, 4),), lambda op, x: op("max_pool2d", x, **_WINDOW)[0]),
    "layer_norm_bwd": (((3, 4), (3, 4), (4,)), _norm_bwd("layer_norm")),
    "rms_norm_bwd": (((3, 4), (3, 4), (4,)), _norm_bwd("rms_norm")),
    "batch_norm_bwd": (((3, 2, 2), (3, 2, 2), (2,)), _norm_bwd("batch_norm")),
    "where": (((3, 4), (3, 4)), lambda op, x, y: op("where", op("gt", x, y), x, y)),
    "gather": (((3, 4),), lambda op, x: op("gather", x, _index(x, (3, 5), 4), axis=1)),
    "scatter_add": (
        ((3, 4), (3, 5)),
        lambda op, x, y: op("scatter_add", x, _index(x, (3, 5), 4), y, axis=1),
    ),
    "embedding": (((4, 3),), lambda op, x: op("embedding", x, _index(x, (5,), 4))),
    "embedding_bwd": (((5, 3),), lambda op, x: op("embedding_bwd", x, _index(x, (5,), 4), rows=4)),
    "cross_entropy": (
        ((3, 4),),
        lambda op, x: op("cross_entropy", x, _index(x, (3,), 4), ignore=-100),
    ),
    "cross_entropy_bwd": (
        ((3,), (3, 4)),
        lambda op, g, x: op("cross_entropy_bwd", g, x, _index(x, (3,), 4), ignore=-100),
    ),
    "attention": (_HEADS, _attention),
    "attention_bwd": (((2, 3, 3), *_HEADS), _attention_bwd),
}
