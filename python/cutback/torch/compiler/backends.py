"""Backends for ``torch.compile``: they turn the graphs of a plan into functions."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._guards import TracingContext

from ... import budgets
from ...planner.plan import Plan
from .. import amounts, hooks
from ..graph import codegen
from ..graph.both_passes import WrittenInBothPassesError
from ..graph.counter import replace_draws
from ..graph.floats import backward_writes_by_floats
from ..graph.graphs import UnsupportedGraphError, attribute, location
from ..graph.leaves import aot_backend
from ..graph.sizes import sizes_as
from ..native.lowering import NativeNote, Planned, lower
from ..types import GraphFunction, GraphInput, GraphValue
from . import scratch
from .bypassed import note_inputs
from .inductor import Watch
from .options import Door, Target
from .partition import AtHand, Partitioner
from .preparing import Preparation, device_of, prepare
from .replaceable import Compile, JointGraph
from .returned import watch_views
from .several import ModelPartitioner
from .sharing import size_of
from .together import compiled_node

if TYPE_CHECKING:
    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta

Compiler = Callable[[fx.GraphModule, Sequence[GraphInput]], codegen.Boxed]

CODEGENS = ("eager", "native", "inductor")

_GIVES_MEMORY = "Encountered a set_ on a graph input"  # from AOTAutograd's error message
_GIVERS = ("set_", "set_data", "shallow_copy_data_")  # PyTorch 2.14 uses the last one
_DEPTH = 12  # stack frames of PyTorch to search for a caller


Notes = dict[str, NativeNote]
"""Maps each of the two graphs of a joint graph to a note on it under its latest plan."""


def _lowered(
    gm: fx.GraphModule, name: str, partitioner: Partitioner, latest: Notes
) -> fx.GraphModule:
    """Returns the graph as the code generator runs it: for ``"native"``, in groups."""
    if not partitioner.door.native:
        return gm
    plan = partitioner.plans[-1] if partitioner.plans and name != "inference" else None
    planned = Planned(kept=partitioner.kernels.arguments)
    if plan is not None:
        planned = planned._replace(times=_modelled(plan), most=plan.numbers["live_bytes"])
    made, note = lower(gm, name, decisions=partitioner.kernels, planned=planned)
    old, notes = latest.get(name), partitioner.compiler_notes
    notes[:] = [n for n in notes if n is not old]
    notes.append(note)
    latest[name] = note
    return made


def _modelled(plan: Plan) -> dict[str, int]:
    """Maps the names of a plan's operations to their picoseconds."""
    return {
        plan.parts.ops[step.op].name: ps
        for step, ps in zip(plan.core.steps, plan.core.times_ps, strict=True)
        if step.action == "run"
    }


def _boxed(name: str, partitioner: Partitioner) -> Compiler:
    def compiler(gm: fx.GraphModule, example_inputs: Sequence[GraphInput]) -> codegen.Boxed:
        return codegen.compile_boxed(_lowered(gm, name, partitioner, {}), name)

    return compiler


def _watched(
    gm: fx.GraphModule,
    name: str,
    graph: scratch.Graph | None,
    partitioner: Partitioner,
    notes: Notes,
) -> codegen.Boxed:
    """Wraps a forward or backward so that its first run is measured."""
    gm = _lowered(gm, name, partitioner, notes)
    if graph is None:
        return codegen.compile_boxed(gm, name)
    block = graph.backward if name == "backward" else graph.forward
    own = [attribute(gm, str(n.target)) for n in gm.graph.find_nodes(op="get_attr")]
    block.constants([t for t in own if isinstance(t, torch.Tensor)])
    return codegen.compile_boxed(gm, name, block)


def _forward(
    gm: fx.GraphModule,
    example_inputs: Sequence[GraphInput],
    graph: scratch.Graph | None,
    partitioner: Partitioner,
    kept: list[JointGraph],
    notes: Notes,
) -> codegen.Boxed:
    """Compiles a forward for AOTAutograd.

    Args:
        kept: receives the joint graph, if another plan may replace this one.
    """
    seen = list(_metadata())
    for meta in seen:
        if getattr(meta, "bw_donated_idxs", 0) is None:  # at run time PyTorch takes None for "some"
            meta.bw_donated_idxs = []
    run = _watched(gm, "forward", graph, partitioner, notes)
    if graph is not None:
        graph.key = partitioner.at_hand.key
    if partitioner.at_hand.kept is None:
        return run
    kept[:] = [partitioner.at_hand.kept]
    compiler = functools.partial(_compiler, partitioner, partitioner.at_hand, notes)
    return kept[0].forward(gm, run, seen, compiler)


