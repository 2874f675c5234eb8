"""From a plan to the two graphs that PyTorch compiles and calls.

The forward graph takes the primals and returns the forward outputs, then what the backward needs:
tensors, then numbers. The backward graph takes numbers, tensors and tangents in that order and
returns the gradients. Both run their nodes in the plan's order; what runs again stands there again
under a name of its own, and later readers read the newest run.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import (
    find_symbol_binding_fx_nodes,
    free_symbols,
    is_symbol_binding_fx_node,
)

from .graphs import Masked, UnsupportedGraphError, is_number, is_tangent
from .importer import Imported

RUN_OF = "cutback_run_of"
"""Key in a node's ``meta``: the name of the joint graph's node that it is a run of."""

_MASKED = torch.ops.aten.native_dropout_backward.default  # x * mask * scale, in one op


class _Step:
    """One run of one node. ``masked``: a dropout's result, made from its mask."""

    __slots__ = ("masked", "node")

    def __init__(self, node: fx.Node, masked: Masked | None = None) -> None:
        self.node = node
        self.masked = masked

    @property
    def reads(self) -> Sequence[fx.Node]:
        if self.masked is not None:
            return self.masked.x, self.masked.mask
        return list(self.node.all_input_nodes)


class _Emitter:
    def __init__(self, gm: fx.GraphModule, graph: Imported, steps: list[int], start: int) -> None:
        self.gm = gm
        self.graph = graph
        self.primals = [n for n in gm.graph.find_nodes(op="placeholder") if not is_tangent(n)]
        self.tangents = [n for n in gm.graph.find_nodes(op="placeholder") if is_tangent(n)]
        self.forward = self._steps(steps[:start], again=False)
        self.first_runs = {s.node for s in self.forward}
        self.backward = self._steps(steps[start:], again=True)
        self.tensors: list[fx.Node] = []
        self.numbers: list[fx.Node] = []
        self._find_saved()

    def _steps(self, ids: list[int], again: bool) -> list[_Step]:
        ran: set[fx.Node] = set()
        steps = []
        for id in ids:
            node = self.graph.order[id]
            if node is None or node.op != "call_function":
                continue
            masked = self.graph.masked.get(node)
            if not again and node not in ran:
                masked = None  # the first run of a dropout's result is the dropout's own
            steps.append(_Step(node, masked))
            ran.add(node)
        return steps

    # ---- what crosses -------------------------------------------------------------------------

    def _find_saved(self) -> None:
        made = set(self.tangents)
        saved: dict[fx.Node, None] = {}
        steps = []
        for step in self.backward:
            if step.masked is None and step.node.target is operator.getitem:
                source = step.node.args[0]
                if source not in made:  # tuples cannot cross: their parts do
                    saved[step.node] = None
                    continue
            for node in step.reads:
                if node not in made and node.op != "get_attr":
                    saved[node] = None
            made.add(step.node)
            steps.append(step)
        for node in self.graph.outputs[self.graph.num_fwd_outputs :]:
            if isinstance(node, fx.Node) and node not in made and node.op != "get_attr":
                saved[node] = None
        self.backward = steps
        self._add_parts(saved)
        position = {n: i for i, n in enumerate(self.graph.order) if n is not None}
        for node in sorted(saved, key=position.__getitem__):
            if not is_number(node):
                self._check_saved(node)
                self.tensors.append(node)
            elif not isinstance(node.meta["val"], (int, float)):
                self.numbers.append(node)
        self.numbers = self._with_symbols(self.numbers)

    def _check_saved(self, node: fx.Node) -> None:
        if not isinstance(node.meta.get("val"), torch.Tensor):
            raise UnsupportedGraphError(
                f"{node.name} ({node.target}): the backward needs it, and it is neither a tensor "
                "nor a number"
            )

    def _add_parts(self, saved: dict[fx.Node, None]) -> None:
        """The forward takes the parts of tuples that the backward needs, where it did not."""
        for node in saved:
            if node.op == "placeholder" or node in self.first_runs:
                continue
            source = node.args[0] if node.target is operator.getitem else None
            if source not in self.first_runs:
                raise AssertionError(f"the plan's backward reads {node.name}, which never ran")
            at = max(i for i, s in enumerate(self.forward) if s.node is source)
            self.forward.insert(at + 1, _Step(node))
            self.first_runs.add(node)

    def _with_symbols(self, numbers: list[fx.Node]) -> list[fx.Node]:
        """The numbers, and whatever binds a symbol in the shapes of what crosses: first the
        bindings, by name, then the others."""
        bindings, derived, known = [], [], set()
        for node in numbers:
            symbol = is_symbol_binding_fx_node(node)
            if symbol is None:
                derived.append(node)
            else:
                known.add(symbol)
                bindings.append(node)
        by_symbol = find_symbol_binding_fx_nodes(self.gm.graph)
        for node in [*derived, *self.tensors, *self.tangents]:
            for symbol in sorted(free_symbols(node.meta.get("val")) - known, key=lambda s: s.name):
                if symbol in by_symbol and not is_tangent(by_symbol[symbol]):
                    bindings.append(by_symbol[symbol])
                    known.add(symbol)
        return bindings + derived

    # ---- graphs -------------------------------------------------------------------------------

    def _copy(self, graph: fx.Graph, env: dict[fx.Node, Any], step: _Step, late: bool) -> None:
        for node in step.reads:
            self._have(graph, env, node)
        node = step.node
        if step.masked is None:
            args, kwargs = (fx.map_arg(a, env.__getitem__) for a in (node.args, node.kwargs))
            copied = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        else:
            x, mask, scale = step.masked
            copied = graph.call_function(_MASKED, (env[x], env[mask], scale))
        copied.meta.update(node.meta)  # to set a node's attribute takes as long as to make it
        copied.meta[RUN_OF] = node.name
        if late:
            copied.meta["autograd_backward"] = True
        env[node] = copied

    def _have(self, graph: fx.Graph, env: dict[fx.Node, Any], node: fx.Node) -> None:
        if node in env:
            return
        if node.op == "get_attr":
            env[node] = graph.node_copy(node, env.__getitem__)
        elif isinstance(node.meta.get("val"), (int, float)):
            env[node] = node.meta["val"]

    def _outputs(
        self, graph: fx.Graph, env: dict[fx.Node, Any], outputs: Sequence[Any], descs: list[Any]
    ) -> None:
        for node in outputs:
            if isinstance(node, fx.Node):
                self._have(graph, env, node)
        values = tuple(env[n] if isinstance(n, fx.Node) else n for n in outputs)
        end = graph.output(values)
        end.meta["desc"] = descs
        end.meta["output_stack_traces"] = [
            n.meta.get("stack_trace") if isinstance(n, fx.Node) else None for n in outputs
        ]

    def _module(self, graph: fx.Graph) -> fx.GraphModule:
        from torch.fx._lazy_graph_module import _make_graph_module

        graph.lint()
        return _make_graph_module(self.gm, graph)

    def forward_module(self) -> fx.GraphModule:
        from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput

        graph, env = fx.Graph(), {}
        for node in self.primals:
            env[node] = graph.placeholder(node.name)
            env[node].meta = node.meta
        for step in self.forward:
            self._copy(graph, env, step, False)
        k = self.graph.num_fwd_outputs
        saved = self.tensors + self.numbers
        descs = [
            *self.graph.descs[:k], *(SavedForBackwardsAOTOutput(i) for i in range(len(saved)))
        ]  # fmt: skip
        self._outputs(graph, env, [*self.graph.outputs[:k], *saved], descs)
        return self._module(graph)

    def backward_module(self) -> fx.GraphModule:
        graph, env = fx.Graph(), {}
        for node in [*self.numbers, *self.tensors, *self.tangents]:
            env[node] = graph.placeholder(node.name)
            env[node].meta = node.meta
        for step in self.backward:
            self._copy(graph, env, step, True)
        k = self.graph.num_fwd_outputs
        self._outputs(graph, env, self.graph.outputs[k:], self.graph.descs[k:])
        return self._module(graph)


def crossing(
    gm: fx.GraphModule, graph: Imported, steps: list[int], backward_starts: int
) -> list[fx.Node]:
    """Tensors that the plan's backward takes from the forward; arguments as for :func:`emit`."""
    return _Emitter(gm, graph, steps, backward_starts).tensors


def emit(
    gm: fx.GraphModule, graph: Imported, steps: list[int], backward_starts: int
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward graph of a plan.

    Args:
        gm: the joint graph that ``graph`` was imported from.
        steps, backward_starts: the plan's schedule, in op ids of the imported problem.
    """
    emitter = _Emitter(gm, graph, steps, backward_starts)
    return emitter.forward_module(), emitter.backward_module()
