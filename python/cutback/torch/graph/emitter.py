"""Builds the two graphs of a plan, which PyTorch compiles and calls.

The forward graph takes the primals and returns the forward outputs, then the values that the
backward needs: tensors, objects (device meshes, process groups and others that are neither tensors
nor numbers), then numbers. The backward graph takes numbers, tensors, objects and tangents in that
order and returns the gradients. This is the order of PyTorch's own partitioner.

Both run their nodes in the plan's order. A node that runs again appears again under a new name, and
later readers read the newest run. A graph returns results of the first run, as in the plan. Moves
to the host and back are nodes, too (transfers.py): a value that is on the host between forward and
backward crosses as a host tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import (
    find_symbol_binding_fx_nodes,
    free_symbols,
    is_symbol_binding_fx_node,
)

from .. import hooks, transfers
from .codegen import NAME, RUN_OF, STEP, UPDATE
from .dropout import REMAKE
from .graphs import UnsupportedGraphError, is_number, is_tangent, location
from .importer import Imported
from .moving import Move, Schedule, Step
from .packed_ops import PACKS, UNPACKS, drawn
from .steps import EmittedStep, Moved, Value, hoist, type_name, val_of
from .taking_over import MEMORY, Memory
from .updated import due

if TYPE_CHECKING:
    from torch._functorch._aot_autograd.descriptors import AOTOutput
    from torch.fx.node import Argument, Target

_UNCHECKED = "saved_tensor_with_no_vc_check"
"""PyTorch's mark on values that an ``autograd.Function`` keeps as attributes of ``ctx``. Autograd
does not check whether they were overwritten before the backward, and expects such tensors to come
last. Here all of them are checked, because reruns may read them: an overwrite gives an error, never
a wrong gradient. The exception is memory that the backward itself writes into: no op that reads it
runs again, and after two forwards the first backward writes before the second one reads.

