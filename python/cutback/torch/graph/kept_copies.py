"""Copies graph results that Inductor would leave in an input's memory.

``x[0] = 1; y = x.clone(); x[1] = 2`` reaches Inductor without the clone, as two functional scatters
and a copy of the last one into ``x``. Inductor runs both scatters in place, in the memory of ``x``,
even if the graph returns or saves the first one, which then has the value of the last. So such a
result is returned as a copy, made before the next scatter by an operator that Inductor does not
know and so does not remove.
"""

from __future__ import annotations

import torch
from torch import fx

from .both_passes import bases_of
from .graphs import ends, nodes_in

_aten = torch.ops.aten
_IN_PLACE = frozenset(
    (
        _aten._unsafe_index_put.default,
        _aten.as_strided_scatter.default,
        _aten.diagonal_scatter.default,
        _aten.index_add.default,
        _aten.index_copy.default,
        _aten.index_fill.int_Scalar,
        _aten.index_fill.int_Tensor,
        _aten.index_put.default,
        _aten.select_scatter.default,
        _aten.slice_scatter.default,
    )
)
"""Operators that Inductor may run in place, and their decompositions."""


def _copy(value: torch.Tensor) -> torch.Tensor:
    """Returns a copy with the same strides, for which a backward graph is compiled."""
    if torch._debug_has_internal_overlap(value) == 1:
        return value.clone()
    return value.new_empty_strided(value.size(), value.stride()).copy_(value)


_LIBRARY = torch.library.Library("cutback", "FRAGMENT")
_LIBRARY.define("kept_copy(Tensor value) -> Tensor")
_LIBRARY.impl("kept_copy", _copy, "CompositeExplicitAutograd")


def copy_results_in_inputs(gm: fx.GraphModule) -> None:
    """Makes a graph that Inductor compiles return copies of results that are stages of a write into
    an input. Changes the graph in place."""
    written = {
        node.args[0]
        for node in gm.graph.find_nodes(op="call_function", target=_aten.copy_.default)
        if node.args[0].op == "placeholder"
    }
    if not written:
        return
    copied: dict[fx.Node, fx.Node] = {}

    def kept(node: fx.Node) -> fx.Node:
        if node not in copied:
            is_base = node.target in _IN_PLACE
            source = node if is_base else kept(node.args[0])
            with gm.graph.inserting_after(node if is_base else source):
                if is_base:
                    copy = gm.graph.call_function(torch.ops.cutback.kept_copy.default, (node,))
                else:  # a view of such a result
                    copy = gm.graph.node_copy(node)
                    copy.replace_input_with(node.args[0], source)
            copy.meta = dict(node.meta)
            copied[node] = copy
        return copied[node]

    (end,) = gm.graph.find_nodes(op="output")
    for node in dict.fromkeys(nodes_in(ends(gm)[0])):
        if _is_stage(bases_of(node)[-1], written):
            end.replace_input_with(node, kept(node))
    if copied:
        gm.recompile()


def _is_stage(node: fx.Node, written: set[fx.Node]) -> bool:
    """True if a node is one of the scatters that lead from an input to its new value."""
    if node.target not in _IN_PLACE:
        return False
    while node.target in _IN_PLACE:
        node = bases_of(node.args[0])[-1]
    return node in written
