"""Partitioners: they turn a joint graph into the forward and backward graphs of the best plan."""

from __future__ import annotations

import gc
import hashlib
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._guards import CompileContext

from ... import BudgetError, __version__, budgets, files, policies
from ...planner.plan import Plan
from ...planner.problems import times_of
from ...problem import Problem
from ...schedule import bytes_of
from ..flags import check_flags
from ..graph import gathers, moving, rerunnable
from ..graph.both_passes import refuse_writes_in_both_passes
from ..graph.counter import check_random
from ..graph.emitter import RETURNED_VIEWS, emit
from ..graph.floats import mark_float_ops
from ..graph.graphs import UnsupportedGraphError
from ..graph.importer import Imported, with_wishes
from ..graph.kept_copies import copy_results_in_inputs
from ..graph.leaves import IsLeaf
from ..graph.segment import Placed
from ..graph.slices import SYMBOLIC, Sliced
from ..graph.statistics import Statistics, check_covered, check_same, known, signature
from ..graph.taking_over import separate
from ..graph.updated import Updating
from ..graph.view_counters import keep_counters
from ..native.choosing import decide
from ..native.decisions import Decisions
from ..native.grouping import arguments_of
from ..native.lowering import NativeNote
from . import inductor, reference
from .growing import Symbols
from .options import (
    Agreed,
    Door,
    Made,
    Measured,
    Options,
    Target,
    check_infeasible,
    check_measure,
    check_rate,
    check_slices,
    fallback,
    slices_unsupported,
)  # fmt: skip
from .preparing import Preparation, device_row, prepare_for_sizes
from .replaceable import JointGraph
from .saved_plans import Part, SavedPlans
from .scratch import AllocatorStats, Kernels
from .totals import Total, with_total
from .wishes import Policy, chooser, may_offload, of_tags

if TYPE_CHECKING:
    from ..types import GraphInput, Modules
    from ..updates import Inside

try:
    from torch._inductor.custom_graph_pass import CustomPartitionerFn
except ImportError:  # missing in this PyTorch: hooks.check reports the consequences
    CustomPartitionerFn = object

_EMITTED = 3
"""Version of the graphs that a partitioner emits for a plan. It is part of the key of PyTorch's
disk cache."""


@dataclass
class InForce:
    """The plans that compiled code follows, and the measurements of that code."""

    plans: list[Plan] = field(default_factory=list)
    compiler_notes: list[inductor.CompilerNote | NativeNote | Sliced] = field(default_factory=list)
    """The changes that Inductor made to the plans, or what runs in our kernels, by graph."""
    kernels: Kernels | None = None
    """Measures what the first steps take from the allocator, if that is measured."""
    stats: AllocatorStats | None = None
    """Figures measured before these plans were in force."""
    placed: Placed | None = None
    """The placement of a plan's memory, or None if the allocator places it."""

    @property
    def allocator_stats(self) -> AllocatorStats | None:
        """The latest measurement."""
        return self.stats if self.kernels is None else self.kernels.stats


@dataclass
class Sized:
    """A graph and the sizes that it is planned for."""

    graph: Imported | None = None
    """The imported graph."""
    again: Callable[[], Imported] | None = None
    """Imports the graph again."""
    symbols: Symbols = field(default_factory=lambda: Symbols({}, {}))
    """Values that plans use for the symbols of its sizes."""
    arguments: list[tuple[int, torch.SymInt]] = field(default_factory=list)
    """Arguments that are sizes, with the limits of the plan."""
    start: int = 0
    """The count :attr:`growing.Sizes.starts` when it was last planned."""


@dataclass
class Place:
    """Where a graph is in the model."""

    frame: int | None = None
    """PyTorch's number of the frame that it belongs to."""
    is_last: bool = False
    """True if this is known to be the last graph of the model."""


