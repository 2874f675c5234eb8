"""Captures the joint graphs of a step, with the tensors that they would run on.

A step that traces as one graph is not run: the compiled graph and its inputs are intercepted where
Dynamo would call it. In a step with graph breaks, the second graph is traced only after the first
has run. So such a step runs forward once, the memory that it wrote is restored, and the graphs are
joined into one, as :mod:`compiler.joining` does for a budget over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch import fx
from torch._dynamo.exc import BackendCompilerFailed, Unsupported
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_iter

from ...frontend.planning import plan
from ...planner.plan import Plan
from ...problem import Problem
from .. import hooks
from ..compiler.compiling import uncompiled
from ..compiler.joining import join
from ..compiler.one_piece import without_messages
from ..compiler.preparing import Preparation, device_row, prepare
from ..graph import codegen
from ..graph.emitter import emit
from ..graph.graphs import UnsupportedGraphError, is_tangent
from ..graph.importer import Imported
from ..graph.leaves import Copied, IsLeaf, aot_backend
from ..graph.moving import schedule_of
from ..graph.taking_over import separate

if TYPE_CHECKING:
    from torch.fx.node import Argument

    from ..types import GraphInput, GraphValue, Modules


class Piece(NamedTuple):
    """One graph of a step."""

    gm: fx.GraphModule  # the joint graph of forward and backward
    graph: Imported
    primals: list[GraphInput]  # arguments of the placeholders, in order, without tangents

    def given(self) -> dict[fx.Node, GraphInput]:
        """Maps the placeholders to their arguments, without tangents."""
        nodes = (n for n in self.gm.graph.find_nodes(op="placeholder") if not is_tangent(n))
        return dict(zip(nodes, self.primals, strict=True))


class Captured(NamedTuple):
    """A step that can be run op by op."""

    pieces: list[Piece]
    graph: Imported  # all pieces joined into one
    places: list[tuple[int, int]]  # for each op id, the index of its piece and its id in the piece
    row: str  # name of the row in the device table
    plan: Plan  # runs every op once, without recomputation
    handed: dict[fx.Node, fx.Node]  # maps a placeholder of a piece to an output of an earlier piece

    def under(self, plan: Plan) -> Captured:
        """Returns the step as it runs under a plan, which may take no memory over."""
        if any(op.over for op in plan.parts.ops):
            return self
        pieces = [p._replace(graph=p.graph._replace(over={})) for p in self.pieces]
        return self._replace(pieces=pieces, graph=self.graph._replace(over={}))

    @property
    def device(self) -> torch.device:
        """The device of the step: that of the first input that is not on the CPU, or else the
        CPU."""
        primals = [piece.primals for piece in self.pieces]
        devices = [t.device for t in tree_iter(primals) if isinstance(t, torch.Tensor)]
        return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))


class _TracedError(Exception):
    """Carries the compiled graph and its inputs out of Dynamo, which then does not cache it."""

    def __init__(self, run: Callable[..., Any], inputs: list[GraphInput]) -> None:
        super().__init__("traced")
        self.run = run
        self.inputs = inputs


class _CalledError(Exception):
    """Carries the tensors that a forward graph was called with."""

    def __init__(self, primals: list[GraphInput]) -> None:
        super().__init__("called")
        self.primals = primals


def save_everything(problem: Problem, device: str) -> Plan:
    """Makes the plan that runs each op once. It ignores policies and checkpoints in the model."""
    ops = [
        replace(op, outputs=[replace(value, constraint="free") for value in op.outputs])
        for op in problem.ops
    ]
    return plan(separate(replace(problem, ops=ops)), device=device)


def _check_real(step: Any, inputs: Any) -> None:
    tensors = list(tree_iter(inputs))
    if isinstance(step, torch.nn.Module):
        tensors += [*step.parameters(), *step.buffers()]
    for tensor in tensors:
        if isinstance(tensor, FakeTensor) or getattr(tensor, "is_meta", False):
            raise ValueError(
                "profile: the step is run, so it needs real tensors, but a tensor of shape "
                f"{list(tensor.shape)} is fake or on the device 'meta'; use trace() for those"
            )


def _called(gm: fx.GraphModule, inputs: Sequence[GraphInput]) -> codegen.Boxed:
    def run(args: list[GraphInput]) -> NoReturn:
        raise _CalledError(list(args))

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _no_gradient(gm: fx.GraphModule | None, inputs: Sequence[GraphInput] | None) -> NoReturn:
    raise UnsupportedGraphError(
        "profile: no input or parameter needs a gradient, so there is no backward"
    )


def _alone(piece: Piece, row: str, whole: Plan) -> Captured:
    """Makes the capture of a step that is one graph."""
    places = [(0, i) for i in range(len(piece.graph.order))]
    return Captured([piece], piece.graph, places, row, whole, {})


def _joined(pieces: list[Piece], row: str, handed: dict[fx.Node, fx.Node]) -> Captured:
    """Makes the capture of a step of several graphs, joined in the order of
    :func:`compiler.joining.join`."""
    problem, places = join([piece.graph.problem for piece in pieces])
    graphs = [piece.graph for piece in pieces]
    graph = Imported(
        problem,
        [graphs[g].order[i] for g, i in places],
        [n for g in graphs for n in g.outputs[: g.num_fwd_outputs]]
        + [n for g in graphs for n in g.outputs[g.num_fwd_outputs :]],
        [],
        sum(g.num_fwd_outputs for g in graphs),
        {node: masked for g in graphs for node, masked in g.masked.items()},
        {node: args for g in graphs for node, args in g.again.items()},
        [graphs[g].positions[i] for g, i in places],
        copies=_copies(graphs, places),
        over={node: at for g in graphs for node, at in g.over.items()},
    )
    return Captured(pieces, graph, places, row, save_everything(problem, row), handed)


def _copies(graphs: list[Imported], places: list[tuple[int, int]]) -> dict[int, Copied]:
    """Returns the gradients that leaves copy, by op id, with the op ids and outputs of the joined
    graph."""
    first = sum(graph.num_fwd_outputs for graph in graphs)  # the first output of a graph's backward
    shifts = []
    for graph in graphs:
        shifts.append(first - graph.num_fwd_outputs)
        first += len(graph.outputs) - graph.num_fwd_outputs
    found = {}
    for op, (g, i) in enumerate(places):
        copy = graphs[g].copies.get(i)
        if copy is not None:
            found[op] = copy._replace(output=copy.output + shifts[g])
    return found


@without_messages()
def capture(step: Callable[..., Any], inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    """Traces a step and captures the tensors that its graphs would receive. PyTorch keeps no
    compiled code for it. A step that is one graph does not run; a step with graph breaks runs
    forward once.

    Raises:
        UnsupportedGraphError: if nothing needs a gradient, or a graph cannot be planned.
        ValueError: if an input or a parameter is a fake tensor.
    """
    step = uncompiled(step)
    _check_real(step, (inputs, kwargs))
    found: list[Any] = []

    def partition(
        gm: fx.GraphModule,
        joint_inputs: Sequence[GraphInput],
        *,
        num_fwd_outputs: int,
        is_leaf: IsLeaf,
        static_lifetime_input_indices: list[int] | None = None,
        **options: Any,
    ) -> Modules:
        static = static_lifetime_input_indices or ()
        how = Preparation(is_leaf=is_leaf, takes_over=True)
        graph = prepare(gm, num_fwd_outputs, static, how)
        row = device_row(gm)
        whole = save_everything(graph.problem, row)
        found[:] = gm, graph, row, whole
        return emit(gm, graph, schedule_of(whole.core))

    compiler = aot_backend(
        partition, fw_compiler=_called, bw_compiler=_called, inference_compiler=_no_gradient
    )

    def backend(gm: fx.GraphModule, example_inputs: list[GraphInput]) -> NoReturn:
        raise _TracedError(compiler(gm, example_inputs), example_inputs)

    try:
        compiled = torch.compile(
            step, backend=backend, fullgraph=True, dynamic=False, **hooks.own_entries()
        )
        traced = _trace(compiled, inputs, kwargs)
    except Unsupported:
        return _in_pieces(step, inputs, kwargs, partition, found)
    try:
        traced.run(*traced.inputs)
    except _CalledError as called:
        gm, graph, row, whole = found
        return _alone(Piece(gm, graph, called.primals), row, whole)
    raise AssertionError("the forward graph was not called")


def _trace(step: Callable[..., Any], inputs: Any, kwargs: Any) -> _TracedError:
    try:
        step(*inputs, **kwargs)
    except BackendCompilerFailed as failed:
        if isinstance(failed.inner_exception, _TracedError):
            return failed.inner_exception
        if isinstance(failed.inner_exception, UnsupportedGraphError):
            raise failed.inner_exception from None
        raise
    raise UnsupportedGraphError("profile: the step has no operations on tensors")


# ---- graph breaks -----------------------------------------------------------------------------


class _Memory:
    """Copies of tensors' memory, to be restored later."""

    def __init__(self, tensors: Iterable[Argument]) -> None:
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.note(tensors)

    def note(self, tensors: Iterable[Argument]) -> None:
        """Copies the memory of the tensors, unless it was copied before."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                if storage._cdata not in self._copies:
                    self._copies[storage._cdata] = storage, storage.clone()

    def put_back(self) -> None:
        """Restores all copied memory."""
        for storage, copy in self._copies.values():
            storage.copy_(copy)
        self._copies.clear()


class _Run:
    """Collects the pieces of a step with graph breaks while its forward runs."""

    def __init__(self, before: _Memory) -> None:
        self.before = before
        self.pieces: list[Piece] = []
        self.handed: dict[fx.Node, fx.Node] = {}
        # by storage; keeps the tensors alive
        self._outputs: dict[int, tuple[fx.Node, torch.Tensor]] = {}

    def compiled(self, gm: fx.GraphModule, graph: Imported, run: codegen.Boxed) -> codegen.Boxed:
        """Wraps a forward graph so that its run records a piece."""

        def call(args: list[GraphInput]) -> Sequence[GraphValue]:
            if any(piece.gm is gm for piece in self.pieces):
                raise UnsupportedGraphError(
                    "profile: one graph of the step runs several times (a graph break inside a "
                    "part that is used several times), which this version cannot profile: "
                    "remove the break (fullgraph=True says where it is)"
                )
            piece = Piece(gm, graph, [_without_history(value) for value in args])
            self.pieces.append(piece)
            self._take(piece)
            self.before.note(_overwritten(piece))
            outputs = run(args)
            for node, value in zip(graph.outputs[: graph.num_fwd_outputs], outputs, strict=False):
                if isinstance(value, torch.Tensor) and isinstance(node, fx.Node):
                    self._outputs[value.untyped_storage()._cdata] = node, value.detach()
            return outputs

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def end(self) -> list[Piece]:
        """Returns the pieces and drops all references, in case PyTorch keeps the compiled code."""
        self._outputs.clear()
        pieces, self.pieces = self.pieces, []
        return pieces

    def _take(self, piece: Piece) -> None:
        for node, value in piece.given().items():
            if isinstance(value, torch.Tensor):
                source = self._outputs.get(value.untyped_storage()._cdata)
                if source is not None and source[0].op == "call_function":
                    self.handed[node] = source[0]


def _without_history(value: GraphValue) -> GraphValue:
    """Detaches a value that one graph passes to the next, so that it does not keep the tensors
    alive that the first graph saved."""
    if isinstance(value, torch.Tensor) and value.grad_fn is not None:
        return value.detach()
    return value


def _overwritten(piece: Piece) -> list[GraphInput]:
    """Returns the inputs that a graph, or the caller on its behalf, writes into."""
    ops, given = piece.graph.problem.ops, piece.given()
    written = {value.storage for op in ops if "mutates" in op.flags for value in op.outputs}
    return [
        given[node]
        for op, node in zip(ops, piece.graph.order, strict=True)
        if node in given and any(value.storage in written for value in op.outputs)
    ]


def _in_pieces(
    step: Callable[..., Any],
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    partition: Callable[..., Modules],
    found: list[Any],
) -> Captured:
    """Captures a step with graph breaks. ``partition`` stores each graph and plan in ``found``."""
    tensors = list(tree_iter((inputs, kwargs)))
    if isinstance(step, torch.nn.Module):
        tensors += step.buffers()
    before = _Memory(tensors)
    run = _Run(before)

    def forward(gm: fx.GraphModule, example_inputs: Sequence[GraphInput]) -> codegen.Boxed:
        return run.compiled(found[0], found[1], codegen.compile_boxed(gm, "forward"))

    def plain(gm: fx.GraphModule, example_inputs: Sequence[GraphInput]) -> codegen.Boxed:
        return codegen.compile_boxed(gm, "graph")

    backend = aot_backend(
        partition, fw_compiler=forward, bw_compiler=plain, inference_compiler=plain
    )
    if isinstance(step, torch.nn.Module):
        tensors += step.parameters()
    cuda = [t.device for t in tensors if isinstance(t, torch.Tensor) and t.device.type == "cuda"]
    try:
        with torch.random.fork_rng(devices=list(dict.fromkeys(cuda))):
            torch.compile(step, backend=backend, dynamic=False, **hooks.own_entries())(
                *inputs, **kwargs
            )
    except BackendCompilerFailed as failed:
        if isinstance(failed.inner_exception, UnsupportedGraphError):
            raise failed.inner_exception from None
        raise
    finally:
        before.put_back()
        hooks.forget_compiled(backend)
        pieces = run.end()
    if not pieces:
        _no_gradient(None, None)
    row = found[2]
    if len(pieces) > 1:
        return _joined(pieces, row, run.handed)
    return _alone(pieces[0], row, save_everything(pieces[0].graph.problem, row))