def _compiler(partitioner: Partitioner, at_hand: AtHand, notes: Notes) -> Compile:
    """Returns a compiler for the two graphs of a plan that replaces another one.

    Args:
        at_hand: the joint graph.
    """
    graph, placed = _measured(partitioner), partitioner.in_force.placed
    if graph is not None:
        graph.key = at_hand.key

    def compile(gm: fx.GraphModule, name: str) -> codegen.Boxed:
        device = device_of(gm)
        if placed is not None:
            gm.meta[codegen.PLUGS] = str(device), placed.plugs
        run = _watched(gm, name, graph, partitioner, notes)
        if name == "backward":
            return _updating(gm, _first_derivatives(run), partitioner, at_hand)
        return run if placed is None else _in_segment(run, placed.segment, device)

    return compile


def _in_segment(run: codegen.Boxed, size: int, device: torch.device) -> codegen.Boxed:
    """Wraps a forward so that, before its first run, the allocator reserves a segment for the step.
    Memory cached from earlier steps is returned to the device."""
    reserved = False

    def call(args: list[GraphInput]) -> Sequence[GraphValue]:
        nonlocal reserved
        if not reserved:
            reserved = True
            if device.type == "cuda":
                torch.cuda.empty_cache()
            torch.UntypedStorage(size, device=device)  # freed at once: the allocator keeps it
        return run(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _metadata() -> Iterator[ViewAndMutationMeta]:
    """Yields AOTAutograd's metadata of the graph that is being compiled. With tensor subclasses
    there are two: the tracing context has the metadata of the plain tensors inside them, and the
    backward reads the other one, which only AOTAutograd's own functions have."""
    context = TracingContext.try_get()
    if context is not None:
        yield context.fw_metadata
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            return
        if frame.f_code.co_name.startswith("_aot_stage2"):
            yield frame.f_locals.get("fw_metadata")
        frame = frame.f_back


def _inner_gradients(gm: fx.GraphModule) -> bool:
    """True if a traced function computes gradients itself (``torch.func``)."""
    return any("grad_increment_nesting" in str(node.target) for node in gm.graph.nodes)


def _tell_of_inner_gradients(partitioner: ModelPartitioner, gm: fx.GraphModule) -> None:
    """Warns that a graph with ``torch.func.grad`` is not planned: its forward and backward are one
    graph without an autograd backward."""
    (output,) = gm.graph.find_nodes(op="output")
    count = len(output.args[0])
    problem = prepare(gm, count, (), Preparation(cse=False, emitted=False)).problem
    held = size_of(problem)
    limit = partitioner.bytes_of_budget()
    if limit is None or held > limit:
        asked = "" if limit is None else f", over the budget of {budgets.text(limit)}"
        warnings.warn(
            "torch.func computes gradients inside this graph, so there is no backward to plan: "
            f"the graph runs without a plan and holds {budgets.text(held)} ({held} bytes){asked}. "
            "Compute the gradient with backward() or torch.autograd.grad outside the compiled "
            "function, or use torch.utils.checkpoint in it",
            stacklevel=2,
        )


def _inference(
    partitioner: Partitioner,
    inner_gradients: bool = False,
) -> Compiler:
    run = _boxed("inference", partitioner)

    def compiler(gm: fx.GraphModule, example_inputs: Sequence[GraphInput]) -> codegen.Boxed:
        if inner_gradients and isinstance(partitioner, ModelPartitioner):
            _tell_of_inner_gradients(partitioner, gm)
        if partitioner.options.random == "counter":
            replace_draws(gm)
        return run(gm, example_inputs)

    return compiler


def _first_derivatives(run: codegen.Boxed) -> codegen.Boxed:
    """Wraps a backward so that it refuses ``create_graph=True`` at once. PyTorch would return
    gradients, and raise an error only when those are differentiated."""

    def call(args: list[GraphInput]) -> Sequence[GraphValue]:
        frame = sys._getframe(1)
        for _ in range(_DEPTH):
            if frame.f_code.co_name == "_double_backward":  # how AOTAutograd runs a second backward
                raise UnsupportedGraphError(
                    "create_graph=True: gradients of a compiled step cannot be differentiated, as "
                    "there is no graph of the backward's backward. Run the part that needs second "
                    "derivatives without compile: plain, or under cutback.torch.checkpoint, which "
                    "supports them"
                )
            if frame.f_back is None:
                break
            frame = frame.f_back
        del frame
        return run(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _note_runs(run: GraphFunction, partitioner: Partitioner) -> GraphFunction:
    """Wraps the current graph so that its runs are recorded until their backward, if an optimizer
    steps parameters there."""
    inside, at_hand = partitioner.options.updates, partitioner.at_hand
    if inside is None or at_hand.updating is None:
        return run

    @functools.wraps(run)
    def call(*args: GraphInput) -> Sequence[GraphValue]:
        result = run(*args)
        if not inside.reason:
            inside.ran(compiled_node(result), at_hand)
        return result

    return call


def _updating(
    gm: fx.GraphModule, run: codegen.Boxed, partitioner: Partitioner, at_hand: AtHand
) -> codegen.Boxed:
    """Wraps a backward in which an optimizer steps parameters: first checks that it may."""
    inside = partitioner.options.updates
    given = gm.graph.find_nodes(op="placeholder")
    stepped = [n.args[0] for n in gm.graph.nodes if n.meta.get(codegen.UPDATE)]
    places = [i for i, node in enumerate(given) if node in stepped]
    if inside is None or not places:
        return run

    def call(args: list[GraphInput]) -> Sequence[GraphValue]:
        with inside.backward([args[i] for i in places], at_hand):
            return run(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _backward(
    gm: fx.GraphModule,
    example_inputs: Sequence[GraphInput],
    graph: scratch.Graph | None,
    partitioner: Partitioner,
    kept: list[JointGraph],
    notes: Notes,
) -> codegen.Boxed:
    run = _first_derivatives(_watched(gm, "backward", graph, partitioner, notes))
    run = _updating(gm, run, partitioner, partitioner.at_hand)
    return kept[0].backward(run) if kept else run


def _limit_of_step(partitioner: ModelPartitioner) -> int | None:
    """Returns the budget in live bytes, if it bounds what planned graphs make."""
    total, plans = partitioner.options.total, partitioner.plans
    if not partitioner.bounds_sizes or partitioner.options.target.measure == "saved":
        return None
    limits = [plan.shared.limit for plan in plans if plan.shared is not None]
    if limits or partitioner.in_force.shared_by_calls:
        # the limits of calls that do not share a budget
        limits += [plan.numbers["budget_bytes"] or 0 for plan in plans]
        limit = partitioner.bytes_of_budget() or max(limits)
        return limit if total is None else limit - total.static_bytes
    if total is None:
        return partitioner.limit_bytes(1) or partitioner.bytes_of_budget()
    return _limit_of_plan(partitioner, plans[0]) if len(plans) == 1 else None


def _in_words(
    target: Target, position: budgets.Position | None, limit: int, lower: int
) -> str | None:
    """Writes a lower budget in the form in which the budget was given.

    Args:
        position: the given position, and the bytes of positions 0 and 1.
        limit: bytes of the budget.
        lower: bytes of the lower budget.

    Returns:
        The text, or None if there is no such budget.
    """
    if lower <= 0:
        return None
    if position is not None:
        part, smallest, everything = position
        span = everything - smallest
        if span <= 0:  # all positions are the same bytes
            return None
        part -= (limit - lower) / span
        return None if part < 0 else f"{math.floor(100 * part) / 100:g}"
    if target.budget is not None and target.is_share:
        return f"{target.budget[2] * lower / limit:.2f}x"
    return budgets.text(lower)


def _take_measured(partitioner: ModelPartitioner, kernels: scratch.Kernels) -> None:
    """Uses the measurements of a step: the next plan counts them, or a warning says once that the
    step exceeds its budget."""
    if kernels is not partitioner.in_force.kernels or partitioner.waits:
        return
    limit, stats, is_done = _limit_of_step(partitioner), kernels.stats, kernels.is_done
    position, alone = partitioner.position, partitioner.in_force.alone()
    if partitioner.plans and (shared := partitioner.plans[0].shared) is not None:
        position = shared.position
    if len(alone) > 1:  # each step runs one of several graphs
        key = kernels.latest or ""
        if key not in alone or not partitioner.bounds_sizes:
            return
        limit, position = _limit_of_plan(partitioner, alone[key]), alone[key].position
        stats, is_done = kernels.alone.get(key), kernels.is_done_alone(key)
    if limit is None or stats is None:
        return
    if stats.peak_bytes <= limit * (1 + scratch.MARGIN) and not partitioner.places:
        return
    if not is_done and partitioner.may_count_scratch:
        return
    if not partitioner.count_scratch(kernels.scratch, kernels.traces):
        _tell_of_scratch(partitioner, stats, limit, position)


def _limit_of_plan(partitioner: ModelPartitioner, plan: Plan) -> int | None:
    """Returns the budget of a plan in live bytes, if it bounds what planned graphs make."""
    total, budget = partitioner.options.total, plan.numbers["budget_bytes"]
    if budget is None or partitioner.options.target.measure == "saved":
        return None
    return budget if total is None else budget - total.static_bytes


def _tell_of_scratch(
    partitioner: ModelPartitioner, stats: scratch.AllocatorStats, limit: int,
    position: budgets.Position | None,
) -> None:  # fmt: skip
    """Warns once if the scratch of kernels takes a step over its budget."""
    target = partitioner.options.target
    if partitioner.ever.told_of_scratch:
        return
    text = scratch.excess_text(
        stats, limit, amounts.name_of(limit, position),
        _in_words(target, position, limit, 2 * limit - stats.peak_bytes),
    )  # fmt: skip
    if text is not None:
        partitioner.ever.told_of_scratch = True
        warnings.warn(text, stacklevel=2)


def _measured(partitioner: Partitioner) -> scratch.Graph | None:
    """Starts measuring a graph's first steps if the budget bounds what the allocator holds. Values
    moved to the host do not count for the device."""
    options = partitioner.options
    has_budget = options.target.budget is not None
    if not isinstance(partitioner, ModelPartitioner) or not has_budget or options.may_move:
        return None
    if not scratch.can_measure():
        return None
    if partitioner.in_force.kernels is None:
        tell = functools.partial(_take_measured, partitioner)
        partitioner.in_force.kernels = scratch.Kernels(tell)
    return partitioner.in_force.kernels.graph()


def _run_eager(
    partitioner: Partitioner, gm: fx.GraphModule, inputs: Sequence[GraphInput]
) -> GraphFunction:
    inner = partitioner.options.target.budget is not None and _inner_gradients(gm)

    def compiled(keep: bool) -> GraphFunction:
        graph = _measured(partitioner)
        kept: list[JointGraph] = []
        notes: Notes = {}
        backend = aot_backend(
            partitioner,
            fw_compiler=functools.partial(
                _forward, graph=graph, partitioner=partitioner, kept=kept, notes=notes
            ),
            bw_compiler=functools.partial(
                _backward, graph=graph, partitioner=partitioner, kept=kept, notes=notes
            ),
            inference_compiler=_inference(partitioner, inner),
            keep_inference_input_mutations=keep,
        )
        # donated buffers make backward(retain_graph=True) an error
        with functorch_config.patch(donated_buffer=False):
            run: GraphFunction = backend(gm, inputs)
        return run

    try:
        return compiled(False)
    except AssertionError as error:
        if _GIVES_MEMORY not in str(error):
            raise
    # PyTorch can trace this only as part of the graph, and then puts all writes to inputs there
    try:
        return compiled(True)
    except AssertionError as error:
        if _GIVES_MEMORY not in str(error):
            raise
        raise UnsupportedGraphError(
            f"{_given_memory(gm)}: an input is given other memory (x.data = y, or set_) and is "
            "written to where autograd sees it, which PyTorch does not trace. Copy into the input "
            "(x.data.copy_(y)), or replace its memory outside the compiled function"
        ) from error


def _given_memory(gm: fx.GraphModule) -> str:
    """Returns the inputs whose memory a Dynamo graph replaces, and where it does so."""
    found = []
    for node in gm.graph.nodes:
        called = (
            node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        )
        if called in _GIVERS and node.args[0].op == "placeholder":
            found.append(f"{node.args[0].name} ({location(node)})")
    return ", ".join(dict.fromkeys(found)) or "the graph"


def _run_inductor(
    partitioner: Partitioner, gm: fx.GraphModule, inputs: Sequence[GraphInput]
) -> GraphFunction:
    from torch._inductor.compile_fx import compile_fx

    watch = partitioner.at_hand.watch = Watch()
    # AOTAutograd's disk cache has no plans, so it is off; Inductor's cache of kernels stays on
    with functorch_config.patch(enable_autograd_cache=False):
        run: GraphFunction = compile_fx(
            gm, list(inputs), inner_compile=watch.compile,
            config_patches={"custom_partitioner_fn": partitioner},
        )  # fmt: skip
    return run


def _run_tagged(
    partitioner: Partitioner, codegen: str, gm: fx.GraphModule, inputs: Sequence[GraphInput]
) -> GraphFunction:
    """Has PyTorch split the graph by the plan's tags."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    from .tags import Tagger

    run: GraphFunction
    partitioner.read_settings()
    with functorch_config.patch(
        joint_custom_pass=Tagger(partitioner), activation_memory_budget=1.0,
        donated_buffer=False, enable_autograd_cache=False,
    ):  # fmt: skip
        if codegen == "inductor":
            from torch._inductor.compile_fx import compile_fx

            run = compile_fx(gm, list(inputs))
            return run
        options = {
            "fw_compiler": _boxed("forward", partitioner),
            "bw_compiler": _boxed("backward", partitioner),
            "inference_compiler": _inference(partitioner),
            "partition_fn": min_cut_rematerialization_partition,
        }
        try:
            run = aot_autograd(**options)(gm, inputs)
        except WrittenInBothPassesError:
            run = aot_autograd(**options, keep_inference_input_mutations=True)(gm, inputs)
        return run


@contextlib.contextmanager
def _compile_session() -> Iterator[None]:
    """Tells all threads that a trace for ``torch.compile`` is running, as PyTorch itself does from
    2.13 on. In earlier versions, compiled functions called in other threads mistake that trace for
    their own and refuse to run. One thread compiles at a time, under Dynamo's lock."""
    if getattr(torch.compiler, "_is_compiling_flag", True):
        yield
        return
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = False


def _watch_views(run: GraphFunction, partitioner: Partitioner) -> GraphFunction:
    """Wraps the current graph so that its returned views are watched (:mod:`compiler.returned`)."""
    kept, views = partitioner.at_hand.kept, partitioner.at_hand.returned_views
    if kept is not None:
        return watch_views(run, lambda: kept.returned_views)
    return watch_views(run, lambda: views) if views else run


def make_backend(
    partitioner: Partitioner, codegen: str, guards: bool = False
) -> Callable[[fx.GraphModule, Sequence[GraphInput]], GraphFunction]:
    """Makes a backend for ``torch.compile``.

    Args:
        guards: True if no wrapper of ours calls the model, so that guards must trigger the
            recompilation that another plan needs.

    Raises:
        ValueError: the code generator does not exist.
    """
    if codegen not in CODEGENS:
        raise ValueError(f"codegen={codegen!r} is not one of {', '.join(CODEGENS)}")
    run: Callable[..., GraphFunction] = _run_inductor if codegen == "inductor" else _run_eager
    why = hooks.why_tags(codegen)
    if why is not None:
        warnings.warn(why, stacklevel=3)
        run = functools.partial(_run_tagged, codegen=codegen)
    if codegen == "inductor" and partitioner.options.offload:
        raise ValueError(
            "offload goes with codegen='eager' or codegen='native': Inductor cannot compile plans "
            "in which values move to the host"
        )
    partitioner.door = Door(
        same_kernels=codegen != "inductor",
        inductor=codegen == "inductor",
        watches_views=True,
        native=codegen == "native",
        takes_over=codegen == "eager" and why is None,
    )

    def backend(gm: fx.GraphModule, inputs: Sequence[GraphInput]) -> GraphFunction:
        reason = getattr(gm, "compile_subgraph_reason", None)
        is_last = reason is None or not reason.graph_break
        note_inputs(inputs)
        partitioner.begin(backward_writes_by_floats(gm), is_last)
        if partitioner.options.updates is not None:
            partitioner.at_hand.updating = partitioner.options.updates.among(inputs)
        if not isinstance(partitioner, ModelPartitioner):
            with _compile_session():
                compiled = run(partitioner, gm=gm, inputs=inputs)
            return _watch_views(compiled, partitioner)
        given = [n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder")]
        with sizes_as(partitioner.larger(given)), _compile_session():
            compiled = run(partitioner, gm=gm, inputs=inputs)
        at_hand = partitioner.at_hand
        if at_hand.key is not None:  # a plan bounds these sizes
            at_hand.sized.arguments = [
                (i, n) for i, n in enumerate(inputs) if isinstance(n, torch.SymInt)
            ]
            limits = partitioner.limits_of(at_hand)
            asks = guards and (at_hand.kept is None or not at_hand.kept.is_replaceable)
            if asks and all(inputs[i] <= planned for i, planned in limits):
                at_hand.sized.arguments = []
        return partitioner.counted(_note_runs(_watch_views(compiled, partitioner), partitioner))

    return backend