@dataclass
class AtHand:
    """The graph that is being compiled, or the last compiled one."""

    row: str = "cpu"
    """Its row of the device table."""
    writes_by_floats: bool | None = None
    """The result of :func:`backward_writes_by_floats`, or None before it is computed."""
    watch: inductor.Watch | None = None
    """Measures the first step of its code, if Inductor compiles it for us."""
    returned_views: tuple[int, ...] = ()
    """Its results that are views of memory that its backward reads."""
    error: Exception | None = None
    """Its error, before PyTorch wrapped it."""
    key: str | None = None
    """Its key, if it is a training graph of a model with one budget."""
    place: Place = field(default_factory=Place)
    sized: Sized = field(default_factory=Sized)
    """The graph with the sizes that it is planned for."""
    kept: JointGraph | None = None
    """The joint graph, if another plan may replace its first one."""
    target: Target | None = None
    """The target of PyTorch's own setting, if no budget was given here."""
    updating: Updating | None = None
    """Those of its parameters that an optimizer steps inside the backward."""
    agreed: Agreed | None = None
    """Its plan, if that repeats collectives and all processes follow it."""


@dataclass
class Compilations:
    """The compilations of a partitioner's graphs."""

    once: str = field(default_factory=lambda: uuid4().hex)
    """A key that no other partitioner has."""
    last: weakref.ref[CompileContext] | None = None
    """The compilation of the last graph."""
    sliced: list[Sliced] = field(default_factory=list)
    """The chains that run in pieces of rows, without repetitions."""

    def note_slices(self, found: list[Sliced]) -> list[Sliced]:
        """Adds the slices that are new, and returns them."""
        new = [s for s in found if s not in self.sliced]
        self.sliced += new
        return new


