"""Makes the views that forward graphs return keep the version counter of their memory.

AOTAutograd gives a returned view a separate counter (with ``_unsafe_view``, because autograd
refuses writes to views made by a Function), so no saved tensor shows that the caller overwrote it.
A detached tensor is not such a view either, but it shares the counter, so autograd detects the
write.

Inductor makes each returned view separately, with a separate counter, even if the graph returns one
node twice. So under Inductor the view goes through an operator that Inductor does not know. Its
result is one tensor, which the graph both returns and saves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import PlainAOTOutput

from .. import hooks
from .graphs import ends

_LIBRARY = torch.library.Library("cutback", "FRAGMENT")
_LIBRARY.define("returned_view(Tensor(a) view) -> Tensor(a)")
_LIBRARY.impl("returned_view", torch.Tensor.detach, "CompositeExplicitAutograd")


def keep_counters(forward: fx.GraphModule, views: Sequence[int], by_inductor: bool) -> None:
    """Makes a forward graph return detached tensors instead of views, and makes AOTAutograd return
    them unchanged. Partitioners call this.

    Args:
        forward: changed in place.
        views: positions among the results of the views whose memory is saved. The views themselves
            are saved, too.
        by_inductor: True if Inductor compiles the graph.
    """
    metadata = hooks.output_metadata() if views else None
    if metadata is None:
        return
    hidden = set(views).intersection(metadata.unsafe_view_out_indices)
    positions = set(views) if by_inductor else hidden
    outputs, descs = ends(forward)
    ops = torch.ops
    detach = ops.cutback.returned_view.default if by_inductor else ops.aten.detach.default
    (end,) = forward.graph.find_nodes(op="output")
    detached: dict[fx.Node, fx.Node] = {}
    with forward.graph.inserting_before(end):
        for k, desc in enumerate(descs):
            if isinstance(desc, PlainAOTOutput) and desc.idx in positions:
                view = outputs[k]
                outputs[k] = forward.graph.call_function(detach, (view,))
                outputs[k].meta = dict(view.meta)
                detached[view] = outputs[k]
    if by_inductor:
        outputs = [detached.get(node, node) for node in outputs]
    end.args = (tuple(outputs),)
    forward.recompile()
    left = [k for k in metadata.unsafe_view_out_indices if k not in hidden]
    metadata.unsafe_view_out_indices, metadata.num_unsafe_view_outputs = left, len(left)