A view of an input or a result is saved together with its base: Inductor and ``_unsafe_view`` make
tensors with a separate version counter, which a write of the caller does not increment."""


RETURNED_VIEWS = "cutback_returned_views"
"""Key in the ``meta`` of a forward graph's module: the positions of results that are views of saved
memory. They, too, reach the caller with a separate version counter, which no saved tensor shares.
The backward may begin only if that counter is unchanged (``compiler/returned.py``)."""


class Crossing(NamedTuple):
    """The values that cross from a forward graph to its backward in addition to the tensors that
    autograd checks for later writes."""

    numbers: tuple[fx.Node, ...]
    objects: tuple[fx.Node, ...]
    unchecked: int
    """Number of tensors that autograd does not check; they are the last ones."""
    tensors: int
    """Number of tensors that cross, including the unchecked ones."""


class _Emitter:
    def __init__(
        self, gm: fx.GraphModule, graph: Imported, schedule: Schedule, replaceable: bool = False
    ) -> None:
        self.gm = gm
        self.graph = graph
        for node in gm.graph.nodes:
            if node not in graph.rewritten:
                node.meta.pop(_UNCHECKED, None)
        self.primals = [n for n in gm.graph.find_nodes(op="placeholder") if not is_tangent(n)]
        self.tangents = [n for n in gm.graph.find_nodes(op="placeholder") if is_tangent(n)]
        self.views = {
            node
            for node, op in zip(graph.order, graph.problem.ops, strict=True)
            if "view" in op.flags
        }
        steps, start = schedule
        moves = any(isinstance(step, Move) for step in steps)
        self.memory = Memory(graph.storages, {} if moves else graph.over)
        self.forward = self._steps(steps[:start], again=False, begins=0)
        self.first_runs = {s.node for s in self.forward}
        self.backward = self._steps(steps[start:], again=True, begins=start)
        self.tensors: list[Value] = []
        self.objects: list[fx.Node] = []
        self.numbers: list[fx.Node] = []
        self.states: list[fx.Node] = []  # see hooks.is_backward_state
        self.ends = {} if graph.updates is None else graph.updates.leaves
        for k in self.ends:
            self._make_views(self.graph.outputs[k])
        self._find_saved()
        self.updates = self._find_updates()
        if replaceable:
            self._keep_all()

    def _steps(self, ids: Sequence[Step], again: bool, begins: int) -> list[EmittedStep]:
        """
        Args:
            begins: number of the first of these steps in the plan.
        """
        ran: set[fx.Node] = set()
        steps = []
        for time, id in enumerate(ids, begins):
            move = id if isinstance(id, Move) else None
            op = id if isinstance(id, int) else id.op
            node = self.graph.order[op]
            if node is None or node.op != "call_function":
                continue
            if move is not None:
                steps.append(EmittedStep(node, None, move, self.graph.positions[op]))
                continue
            masked = self.graph.masked.get(node)
            if not again and node not in ran:
                if masked is not None:
                    hoist(steps, drawn(masked.mask).args[0])
                masked = None  # the dropout itself makes its result in the first run
            args = self.graph.again.get(node) if again else None
            if node.target in UNPACKS and steps and steps[-1].runs(node.args[0]):
                args = (drawn(node),)  # what has just been packed is still there
            steps.append(EmittedStep(node, masked, args=args, time=time))
            ran.add(node)
        return steps

    # ---- what crosses -------------------------------------------------------------------------

    def _find_saved(self) -> None:
        made: set[Value] = set(self.tangents)
        saved: dict[Value, None] = {}
        steps = []
        for step in self.backward:
            if step.picks() and step.node.args[0] not in made:
                if step.node not in made:  # tuples cannot cross, but their elements can
                    saved[step.node] = None
                continue
            reads, makes = self._reads_and_makes(step, made)
            for value in reads:
                if value not in made and not (
                    isinstance(value, fx.Node) and value.op == "get_attr"
                ):
                    saved[value] = None
            if step.move is not None and step.move.action == "out":
                made.discard(step.node)
            made.update(makes)
            steps.append(step)
        for node in self.graph.outputs[self.graph.num_fwd_outputs :]:
            if not isinstance(node, fx.Node) or node.op == "get_attr":
                continue
            if node not in made or node in self.first_runs:
                saved[node] = None
        saved.update(dict.fromkeys(self.ends.values()))
        self.backward = steps
        for node in [v for v in saved if isinstance(v, fx.Node) and v.op == "call_function"]:
            others = self.graph.witnesses.get(node, ())
            if _UNCHECKED not in node.meta and node not in others:
                saved.update(dict.fromkeys(others))
        self._add_parts([v for v in saved if isinstance(v, fx.Node)])
        position = {n: i for i, n in enumerate(self.graph.order) if n is not None}
        moved = sorted(
            (v for v in saved if isinstance(v, Moved)),
            key=lambda v: (position[v.node], v.what, v.position or 0, v.number),
        )
        for node in sorted((v for v in saved if isinstance(v, fx.Node)), key=position.__getitem__):
            self._sort(node)
        self.tensors += moved
        self.tensors.sort(key=lambda v: isinstance(v, fx.Node) and _UNCHECKED in v.meta)
        self.numbers = self._with_symbols(self.numbers)

    def _make_views(self, gradient: fx.Node | None) -> None:
        """Makes the backward run the views that lead to a gradient with an update. In the problem
        nothing reads them, so a plan has no steps for them."""
        ran = {s.node: i for i, s in enumerate(self.backward) if s.move is None}
        chain: list[EmittedStep] = []
        node = gradient
        while node is not None and node not in ran:
            chain.insert(0, EmittedStep(node))
            memory = set(self.graph.storages[node])
            sources = [n for n in node.all_input_nodes if memory & {*self.graph.storages[n]}]
            node = sources[0] if sources else None
        if node is not None:
            self.backward[ran[node] + 1 : ran[node] + 1] = chain

    def _find_updates(self) -> dict[int, list[int]]:
        """Returns the updates that follow each step of the backward: maps the step's position to
        outputs of the joint graph."""
        lies_in = self.graph.storages if self.ends else {}
        steps = [
            (
                lies_in.get(s.node, ()),
                {m for n in s.reads for m in lies_in.get(n, ())},
                s.node in self.views,
            )
            for s in (self.backward if self.ends else ())
        ]
        found: dict[int, list[int]] = {}
        for k, leaf in self.ends.items():
            gradient = self.graph.outputs[k]
            assert gradient is not None
            last = due(steps, lies_in[gradient][0], lies_in[leaf][0])
            found.setdefault(last, []).append(k)
        return found

    @staticmethod
    def _reads_and_makes(
        step: EmittedStep, made: set[Value]
    ) -> tuple[Sequence[Value], Sequence[Value]]:
        """Returns the values that a backward step reads and makes; ``made`` has the values that
        were made there before."""
        move = step.move
        if move is None:
            return step.reads, [step.node]
        if move.action == "out":
            reads: Sequence[Value] = [step.node] if step.node in made else step.here()
            return reads, [*step.moved("host"), *step.moved("left", move.number)]
        if move.action == "in":
            return step.moved("host"), [v for p in step.positions for v in step.names(p)]
        left = step.moved("left", move.number) if move.action == "end" else []
        return [*left, *step.moved("host")], []

    def _sort(self, node: fx.Node) -> None:
        """Adds a node that the backward needs to the list of its kind."""
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            self.tensors.append(node)
        elif is_number(node):
            if not isinstance(val, (int, float)):  # other values are constants of the graph
                self.numbers.append(node)
        elif hooks.is_kept_object(val):
            self.objects.append(node)
        elif node.op == "placeholder" and hooks.is_backward_state(val):
            self.states.append(node)
        else:
            raise UnsupportedGraphError(
                f"{node.name} ({location(node) or node.target}): the backward needs it, and it is "
                f"neither a tensor nor a number, but a {type_name(val)}, which PyTorch does not "
                "keep between forward and backward. Keep what uses it out of the compiled part"
            )

    def _keep_all(self) -> None:
        """Keeps every number and object that the backward of some plan may need. Their counts are
        part of the calling convention, so all plans must keep the same ones."""
        there = [*self.primals, *(s.node for s in self.forward if s.move is None)]
        for node in dict.fromkeys(there):
            val = node.meta.get("val")
            if node in self.numbers or node in self.objects:
                continue
            if is_number(node) and not isinstance(val, (int, float)):
                self.numbers.append(node)
            elif node.op == "placeholder" and hooks.is_kept_object(val):
                self.objects.append(node)
        self.numbers = self._with_symbols(self.numbers)

    @property
    def crossing(self) -> Crossing:
        """The number of values that cross, by kind."""
        unchecked = sum(isinstance(v, fx.Node) and _UNCHECKED in v.meta for v in self.tensors)
        numbers, objects = tuple(self.numbers), tuple(self.objects)
        return Crossing(numbers, objects, unchecked, len(self.tensors))

    def cross_as(self, first: Crossing) -> bool:
        """Makes the same numbers and objects cross as in the graphs of another plan. Returns False
        if this plan needs others, or more tensors that autograd does not check."""
        there = {*self.primals, *self.first_runs}
        fits = set(self.numbers) <= set(first.numbers) and set(self.objects) <= set(first.objects)
        if not fits or not there.issuperset([*first.numbers, *first.objects]):
            return False
        if self.states or self.crossing.unchecked > first.unchecked:
            return False
        self.numbers, self.objects = list(first.numbers), list(first.objects)
        return True

    def _add_parts(self, saved: Sequence[fx.Node]) -> None:
        """Makes the forward extract the tuple elements that the backward needs."""
        for node in saved:
            if node.op == "placeholder" or node in self.first_runs:
                continue
            source = node.args[0] if node.target is operator.getitem else None
            if source not in self.first_runs:
                raise AssertionError(f"the plan's backward reads {node.name}, which never ran")
            at = max(i for i, s in enumerate(self.forward) if s.node is source)
            self.forward.insert(at + 1, EmittedStep(node))
            self.first_runs.add(node)

    def _with_symbols(self, numbers: list[fx.Node]) -> list[fx.Node]:
        """Returns the numbers that cross, including those that bind a symbol in the shapes of
        crossing values: first the bindings, by name, then the others."""
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
            for symbol in sorted(free_symbols(val_of(node)) - known, key=lambda s: s.name):
                if symbol in by_symbol and not is_tangent(by_symbol[symbol]):
                    bindings.append(by_symbol[symbol])
                    known.add(symbol)
        return bindings + derived

    # ---- graphs -------------------------------------------------------------------------------

    def _copy(
        self, graph: fx.Graph, env: dict[Value, Argument], step: EmittedStep, late: bool
    ) -> None:
        if step.move is not None:
            self._move(graph, env, step, step.move)
            return
        if step.picks() and step.node.args[0] not in env and step.node in env:
            return  # the value came back as an element
        for value in step.reads:
            self._have(graph, env, value)
            self._receive(graph, env, value)
        node = step.node
        if node.target in UNPACKS and step.args is not node.args:
            source = step.args[0]
            env[node] = env[source]
            self.memory.same(node, source, env[source])
            self.first.setdefault(node, env[source])
            return
        if step.masked is None:
            args, kwargs = (fx.map_arg(a, env.__getitem__) for a in (step.args, node.kwargs))
            copied = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        else:
            x, mask, scale = step.masked
            copied = graph.call_function(REMAKE, (env[x], env[mask], scale))
        # setting an attribute of a node takes as long as creating the node
        copied.meta.update(node.meta)
        copied.meta[RUN_OF] = node.name
        copied.meta[STEP] = step.time
        if late:
            copied.meta["autograd_backward"] = True
        self.memory.ran(node, copied)
        env[node] = copied
        self.first.setdefault(node, copied)

    def _move(
        self, graph: fx.Graph, env: dict[Value, Argument], step: EmittedStep, move: Move
    ) -> None:
        def call(function: Target, moved: Moved, *args: Argument) -> fx.Node:
            node = graph.call_function(function, args)
            node.meta = {**step.node.meta, "val": None if function is transfers.gone else moved.val}
            return node

        for position in step.positions:
            host = Moved("host", step.node, position)
            here, *others = step.names(position)
            left = Moved("left", step.node, position, move.number)
            device = left.val.device
            if move.action == "out":
                env[left] = self._part(graph, env, step.node, position, here)
                env[host] = call(transfers.leave, host, env[left])
            elif move.action == "wait":
                call(transfers.wait, host, env[host], device).meta["val"] = None
            elif move.action == "end":
                call(transfers.gone, left, env.pop(left), env[host])
            else:
                env[here] = call(transfers.arrive, left, env[host], device)
                self.coming.add(env[here])
                env.update(dict.fromkeys(others, env[here]))
        if step.positions != [None] and move.action in ("out", "in"):
            env.pop(step.node, None)  # from now on only its elements count

    def _part(
        self,
        graph: fx.Graph,
        env: dict[Value, Argument],
        node: fx.Node,
        at: int | None,
        here: Value,
    ) -> fx.Node:
        """Returns one tensor of a node, on the device."""
        if at is None or node not in env:
            self._receive(graph, env, here)
            part: fx.Node = env[here]
        else:
            part = graph.call_function(operator.getitem, (env[node], at))
            part.meta = {**node.meta, "val": node.meta["val"][at]}
        return part

    def _receive(self, graph: fx.Graph, env: dict[Value, Argument], value: Value) -> None:
        """Waits for a value that comes back, before it is read."""
        coming = env[value]
        if coming not in self.coming:
            return
        self.coming.remove(coming)
        here = graph.call_function(transfers.ready, (coming,))
        here.meta = dict(coming.meta)
        for name in [name for name, node in env.items() if node is coming]:
            env[name] = here

    def _have(self, graph: fx.Graph, env: dict[Value, Argument], node: fx.Node) -> None:
        if node in env:
            return
        if node.op == "get_attr":
            env[node] = graph.node_copy(node, env.__getitem__)
        elif isinstance(node.meta.get("val"), (int, float)):
            env[node] = node.meta["val"]

    def _first_run(self, graph: fx.Graph, node: fx.Node) -> Argument:
        """Returns the first run of a node. For a view made late, after its base had run again,
        returns a view of the base's first run, whose memory is the one that stays."""
        made = self.first[node]
        if node not in self.views or not isinstance(made, fx.Node):
            return made
        sources = [a for a in node.all_input_nodes if a in self.first]
        shown = {a: self._first_run(graph, a) for a in sources}
        if all(source in made.all_input_nodes for source in shown.values()):
            return made
        copied = graph.node_copy(made)
        copied.meta.pop(MEMORY, None)
        for now in made.all_input_nodes:
            name = now.meta.get(RUN_OF, now.name)
            copied.replace_input_with(now, next((shown[a] for a in sources if a.name == name), now))
        return copied

    def _outputs(
        self,
        graph: fx.Graph,
        env: dict[Value, Argument],
        results: Sequence[fx.Node | None],
        saved: Sequence[Value],
        descs: list[AOTOutput | None],
        updates: Mapping[int, fx.Node] = MappingProxyType({}),
    ) -> None:
        """Writes the outputs. ``results`` are values of the first run, for the caller; ``saved``
        are values of the latest run; ``updates`` replace results of the graph, by position."""
        outputs = [*results, *saved]
        for node in outputs:
            if isinstance(node, fx.Node):
                self._have(graph, env, node)
                self._receive(graph, env, node)
            elif isinstance(node, Moved) and node.what == "here":
                env[node] = self._part(graph, env, node.node, node.position, node)
        values = tuple(
            updates[i]
            if i in updates
            else self._first_run(graph, n)
            if i < len(results) and n in self.first
            else env[n]
            if isinstance(n, (fx.Node, Moved))
            else n
            for i, n in enumerate(outputs)
        )
        end = graph.output(values)
        end.meta["desc"] = descs
        end.meta["output_stack_traces"] = [
            n.meta.get("stack_trace") if isinstance(n, fx.Node) else None for n in outputs
        ]

    def _module(self, graph: fx.Graph) -> fx.GraphModule:
        from torch.fx._lazy_graph_module import _make_graph_module

        for target in PACKS:
            for node in graph.find_nodes(op="call_function", target=target):
                if not node.users:
                    graph.erase_node(node)
        graph.lint()
        return _make_graph_module(self.gm, graph)

    def forward_module(self) -> fx.GraphModule:
        from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput

        graph = fx.Graph()
        env: dict[Value, Argument] = {}
        self.coming: set[fx.Node] = set()  # nodes that bring something back, not yet waited for
        self.first: dict[fx.Node, Argument] = {}  # first runs
        for node in self.primals:
            env[node] = graph.placeholder(node.name)
            env[node].meta = node.meta
            self.memory.given(node, env[node])
        for step in self.forward:
            self._copy(graph, env, step, False)
        k = self.graph.num_fwd_outputs
        saved = [*self.tensors, *self.objects, *self.numbers]
        descs = [
            *self.graph.descs[:k], *(SavedForBackwardsAOTOutput(i) for i in range(len(saved)))
        ]  # fmt: skip
        self._outputs(graph, env, self.graph.outputs[:k], saved, descs)
        module = self._module(graph)
        module.meta[RETURNED_VIEWS] = self._saved_views()
        return module

    def _saved_views(self) -> tuple[int, ...]:
        """Returns the positions of results that are views of saved memory."""
        views, witnesses = self.graph.returned_views, self.graph.witnesses
        saved = [v for v in self.tensors if isinstance(v, fx.Node) and _UNCHECKED not in v.meta]
        found = {n for v in saved for n in witnesses.get(v, ()) if n in views}
        return tuple(sorted(views[n] for n in found))

    def _update(self, graph: fx.Graph, output: int) -> fx.Node:
        """Adds the update of the parameter whose gradient is an output of the joint graph."""
        gradient = self.graph.outputs[output]
        assert self.graph.updates is not None and gradient is not None
        args = (self.first[self.ends[output]], self._first_run(graph, gradient))
        made = graph.call_function(self.graph.updates.update, args)
        made.meta = {"val": gradient.meta["val"], NAME: "update", UPDATE: True}
        return made

    def backward_module(self) -> fx.GraphModule:
        graph = fx.Graph()
        env: dict[Value, Argument] = {}
        self.coming = set()
        self.first = {}
        taken = [*self.numbers, *self.tensors, *self.objects, *self.tangents, *self.states]
        for node in taken:
            env[node] = graph.placeholder(node.name)
            env[node].meta = node.meta if isinstance(node, fx.Node) else {"val": node.val}
            if isinstance(node, fx.Node):
                self.first[node] = env[node]
                self.memory.given(node, env[node])
        k = self.graph.num_fwd_outputs
        updates = {}
        for i, step in enumerate(self.backward):
            self._copy(graph, env, step, True)
            updates.update({u - k: self._update(graph, u) for u in self.updates.get(i, ())})
        self._outputs(graph, env, self.graph.outputs[k:], [], self.graph.descs[k:], updates)
        return self._module(graph)


