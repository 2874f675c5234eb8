"""Partitioners: a joint graph comes in, forward and backward graph of the best plan go out."""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import uuid4

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._guards import CompileContext

from ... import __version__, _native, budgets, files, policies
from ...planner.plan import Plan
from ...planner.problems import Times, times_of
from ..flags import check_flags
from ..graph import moving, rerunnable
from ..graph.both_passes import (
    ancestors,
    keep_old_values,
    make_views_in_the_backward,
    read_inputs_when_the_backward_runs,
    refuse_writes_in_both_passes,
)
from ..graph.counter import check_random, replace_draws
from ..graph.duplicates import merge_duplicates
from ..graph.emitter import RETURNED_VIEWS, emit
from ..graph.floats import mark_float_ops
from ..graph.graphs import (
    OverwrittenReadError,
    UnsupportedGraphError,
    eliminate_dead_code,
    location,
)
from ..graph.importer import Imported, import_joint, with_wishes
from ..graph.kept_copies import copy_results_in_inputs
from ..graph.leaves import IsLeaf
from ..graph.statistics import Statistics, check_covered, check_same, known, signature
from ..graph.view_counters import keep_counters
from . import inductor, reference
from .saved_plans import Part, SavedPlans
from .scratch import Kernels
from .totals import Total, with_total
from .wishes import Policy, chooser, may_offload, of_tags

try:
    from torch._inductor.custom_graph_pass import CustomPartitionerFn
except ImportError:  # a PyTorch without it: hooks.check says what that means
    CustomPartitionerFn = object

Measured = Statistics | Times | str | os.PathLike[str]
"""Measured times: a profile, seconds by op, or the path of a file with either."""

MEASURES = ("live", "saved", "total")

# ---- one graph ------------------------------------------------------------------------------


def device_row(gm: fx.GraphModule) -> str:
    """The row of the core's device table for the device of a graph's first tensor."""
    for node in gm.graph.find_nodes(op="placeholder"):
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            if val.device.type != "cuda" or not torch.cuda.is_available():
                return "cpu" if val.device.type == "cpu" else "a100"
            name = torch.cuda.get_device_name(val.device).lower().replace(" ", "")
            rows = ("h200", "b200", "h100", "a100", "rtx4090")
            return next((row for row in rows if row in name), "a100")
    return "cpu"


_EMITTED = 3
"""Version of the graphs that a partitioner emits for a plan. PyTorch's cache on disk must not mix
them up."""

_REGION_BUDGET = "_region_activation_memory_budget"  # as torch.fx.traceback has it


def _budget_of(node: fx.Node) -> float | None:
    """PyTorch's activation memory budget for the region that a node is in."""
    custom = node.meta.get("custom")
    wish = custom.get(_REGION_BUDGET) if isinstance(custom, dict) else None
    return None if wish is None else float(wish)


def _check_region_budgets(gm: fx.GraphModule, num_fwd_outputs: int) -> None:
    """Finds the mistakes in region budgets that PyTorch's partitioner finds, in its words.

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
    """Raises: UnsupportedGraphError: the model sets a budget of PyTorch's, which is another one: a
    share of the way from running everything again to saving what PyTorch would."""
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
                + ", as torch.autograd.graph.region_activation_memory_budget does: a share of what "
                "PyTorch's partitioner would save, which plans do not know. Take it out and give a "
                "budget here (a share, or bytes), or mark the "
                "region with torch.utils.checkpoint, which plans follow"
            )


def prepare(
    gm: fx.GraphModule,
    num_fwd_outputs: int,
    static_inputs: Iterable[int],
    policy: Policy,
    random: str = "torch",
    cse: bool = True,
    emitted: bool = True,
    same_kernels: bool = True,
    is_leaf: IsLeaf | None = None,
) -> Imported:
    """Drops dead nodes, exchanges the generator and merges duplicates if asked, and imports the
    graph, with the user's wishes."""
    refuse_region_budgets(gm, num_fwd_outputs)
    eliminate_dead_code(gm.graph)
    if emitted:
        read_inputs_when_the_backward_runs(gm)
        make_views_in_the_backward(gm)
    if random == "counter":
        replace_draws(gm)
    merged = merge_duplicates(gm, num_fwd_outputs)[1] if cse else []
    chosen = chooser(policy)

    def wish(node: fx.Node) -> str | None:
        word = chosen(node) if chosen is not None else None
        return word if word is not None else of_tags(node)

    read = functools.partial(
        import_joint, gm, num_fwd_outputs, static_inputs=tuple(static_inputs), policy=wish,
        merged=merged, emitted=emitted, same_kernels=same_kernels, is_leaf=is_leaf,
    )  # fmt: skip
    cloned: set[fx.Node] = set()
    while True:
        try:
            return read()
        except OverwrittenReadError as error:
            if not emitted or error.node in cloned:
                raise
            cloned.add(error.node)
            keep_old_values(error)


