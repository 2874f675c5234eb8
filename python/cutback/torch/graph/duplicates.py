"""Merges common subexpressions of a joint graph.

AOTAutograd leaves this to the partitioner. Most common subexpressions are a derivative's copy of a
forward value (two ``cos`` of one input), which would otherwise be counted, and run, twice.

Two nodes are the same if they call the same operator with the same constants on the same values.
The core does the search (``csrc/plan/torch/duplicates.c``); this module decides what may be merged.
Bits cannot change, since only operators that are functions of their arguments are merged. These are
not merged:

- random, effectful, mutating and unknown ops, and memory that is not filled (``empty``);
- nodes that share memory with an output: two outputs would become one tensor, and the user may
  write into an output while the backward still needs the value;
- nodes that read or view memory that the graph or its caller writes into;
- a node of a checkpointed region and one outside it, or in another region: their constraints
  differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch.utils._pytree import tree_leaves

from ... import _native
from ...problem import ONCE
from . import ops
from .graphs import OneMemory, ends

if TYPE_CHECKING:
    from torch._functorch._aot_autograd.descriptors import AOTOutput
    from torch.fx.node import Argument, Target
    from torch.utils.checkpoint import CheckpointPolicy

_NEVER = 2**32 - 1
_CONSTANTS = (
    int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout,
    torch.memory_format,
)  # fmt: skip


class _UnknownError(Exception):
    """Raised for an argument that cannot be compared."""


def _write(value: Argument, inputs: list[fx.Node]) -> str:
    """Returns an argument as text, with a mark for each node. The text distinguishes 1, 1.0 and
    True, and 0.0 and -0.0, which are equal in Python."""
    if isinstance(value, fx.Node):
        inputs.append(value)
        return "%"
    if type(value) in _CONSTANTS:
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([_write(v, inputs) for v in value]) + "]"
    if isinstance(value, dict):
        return "{" + ",".join([f"{k!r}:{_write(v, inputs)}" for k, v in value.items()]) + "}"
    if isinstance(value, slice):
        return "/" + _write([value.start, value.stop, value.step], inputs)
    raise _UnknownError


def _storages(val: Argument) -> list[torch.UntypedStorage]:
    """Returns the storages of a node's tensors."""
    if isinstance(val, torch.Tensor):
        return [val.untyped_storage()] if val.layout is torch.strided else []
    if isinstance(val, (list, tuple)):
        return [s for v in val for s in _storages(v)]
    return []


def _memory(val: Argument) -> tuple[int, ...]:
    """Returns the addresses of a node's storages."""
    return tuple([s._cdata for s in _storages(val)])


class _Finder:
    def __init__(self, gm: fx.GraphModule, num_fwd_outputs: int) -> None:
        self.nodes = [n for n in gm.graph.nodes if n.op != "output"]
        self.kinds = ops.learn(n.target for n in self.nodes if n.op == "call_function")
        self.memory = {n: _memory(n.meta.get("val")) for n in self.nodes}
        outputs, descs = ends(gm)
        self.held = {s for n in outputs if isinstance(n, fx.Node) for s in self.memory[n]}
        self.written = self._written(descs[:num_fwd_outputs])
        self._keys: dict[tuple[Target | CheckpointPolicy | int | None, ...], int] = {}

    def _written(self, descs: list[AOTOutput | None]) -> set[int]:
        changed = {d.mutated_input for d in descs if isinstance(d, InputMutationAOTOutput)}
        found: set[int] = set()
        for node in self.nodes:
            if node.op == "placeholder" and node.meta.get("desc") in changed:
                found.update(self.memory[node])
            elif node.op == "call_function" and self.kinds[node.target].mutable:
                for given in tree_leaves((node.args, node.kwargs)):
                    if isinstance(given, fx.Node):
                        found.update(self.memory[given])
        return found

    def _may(self, node: fx.Node) -> bool:
        """True if the node is a function of its arguments and nothing changes its result."""
        kind = self.kinds[node.target]
        if kind.mutable or not ONCE.isdisjoint(kind.flags) or "empty" in kind.name:
            return False
        if node.meta.get("partitioner_tag") == "must_be_in_backward":
            return False
        memory = self.memory[node]
        if not self.held.isdisjoint(memory):
            return False
        return not self.written or all(
            self.written.isdisjoint(self.memory[n]) for n in (node, *node.all_input_nodes)
        )

    def key(self, node: fx.Node, inputs: list[fx.Node]) -> int:
        """Returns a number for the operator and its constants; appends the inputs in order."""
        if node.op != "call_function" or not self._may(node):
            return _NEVER
        try:
            text = _write(node.args, inputs)
            if node.kwargs:
                text += _write(dict(sorted(node.kwargs.items())), inputs)
        except _UnknownError:
            return _NEVER
        wish = (node.meta.get("recompute"), node.meta.get("ac_graph_id"))
        return self._keys.setdefault((node.target, text, *wish), len(self._keys))

    def find(self) -> list[tuple[fx.Node, fx.Node]]:
        """Returns pairs (node, earlier node that computes the same)."""
        place = {n: i for i, n in enumerate(self.nodes)}
        keys: list[int] = []
        starts, ins = [0], []
        for node in self.nodes:
            inputs: list[fx.Node] = []
            key = self.key(node, inputs)
            keys.append(key)
            if key != _NEVER:
                ins += [place[n] for n in inputs]
            starts.append(len(ins))
        same = _native.find_duplicates(keys, starts, ins)
        return [(self.nodes[i], self.nodes[s]) for i, s in enumerate(same) if i != s]


def merge_duplicates(gm: fx.GraphModule, num_fwd_outputs: int) -> tuple[int, list[OneMemory]]:
    """Merges equal nodes of a joint graph into the first of each, in place; returns the number of
    removed nodes and the merged storages. Takes about 10 us per node."""
    pairs = _Finder(gm, num_fwd_outputs).find()
    memory: list[OneMemory] = []
    for node, first in pairs:
        gone, kept = _storages(node.meta.get("val")), _storages(first.meta.get("val"))
        memory += [OneMemory(a, b) for a, b in zip(gone, kept, strict=True) if a._cdata != b._cdata]
    for node, first in reversed(pairs):
        node.replace_all_uses_with(first)
        gm.graph.erase_node(node)
    return len(pairs), memory