class Partitioner(CustomPartitionerFn):
    """Plans each joint graph under a budget, and splits it by the plan.

    Use it as ``torch._inductor.config.custom_partitioner_fn``, or as the ``partition_fn`` of
    ``torch._dynamo.backends.common.aot_autograd``.

    Args:
        budget: memory budget of each graph. A float from 0 to 1 is a position between the smallest
            plan that costs little extra time (0) and what None takes (1); it is never refused.
            Bytes or ``"6GiB"`` are a limit; ``"0.4x"`` or ``"40%"`` is a share of what None takes.
            ``"min"`` means the smallest plan that costs at most 40 % more time, ``"smallest"`` the
            smallest plan, however slow. None uses no more memory than PyTorch's ``aot_eager``, and
            no more than the model with its own checkpoints; with a policy, only the policy decides.
            ``"fastest"`` has no limit: only a policy or a checkpoint in the model causes
            recomputation.
        measure: what the budget bounds. ``"live"``: peak of live bytes, counted op by op;
            ``"saved"``: bytes alive between forward and backward; ``"total"``: ``"live"`` plus what
            model and optimizer hold, which only :func:`compile` and :func:`trace` support.
        policy: says which values may or must be saved: a name (``"dots_saveable"``,
            ``"everything_saveable"``, ``"nothing_saveable"``); operations to save; a function
            ``(ctx, op, *args, **kwargs) -> CheckpointPolicy | None`` that is called for each
            forward op with its fake arguments; or a function that sees the whole graph
            (:func:`cutback.torch.mutwo.select`, :func:`cutback.policies.mu_two`).
        device: row of the device table for times; None means the row of the graph's device.
        on_plan: function called with the :class:`cutback.Plan` of each graph.
        profile: measured times that replace the device table's: the result of
            :func:`cutback.torch.profile` for this step, a mapping from op name to seconds, or the
            path of a file with either. From a profile of several graphs each graph takes its own
            part; offload uses the measured link.
        random: ``"torch"`` draws PyTorch's random numbers once and keeps them; ``"counter"`` uses
            our counter-based generator, whose numbers the backward draws again.
        cse: merges common subexpressions; the bits are the same either way.
        offload: allows values to move to the host and back (``docs/problem.md``). With ``"only"``,
            in addition, nothing runs again. Not supported if Inductor compiles the graphs.
        pinned: maximum bytes that the host may hold for offload at one time: an int or ``"8GiB"``.
        exact: searches again at exactly this budget, see :func:`cutback.plan`.
        collective_again: under a budget, allows all-gathers, broadcasts and all-to-alls of the
            graph to run again instead of keeping their results, if all processes of the group have
            the same plan. Supported for a model that :func:`compile` or the backend ``"cutback"``
            compiles to one graph of fixed sizes, unless Inductor compiles that graph.
        network_bytes_per_s: bytes per second that a process sends to its peers in one direction,
            which determines the time of collectives. None means 1e9 on a CPU, and otherwise the
            rate in the device's row (``docs/torch.md``).
        on_infeasible: what to do if no plan meets the budget. ``"error"`` (the default) raises an
            error. ``"min"`` and ``"smallest"`` give a ``UserWarning`` and use the plan of that
            budget. ``"warn"`` gives a ``UserWarning`` and saves everything.
        packed: allows masks to be kept as bits and pooling indices in 1, 2 or 4 bytes, where that
            pays; the results have the same bits (docs/torch.md). Without a budget nothing is
            packed. With ``policy``, ``profile``, ``offload`` or ``pool`` nothing is packed either,
            and a ``UserWarning`` says so.
        updates: set by :func:`compile`; leave it out.
        slices: chains of operations that are independent along rows, such as a head with its cross
            entropy and a perceptron over tokens, run in up to eight pieces of rows, so that the
            wide values inside a chain never exist as a whole (docs/slices.md). The results have the
            same bits under every budget. Not supported if Inductor or our kernels run the graphs,
            nor with ``profile``.

    Raises:
        BudgetError: no plan meets the budget.
        UnsupportedGraphError: the graph cannot be planned; the text gives the reason.
        ValueError, TypeError: an argument is invalid.

    >>> from torch._inductor import config
    >>> partitioner = cutback.torch.Partitioner(budget=0.5)
    >>> with config.patch(custom_partitioner_fn=partitioner):
    ...     compiled = torch.compile(model)  # and its first call
    """

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
        on_infeasible: str | None = None,
        pool: bool = False,
        collective_again: bool = True,
        network_bytes_per_s: float | None = None,
        updates: Inside | None = None,
        packed: bool = False,
        slices: bool = False,
    ) -> None:
        check_measure(measure, total)
        check_flags(
            cse=cse, exact=exact, pool=pool, collective_again=collective_again, packed=packed,
            slices=slices
        )  # fmt: skip
        fastest = isinstance(budget, str) and budget == reference.FASTEST
        bound = budgets.parse(None if fastest else budget, measure)
        bound = budgets.with_options(bound, offload, pinned, exact)
        policy = list(policy) if isinstance(policy, Iterator) else policy
        chooser(policy)
        if pinned is not None and not offload and not may_offload(policy):
            raise budgets.pinned_alone(pinned)
        check_slices(slices, profile)
        profile = known(profile)
        self.options = Options(
            Target(bound, measure, fastest), policy, device, on_plan, offload, total,
            profile=profile if isinstance(profile, Statistics) else None,
            times=None if profile is None else dict(times_of(profile)),
            random=check_random(random), cse=cse, on_infeasible=check_infeasible(on_infeasible),
            pool=pool,
            collective_again=collective_again, network_bytes_per_s=check_rate(network_bytes_per_s),
            updates=updates, packed=packed, slices=slices,
        )  # fmt: skip
        if packed and self.options.not_packed is not None:
            warnings.warn(
                f"packed=True has no effect with {self.options.not_packed}=: nothing is packed. "
                "Leave out one of them",
                stacklevel=2,
            )
        if updates is not None and self.options.may_move:
            updates.give_up("values may move to the host, which plans with updates inside cannot")
        self.door = Door()
        self.at_hand = AtHand(row=device or "cpu")
        self.in_force = InForce()
        self.kernels = Decisions()
        self.compilations = Compilations()

    @property
    def one_graph(self) -> bool:
        """Returns False: a second graph of the same compilation is allowed."""
        return False

    @property
    def has_plans(self) -> bool:
        """True if the plans come from a file."""
        return False

    @property
    def error(self) -> Exception | None:
        """The error of the latest graph, before PyTorch wrapped it."""
        return self.at_hand.error

    @property
    def plans(self) -> list[Plan]:
        """The plans in force: one for each graph that was compiled for training, or one for all."""
        return self.in_force.plans

    @property
    def compiler_notes(self) -> list[inductor.CompilerNote | NativeNote | Sliced]:
        """The changes that Inductor made to the plans, or what runs in our kernels, by graph."""
        return self.in_force.compiler_notes

    def begin(self, writes_by_floats: bool | None, is_last: bool) -> None:
        """Prepares for another graph, which PyTorch begins to compile."""
        self.at_hand = AtHand(self.at_hand.row, writes_by_floats, place=Place(is_last=is_last))

    def __call__(
        self,
        gm: fx.GraphModule,
        joint_inputs: Sequence[GraphInput],
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
        is_leaf: IsLeaf | None = None,
        **options: object,
    ) -> Modules:
        """Returns the forward and backward graph; PyTorch calls this. ``is_leaf`` tells which
        inputs keep their gradients; None means all."""
        at_hand = self.at_hand
        collects = gc.isenabled()
        gc.disable()  # planning makes no garbage, and collection would take a third of the time
        try:
            by_inductor = options.get("compiler") == "inductor"
            mark_float_ops(gm, num_fwd_outputs, at_hand.writes_by_floats)
            refuse_writes_in_both_passes(gm, num_fwd_outputs)
            if self.door.native:
                decide(gm.graph, self.kernels)
                self.kernels.arguments |= arguments_of(gm.graph)
            graph = self._prepare(gm, num_fwd_outputs, static_lifetime_input_indices or (),
                                  by_inductor, is_leaf)  # fmt: skip
            graph = self._with_collectives(graph)
            schedule = self._choose(graph)
            graph = at_hand.sized.graph or graph  # may be imported again for other sizes
            at_hand.kept = None if by_inductor else self._keep(gm, graph, schedule)
            modules = emit(gm, graph, schedule) if at_hand.kept is None else at_hand.kept.modules
            if by_inductor:
                modules = self._fit(gm, graph, modules)
            self._tell()
            at_hand.returned_views = modules[0].meta[RETURNED_VIEWS]
            if by_inductor:
                copy_results_in_inputs(modules[0])
            if not self.door.watches_views:
                keep_counters(modules[0], at_hand.returned_views, by_inductor)
            return modules
        except Exception as error:
            at_hand.error = error
            raise
        finally:
            if collects:
                gc.enable()

    def _prepare(
        self, gm: fx.GraphModule, num_fwd_outputs: int, static_inputs: Iterable[int],
        by_inductor: bool, is_leaf: IsLeaf | None,
    ) -> Imported:  # fmt: skip
        """Returns the graph with its problem, ready to be planned."""
        self._check_one_graph()
        if self.options.slices and (by_inductor or self.door.native):
            raise slices_unsupported("inductor" if by_inductor else "native")
        self.read_settings()
        self.at_hand.row = self.options.device or device_row(gm)
        how = replace(
            self.preparation, is_leaf=is_leaf, updating=self.at_hand.updating,
            same_kernels=self.door.same_kernels and not by_inductor,
        )  # fmt: skip
        sized = self.at_hand.sized
        graph, sized.again = prepare_for_sizes(gm, num_fwd_outputs, static_inputs, how)
        sized.graph = graph
        self.inform(graph.problem)
        if any("collective" in op.flags for op in graph.problem.ops):
            rate = self.options.network_bytes_per_s
            graph.problem.network_bytes_per_s = rate or gathers.rate_of(self.at_hand.row)
        return graph

    def _with_collectives(self, graph: Imported) -> Imported:
        """Returns the graph. Collectives may run again in its problem if its plan may repeat
        them."""
        return graph

    def _note_slices(self, found: list[Sliced]) -> None:
        new = self.compilations.note_slices(found)
        self.compiler_notes.extend(s for s in new if s.reason == SYMBOLIC)

    @property
    def preparation(self) -> Preparation:
        """The settings for preparing graphs."""
        options = self.options
        return Preparation(
            options.policy, options.random, options.cse, same_kernels=self.door.same_kernels,
            packed=options.packed and options.not_packed is None and self._packs,
            sliced=self._note_slices if options.slices else None,
            takes_over=self.door.takes_over and self._takes_over and not options.may_move,
        )  # fmt: skip

    @property
    def _takes_over(self) -> bool:
        """True if plans of the current graph take memory over. Without a budget they do not,
        because shares and positions are relative to the bytes of such a plan."""
        return self._target.budget is not None

    @property
    def _packs(self) -> bool:
        """True if plans of the current graph may pack. Without a budget they need not."""
        return self._target.budget is not None

    def read_settings(self) -> None:
        """Uses PyTorch's ``activation_memory_budget`` as the position of the current graph, unless
        a budget, plans or a policy was given here.

        Raises:
            ValueError, TypeError: the setting is not a position.
        """
        self.at_hand.target = None
        position, target = functorch_config.activation_memory_budget, self.options.target
        wish = target.budget is not None or self.options.policy is not None or target.fastest
        if position == 1.0 or wish or self.has_plans:
            return
        try:
            budget = budgets.parse(float(position), target.measure)
        except (TypeError, ValueError) as error:
            name = "torch._functorch.config.activation_memory_budget"
            raise type(error)(f"{name}={position!r}: {error}") from None
        self.at_hand.target = Target(budget, target.measure)

    def inform(self, problem: Problem) -> None:
        """Adds measured times for this graph to the problem, then applies the whole-graph policy,
        then adds the measured link if values may move."""
        options = self.options
        times = options.times
        if options.profile is not None:
            times = options.profile.times_of(signature(problem))
            if times is None:
                check_same(options.profile.signature, problem, "the step")
        if times is not None:
            files.lay_times(problem, times)
            check_covered(problem)
        if isinstance(options.policy, policies.WholeGraph):
            self._constrain(options.policy, problem)
        if options.profile is not None and (options.offload or problem.wants_moves):
            link = options.profile.link_bytes_per_s
            problem.link_bytes_per_s = problem.link_bytes_per_s or link

    def _constrain(self, policy: policies.WholeGraph, problem: Problem) -> None:
        """Adds the constraints of a policy to a problem."""
        told = policies.constrain_whole(policy, problem.check(), self.at_hand.row).parts()
        problem.link_bytes_per_s = problem.link_bytes_per_s or told.link_bytes_per_s
        for op, said in zip(problem.ops, told.ops, strict=True):
            op.outputs = said.outputs

    @property
    def _target(self) -> Target:
        """Returns the target of the current graph, if it does not share a budget with other
        graphs."""
        return self.at_hand.target or self.options.target

    def _choose(self, graph: Imported) -> moving.Schedule:
        """Returns a schedule of the graph and records its plan."""
        return self._plan_alone(graph)

    def _keep(
        self, gm: fx.GraphModule, graph: Imported, schedule: moving.Schedule
    ) -> JointGraph | None:
        """Keeps the joint graph, if another plan may replace this one."""
        return None

    def _plan_alone(self, graph: Imported) -> moving.Schedule:
        target = self._target
        try:
            made = self._make(graph.problem, target, self._own(graph, target))
        except BudgetError as error:
            made = self._fall_back(graph.problem, error)
        self.plans.append(made.plan)
        return made.schedule

    # ---- no plan meets the budget ---------------------------------------------------------------

    @property
    def _has_run(self) -> bool:
        """True if a planned graph has run."""
        return False

    @property
    def _most_bytes(self) -> int:
        """Returns the bytes up to which plans give no warning that no plan meets the budget."""
        return 0

    def _bytes_of(self, made: Made) -> int:
        return bytes_of(made.plan.numbers, self.options.target.measure)

    def _infeasible(self, later: bool) -> str:
        """Returns what to do if no plan meets the budget."""
        return self.options.on_infeasible or ("smallest" if later else "error")

    def _fall_back(self, problem: Problem, error: BudgetError, tell: bool = True) -> Made:
        """Returns the plan to use for a problem for which no plan meets the budget.

        BudgetError: ``on_infeasible`` asks for an error.
            BudgetError: if that is what was asked for.
        """
        wish, measure = self._infeasible(self._has_run), self.options.target.measure
        if wish == "error":
            raise error
        made = self._make(problem, fallback(wish, measure))
        if tell and self._bytes_of(made) > self._most_bytes:
            self._say_infeasible(error, later=self._has_run)
        return made

    def _say_infeasible(self, error: BudgetError, later: bool) -> None:
        """Raises the error of a budget that cannot be met, or warns, as ``on_infeasible`` says."""
        wish = self._infeasible(later)
        if wish == "error":
            raise error.replace()
        warnings.warn(budgets.fallen_back(error, wish), stacklevel=2)

    # ---- plans ----------------------------------------------------------------------------------

    def _own(self, graph: Imported, target: Target) -> Problem | None:
        """Returns the problem without the policy, if a share or position is relative to that, or
        None if it is the same problem."""
        if self.options.policy is None or not target.is_relative:
            return None
        return with_wishes(graph, of_tags)

    def _make(
        self, problem: Problem, target: Target, own: Problem | None = None,
        counted: Problem | None = None,
    ) -> Made:  # fmt: skip
        """Makes a plan of a problem, with the link and the optimizer's step where they count. Does
        not record it.

        Args:
            own: see :meth:`_own`.
            counted: the problem with measured scratch, if plans count that."""
        options, row = self.options, self.at_hand.row
        if own is not None and options.total is not None:
            own = with_total(own, options.total)
        problem = self.completed(problem)
        whole = full = reference.Searched.of(problem)
        base = whole.base if own is None else separate(own).check()
        if counted is not None:
            full = reference.Searched.of(self.completed(counted))
        budget, measure = target.budget, target.measure
        if budget is not None and target.is_bound:
            question = reference.Question(whole.problem, base, row, measure, counted=full)
            plan = question.plan(budget)
        elif budget is None and options.policy is None and not target.fastest:
            plan = reference.plan_of(full.problem, row)
        else:
            plan = reference.plan_unbounded(full, base, budget, row, measure)
        return Made(plan, self._schedule(plan))

    def completed(self, problem: Problem) -> Problem:
        """Returns the problem with the link to the host and the optimizer's step, where they
        count."""
        options = self.options
        if options.offload or problem.wants_moves:
            self._check_moves()
            problem = moving.with_link(problem, self.at_hand.row)
        return problem if options.total is None else with_total(problem, options.total)

    def _schedule(self, plan: Plan) -> moving.Schedule:
        """Returns the plan's schedule of the graph, without the optimizer's step."""
        schedule = moving.schedule_of(plan.core)
        if self.options.total is None:
            return schedule
        own = len(plan.parts.ops) - 1
        return schedule._replace(steps=[s for s in schedule.steps if s != own])

    def _check_moves(self) -> None:
        """Raises NotImplementedError if the code of the graphs cannot run moves."""
        settings = sys.modules.get("torch._inductor.config")
        if self.door.inductor or getattr(settings, "custom_partitioner_fn", None) is self:
            raise NotImplementedError(
                "Inductor cannot compile plans in which values move to the host, as offload= or a "
                "policy asks for: use cutback.torch.compile(..., codegen='eager')"
            )

    def choose(self, gm: fx.GraphModule, graph: Imported) -> moving.Schedule:
        """Returns the schedule of a plan for the graph alone: its steps and the start of the
        backward."""
        self.at_hand.row = self.options.device or device_row(gm)
        schedule = self._plan_alone(graph)
        self._tell()
        return schedule

    def _has_limit(self) -> bool:
        """True if the budget bounds live bytes of the current graph alone."""
        return self._target.is_bound and self._target.measure == "live"

    def _fit(self, gm: fx.GraphModule, graph: Imported, modules: Modules) -> Modules:
        """Compares the plan's graphs with Inductor's estimate, and plans again while that exceeds
        the budget (:mod:`compiler.inductor`). Returns the lowest of all tries."""
        asked = self.plans[-1]
        note = inductor.CompilerNote(asked.numbers["budget_bytes"], asked.position)
        self.compiler_notes.append(note)
        watch = self.at_hand.watch or inductor.Watch()
        watch.note = note
        if not self._has_limit() or note.limit_bytes is None:
            note.limit_bytes = None
            return modules
        limit = target = note.limit_bytes
        levers = inductor.LEVERS if self.at_hand.watch is not None else inductor.LEVERS[:1]
        plan = self.plans[-1]
        tries = []
        for attempt in range(1 + inductor.MOST_PLANS):
            try:
                peak, merged, lever = inductor.best_estimate(
                    *modules, graph.num_fwd_outputs, limit, levers
                )
            except Exception as error:  # PyTorch internals: the first step is measured instead
                note.problem = f"{type(error).__name__}: {error}"
                break
            note.planned_bytes.append(plan.numbers["live_bytes"])
            note.estimated_bytes.append(peak)
            tries.append((peak, attempt, modules, plan, merged, lever))
            if peak <= limit or attempt == inductor.MOST_PLANS:
                break
            target = min(target - (peak - limit), plan.numbers["live_bytes"] - 1)
            try:
                plan, schedule = self._make(
                    graph.problem, Target(budgets.of_bytes(max(target, 1), "live"), "live")
                )
            except BudgetError:
                break  # no smaller plan: keep the best so far
            modules = emit(gm, graph, schedule)
        if not tries:
            return modules
        _, _, modules, plan, note.merged_runs, watch.lever = min(tries, key=lambda t: t[:2])
        note.lever = watch.lever.name
        if plan is not self.plans[-1]:
            self.plans[-1] = plan
        return modules

    def saved(self) -> SavedPlans:
        """Returns the plans in force, to be written to a file."""
        saved, total = SavedPlans(), self.options.total
        for plan in self.plans:
            graph = plan.parts
            if total is not None:
                graph = replace(graph, ops=graph.ops[:-1])
            saved.add(plan, [Part(graph, *self._schedule(plan))], total)
        return saved

    def _tell(self) -> None:
        if self.options.on_plan is not None:
            self.options.on_plan(self.plans[-1])

    def uuid(self) -> str:
        """Returns the key for PyTorch's code cache. If a function or a selection decides the plan,
        the key is unique, because torch 2.13 takes None for a valid key."""
        options, policy = self.options, self.options.policy
        whole = isinstance(policy, policies.WholeGraph)
        if callable(policy) or (whole and not isinstance(policy, policies.MuTwo)):
            return self.compilations.once
        if isinstance(policy, Iterable) and not isinstance(policy, (str, policies.MuTwo)):
            policy = [str(item) for item in policy]
        times = None if options.times is None else sorted(options.times.items(), key=str)
        said = rerunnable.declarations()
        flags = (
            options.offload, options.total, options.random, options.cse, options.target.fastest,
            options.on_infeasible, said, options.network_bytes_per_s, options.updates is not None,
            options.packed, options.slices,
        )  # fmt: skip
        key = repr(
            (__version__, _EMITTED, options.target.budget, policy, options.device, times, flags)
        )
        return hashlib.sha256(key.encode()).hexdigest()

    def __getstate__(self) -> dict[str, object]:  # PyTorch pickles it for its cache key
        # of a profile only its times stay
        options = replace(self.options, on_plan=None, profile=None, updates=None)
        return {
            **self.__dict__,
            "options": options,
            "at_hand": AtHand(row=self.at_hand.row, writes_by_floats=self.at_hand.writes_by_floats),
            "in_force": InForce(),
            "compilations": Compilations(once=""),
            "slices": [],
        }

    def _check_one_graph(self) -> None:
        """Raises an error for graphs inside a graph, and graphs that PyTorch splits after tracing:
        each would use the whole budget of the model."""
        now = CompileContext.try_get()
        if now is None or now.compile_id is None:
            self.compilations.last = None
            return
        # torch._dynamo.reset() makes PyTorch reuse compilation numbers
        before, self.compilations.last = self.compilations.last, weakref.ref(now)
        if self.one_graph and before is not None and before() is now:
            raise UnsupportedGraphError(
                "PyTorch splits this graph into several (nested compiled regions, or buckets of "
                "DistributedDataParallel), and this version cannot divide a budget among them: "
                "remove torch.compiler.nested_compile_region; for DDP set "
                "torch._dynamo.config.optimize_ddp = False (cutback.torch.compile does so "
                "automatically), or use budget=None or 'min'"
            )
