"""Applies one budget to the several graphs of a model with graph breaks.

PyTorch compiles such a model piece by piece: the first graph has been compiled and has run before
the second one is known. So the graphs of the first step are planned one by one, as for ``"min"``.
By the first backward the step has shown which graphs it has and what each passes to the next
(:mod:`compiler.crossing`). The next call joins their problems and plans them as one
(:mod:`compiler.joining`). The code of the graphs then follows the parts of that plan without
recompilation (:mod:`compiler.replaceable`). From then on the budget holds for the whole step. A
graph that appears later, for other shapes, is planned as for ``"min"`` and joins the next round.

Steps may take different paths through a model, so a graph on several paths runs with different
graphs on each. A path that no plan covers is examined in its first backward; if it exceeds the
budget, the next call plans all paths that have graphs in common (:mod:`compiler.paths`).

A graph that does not end at a graph break is the only one of its step. It gets a plan for the whole
budget from the first step on. The table of :mod:`compiler.states` lists the transitions between
these situations.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch._guards import CompileContext

from ... import BudgetError, budgets
from ...planner.plan import Plan
from ...problem import Problem
from .. import amounts, hooks
from ..graph.importer import Imported
from ..graph.moving import Schedule
from ..graph.sizes import hint, sizes_as
from . import pipelines, together
from .actions import Occasion
from .counted_scratch import Rows, merged, rows_of, with_scratch
from .crossing import Ends, Run
from .growing import LargerError, RoundedUpError
from .joining import join, lenient
from .looking import ModelSteps
from .options import modest
from .partition import AtHand
from .records import CompiledGraph, Shown, Traces, key_of
from .replaceable import JointGraph
from .saved_plans import SavedPlans
from .sharing import bytes_in
from .states import COUNTS_SCRATCH, DUE, FIRST_GRAPH, Event, State

if TYPE_CHECKING:
    from torch import fx
    from torch.fx.experimental.symbolic_shapes import sympy

    from ..types import GraphFunction, GraphInput, GraphValue

MOST_SCRATCH_ROUNDS = 2
"""How often plans are made again to count scratch. The second plan may rerun ops whose scratch is
measured only then."""


_PLANNING = threading.RLock()
"""Held while graphs are planned within a call, because several threads may call one model."""


class ModelPartitioner(ModelSteps):
    """The partitioner of one model. A budget in bytes, or a share, is one budget for all graphs.
    Events of the model call its methods."""

    # ---- a graph is compiled --------------------------------------------------------------------

    def begin(self, writes_by_floats: bool | None, is_last: bool) -> None:
        """Prepares for another graph, which PyTorch begins to compile."""
        self.forget_if_gone()
        super().begin(writes_by_floats, is_last)
        self.at_hand.place.frame, self.at_hand.sized.start = self.frame(), self.sizes.starts

    def forget_if_gone(self) -> bool:
        """True if PyTorch has dropped the compiled code since graphs were last compiled. PyTorch
        then reuses frame numbers, so data stored under the old numbers is deleted. Call this while
        PyTorch compiles."""
        last = self.compilations.last
        if last is not None and last() is CompileContext.try_get():
            return False  # another graph of one compilation
        under_way = self.frame()
        for frame, noted in self.graphs.compilations.items():
            count = hooks.compilations_of(frame)
            if count is not None and count - (frame == under_way) < noted:
                self._fire(Event.CODE_GONE)
                return True
        return False

    def frame(self) -> int | None:
        """Returns PyTorch's frame number of the code that is being compiled."""
        now = CompileContext.current_compile_id()
        return None if now is None else now.frame_id

    def _has_limit(self) -> bool:
        # a plan of several graphs is not remade for one of them
        alone = not self.bounds_sizes or (
            len(self.graphs.problems) == 1 and not self.in_force.parts
        )
        return super()._has_limit() and alone

    @property
    def _may_repeat_collectives(self) -> bool:
        is_last = self.at_hand.place.is_last
        alone = is_last and self.graphs.only(self.frame()) and not self.in_force.parts
        return alone and self.door.same_kernels and self.options.collective_again

    @property
    def _takes_over(self) -> bool:
        return super()._takes_over if self.given is None else self.given.saved.takes_over

    @property
    def _packs(self) -> bool:
        return super()._packs if self.given is None else self.given.saved.packs

    def _repeats_from_file(self, problem: Problem) -> Schedule | None:
        if self.given is None or not self.given.saved.knows(problem):
            return None
        return self.given.saved.graphs[self.given.saved.find(problem)].schedule()

    def _choose(self, graph: Imported) -> Schedule:
        if not self.bounds_sizes:
            schedule = self._fire(Event.GRAPH, Occasion(graph))
            self._note_frame()
        else:
            schedule = self.in_force.part(graph.problem)
            if schedule is None:
                schedule = self._plan_graph(graph)
                graph = self.at_hand.sized.graph or graph
            assert schedule is not None
            self._note_graph(graph, schedule)
        assert schedule is not None
        return schedule

    def _plan_graph(self, graph: Imported) -> Schedule | None:
        """Returns the schedule of a graph that the plans in force do not cover."""
        apart = self.state is State.JOINED and bool(self.in_force.alone())
        place = self.at_hand.place
        others = (self.in_force.parts and not apart) or not self.graphs.only(place.frame)
        known = apart or self.state in FIRST_GRAPH
        if others or not known or not place.is_last:
            event = Event.GRAPH_NEW if self._rounds_left else Event.GRAPH_LATE
            return self._fire(event, Occasion(graph))
        target = self.options.target
        try:
            made = self._make(graph.problem, target, self._own(graph, target))
        except BudgetError as error:
            if self.at_hand.sized.symbols.is_rounded and self.at_hand.sized.again is not None:
                return self._plan_graph(self._as_it_is(self.at_hand.sized.again))
            may_share = target.is_share and self.state in (State.NEW, State.UNMET)
            event = Event.GRAPH_PUT_OFF if may_share else Event.GRAPH_OVER
            return self._fire(event, Occasion(graph, error=error))
        return self._fire(Event.GRAPH_FITS, Occasion(graph, made))

    def _note_frame(self) -> None:
        now = CompileContext.current_compile_id()
        if now is not None and now.frame_id is not None and now.frame_compile_id is not None:
            self.graphs.compilations[now.frame_id] = now.frame_compile_id + 1

    def _note_graph(self, graph: Imported, schedule: Schedule) -> None:
        self._note_frame()
        key = self.at_hand.key = key_of(graph.problem)
        self.graphs.problems[self.at_hand.place.frame] = graph.problem
        self.graphs.by_key[key] = CompiledGraph(
            graph.problem, schedule, self.at_hand.place.frame, Ends.of(graph),
            self._own(graph, self.options.target),
        )  # fmt: skip

    def _as_it_is(self, again: Callable[[], Imported]) -> Imported:
        """Returns the current graph for sizes that are not rounded up."""
        self.at_hand.sized.symbols = self.at_hand.sized.symbols._replace(is_rounded=False)
        with sizes_as(self.at_hand.sized.symbols.planned):
            self.at_hand.sized.graph = graph = again()
        self.inform(graph.problem)
        return graph

    def _keep(self, gm: fx.GraphModule, graph: Imported, schedule: Schedule) -> JointGraph | None:
        if not self.bounds_sizes or not self.door.same_kernels:
            return None
        kept = JointGraph(gm, graph, schedule)
        self.graphs.keep(kept)
        return kept

    def larger(self, inputs: Sequence[GraphInput]) -> dict[sympy.Symbol, int]:
        """Returns the values for the symbols of the graph that is being compiled
        (:meth:`growing.Sizes.larger`)."""
        if self.bounds_sizes:
            self.at_hand.sized.symbols = self.sizes.larger(self.at_hand.place.frame, inputs)
        return self.at_hand.sized.symbols.planned

    # ---- before a call --------------------------------------------------------------------------

    def take_up_plan(self) -> bool:
        """Makes the plan that is due, if any, and makes compiled code follow it.

        Returns:
            True if PyTorch must recompile the model for that.

        Raises:
            BudgetError: no plan of all graphs meets the budget.
        """
        try:
            if not self._restart_if_outgrown() and not self._needs_another_round():
                return False
        except RoundedUpError:
            self.sizes.as_they_are()
            self._restart_if_outgrown()
        self._end_min()
        if self.follow_plans():
            return False
        self.graphs.forget_code()
        return True

    def follow_plans(self) -> bool:
        """Makes compiled code follow the parts of the plans in force, from the next forward on.
        Graphs that the plans do not cover keep their current plans.

        Returns:
            False if PyTorch must recompile the model for that.
        """
        graphs = self.graphs.in_use()
        if not graphs or not all(kept.is_replaceable for kept in graphs):
            return False
        for kept in graphs:
            problem = kept.graph.problem
            schedule = self.in_force.part(problem)
            if schedule is None:
                continue
            if not kept.follow(schedule, fresh=True):
                return False
            key = key_of(problem)
            self.graphs.by_key[key] = self.graphs.by_key[key]._replace(schedule=schedule)
        if self.options.on_plan is not None:
            for plan in self.plans:
                self.options.on_plan(plan)
        return True

    def _restart_if_outgrown(self) -> bool:
        """Drops the plans in force and returns True if sizes have grown beyond them."""
        if not self.sizes.restart_if_outgrown():
            return False
        self._fire(Event.SIZE_OUTGROWN)
        return True

    def _needs_another_round(self) -> bool:
        """Makes one plan for the graphs that the last step has shown, if that is needed. Returns
        True if it did.

        Raises:
            BudgetError: no plan of all graphs meets the budget.
        """
        steps = self.steps
        if steps.pending:
            is_due = self.state in DUE
            if steps.seen is not None or (is_due and (steps.patterns or self.graphs.may_wait())):
                return False  # a step is running
        elif self.state in DUE and steps.is_in_pipeline() and self.graphs.may_wait():
            return False  # the rest of the step may still leave gradients
        elif self.state is not State.UNMET:  # in that state the step settles it first
            self._look_at_pending()
        if self.state not in DUE or not (steps.patterns or self.graphs.problems):
            return False
        self._fire(Event.REPLAN_CALLS if steps.patterns else Event.REPLAN_GRAPHS)
        return True

    # ---- graphs run -----------------------------------------------------------------------------

    def counted(self, run: GraphFunction) -> GraphFunction:
        """Wraps the function of the current graph, so that its runs within one call of the model
        are counted."""
        at_hand = self.at_hand
        limits = self.limits_of(at_hand)

        @functools.wraps(run)
        def call(*args: torch.Tensor | int) -> Sequence[GraphValue]:
            nonlocal limits
            counts = together.calls.counts
            if at_hand.sized.start == self.sizes.starts:
                over = next((pair for pair in limits if args[pair[0]] > pair[1]), None)
                if over is not None:  # smaller sizes take less memory; one larger size is enough
                    place, planned = over
                    self._outgrow(at_hand, args[place], planned, not (counts and counts[-1]))
            if at_hand.sized.start != self.sizes.starts and at_hand.key is not None:
                with _PLANNING:
                    self._plan_again(at_hand, args)
                    limits = self.limits_of(at_hand)
            self._follow_min(at_hand)
            if counts:
                counts[-1][at_hand.place.frame] += 1
            result = run(*args)
            self._began(at_hand.key, args, result)
            return result

        return call

    def _outgrow(self, graph: AtHand, size: int, planned: int, fresh: bool) -> None:
        """Handles a graph that is about to run with a larger size than planned. ``fresh`` is True
        if no graph of the call has run yet. Otherwise plans are made again before the next call.

        Raises:
            LargerError: PyTorch must recompile, and then the call must start over.
        """
        self.sizes.outgrow(size, planned)
        if self.sizes.outgrown and fresh:
            if graph.kept is None or not graph.kept.is_replaceable:
                raise LargerError
            with _PLANNING:
                self._restart_if_outgrown()

    def _follow_min(self, graph: AtHand) -> None:
        """Prepares a graph's run. If runs of the graph are pending that no plan covers together,
        this run and later ones are planned as for ``"min"``, until the step has shown how many runs
        there are."""
        key, steps = graph.key, self.steps
        known = self.graphs.by_key.get(key or "")
        if key is None or known is None or key in steps.as_min or not steps.pending.counts[key]:
            return
        together_with = steps.pending.counts + Counter([key])
        if graph.kept is None or together.covers(steps.covered, together_with):
            return
        with _PLANNING:
            made = self._make(known.problem, modest(self.options.target.measure))
            if graph.kept.follow(made.schedule):
                steps.as_min[key] = made.schedule

    @staticmethod
    def limits_of(at_hand: AtHand) -> list[tuple[int, int]]:
        """Returns the positions of a graph's arguments that are sizes, with their planned
        values."""
        with sizes_as(at_hand.sized.symbols.planned):
            return [(place, hint(size)) for place, size in at_hand.sized.arguments]

    def _plan_again(self, graph: AtHand, args: Sequence[GraphInput]) -> None:
        """Plans a graph that was compiled before plans were started from scratch again, for the
        sizes with which it is about to run.

        Raises:
            BudgetError: no plan meets the budget.
        """
        kept, sized, before = graph.kept, graph.sized, self.at_hand
        if kept is None or sized.again is None:
            return
        sizes = [(size.node.expr, int(args[place])) for place, size in sized.arguments]
        self.at_hand = graph
        try:
            sized.symbols = self.sizes.planned(sized.symbols.grown(sizes))
            with sizes_as(sized.symbols.planned):
                sized.graph = found = sized.again()
                self.inform(found.problem)
                schedule = self._choose(found)
            kept.graph = sized.graph
            if not kept.follow(schedule, fresh=True):
                self.sizes.outgrown = True  # PyTorch recompiles before the next call
            sized.start = self.sizes.starts
            self._tell()
        finally:
            self.at_hand = before

    @contextlib.contextmanager
    def one_call(self) -> Iterator[Counter[int | None]]:
        """A context around a call of the model that counts the runs of our graphs by frame."""
        runs: Counter[int | None] = Counter()
        together.calls.counts.append(runs)
        try:
            yield runs
        finally:
            together.calls.counts.pop()

    def _began(
        self, key: str | None, args: Sequence[GraphInput], result: Sequence[GraphValue]
    ) -> None:
        """Records that a graph has run; ``key`` is the key of a training graph."""
        self.ever.ran |= key is not None and self.state is not State.UNMET
        by_key = self.graphs.by_key
        if key is None or key not in by_key:
            return
        node = together.compiled_node(result)
        if node is None:
            return
        self._forget_earlier_steps(key, args)
        run = Run(key, node, args, result)
        run.pipeline = pipelines.place()
        if run.pipeline is not None:
            pipelines.mark(node)
            run.pipeline.note_gradients(args)
            self.steps.left.waiting.append(run)
            self.steps.left.meter = run.pipeline.meter(self.steps.left.meter)
        self.steps.trail.add(run, args)
        if not self.steps.pending and run.pipeline is None:
            self.steps.left.ended.clear()
        now = self.steps.pending.began(key, node, functools.partial(self._on_backward, run))
        if now is None or together.covers(self.steps.covered, now):
            return
        frames = Counter(by_key[k].frame for k in now.elements() if k in by_key)
        # calls that run a graph several times have a round of their own
        if max(frames.values(), default=0) > 1:
            self.steps.seen = now

    # ---- scratch --------------------------------------------------------------------------------

    @property
    def places(self) -> bool:
        """True if the memory of the step is placed (:mod:`graph.segment`)."""
        return self.options.pool

    @property
    def may_count_scratch(self) -> bool:
        """True if plans may be made again to count measured scratch."""
        target, measures, steps = self.options.target, ("live", "total"), self.steps
        one_call = not steps.patterns and all(max(p.values()) == 1 for p in steps.covered)
        plans = list(self.in_force.alone().values()) or self.plans[:2]
        return (
            self.state in COUNTS_SCRATCH
            and one_call
            and (len(plans) == 1 or bool(self.in_force.alone()))
            and all(plan.numbers["budget_bytes"] is not None for plan in plans)
            and target.is_bound
            and target.measure in measures
            # ranks may measure different scratch, and must not stop repeating separately
            and not any(g.problem.collective_again for g in self.graphs.by_key.values())
        )

    def count_scratch(self, measured: Mapping[str, Mapping[str, int]], traces: Traces) -> bool:
        """Schedules a plan that counts measured scratch, if the plan in force exceeds its budget
        with that scratch, or if its memory has not been placed yet.

        Args:
            measured: bytes by the key of a graph and the name of an op.
            traces: bytes that ops allocate and free.

        Returns:
            True if the next step follows such a plan.
        """
        if not self.may_count_scratch:
            return False
        alone = self.in_force.alone()
        if len(alone) > 1:
            steps = [(plan, Shown([key], None), [key]) for key, plan in alone.items()]
        else:
            paths = self.in_force.paths
            shown = paths[0].shown if paths else self._graphs_of_round()
            steps = [(self.plans[0], shown, list(self.graphs.by_key))]
        due: dict[str, Rows] = {}
        for plan, shown, keys in steps:
            due |= self._due_scratch(plan, shown, {key: measured.get(key, {}) for key in keys})
        if due:
            self._fire(Event.SCRATCH_OVER, Occasion(scratch=due, traces=traces))
        return bool(due)

    def _due_scratch(
        self, plan: Plan, shown: Shown, measured: Mapping[str, Mapping[str, int]]
    ) -> dict[str, Rows]:
        """Returns the scratch that the plan of a step must count when it is made again. The result
        is empty if the plan stays."""
        known, rounds = self.graphs.scratch, self.graphs.scratch_rounds
        if max((rounds[key] for key in measured), default=0) >= MOST_SCRATCH_ROUNDS:
            return {}
        limit, graphs = plan.numbers["budget_bytes"] or 0, self.graphs.by_key
        rows = {
            key: merged(known.get(key, ()), rows_of(graphs[key].problem, sizes, limit))
            for key, sizes in measured.items()
        }
        places = self.places and self.in_force.placed is None and not rounds
        is_new = any(rows.values()) and any(rows[key] != known.get(key) for key in rows)
        if places or (is_new and self._bytes_with(plan, shown, rows) > limit):
            return dict(rows)
        return {}

    def _bytes_with(self, plan: Plan, shown: Shown, scratch: Mapping[str, Rows]) -> int:
        """Returns the bytes that a step's plan takes with measured scratch."""
        keys, common = shown
        problems = [with_scratch(self.graphs.by_key[key].problem, scratch[key]) for key in keys]
        counted = self.completed(join(problems, common)[0])
        if len(counted.ops) != len(plan.parts.ops):  # a graph was not recompiled
            return 0
        found = (
            lenient(counted).check().evaluate((plan.core.steps, plan.core.backward_starts), "cpu")
        )
        return found["peak_bytes"] + (counted.static_bytes if self.options.total else 0)

    # ---- budgets --------------------------------------------------------------------------------

    def limit_bytes(self, runs: int) -> int | None:
        """Returns the limit for plans on live bytes. It is the budget of a plan for the whole model
        or, for ``"min"``, which plans each graph separately, the sum over all graphs.

        Args:
            runs: the largest number of runs of one graph in a call.
        """
        target = self.options.target
        if target.budget is None or target.measure != "live" or not self.plans or self.sizes.told:
            return None
        if self.state is State.UNMET or self.steps.as_min:  # this step runs other plans
            return None
        if not target.is_bound:
            return runs * sum(int(plan.numbers["live_bytes"]) for plan in self.plans)
        if len(self.plans) > 1 and not self.in_force.paths:
            return None
        numbers = [plan.numbers for plan in self.plans]
        bounds = [(n["budget_bytes"], n["live_bytes"]) for n in numbers]
        # plans of pending calls may bound saved bytes instead
        return max((max(limit, live) for limit, live in bounds if limit is not None), default=None)

    def runs_other_graphs(self) -> bool:
        """True if this step runs graphs that the plan over several graphs does not contain, for
        example those of another mode, whose plan is no longer in force."""
        if not self.in_force.paths:
            return False
        by_key = self.graphs.by_key
        keys = {run.key for run in self.steps.trail.runs}
        return any(k not in by_key or self.in_force.part(by_key[k].problem) is None for k in keys)

    def name_limit(self, limit: int) -> str:
        """Describes :meth:`limit_bytes` as text."""
        if not self.options.target.is_bound:
            return f"smallest plans of {budgets.text(limit)}"
        return f"budget of {amounts.name_of(limit, self.position)}"

    def bytes_of_budget(self) -> int | None:
        """Returns the budget in bytes, or None if it is not given in bytes."""
        return bytes_in(self.options.target.budget)

    # ---- plans that are kept --------------------------------------------------------------------

    def saved(self) -> SavedPlans:
        """Returns the plans in force, to be written to a file. Plans read from a file are
        unchanged."""
        if self.given is not None:
            return self.given.saved
        force = self.in_force
        saved = SavedPlans() if force.paths else super().saved()
        for path in force.paths:
            saved.add(path.plan, path.parts, self.options.total, path.shown.common)
        saved.whole = self.one_graph
        saved.kernels = dict(self.kernels.used)
        return saved
