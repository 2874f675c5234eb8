"""Turns a joint graph from PyTorch into the planner's problem."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import fx

from ...problem import Constraint
from ..graph import updated
from ..graph.both_passes import (
    ancestors,
    keep_old_values,
    make_views_in_the_backward,
    read_inputs_when_the_backward_runs,
)
from ..graph.counter import replace_draws
from ..graph.duplicates import merge_duplicates
from ..graph.graphs import (
    OverwrittenReadError,
    UnsupportedGraphError,
    eliminate_dead_code,
    location,
)
from ..graph.importer import Import, Imported, import_joint
from ..graph.leaves import IsLeaf
from ..graph.packing import ADDED, add_packing
from ..graph.slices import Sliced, cut
from .wishes import Policy, chooser, of_tags

_REGION_BUDGET = "_region_activation_memory_budget"  # key used by torch.fx.traceback


def device_of(gm: fx.GraphModule) -> torch.device:
    """Returns the device of a graph's first tensor."""
    for node in gm.graph.find_nodes(op="placeholder"):
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            return val.device
    return torch.device("cpu")


def device_row(gm: fx.GraphModule) -> str:
    """Returns the row of the core's device table for the device of a graph's first tensor."""
    for node in gm.graph.find_nodes(op="placeholder"):
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            if val.device.type != "cuda" or not torch.cuda.is_available():
                return "cpu" if val.device.type == "cpu" else "a100"
            name = torch.cuda.get_device_name(val.device).lower().replace(" ", "")
            rows = ("h200", "b200", "h100", "a100", "rtx4090")
            return next((row for row in rows if row in name), "a100")
    return "cpu"


def _budget_of(node: fx.Node) -> float | None:
    """Returns PyTorch's activation memory budget for the region of a node."""
    custom = node.meta.get("custom")
    wish = custom.get(_REGION_BUDGET) if isinstance(custom, dict) else None
    return None if wish is None else float(wish)


def _check_region_budgets(gm: fx.GraphModule, num_fwd_outputs: int) -> None:
    """Checks region budgets as PyTorch's partitioner does, with the same messages.

    Raises:
        UnsupportedGraphError: regions have different budgets, or do not cover the forward.
    """
    forward = ancestors(gm.graph.output_node().args[0][:num_fwd_outputs])
    inside = [
        node
        for _, part in gm.named_modules()
        if isinstance(part, fx.GraphModule) and part.graph is not gm.graph
        for node in part.graph.nodes
    ]
    budgets = {b for node in (*gm.graph.nodes, *inside) if (b := _budget_of(node)) is not None}
    start = "torch.autograd.graph.region_activation_memory_budget: "
    if len(budgets) > 1:
        raise UnsupportedGraphError(
            f"{start}conflicting budgets within a single joint graph (including nested subgraphs): "
            f"{sorted(budgets)}. Take them out and give one budget here (a share, or bytes)"
        )
    bare = [
        node.name
        for node in (*(n for n in gm.graph.nodes if n in forward), *inside)
        if node.op == "call_function" and _budget_of(node) is None
    ]
    if budgets and bare:
        raise UnsupportedGraphError(
            f"{start}must cover the entire forward of a graph (including HOP bodies), but "
            f"{len(bare)} forward op(s) are unannotated: {', '.join(bare[:8])}"
            f"{', ...' if len(bare) > 8 else ''}. Take the region's budget out and give a budget "
            "here (a share, or bytes)"
        )


