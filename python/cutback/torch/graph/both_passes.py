"""Finds results of the forward that include writes of the backward.

Without ``keep_inference_input_mutations``, AOTAutograd returns one new value for each input that
the forward writes into, and reads that value after it has traced the backward. If the backward
writes into the same input, the value includes that write, so the write would already happen when
the forward returns. With ``keep_inference_input_mutations=True`` the graph has a copy for each
pass. A tensor that the forward makes and returns, and that the backward writes into, has one value
in either case.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

from .graphs import (
    OverwrittenReadError,
    UnsupportedGraphError,
    ends,
    forward_ends,
    is_tangent,
    location,
    nodes_in,
)

if TYPE_CHECKING:
    from torch._C import Argument as SchemaArgument
    from torch._functorch._aot_autograd.descriptors import AOTOutput
    from torch.fx.node import Argument

_aten = torch.ops.aten
_UNCHECKED = "saved_tensor_with_no_vc_check"

_SCATTERS = frozenset(
    op.default
    for op in (
        _aten.as_strided_scatter,
        _aten.diagonal_scatter,
        _aten.select_scatter,
        _aten.slice_scatter,
    )
)
"""Operations that update a base from a view. PyTorch records them when it next reads the base,
which may be after it has traced the backward, even if the forward wrote into the view."""

_VIEWS = frozenset(
    {
        operator.getitem,
        _aten._unsafe_view.default,
        _aten.clone.default,
        _aten.sum.dim_IntList,  # undoes expand
        _aten.unfold_backward.default,
    }
)
"""Other operations that undo a view but have no alias annotation. A write is never one of these on
its own: ``x.copy_(y)`` is recorded as ``aten.copy``."""


class WrittenInBothPassesError(UnsupportedGraphError):
    """Raised if the forward of the graph returns what its backward writes."""


def refuse_writes_in_both_passes(gm: fx.GraphModule, num_fwd_outputs: int) -> None:
    """Checks that nothing that the forward returns includes a write of the backward.

    Raises:
        WrittenInBothPassesError: a result does; the message names the write and the way out.
    """
    outputs, descs = ends(gm)
    tags = {node: node.meta.get("partitioner_tag") for node in gm.graph.nodes}
    if "is_forward" not in tags.values():
        return  # not a joint graph, or traced without marks
    new = _new_values(gm, outputs[:num_fwd_outputs], descs)
    for node, desc in zip(outputs[:num_fwd_outputs], descs, strict=False):
        source: InputMutationAOTOutput | AOTOutput = getattr(desc, "base", desc)
        is_input = isinstance(source, InputMutationAOTOutput)
        if not isinstance(node, fx.Node) or not (is_input or new.isdisjoint(bases_of(node))):
            continue  # for a view of an input, the caller gets a view of the input itself
        write = _write_of_backward(node, tags)
        if write is None or (not is_input and any(map(is_tangent, ancestors([write])))):
            continue  # no value that depends on a gradient can be returned
        at = location(write)
        by = f"{write.name} ({at})" if at else write.name
        if is_input:
            raise WrittenInBothPassesError(
                f"{source.mutated_input.expr()} is written in the forward and in the backward (by "
                f"{by}), and the graph has one new value for both. Pass "
                "keep_inference_input_mutations=True to aot_autograd, or write into a tensor that "
                "does not require a gradient and whose shape and memory stay as they are"
            )
        raise WrittenInBothPassesError(
            f"the backward writes (by {by}) into a tensor that the forward makes and returns, and "
            "PyTorch traces the result as it is after that write. Pass the tensor in as an input "
            "or buffer, return a clone of it, or run this part without compile"
        )


def _new_values(
    gm: fx.GraphModule, outputs: list[Argument], descs: list[AOTOutput | None]
) -> set[fx.Node]:
    """Returns the values that are copied into inputs, in the graph or by its caller."""
    copies = gm.graph.find_nodes(op="call_function", target=_aten.copy_.default)
    found = {n.args[1] for n in copies if n.args[0].op == "placeholder"}
    for node, desc in zip(outputs, descs, strict=False):
        if isinstance(getattr(desc, "base", desc), InputMutationAOTOutput):
            found.add(node)
    return found


def _write_of_backward(value: fx.Node, tags: dict[fx.Node, str | None]) -> fx.Node | None:
    """Returns the node of the backward that computes a value, or None."""
    seen = {value}
    todo = [value]
    while todo:
        node = todo.pop()
        if tags[node] == "is_forward" or node.op == "get_attr":
            continue
        if is_tangent(node) or not _updates_a_base(node):
            return node
        for source in nodes_in([*node.args, *node.kwargs.values()]):
            if source not in seen:
                seen.add(source)
                todo.append(source)
    return None


def reads_new_values_late(gm: fx.GraphModule, num_fwd_outputs: int) -> bool:
    """True if an ``autograd.Function`` reads, in its backward, an input that the forward wrote."""
    outputs, descs = ends(gm)
    new = _new_values(gm, outputs[:num_fwd_outputs], descs)
    recorded = list(gm.graph.nodes)
    late = [n for n in recorded[forward_ends(recorded) :] if _is_of_a_function(n)]
    sources = {source for node in late for source in node.all_input_nodes}
    return any(not new.isdisjoint(bases_of(source)) for source in sources)


def read_inputs_when_the_backward_runs(gm: fx.GraphModule) -> None:
    """Makes the backward of an ``autograd.Function`` read the memory of an input where the graph
    reads the value that the forward wrote there. Eager mode does the same, and another step may
    have written to the memory since. The forward's copies into such inputs move before the
    backward."""
    nodes = list(gm.graph.nodes)
    found = [
        node
        for node in nodes
        if node.target is _aten.copy_.default
        and node.meta.get("partitioner_tag") == "must_be_in_forward"
    ]
    if not found:
        return
    early = set(nodes[: forward_ends(nodes)]) | ancestors(node.args[1] for node in found)
    late = [n for n in nodes if n not in early and n.op != "output"]
    unread = set(late) - {n for n in late if n.target is _aten.copy_.default}
    copies = {n.args[1]: n for n in found if unread.isdisjoint(n.args[0].users)}
    first = next((n for n in late if n.op == "call_function"), None)
    if not copies or first is None:
        return
    memory = {value: copy.args[0] for value, copy in copies.items()}
    read: dict[fx.Node, fx.Node] = {}
    for node in late:
        if not _is_of_a_function(node):
            continue
        for source in node.all_input_nodes:
            if not copies.keys().isdisjoint(bases_of(source)):
                read[source] = read.get(source) or _on_memory(source, memory, first)
                node.replace_input_with(source, read[source])
    for source in read:
        copy = next(copies[base] for base in bases_of(source) if base in copies)
        first.prepend(copy)
        if source.meta.get(_UNCHECKED):
            copy.args[0].meta[_UNCHECKED] = True


def make_views_in_the_backward(gm: fx.GraphModule) -> None:
    """Creates views of inputs that the backward reads or writes into in the backward. Inductor
    assumes that two arguments of a graph do not share memory, and might otherwise run the write
    before the read."""
    nodes = list(gm.graph.nodes)
    written = {
        node.args[0]
        for node in nodes
        if node.target is _aten.copy_.default
        and node.meta.get("partitioner_tag") == "must_be_in_backward"
    }
    if not written:
        return
    end = forward_ends(nodes)
    early = set(nodes[:end])
    first = next((n for n in nodes[end:] if n.op == "call_function"), None)
    for node in nodes[end:]:
        if first is None or node.op != "call_function" or node.target is _aten.copy_.default:
            continue
        for source in node.all_input_nodes:
            inputs = written.intersection(bases_of(source)) if source in early else ()
            for memory in inputs:
                if source is not memory:
                    view = _on_memory(source, {memory: memory}, first)
                    node.replace_input_with(source, view)


def keep_old_values(error: OverwrittenReadError) -> None:
    """Makes the forward clone a value that a node of the backward reads, before it is overwritten.
    The program may already have had that clone: Inductor removes clones from a joint graph if only
    a write at the end of the forward needs them."""
    for source in error.sources:
        val = source.meta["val"]
        with source.graph.inserting_after(source):
            copy = source.graph.call_function(_aten.clone.default, (source,))
        copy.meta = {k: v for k, v in source.meta.items() if k not in ("desc", _UNCHECKED)}
        copy.meta["partitioner_tag"] = "must_be_in_forward"
        with val.fake_mode:
            copy.meta["val"] = val.clone()
        error.node.replace_input_with(source, copy)


def _on_memory(source: fx.Node, memory: dict[fx.Node, fx.Node], first: fx.Node) -> fx.Node:
    """Returns the memory that a value is read from, or a view of it that is created before
    ``first``."""
    if source in memory:
        return memory[source]
    base = _on_memory(source.args[0], memory, first)
    with first.graph.inserting_before(first):
        view = first.graph.node_copy(source)
    view.replace_input_with(source.args[0], base)
    view.meta = {k: v for k, v in source.meta.items() if k not in ("partitioner_tag", _UNCHECKED)}
    args, kwargs = fx.map_arg((view.args, view.kwargs), lambda n: n.meta["val"])
    with base.meta["val"].fake_mode:
        view.meta["val"] = view.target(*args, **kwargs)
    return view


def ancestors(values: Iterable[Argument]) -> set[fx.Node]:
    """Returns the nodes that compute values, including the values themselves."""
    found: set[fx.Node] = set()
    todo = [node for node in values if isinstance(node, fx.Node)]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found


def _is_of_a_function(node: fx.Node) -> bool:
    """True if an ``autograd.Function`` may have recorded the node in its backward: PyTorch marks
    the nodes that its own formulas record."""
    return node.op == "call_function" and node.meta.get("partitioner_tag") is None


def bases_of(node: fx.Node) -> list[fx.Node]:
    """Returns a node, its view base, the base of that, and so on."""
    found = [node]
    while node.op == "call_function" and _is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
        found.append(node)
    return found


def _is_view(node: fx.Node) -> bool:
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    return len(returns) == 1 and all(_aliases(r) and "[]" not in str(r.type) for r in returns)


def _aliases(result: SchemaArgument) -> bool:
    return result.alias_info is not None and not result.alias_info.is_write


def _updates_a_base(node: fx.Node) -> bool:
    """True if PyTorch may have recorded the node only to bring a base up to date."""
    target = node.target
    if node.op != "call_function":
        return False
    if target in _SCATTERS or target in _VIEWS:
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return any(_aliases(result) for result in target._schema.returns)
