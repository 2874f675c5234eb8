"""Predicts whether autograd stores the gradient of a leaf as it is or copies it.

It stores the tensor if nothing else holds it and it has the leaf's memory layout (PyTorch's
``torch/csrc/autograd/functions/accumulate_grad.h`` and ``utils/grad_layout_contract.h``). Otherwise
it makes a copy, and both are in memory until the gradient is freed. The copies are made one after
another, after the backward has returned all of its results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.descriptors import (
    GradAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
)

from .both_passes import (
    WrittenInBothPassesError,
    reads_new_values_late,
    refuse_writes_in_both_passes,
)
from .floats import backward_writes_by_floats, mark_float_ops
from .graphs import is_tangent
from .layouts import is_dense, is_like
from .sizes import hint

if TYPE_CHECKING:
    from torch._functorch._aot_autograd.descriptors import AOTInput, AOTOutput
    from torch.fx.node import Argument

    from ..types import GraphFunction, GraphInput, Modules

IsLeaf = Callable[[int], bool]
"""Tells whether the input at a position of the traced graph keeps its gradient, as leaves do."""

KIND = "accumulate_grad"
"""Kind of the op that represents a copy in a problem."""


class Copied(NamedTuple):
    """A gradient that the leaf copies."""

    output: int  # output of the joint graph
    gradient: fx.Node
    leaf: fx.Node
    bytes: int  # bytes of the copy
    stays: bool = False  # True if the gradient's own memory also stays to the end


def leaves_among(inputs: Sequence[GraphInput]) -> IsLeaf:
    """Returns an :data:`IsLeaf` for the inputs with which a traced graph is called."""

    leaves = [bool(getattr(t, "is_leaf", True)) for t in inputs]  # does not keep the inputs alive
    return lambda position: position >= len(leaves) or leaves[position]


def aot_backend(
    partition: Callable[..., Modules], **options: Any
) -> Callable[[fx.GraphModule, Sequence[GraphInput]], GraphFunction]:
    """Wraps PyTorch's ``aot_autograd`` so that ``partition_fn`` receives ``is_leaf=``. If an input
    is written in both passes, or is read in the backward after the forward wrote it, the graph is
    traced again with the writes inside it."""

    def backend(gm: fx.GraphModule, inputs: Sequence[GraphInput]) -> GraphFunction:
        is_leaf = leaves_among(inputs)
        doubtful = backward_writes_by_floats(gm)

        def told(joint: fx.GraphModule, joint_inputs: Sequence[GraphInput], **rest: Any) -> Modules:
            mark_float_ops(joint, rest["num_fwd_outputs"], doubtful)
            refuse_writes_in_both_passes(joint, rest["num_fwd_outputs"])
            if not keeps and reads_new_values_late(joint, rest["num_fwd_outputs"]):
                raise WrittenInBothPassesError("an input is read late")
            return partition(joint, joint_inputs, is_leaf=is_leaf, **rest)

        keeps = bool(options.get("keep_inference_input_mutations"))
        try:
            compiled: GraphFunction = aot_autograd(partition_fn=told, **options)(gm, inputs)
            return compiled
        except WrittenInBothPassesError:
            if keeps:
                raise
        keeps = True
        kept = {**options, "keep_inference_input_mutations": True}
        compiled = aot_autograd(partition_fn=told, **kept)(gm, inputs)
        return compiled

    return backend


def _leaf_of(
    desc: AOTOutput | None, placeholders: dict[AOTInput, fx.Node], is_leaf: IsLeaf | None
) -> fx.Node | None:
    """Returns the leaf whose gradient an output of a joint graph is, or None."""
    source = desc.grad_of if isinstance(desc, GradAOTOutput) else None
    if not isinstance(source, (PlainAOTInput, ParamAOTInput)):
        return None  # a part of a tensor subclass, or the base of several inputs
    if isinstance(source, PlainAOTInput) and is_leaf is not None and not is_leaf(source.idx):
        return None
    return placeholders.get(source)


def take(gradient: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """Returns the copy that a leaf makes of a gradient, or None if it makes no copy."""
    if not is_dense(leaf):
        return gradient.clone(memory_format=torch.contiguous_format)
    copy = torch.empty_strided(
        leaf.size(), leaf.stride(), dtype=gradient.dtype, device=gradient.device
    )
    return copy.copy_(gradient)


def copied(
    outputs: Sequence[Argument],
    descs: Sequence[AOTOutput | None],
    placeholders: Sequence[fx.Node],
    shared: Callable[[fx.Node], bool],
    is_leaf: IsLeaf | None = None,
) -> list[Copied]:
    """Returns the gradients that are copied.

    Args:
        outputs, descs: outputs of the joint graph and their descriptors; forward outputs come
        first.
        placeholders: inputs of the joint graph.
        shared: tells whether something else holds the result of a node.
        is_leaf: None means that every input is assumed to be a leaf.
    """
    by_desc = {n.meta.get("desc"): n for n in placeholders if n.meta.get("desc") is not None}
    left = Counter(n for n in outputs if isinstance(n, fx.Node))
    found = []
    for k, (node, desc) in enumerate(zip(outputs, descs, strict=True)):
        if not isinstance(node, fx.Node):
            continue
        leaf = _leaf_of(desc, by_desc, is_leaf)
        val = node.meta.get("val")
        if leaf is None or not isinstance(val, torch.Tensor) or val.layout is not torch.strided:
            continue
        left[node] -= 1  # the last leaf that gets a tensor may take it
        others = left[node] > 0 or is_tangent(node) or shared(node)
        if others or not is_like(val, leaf.meta["val"]):
            size = hint(val.numel()) * val.element_size()
            found.append(Copied(k, node, leaf, size))
    return found