def refuse_region_budgets(gm: fx.GraphModule, num_fwd_outputs: int) -> None:
    """Raises UnsupportedGraphError if the model sets PyTorch's region budget, which has another
    meaning: a share of the range from recomputing everything to saving what PyTorch would save."""
    _check_region_budgets(gm, num_fwd_outputs)
    for node in gm.graph.nodes:
        wish = _budget_of(node)
        if wish is None and isinstance(node.meta.get("memory_budget"), float):
            wish = node.meta["memory_budget"]
        if wish is not None:
            where = location(node)
            raise UnsupportedGraphError(
                f"the model sets PyTorch's activation memory budget to {wish}"
                + (f" (at {where})" if where else "")
                + ", as torch.autograd.graph.region_activation_memory_budget does. That is a share "
                "of what PyTorch's partitioner would save, which plans do not support. Take it out "
                "and give a budget here (a share, or bytes), or mark the region with "
                "torch.utils.checkpoint, which plans follow"
            )


@dataclass(frozen=True)
class Preparation:
    """The settings for preparing a joint graph."""

    policy: Policy = None
    random: str = "torch"
    """``"counter"`` replaces PyTorch's random operations by those of our generator."""
    cse: bool = True
    """True merges nodes that compute the same value."""
    emitted: bool = True
    """True if the plan is emitted as graphs of our own (:mod:`graph.emitter`), not as tags."""
    same_kernels: bool = True
    """True if a rerun uses the same separate kernels as the first run."""
    is_leaf: IsLeaf | None = None
    """Tells which inputs keep their gradients; None means all of them."""
    updating: updated.Updating | None = None
    """Parameters that an optimizer steps inside the backward."""
    takes_over: bool = False
    """True if results may take over the memory of inputs (:mod:`graph.taking_over`)."""
    packed: bool = False
    """True if masks and indices may be kept packed (:mod:`graph.packing`)."""
    sliced: Callable[[list[Sliced]], object] | None = None
    """With slices: called with the chains that run in pieces (:mod:`graph.slices`). None means that
    there are no slices."""
    seen: Callable[[fx.GraphModule], object] | None = None
    """In a trace: called with the step's forward before its backward is traced."""


def prepare(
    gm: fx.GraphModule, num_fwd_outputs: int, static_inputs: Iterable[int], how: Preparation
) -> Imported:
    """Rewrites the joint graph in place according to ``how`` and imports it with the user's
    constraints."""
    return prepare_for_sizes(gm, num_fwd_outputs, static_inputs, how)[0]


def prepare_for_sizes(
    gm: fx.GraphModule, num_fwd_outputs: int, static_inputs: Iterable[int], how: Preparation
) -> tuple[Imported, Callable[[], Imported]]:
    """Like :func:`prepare`, and also returns a function that imports the rewritten graph again for
    other values of its symbols (:func:`graph.sizes.sizes_as`)."""
    refuse_region_budgets(gm, num_fwd_outputs)
    eliminate_dead_code(gm.graph)
    if how.sliced is not None and how.emitted:
        if how.random == "counter":
            replace_draws(gm)
        how.sliced(cut(gm))
    if how.emitted:
        read_inputs_when_the_backward_runs(gm)
        make_views_in_the_backward(gm)
    if how.random == "counter":
        replace_draws(gm)
    merged = merge_duplicates(gm, num_fwd_outputs)[1] if how.cse else []
    chosen = chooser(how.policy)

    def wish(node: fx.Node) -> Constraint | None:
        if node.target in ADDED:
            return None
        word = chosen(node) if chosen is not None else None
        return word if word is not None else of_tags(node)

    if how.packed and how.emitted:
        add_packing(gm, lambda node: wish(node) not in (None, "free"))
    known = Import(tuple(static_inputs), wish, merged, how.emitted, how.same_kernels, how.is_leaf,
                   how.takes_over, how.updating)  # fmt: skip
    cloned: set[fx.Node] = set()
    while True:
        try:
            graph = import_joint(gm, num_fwd_outputs, known)
        except OverwrittenReadError as error:
            if not how.emitted or error.node in cloned:
                raise
            cloned.add(error.node)
            keep_old_values(error)
        except updated.SharedGradientsError as error:
            updated.separate(gm, error.shared)
        else:
            return graph, functools.partial(import_joint, gm, num_fwd_outputs, known)
