"""Forward graphs whose returned views keep the version counter of their memory.

AOTAutograd gives a returned view a counter of its own (by ``_unsafe_view``, as autograd refuses
writes to views that a Function made), and then no saved tensor shows that the caller overwrote it.
A detached tensor is no such view either, and shares the counter: autograd notices by itself. This
works where a backend runs the graph with PyTorch's ops, but not under Inductor, which makes views
with counters of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import PlainAOTOutput

from .. import hooks
from .graphs import ends


def keep_counters(forward: fx.GraphModule, views: Sequence[int]) -> None:
    """Has a forward graph return detached tensors in place of views, and AOTAutograd take them as
    they are. To be called by a partitioner.

    Args:
        forward: changed in place.
        views: positions among the results of views whose memory is saved.
    """
    metadata = hooks.output_metadata() if views else None
    if metadata is None:
        return
    positions = set(views).intersection(metadata.unsafe_view_out_indices)
    outputs, descs = ends(forward)
    (end,) = forward.graph.find_nodes(op="output")
    with forward.graph.inserting_before(end):
        for k, desc in enumerate(descs):
            if isinstance(desc, PlainAOTOutput) and desc.idx in positions:
                view = outputs[k]
                outputs[k] = forward.graph.call_function(torch.ops.aten.detach.default, (view,))
                outputs[k].meta = dict(view.meta)
    end.args = (tuple(outputs),)
    forward.recompile()
    left = [k for k in metadata.unsafe_view_out_indices if k not in positions]
    metadata.unsafe_view_out_indices, metadata.num_unsafe_view_outputs = left, len(left)
