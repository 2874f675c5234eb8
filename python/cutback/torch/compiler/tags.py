"""Writes plans as tags, for PyTorch versions that lack the APIs for our own graphs.

``torch._functorch.config.joint_custom_pass`` receives the joint graph before PyTorch splits it. The
plan is made as usual, and each forward node is tagged: ``MUST_SAVE`` if the plan saves it,
``MUST_RECOMPUTE`` if it runs again. PyTorch's own partitioner then makes the two graphs. They save
what the plan saves, but a recomputed value runs once in the backward, at the position that PyTorch
chooses. So the bits are the same, but the planned peak is not guaranteed, and each graph has a
separate plan.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from ..graph.both_passes import refuse_writes_in_both_passes
from ..graph.dropout import REMAKE, remaking_scale
from ..graph.emitter import crossing
from ..graph.floats import mark_float_ops
from ..graph.graphs import ends
from .partition import Partitioner
from .preparing import prepare

if TYPE_CHECKING:
    from ..types import GraphInput

aten = torch.ops.aten


def split_dropouts(gm: fx.GraphModule) -> int:
    """Computes results of dropouts from their masks, if that gives the same bits
    (:mod:`graph.dropout`). Then a plan can save the mask and recompute the result. Returns the
    number of dropouts."""
    dropouts = gm.graph.find_nodes(op="call_function", target=aten.native_dropout.default)
    n = 0
    for node in dropouts:
        x, p, train = node.args
        users = list(node.users)
        if train is not True or any(u.target is not operator.getitem for u in users):
            continue
        scale = remaking_scale(p, x.meta["val"])
        if scale is None:
            continue
        masks = [u for u in users if u.args[1] == 1]
        for value in [u for u in users if u.args[1] == 0]:
            if not masks:
                with gm.graph.inserting_after(node):
                    masks = [gm.graph.call_function(operator.getitem, (node, 1))]
                masks[0].meta = {**node.meta, "val": node.meta["val"][1]}
            node.append(masks[0])  # before all readers of the result
            with gm.graph.inserting_after(masks[0]):
                made = gm.graph.call_function(REMAKE, (x, masks[0], scale))
            made.meta = dict(value.meta)
            value.replace_all_uses_with(made)
            gm.graph.erase_node(value)
            n += 1
    return n


def _forward_outputs(gm: fx.GraphModule) -> int:
    """Returns the number of forward outputs of a joint graph: those before the first gradient."""
    _, descs = ends(gm)
    for k, desc in enumerate(descs):
        if type(desc).__name__ in ("GradAOTOutput", "BackwardTokenAOTOutput"):
            return k
    return len(descs)


class Tagger:
    """A ``joint_custom_pass`` that tags nodes according to a partitioner's plans."""

    def __init__(self, partitioner: Partitioner) -> None:
        self.partitioner = partitioner

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[GraphInput]) -> fx.GraphModule:
        """Tags a graph and returns it."""
        try:
            split_dropouts(gm)
            p = self.partitioner
            n = _forward_outputs(gm)
            mark_float_ops(gm, n, p.at_hand.writes_by_floats)
            refuse_writes_in_both_passes(gm, n)
            graph = prepare(gm, n, (), replace(p.preparation, emitted=False))
            schedule = p.choose(gm, graph)
            steps = [step for step in schedule.steps if isinstance(step, int)]
            if len(steps) < len(schedule.steps):
                raise NotImplementedError(
                    "tags cannot express moves to the host: leave offload out"
                )
            saved = set(crossing(gm, graph, schedule))
            self._tag(gm, graph.order, steps, schedule.backward_starts, saved)
        except Exception as error:
            self.partitioner.at_hand.error = error
            raise
        return gm

    def _tag(
        self, gm: fx.GraphModule, order: list[fx.Node | None], steps: list[int], start: int,
        saved: set[fx.Node],
    ) -> None:  # fmt: skip
        again = {order[s] for s in steps[start:]}
        for node in (order[s] for s in steps[:start]):
            if node is None or node.op != "call_function":
                continue
            node.meta.pop("recompute", None)
            if node in saved or any(u in saved for u in node.users if _part(u)):
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            elif node in again:
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
            node.meta["ac_graph_id"] = 0


def _part(node: fx.Node) -> bool:
    return node.target is operator.getitem
