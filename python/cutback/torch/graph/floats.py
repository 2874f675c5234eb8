"""Marks ops of the forward that PyTorch rewrote because they take a Python float.

In a graph of dynamic sizes a float is an input. PyTorch traces ``x * s``, marks the node as part of
the forward or of the backward, and then replaces it with an op on tensors that has no mark, like
the ops of an ``autograd.Function``."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType

import torch
from torch import fx
from torch._guards import TracingContext

from .both_passes import ancestors
from .graphs import ends, forward_ends, is_tangent

_IN_PLACE = {"iadd", "isub", "imul", "itruediv", "ipow"}


def mark_float_ops(gm: fx.GraphModule, num_fwd_outputs: int, doubtful: bool | None = None) -> None:
    """Marks the nodes that PyTorch rewrote in the forward of a joint graph.

    Args:
        num_fwd_outputs: number of the graph's outputs that belong to the forward.
        doubtful: True if the backward writes into a result of the forward by an op on a float
            (:func:`backward_writes_by_floats`). If this is the first op of the backward, it looks
            like the last op of the forward, so neither is marked. None if it is not known.
    """
    nodes = list(gm.graph.nodes)
    if not any(n.meta.get("partitioner_tag") == "is_forward" for n in nodes):
        return
    end = forward_ends(nodes)
    needed = ancestors(ends(gm)[0][:num_fwd_outputs])
    late: set[fx.Node] = set()
    for k, node in enumerate(nodes):
        if is_tangent(node) or not late.isdisjoint(node.all_input_nodes):
            late.add(node)
        elif _is_rewritten(node):
            if k >= end and node in needed and doubtful is None:
                doubtful = _traced_a_backward_that_writes()
            if k < end or (node in needed and not doubtful):
                node.meta["partitioner_tag"] = "is_forward"
        elif k >= end and node.op == "call_function":
            return  # the backward has begun


def backward_writes_by_floats(gm: fx.GraphModule) -> bool:
    """True if, in a graph of Dynamo's, the backward of an ``autograd.Function`` writes into a
    tensor that the graph makes and returns, by an op that takes a float."""
    inputs = {_storage(node) for node in gm.graph.find_nodes(op="placeholder")}
    (output,) = gm.graph.find_nodes(op="output")
    results = {_storage(node) for node in output.all_input_nodes} - inputs - {None}
    return bool(results) and any(
        _is_write(node)
        and _storage(node.all_input_nodes[0]) in results
        and any(map(_is_float, node.all_input_nodes))
        for body in _backwards(gm)
        for module in body.modules()
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
    )


def _backwards(gm: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """Yields the backwards of all Functions in a graph of Dynamo's."""
    apply = torch.ops.higher_order.autograd_function_apply
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.find_nodes(op="call_function", target=apply):
                yield getattr(module, node.args[1].target)


def _storage(node: fx.Node) -> int | None:
    """Returns the storage of a node of a graph of Dynamo's."""
    value = node.meta.get("example_value")
    try:
        return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None
    except NotImplementedError:  # sparse
        return None


def _is_float(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.SymFloat)


def _is_rewritten(node: fx.Node) -> bool:
    """True if a node was not recorded by a trace, but added to the graph afterwards."""
    traced = ("partitioner_tag", "original_aten", "seq_nr")
    return node.op == "call_function" and not any(key in node.meta for key in traced)


def _is_write(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return bool(node.all_input_nodes) and (name in _IN_PLACE or _is_in_place(name))


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _traced_a_backward_that_writes() -> bool:
    """True if Dynamo, for this graph, traced the code of a backward that writes in place."""
    context = TracingContext.try_get()
    codes: list[CodeType] = getattr(context, "traced_code", None) or []
    return any(
        _is_in_place(str(i.argval)) or (i.opname == "BINARY_OP" and i.argrepr.endswith("="))
        for code in codes
        if code.co_name == "backward"
        for i in dis.get_instructions(code)
    )