def _check_measure(measure: str, total: Total | None) -> None:
    """An optimizer and the measure that counts it go together."""
    if measure not in MEASURES:
        raise ValueError(
            f"measure={measure!r}: for PyTorch it is one of {', '.join(MEASURES)}. Offsets are "
            "the allocator's ('arena')"
        )
    if total is not None and measure != "total":
        raise ValueError(
            f"measure={measure!r}: an optimizer counts under measure='total' alone; give that, "
            "or leave the optimizer away"
        )
    if total is None and measure == "total":
        raise ValueError(
            "measure='total' goes with an optimizer, which no graph shows: "
            "cutback.torch.compile(model, measure='total', optimizer=...)"
        )


class Partitioner(CustomPartitionerFn):
    """Plans each joint graph under a budget, and splits it by the plan.

    Use it as ``torch._inductor.config.custom_partitioner_fn``, or as the ``partition_fn`` of
    ``torch._dynamo.backends.common.aot_autograd``.

    Args:
        budget: of each graph: bytes, ``"6GiB"``, ``"min"``; a share (``0.4``) of what None takes.
            None: no more than PyTorch's ``aot_eager`` takes, nor than the model with its own
            checkpoints (:mod:`compiler.reference`); with a policy, what the policy says.
            ``"fastest"``: no limit, so that nothing is recomputed but what a policy or a checkpoint
            in the model asks for.
        measure: ``"live"``: bytes alive at the worst moment, counted op by op; ``"saved"``: bytes
            alive between forward and backward; ``"total"``: ``"live"`` and what model and optimizer
            hold, which :func:`compile` and :func:`trace` know.
        policy: what may or must be saved: a name (``"dots_saveable"``, ``"everything_saveable"``,
            ``"nothing_saveable"``), operations to save, or a function ``(ctx, op, *args,
            **kwargs) -> CheckpointPolicy | None`` that is asked for each forward op with its fake
            arguments; or one that looks at the whole graph (:func:`cutback.torch.mutwo.select`,
            :func:`cutback.policies.mu_two`).
        device: row of the device table that times are taken from; None: by the graph's device.
        on_plan: called with the :class:`cutback.Plan` of each graph.
        profile: measured times instead of the device table's: what :func:`cutback.torch.profile`
            returned for this step, seconds of each op by name, or the path of a file with either.
            Of a profile of several graphs each gets its own; values that move do so over its link.
        random: ``"torch"``: PyTorch's random numbers, drawn once and kept; ``"counter"``: those of
            our counter-based generator, which are drawn again instead of kept
            (:mod:`graph.counter`).
        cse: compute once what the graph computes twice (:mod:`graph.duplicates`); the bits
            are the same either way.
        offload: may values move to the host and back (``docs/problem.md``)? ``"only"``: and nothing
            runs again. Not where Inductor compiles the graphs.
        pinned: most bytes that the host may hold for it at one time; ``"8GiB"``.
        exact: search again at just this budget, see :func:`cutback.plan`.

    Raises:
        BudgetError: no plan meets the budget. UnsupportedGraphError: see the text.
        ValueError, TypeError: a mistake in the arguments.
    """

    writes_by_floats: bool | None = None
    """What :func:`backward_writes_by_floats` says about the graph; None: not asked."""
    inductor = False
    """Does Inductor compile the graphs? It knows no moves."""
    has_plans = False
    """Are the plans given?"""

    same_kernels = False
    """Is it known that what runs again does so by itself, with the kernels of the first run?"""

    def __init__(
        self,
        budget: int | float | str | None = None,
        measure: str = "live",
        policy: Policy = None,
        device: str | None = None,
        on_plan: Callable[[Plan], object] | None = None,
        offload: bool | str = False,
        pinned: int | str | None = None,
        total: Total | None = None,
        profile: Measured | None = None,
        random: str = "torch",
        cse: bool = True,
        exact: bool = False,
    ) -> None:
        _check_measure(measure, total)
        check_flags(cse=cse, exact=exact)
        self.total = total
        self.fastest = isinstance(budget, str) and budget == reference.FASTEST
        """Is time all that counts?"""
        if self.fastest:
            budget = None
        self.budget = budgets.with_options(budgets.parse(budget, measure), offload, pinned, exact)
        self.measure = measure
        self.offload = offload
        policy = list(policy) if isinstance(policy, Iterator) else policy
        chooser(policy)
        if pinned is not None and not offload and not may_offload(policy):
            raise budgets.pinned_alone(pinned)
        self.policy = policy
        self.device = device
        self.row = device or "cpu"
        self.on_plan = on_plan
        profile = known(profile)
        self.profile = profile if isinstance(profile, Statistics) else None
        self.times = None if profile is None else dict(times_of(profile))
        self.random = check_random(random)
        self.cse = cse
        self._once = uuid4().hex
        self.one_graph = False
        """Refuse a second graph of the same compilation."""
        self._compiled: Any = None  # PyTorch's id of the compilation of the last graph
        self.plans: list[Plan] = []
        self.compiler_notes: list[inductor.CompilerNote] = []
        """What Inductor did to the plans; one for each graph that it compiled."""
        self.watch: inductor.Watch | None = None
        """Of the graph that is being compiled, where the code's first step can be measured."""
        self.shared_by_calls = False
        """Has each plan in force a part of the budget, for calls that are pending together?"""
        self.kernels: Kernels | None = None
        """What the first step takes by the allocator, where that is measured."""
        self.told_of_scratch = False
        self.returned_views: tuple[int, ...] = ()
        """Results of the last graph that are views of what its backward reads."""
        self.watches_views = False
        """Does a backend of ours notice writes to them?"""
        self.error: Exception | None = None
        """What the last graph failed with, as it was before PyTorch wrapped it."""

    def __call__(
        self,
        gm: fx.GraphModule,
        joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
        is_leaf: IsLeaf | None = None,
        **options: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Forward and backward graph; what PyTorch calls. ``is_leaf``: which inputs keep their
        gradients; None: all."""
        collects = gc.isenabled()
        gc.disable()  # many small objects, none of them garbage: a third of the time otherwise
        try:
            by_inductor = options.get("compiler") == "inductor"
            mark_float_ops(gm, num_fwd_outputs, self.writes_by_floats)
            refuse_writes_in_both_passes(gm, num_fwd_outputs)
            modules = self._partition(
                gm, num_fwd_outputs, static_lifetime_input_indices or (), by_inductor, is_leaf
            )
            self.returned_views = modules[0].meta[RETURNED_VIEWS]
            if by_inductor:
                copy_results_in_inputs(modules[0])
            if not self.watches_views:
                keep_counters(modules[0], self.returned_views, by_inductor)
            return modules
        except Exception as error:
            self.error = error
            raise
        finally:
            if collects:
                gc.enable()

    def _partition(
        self,
        gm: fx.GraphModule,
        num_fwd_outputs: int,
        static_inputs: Iterable[int],
        by_inductor: bool = False,
        is_leaf: IsLeaf | None = None,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        self._check_one_graph()
        self.check_settings()
        self.row = self.device or device_row(gm)
        same_kernels = self.same_kernels and not by_inductor
        graph = prepare(
            gm, num_fwd_outputs, static_inputs, self.policy, self.random, self.cse,
            same_kernels=same_kernels, is_leaf=is_leaf,
        )  # fmt: skip
        self.inform(graph.document)
        modules = emit(gm, graph, self._choose(graph))
        if by_inductor:
            modules = self._fit(gm, graph, modules)
        self._tell()
        return modules

    def check_settings(self) -> None:
        """Raises: UnsupportedGraphError: PyTorch's budget for all graphs is set, and none here, so
        that nothing would keep to any. A budget, plans or a policy of ours are the nearer wish."""
        share = functorch_config.activation_memory_budget
        wish = self.budget is not None or self.policy is not None or self.fastest
        if share != 1.0 and not wish and not self.has_plans:
            raise UnsupportedGraphError(
                f"torch._functorch.config.activation_memory_budget is {share}: a share of what "
                "PyTorch's partitioner would save, which plans do not know. Set it back to 1.0, "
                "and give a budget here (a share, or bytes)"
            )

    def inform(self, document: dict[str, Any]) -> None:
        """Lays measured times, of a profile those of this graph, then a policy that looks at the
        whole graph, over a problem; and the measured link, if values move."""
        times = self.times
        if self.profile is not None:
            times = self.profile.times_of(signature(document))
            if times is None:
                check_same(self.profile.signature, document, "the step")
        if times is not None:
            files.lay_times(document, times)
            check_covered(document)
        if isinstance(self.policy, policies.WholeGraph):
            self._constrain(self.policy, document)
        if self.profile is not None and (self.offload or moving.wants_moves(document)):
            document.setdefault("link_bytes_per_s", self.profile.link_bytes_per_s)

    def _constrain(self, policy: policies.WholeGraph, document: dict[str, Any]) -> None:
        """Lays what a policy says over a problem."""
        told = json.loads(policy.constrain(json.dumps(document), self.row))
        if "link_bytes_per_s" in told:
            document.setdefault("link_bytes_per_s", told["link_bytes_per_s"])
        for op, said in zip(document["ops"], told["ops"], strict=True):
            for out, wish in zip(op["out"], said["out"], strict=True):
                word = wish.get("constraint")
                if word is not None:
                    out["constraint"] = word

    def _choose(self, graph: Imported) -> moving.Schedule:
        """A schedule of the graph."""
        return self._plan(graph.document, self._own(graph))

    def _own(self, graph: Imported) -> dict[str, Any] | None:
        """The problem without the policy, where a share counts from that. None: it is the same."""
        if self.policy is None or not budgets.is_share(self.budget):
            return None
        return with_wishes(graph, of_tags)

    def _plan(self, document: dict[str, Any], own: dict[str, Any] | None = None) -> moving.Schedule:
        """The schedule of a problem, whose plan is noted."""
        plan, schedule = self._make(document, self.budget, own)
        self._note(plan)
        return schedule

    def _make(
        self, document: dict[str, Any], budget: Any, own: dict[str, Any] | None = None
    ) -> tuple[Plan, moving.Schedule]:
        """A plan of a problem, with the link and the optimizer's step where they count.

        Args:
            own: see :meth:`_own`."""
        if own is not None and self.total is not None:
            own = with_total(own, self.total)
        if self.offload or moving.wants_moves(document):
            self._check_moves()
            document = moving.with_link(document, self.row)
        if self.total is not None:
            document = with_total(document, self.total)
        text = json.dumps(document, check_circular=False)
        base = text if own is None else json.dumps(own, check_circular=False)
        if budgets.is_share(budget):
            plan = reference.plan_by_share(text, base, budget, self.row, self.measure)
        elif budget is None and self.policy is None and not self.fastest:
            plan = reference.plan_of(text, self.row)
        else:
            plan = reference.plan_by_bytes(text, base, budget, self.row, self.measure)
        return plan, self._schedule(plan)

    def _save_all(self, document: dict[str, Any]) -> tuple[Plan, moving.Schedule]:
        """The plan that saves everything."""
        fastest, self.fastest = self.fastest, True
        try:
            return self._make(document, None)
        finally:
            self.fastest = fastest

    def _schedule(self, plan: Plan) -> moving.Schedule:
        """What a plan says of the graph, without the optimizer's own step."""
        problem = plan.problem
        schedule = moving.schedule_of(problem, plan.document)
        if self.total is None:
            return schedule
        own = len(problem["ops"]) - 1
        return schedule._replace(steps=[s for s in schedule.steps if s != own])

    def _check_moves(self) -> None:
        """Raises: NotImplementedError: this door cannot run moves."""
        settings = sys.modules.get("torch._inductor.config")
        if self.inductor or getattr(settings, "custom_partitioner_fn", None) is self:
            raise NotImplementedError(
                "Inductor cannot compile plans in which values move to the host, as offload= or a "
                "policy asks for: use cutback.torch.compile(..., codegen='eager')"
            )

    def choose(self, gm: fx.GraphModule, graph: Imported) -> moving.Schedule:
        """The schedule of a plan for the graph alone: steps, and where the backward starts."""
        self.row = self.device or device_row(gm)
        chosen = Partitioner._choose(self, graph)
        self._tell()
        return chosen

    def _has_limit(self) -> bool:
        """Is the budget one of live bytes, for the graph at hand alone?"""
        return (
            self.budget is not None and self.budget[0] in budgets.BOUNDS and self.measure == "live"
        )

    def _fit(
        self, gm: fx.GraphModule, graph: Imported, modules: tuple[fx.GraphModule, fx.GraphModule]
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Holds the plan's graphs against Inductor's estimate, and plans anew while that is over
        the budget (:mod:`compiler.inductor`); of all tries the lowest."""
        note = inductor.CompilerNote(self.plans[-1].numbers["budget_bytes"])
        self.compiler_notes.append(note)
        watch = self.watch or inductor.Watch()
        watch.note = note
        if not self._has_limit():
            note.limit_bytes = None
            return modules
        limit = target = note.limit_bytes
        assert limit is not None and target is not None
        levers = inductor.LEVERS if self.watch is not None else inductor.LEVERS[:1]
        plan = self.plans[-1]
        tries = []
        for attempt in range(1 + inductor.MOST_PLANS):
            try:
                peak, merged, lever = inductor.best_estimate(
                    *modules, graph.num_fwd_outputs, limit, levers
                )
            except Exception as error:  # private parts of PyTorch: the first step is the judge
                note.problem = f"{type(error).__name__}: {error}"
                break
            note.planned_bytes.append(plan.numbers["live_bytes"])
            note.estimated_bytes.append(peak)
            tries.append((peak, attempt, modules, plan, merged, lever))
            if peak <= limit or attempt == inductor.MOST_PLANS:
                break
            target = min(target - (peak - limit), plan.numbers["live_bytes"] - 1)
            try:
                plan, schedule = self._make(graph.document, budgets.parse(max(target, 1), "live"))
            except _native.BudgetError:
                break  # no smaller plan: the best so far
            modules = emit(gm, graph, schedule)
        if not tries:
            return modules
        _, _, modules, plan, note.merged_runs, watch.lever = min(tries, key=lambda t: t[:2])
        note.lever = watch.lever.name
        if plan is not self.plans[-1]:
            self.plans.pop()
            self._note(plan)
        return modules

    def saved(self) -> SavedPlans:
        """The plans in force, to be written to a file."""
        saved = SavedPlans()
        for plan in self.plans:
            problem = plan.problem
            graph = problem if self.total is None else {**problem, "ops": problem["ops"][:-1]}
            saved.add(plan, [Part(graph, *self._schedule(plan))], self.total)
        return saved

    def _note(self, plan: Plan) -> None:
        self.plans.append(plan)

    def _tell(self) -> None:
        if self.on_plan is not None:
            self.on_plan(self.plans[-1])

    def uuid(self) -> str:
        """Key for PyTorch's code cache. Where a function or a selection decides it is one that
        never comes again: None would be a key like any other to torch 2.13."""
        policy: Any = self.policy
        whole = isinstance(policy, policies.WholeGraph)
        if callable(policy) or (whole and not isinstance(policy, policies.MuTwo)):
            return self._once
        if isinstance(policy, Iterable) and not isinstance(policy, (str, policies.MuTwo)):
            policy = [str(item) for item in policy]
        times = None if self.times is None else sorted(self.times.items(), key=str)
        said = rerunnable.declarations()
        flags = self.offload, self.total, self.random, self.cse, self.fastest, said
        key = repr((__version__, _EMITTED, self.budget, policy, self.device, times, flags))
        return hashlib.sha256(key.encode()).hexdigest()

    def __getstate__(self) -> dict[str, Any]:  # PyTorch pickles it for its cache key
        passing: dict[str, Any] = {
            "plans": [],
            "compiler_notes": [],
            "watch": None,
            "kernels": None,
            "profile": None,  # its times stay
            "on_plan": None,
            "returned_views": (),
            "error": None,
            "_compiled": None,
            "_once": "",
        }
        return {**self.__dict__, **passing}

    def _check_one_graph(self) -> None:
        """Graphs inside a graph, and graphs that PyTorch cuts up after tracing, would each take all
        of a budget that is meant for the model."""
        now = CompileContext.current_compile_id()
        before, self._compiled = self._compiled, now
        if self.one_graph and now is not None and before == now:
            raise UnsupportedGraphError(
                "PyTorch cuts this graph into several (nested compiled regions, or buckets of "
                "DistributedDataParallel), and a budget is not shared out among those in this "
                "version: take torch.compiler.nested_compile_region out; for DDP set "
                "torch._dynamo.config.optimize_ddp = False (cutback.torch.compile does so by "
                "itself), or use budget=None or 'min'"
            )
