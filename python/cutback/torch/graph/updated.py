"""Finds the gradients that an optimizer's update can take inside the backward, and gives each such
gradient memory of its own.

In the problem the storage of such a gradient names the storage of its parameter (``updates`` in
``docs/problem.md``): the gradient is not a result of the backward, and it ends at its update. The
emitter places the update after the last step that must come before it (:func:`due`,
:mod:`graph.emitter`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import GradAOTOutput, PlainAOTInput
from torch._guards import detect_fake_mode

if TYPE_CHECKING:
    from torch.fx.node import Argument

    from .graphs import Reader
    from .leaves import Copied

Update = Callable[[torch.Tensor, torch.Tensor], "torch.Tensor | None"]
"""Steps a parameter with its gradient. Returns None, or the gradient if it was not used."""

_SEPARATE = "cutback_separate"
"""Key in a node's ``meta``: the node is a copy of a gradient that :func:`separate` has added."""


@dataclass(frozen=True)
class Updating:
    """The parameters that an optimizer steps inside the backward."""

    inputs: frozenset[int]
    """Their positions among the inputs of the traced graph."""
    update: Update


class Updates(NamedTuple):
    """The updates of one joint graph."""

    leaves: Mapping[int, fx.Node]
    """Maps an output of the joint graph to the parameter whose gradient it is."""
    update: Update


class SharedGradientsError(Exception):
    """Raised if gradients share memory with other values, or do not have their parameters'
    layout."""

    def __init__(self, shared: Mapping[int, fx.Node]) -> None:
        super().__init__("gradients need separate memory")
        self.shared = shared  # maps an output to the parameter


def find(r: Reader, copies: Iterable[Copied], updating: Updating) -> Updates:
    """Returns the updates that are possible in a joint graph.

    Args:
        copies: the gradients that leaves would copy.

    Raises:
        SharedGradientsError: some gradients need copies first, which :func:`separate` adds.
    """
    by_desc = {n.meta.get("desc"): n for n in r.nodes if n.op == "placeholder"}
    held = Counter(t.storage for n in r.outputs if isinstance(n, fx.Node) for t in r.tensors[n])
    copied = {c.output for c in copies}
    written = {s for n in r.nodes for s in r.written_by(n)}
    written.update(t.storage for n in r.overwritten().values() for t in r.tensors[n])
    found: dict[int, fx.Node] = {}
    shared: dict[int, fx.Node] = {}
    for k in range(r.num_fwd_outputs, len(r.outputs)):
        node, leaf = r.outputs[k], _parameter(r.descs[k], by_desc, updating)
        if not isinstance(node, fx.Node) or leaf is None or node not in r.late:
            continue
        (memory, *others), (own, *_) = r.tensors[node], r.tensors[leaf]
        if others or own.storage in written or not r.static[own.storage]:
            continue
        alone = held[memory.storage] == 1 and memory.storage not in written
        if alone and k not in copied and not r.static[memory.storage]:
            found[k] = leaf
        elif _SEPARATE not in node.meta and _format_of(leaf.meta["val"]) is not None:
            shared[k] = leaf
    if shared:
        raise SharedGradientsError(shared)
    return Updates(found, updating.update)


def _parameter(
    desc: object, placeholders: Mapping[object, fx.Node], updating: Updating
) -> fx.Node | None:
    source = desc.grad_of if isinstance(desc, GradAOTOutput) else None
    if not isinstance(source, PlainAOTInput) or source.idx not in updating.inputs:
        return None
    return placeholders.get(source)


def _format_of(leaf: torch.Tensor) -> torch.memory_format | None:
    """Returns the memory format in which a copy has the layout of a leaf, or None."""
    formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    wide = {torch.channels_last: 4, torch.channels_last_3d: 5}
    for format in formats:
        if wide.get(format, leaf.dim()) == leaf.dim() and leaf.is_contiguous(memory_format=format):
            return format
    return None


def separate(gm: fx.GraphModule, shared: Mapping[int, fx.Node]) -> None:
    """Makes a joint graph return copies of gradients. Changes the graph in place."""
    (end,) = gm.graph.find_nodes(op="output")
    results: list[Argument] = list(end.args[0])
    for k, leaf in shared.items():
        node = results[k]
        assert isinstance(node, fx.Node)
        with gm.graph.inserting_before(end):
            copy = gm.graph.call_function(
                torch.ops.aten.clone.default,
                (node,),
                {"memory_format": _format_of(leaf.meta["val"])},
            )
        copy.meta = {**node.meta, _SEPARATE: True, "partitioner_tag": "is_backward"}
        val = node.meta["val"]
        mode = detect_fake_mode(val)
        assert mode is not None
        with mode:
            copy.meta["val"] = copy.target(val, **copy.kwargs)
        results[k] = copy
    end.args = (tuple(results),)
    gm.recompile()


def due(
    steps: Sequence[tuple[Iterable[int], Iterable[int], bool]], gradient: int, parameter: int
) -> int:
    """Returns the last step of the backward that must come before a gradient's update.

    Args:
        steps: for each step, the storages of its results and of its arguments, and whether it only
            makes views.
        gradient, parameter: the storages of the two.
    """
    last = -1
    for i, (makes, reads, is_view) in enumerate(steps):
        own = gradient in makes or gradient in reads
        if own or (parameter in reads and not is_view):
            last = i
    return last