def crossing(gm: fx.GraphModule, graph: Imported, schedule: Schedule) -> list[fx.Node]:
    """Returns the tensors that the plan's backward takes from the forward, like :func:`emit`."""
    return _Emitter(gm, graph, schedule).tensors


class Emitted(NamedTuple):
    """The two graphs of a plan, and the values that cross between them."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    crossing: Crossing


def emit(
    gm: fx.GraphModule, graph: Imported, schedule: Schedule
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Builds the forward and backward graphs of a plan.

    Args:
        gm: the joint graph that ``graph`` was imported from.
        schedule: the plan's schedule (:func:`graph.moving.schedule_of`), in op ids of the imported
            problem.
    """
    emitter = _Emitter(gm, graph, schedule)
    return emitter.forward_module(), emitter.backward_module()


def emit_replaceable(gm: fx.GraphModule, graph: Imported, schedule: Schedule) -> Emitted:
    """Like :func:`emit`, but the graphs of another plan (:func:`emit_instead`) can replace these
    after PyTorch has compiled them."""
    emitter = _Emitter(gm, graph, schedule, replaceable=True)
    return Emitted(emitter.forward_module(), emitter.backward_module(), emitter.crossing)


def emit_instead(
    gm: fx.GraphModule, graph: Imported, schedule: Schedule, first: Crossing
) -> Emitted | None:
    """Builds the graphs of another plan for the calling convention of the first plan's graphs, in
    which only the number of tensors that cross may differ. Returns None if that is not possible."""
    emitter = _Emitter(gm, graph, schedule)
    if not emitter.cross_as(first):
        return None
    return Emitted(emitter.forward_module(), emitter.backward_module(), emitter.crossing)
