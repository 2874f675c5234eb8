"""The actions of the transitions between a model's states (:mod:`compiler.states`)."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ... import BudgetError, budgets
from ...planner.plan import Plan
from ...problem import Problem
from ...schedule import bytes_of
from ..graph.importer import Imported
from ..graph.moving import Move, Schedule, moves_anything
from ..graph.segment import Life, Placed, continued, place
from . import paths, together
from .counted_scratch import Rows, with_scratch
from .growing import RoundedUpError, Sizes
from .joining import Common, join, part_of
from .options import Made, Target, everything, modest, smallest
from .records import (
    Ever,
    GivenPlans,
    Graphs,
    ModelPlans,
    PlannedPath,
    Shown,
    Steps,
    Traces,
    Unmet,
    key_of,
)
from .repeating import RepeatingPartitioner
from .saved_plans import Part, SavedPlans, check_part, check_total, plan_of
from .scratch import MARGIN, excess_of_all_text
from .sharing import SharedBudget
from .states import DUE, NOT_SHARED, Action, Event, State, transition
from .together import Together

MOST_ROUNDS = 4
"""How often a model may be recompiled because graphs appear that the plan does not cover."""


@dataclass(frozen=True)
class Occasion:
    """The arguments of an event. Which of them are set depends on the event."""

    graph: Imported | None = None
    """The graph that is compiled."""
    made: Made | None = None
    """A plan for it."""
    error: BudgetError | None = None
    """Why no plan meets the budget."""
    calls: Together | None = None
    """Calls that were pending together."""
    path: Shown | None = None
    """Graphs that a step ran."""
    scratch: Mapping[str, Rows] | None = None
    """Measured scratch that the next plans must count, by the key of a graph."""
    traces: Traces = field(default_factory=dict)
    """What ops allocate and free, by a graph's key and then by op name."""


class ModelActions(RepeatingPartitioner):
    """Holds the state of a model's planning and implements the actions of the transition table."""

    in_force: ModelPlans

    def __init__(self, *args: Any, given: SavedPlans | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.given = None if given is None else GivenPlans(given)
        self.kernels.used.update({} if given is None else given.kernels)
        self.state = self._first_state()
        self.in_force = ModelPlans()
        self.graphs = Graphs()
        self.steps = Steps()
        self.sizes = Sizes()
        self.ever = Ever()

    def _first_state(self) -> State:
        if self.given is not None:
            return State.GIVEN
        return State.NEW if self.options.target.is_bound else State.SEPARATE

    def __getstate__(self) -> dict[str, object]:
        given = None if self.given is None else replace(self.given, met={})
        return {
            **super().__getstate__(),
            "in_force": ModelPlans(),
            "given": given,
            "state": self._first_state(),
            "graphs": Graphs(),
            "steps": Steps(),
            "sizes": Sizes(),
            "ever": Ever(),
        }

    # ---- the state ------------------------------------------------------------------------------

    def _fire(self, event: Event, occasion: Occasion | None = None) -> Schedule | None:
        """Runs the transition for an event. If its action raises, the state does not change.

        Returns:
            The schedule of the graph, for events that concern one graph.
        """
        state, action = transition(self.state, event)
        schedule = _ACTIONS[action](self, occasion or Occasion())
        self.state = state
        return schedule

    @property
    def has_plans(self) -> bool:
        """True if the plans come from a file."""
        return self.given is not None

    @property
    def bounds_sizes(self) -> bool:
        """True if graphs share one budget, so that a plan for some sizes holds for no larger
        ones."""
        return self.state not in NOT_SHARED

    @property
    def one_graph(self) -> bool:
        """Raises an error for a second graph of the same compilation."""
        return self.bounds_sizes if self.given is None else self.given.saved.whole

    @property
    def waits(self) -> bool:
        """True if the model must be recompiled before its next call."""
        return self.sizes.outgrown or self.state in DUE

    @property
    def position(self) -> budgets.Position | None:
        """The requested position of the only plan, and the bytes of positions 0 and 1."""
        return self.plans[0].position if len(self.plans) == 1 else None

    @property
    def _rounds_left(self) -> bool:
        return self.graphs.rounds - self.graphs.path_rounds < MOST_ROUNDS

    # ---- a graph is compiled --------------------------------------------------------------------

    def _do_plan_alone(self, occasion: Occasion) -> Schedule:
        assert occasion.graph is not None
        return self._plan_alone(occasion.graph)

    def _do_look_up(self, occasion: Occasion) -> Schedule:
        """Finds the graph's part of the plans from a file."""
        assert occasion.graph is not None and self.given is not None
        problem, given = occasion.graph.problem, self.given.saved
        k = given.find(problem)
        schedule = given.graphs[k].schedule()
        if any(isinstance(step, Move) for step in schedule.steps):
            self._check_moves()
        check_part(problem, schedule)
        met = {**self.given.met, k: problem}
        found = []
        for saved in given.plans:
            check_total(given, saved.total, self.options.total)
            if k in saved.graphs and all(g in met for g in saved.graphs):
                problems = [with_scratch(met[g], given.graphs[g].scratch) for g in saved.graphs]
                common = None if saved.common is None else Common.of(saved.common)
                found.append(plan_of(join(problems, common)[0], saved))
        self.given.met[k] = problem
        self.plans.extend(found)
        return schedule

    def _do_keep_plan(self, occasion: Occasion) -> Schedule:
        assert occasion.made is not None
        plan, schedule = occasion.made
        self.graphs.unmet = None
        self._add(occasion, occasion.made)
        self.ever.most_bytes = max(self.ever.most_bytes, plan.numbers["budget_bytes"] or 0)
        return schedule

    def _add(self, occasion: Occasion, made: Made) -> None:
        """Adds the plan of a graph that has the whole budget."""
        assert occasion.graph is not None
        problem = occasion.graph.problem
        key, force = key_of(problem), self.in_force
        force.plans.append(made.plan)
        if not force.paths:
            force.by_graph[key] = made.plan
            return
        part, shown = Part(problem, *made.schedule, ()), Shown([key], None)
        force.parts.append(part)
        force.paths.append(PlannedPath(made.plan, shown, [part]))
        self.steps.covered.append(Counter([key]))

    def _do_put_off(self, occasion: Occasion) -> Schedule:
        """Plans the graph as for ``"min"``, because the graph alone cannot meet its share."""
        assert occasion.graph is not None and occasion.error is not None
        made = self._make(occasion.graph.problem, modest(self.options.target.measure))
        self.graphs.unmet = Unmet.of(occasion.error, self.ever.ran)
        self.plans.append(made.plan)
        return made.schedule

    def _do_settle(self, occasion: Occasion) -> Schedule:
        """Decides what to do with a graph that exceeds the budget."""
        assert occasion.graph is not None and occasion.error is not None
        made = self._fall_back(occasion.graph.problem, occasion.error)
        self._add(occasion, made)
        return made.schedule

    def _do_plan_as_min(self, occasion: Occasion) -> Schedule:
        """Plans a graph as for ``"min"`` while the other graphs of its step are unknown."""
        assert occasion.graph is not None
        made = self._make(occasion.graph.problem, modest(self.options.target.measure))
        self.graphs.unmet = None
        self.plans.append(made.plan)
        return made.schedule

    def _do_plan_late(self, occasion: Occasion) -> Schedule:
        self._tell_of_rounds()
        return self._do_plan_as_min(occasion)

    def _do_forget_frames(self, occasion: Occasion) -> None:
        """Forgets the frames. Graphs get their parts of the plans again when they are
        recompiled."""
        self.graphs.forget_code()

    # ---- plans are made again -------------------------------------------------------------------

    def _do_start_again(self, occasion: Occasion) -> None:
        """Drops all plans. Each graph is planned again when it is recompiled."""
        if self.given is not None:
            self.given.met.clear()
        self.in_force, self.graphs = ModelPlans(), Graphs()
        self.steps.forget()

    def _do_start_for_sizes(self, occasion: Occasion) -> None:
        """Drops all plans, but keeps code that can follow other plans. Its graphs are planned again
        when they run (:meth:`several.ModelPartitioner.plan_again`)."""
        kept, compilations = self.graphs.kept, self.graphs.compilations
        self._do_start_again(occasion)
        self.graphs.kept, self.graphs.compilations = kept, compilations

    def _graphs_of_round(self) -> Shown:
        """Returns the graphs for one plan in forward order, and what they share, if known."""
        keys = [key_of(problem) for problem in self.graphs.problems.values()]
        last, known = self.steps.last, self.steps.paths
        if known and {key for path in known for key in path.keys}.issuperset(keys):
            return known[-1]
        return last if last is not None and sorted(last.keys) == sorted(keys) else Shown(keys, None)

    def _do_plan_graphs(self, occasion: Occasion) -> None:
        """Makes one plan over all graphs, or one plan for each path, or one for each graph that is
        a whole step."""
        apart, self.graphs.apart = self.graphs.apart, {}
        if len(apart) > 1 and len(self.graphs.problems) == 1:
            return self._plan_apart(apart)
        shown = self._graphs_of_round()
        near = paths.sharing(shown, self.steps.paths)[: paths.MOST_PATHS]
        if len(near) > 1:
            self._plan_paths(near)
        else:
            self._plan_path(*shown)

    def _plan_path(self, keys: list[str], common: Common | None) -> None:
        """Makes one plan over the graphs of the only path."""
        made, order = self._make_path(keys, common)
        return self._put_in_force(made, keys, common, order)

    def _make_path(
        self, keys: list[str], common: Common | None
    ) -> tuple[Made, list[tuple[int, int]]]:
        """Returns a plan over graphs, and their order as in :func:`joining.join`."""
        problems = [self.graphs.by_key[key].problem for key in keys]
        joined, order = join(problems, common)
        own, counted = self._shared_budget().own_of(keys, common), self._counted(keys, common)
        try:
            made = self._make(joined, self.options.target, own, counted)
        except BudgetError as error:
            made = self._over(joined, counted, Shown(keys, common), error)
        return made, order

    def _plan_apart(self, apart: dict[str, bool]) -> None:
        """Makes plans again for graphs that are each a whole step, and keeps the other plans."""
        plans, planned = self.in_force.alone(), []
        for key, again in apart.items():
            made = Made(plans[key], self.graphs.by_key[key].schedule)
            if again:
                made, _ = self._make_path([key], None)
            part = self._part(key, made.schedule)
            planned.append(PlannedPath(made.plan, Shown([key], None), [part]))
        self.in_force = ModelPlans(
            [path.plan for path in planned],
            stats=self.in_force.allocator_stats,
            parts=[part for path in planned for part in path.parts],
            paths=planned,
        )
        self.steps.cover([path.shown for path in planned])
        self.graphs.waited, self.graphs.unmet = 0, None

    def _over(
        self, joined: Problem, counted: Problem | None, shown: Shown, error: BudgetError
    ) -> Made:
        """Returns the plan of a path for which no plan meets the budget.

        Raises:
            BudgetError: if ``on_infeasible`` is ``"error"``.
            RoundedUpError: sizes were rounded up, and the actual sizes may fit.
        """
        if counted is not None:
            return self._least_with_scratch(counted, shown, error)
        if self.sizes.rounded:
            raise RoundedUpError from None
        if shown.common is None or not shown.common.exact:
            error = error.replace(floor_bytes=None, floor_op=None, is_upper_bound=True)
        # the whole model is known now, but only for sizes that were rounded up
        is_first = self.graphs.rounds == 0 and self.sizes.growths == (not self.sizes.rounds)
        if self.options.on_infeasible is None and is_first:
            raise error from None
        return self._fall_back(joined, error, tell=self.graphs.unmet is None)

    def _put_in_force(
        self, made: Made, keys: list[str], common: Common | None, order: list[tuple[int, int]]
    ) -> None:
        """Puts one plan over graphs in force; arguments as in :func:`joining.join`."""
        graphs, scratch = self.graphs.by_key, self.graphs.scratch
        parts = [
            Part(graphs[key].problem, *part_of(made.schedule, order, g), scratch.get(key, ()))
            for g, key in enumerate(keys)
        ]
        self.in_force = ModelPlans(
            [made.plan],
            stats=self.in_force.allocator_stats,
            placed=self._place(made.plan) if len(keys) == 1 else None,
            parts=parts,
            paths=[PlannedPath(made.plan, Shown(keys, common), parts)],
        )
        if common is not None:
            self.steps.add_path(Shown(keys, common))
        self.steps.cover([Shown(keys, common)])
        self.graphs.next_round()

    # ---- several paths --------------------------------------------------------------------------

    def _plan_paths(self, near: list[Shown]) -> None:
        """Makes a plan for each of several paths that share graphs."""
        shared = self._shared_budget(self.graphs.scratch)
        told: set[int] = set()
        made = [self._path_alone(k, shown, told) for k, shown in enumerate(near)]
        choice = self._choose_for_paths(shared, near, made)
        planned = []
        for k, (shown, (plan, _)) in enumerate(zip(near, made, strict=True)):
            held, limit = shared.held(Counter(shown.keys), choice)
            if held > limit and k not in told:
                self._tell_of_other_paths(shared, shown, held, limit)
            counted, order = shared.counted(shown)
            steps = together.steps_of([choice[key] for key in shown.keys], order, counted)
            planned.append(
                PlannedPath(
                    paths.rewritten(plan, counted, steps), shown,
                    [self._part(key, choice[key]) for key in shown.keys],
                )
            )  # fmt: skip
        self.in_force = ModelPlans(
            [path.plan for path in planned],
            stats=self.in_force.allocator_stats,
            parts=[self._part(key, schedule) for key, schedule in choice.items()],
            paths=planned,
        )
        self.steps.cover(near)
        self.graphs.next_round()

    def _part(self, key: str, schedule: Schedule) -> Part:
        scratch = self.graphs.scratch.get(key, ())
        return Part(self.graphs.by_key[key].problem, *schedule, scratch)

    def _path_alone(self, number: int, shown: Shown, told: set[int]) -> Made:
        """Plans a path as if there were no other. If no plan meets the budget, warns and notes the
        path's number in ``told``."""
        own = self._shared_budget().own_of(*shown)
        try:
            return self._plan_of_path(shown, self.options.target, own)
        except BudgetError as error:
            told.add(number)
            joined, _ = join([self.graphs.by_key[k].problem for k in shown.keys], shown.common)
            return self._over(joined, self._counted(*shown), shown, error)

    def _plan_of_path(self, shown: Shown, target: Target, own: Problem | None = None) -> Made:
        joined, _ = join([self.graphs.by_key[key].problem for key in shown.keys], shown.common)
        return self._make(joined, target, own, self._counted(*shown))

    def _choose_for_paths(
        self, shared: SharedBudget, near: list[Shown], made: list[Made]
    ) -> paths.Choice:
        """Chooses one schedule for each graph so that all paths keep to the budget, if there are
        such schedules."""

        def choices(plans: list[Made]) -> list[paths.Choice]:
            return [
                {
                    key: part_of(plan.schedule, shared.counted(shown)[1], g)
                    for g, key in enumerate(shown.keys)
                }
                for shown, plan in zip(near, plans, strict=True)
            ]

        patterns = [Counter(shown.keys) for shown in near]
        asked = choices(made)
        best = shared.best(paths.mixed(asked), patterns)
        if shared.excess(best, patterns) <= 0:
            return best
        if self._infeasible(later=True) == "warn" and not self.options.target.is_position:
            keys = dict.fromkeys(key for shown in near for key in shown.keys)
            return {key: together.save_all(self.graphs.by_key[key].problem) for key in keys}
        more, measure = [], self.options.target.measure
        for target in (modest(measure), smallest(measure)):
            small = choices([self._plan_of_path(shown, target) for shown in near])
            more += [*paths.mixed(small), *paths.mixed([*small, *asked])]
        return shared.best([best, *more], patterns)

    def _tell_of_other_paths(
        self, shared: SharedBudget, shown: Shown, held: int, limit: int
    ) -> None:
        """Warns that a path exceeds the budget because it shares graphs with other paths."""
        pattern = Counter(shown.keys)
        if self.options.on_infeasible == "error":
            error = together.refusal(held, limit, len(shown.keys))
            raise error.replace(measure=self.options.target.measure, is_upper_bound=True)
        together.tell_of_path(len(shown.keys), held, shared.named(pattern, limit), final=True)

    def _place(self, plan: Plan) -> Placed | None:
        """Places the memory of a plan of one graph. Returns None if ``pool`` is off, nothing was
        measured, or the plan moves values."""
        if not self.options.pool or len(self.graphs.traces) != 1 or moves_anything(plan.core):
            return None
        (measured,) = self.graphs.traces.values()
        names = [plan.parts.ops[step.op].name for step in plan.core.steps]
        traces = {t: measured[name] for t, name in enumerate(names) if name in measured}
        kept = [
            x for x in plan.lives if x.bytes and (x.storage is not None or x.made not in traces)
        ]
        lives, taking = continued((Life(x.made, x.last, x.bytes), x.offset) for x in kept)
        return place(lives, traces | {t: [] for t in taking})

    def _counted(self, keys: list[str], common: Common | None) -> Problem | None:
        """Returns the joint problem with measured scratch, or None if there is no scratch to
        count."""
        scratch = self.graphs.scratch
        if not any(scratch.get(key) for key in keys):
            return None
        graphs = self.graphs.by_key
        return join([with_scratch(graphs[k].problem, scratch.get(k, ())) for k in keys], common)[0]

    def _least_with_scratch(self, counted: Problem, shown: Shown, error: BudgetError) -> Made:
        """Returns the smallest plan, for a step whose scratch exceeds the budget under every plan.
        If the plan in force takes little more, it stays: its tensors keep to the budget."""
        least, known = smallest(self.options.target.measure), error._smallest_plan
        try:
            made = Made(known, self._schedule(known)) if known else self._make(counted, least)
        except BudgetError:  # refused because of constraints, not bytes
            raise error from None
        then, now = self.in_force.plan_for(shown), self._in_force_with(counted, shown)
        stays = now is not None and self._bytes_of(now) <= (1 + MARGIN) * self._bytes_of(made)
        if now is not None and stays:
            made = now
        position = self.position if then is None else then.position
        made = made._replace(plan=Plan.of(made.plan.core, position=position))
        text = excess_of_all_text(self._bytes_of(made), error.budget_bytes, stays)
        told = self.ever.told_of_scratch and len(self.plans) > 1  # by a graph of another step
        if text is not None and not told:
            self.ever.told_of_scratch = True
            warnings.warn(text, stacklevel=2)
        return made

    def _in_force_with(self, counted: Problem, shown: Shown) -> Made | None:
        """Returns the plan in force for the problem with measured scratch, or None if it is for
        other graphs."""
        plan, problem = self.in_force.plan_for(shown), self.completed(counted)
        if plan is None or len(problem.ops) != len(plan.parts.ops):
            return None
        measure = self.options.target.measure
        checked = problem.check()
        document = {**plan.document, "fingerprint": checked.fingerprint}
        try:
            core = checked.read_plan(json.dumps(document))
        except ValueError:  # the plan in force follows the rules for several graphs
            return None
        core = core.asked(budgets.MEASURES.index(measure), bytes_of(core.numbers, measure))
        return Made(Plan.of(core), self._schedule(plan))

    def _do_plan_calls(self, occasion: Occasion) -> None:
        """Chooses one schedule for each graph that was pending with others, so that all meet the
        budget."""
        patterns, by_key = self.steps.together, self.graphs.by_key
        keys = list(dict.fromkeys(key for pattern in patterns for key in pattern))
        problems = {key: by_key[key].problem for key in keys}
        shared = self._shared_budget()
        chosen = dict(shared.choose(problems))
        excess, *figures = shared.over(chosen)
        if excess > 0:
            if self.sizes.rounded:
                raise RoundedUpError
            error = together.refusal(*figures).replace(
                measure=self.options.target.measure,
                is_upper_bound=not shared.smallest_exactly_known(),
            )
            if not self.options.target.is_position:
                self._say_infeasible(error, later=True)
            else:  # the calls before each backward met the budget, but all of them together do not
                warnings.warn(f"{error}. Using the plans that exceed it least", stacklevel=2)
            if self.options.on_infeasible == "warn" and not self.options.target.is_position:
                free = everything(self.options.target.measure)
                chosen = {key: self._make(d, free) for key, d in problems.items()}
        alone = [key for key in by_key if key not in problems]
        for key in alone:
            problem = by_key[key].problem
            try:
                chosen[key] = self._make(problem, self.options.target, shared.own_of([key]))
            except BudgetError as over:
                if self.sizes.rounded:
                    raise RoundedUpError from None
                chosen[key] = self._fall_back(problem, over)
        parts = [Part(by_key[key].problem, *made.schedule) for key, made in chosen.items()]
        self.in_force = ModelPlans(
            [made.plan for made in chosen.values()],
            stats=self.in_force.allocator_stats,
            parts=parts,
        )
        for pattern in patterns:
            held, limit = shared.held(pattern, {k: m.schedule for k, m in chosen.items()})
            self._note_shared(shared.shared(pattern, held, limit))
        self.steps.covered = [*patterns, *(Counter({key: 1}) for key in alone)]
        self.graphs.next_round()

    def _shared_budget(self, scratch: Mapping[str, Rows] = MappingProxyType({})) -> SharedBudget:
        return SharedBudget(
            self.options, self.at_hand.row, self._make, self.graphs.by_key, self.steps, scratch
        )

    # ---- a step has run -----------------------------------------------------------------------

    def _do_say_unmet(self, occasion: Occasion) -> None:
        unmet = self.graphs.unmet
        assert unmet is not None
        self._say_infeasible(unmet.error, later=unmet.later)
        if self._infeasible(unmet.later) != "warn":  # otherwise the next plan is made for it
            self.graphs.unmet = None

    def _do_count_scratch(self, occasion: Occasion) -> None:
        """Records measured scratch, which plans count when they are made again."""
        assert occasion.scratch is not None
        due, plans = occasion.scratch, self.in_force.alone()
        self.graphs.scratch, self.graphs.traces = {**self.graphs.scratch, **due}, occasion.traces
        self.graphs.scratch_rounds.update(due.keys())
        self.graphs.apart = {key: key in due for key in plans} if len(plans) > 1 else {}

    def _do_share(self, occasion: Occasion) -> None:
        assert occasion.calls is not None
        self.steps.share(occasion.calls)

    def _do_add_path(self, occasion: Occasion) -> None:
        assert occasion.path is not None
        self.steps.add_path(occasion.path)
        self.graphs.path_rounds += 1

    # ---- no plan meets the budget ---------------------------------------------------------------

    def _tell_of_rounds(self) -> None:
        """Warns once that no more plans are made (:func:`together.tell_of_rounds`)."""
        if self.ever.told_of_rounds:
            return
        self.ever.told_of_rounds = True
        together.tell_of_rounds(MOST_ROUNDS)

    @property
    def _has_run(self) -> bool:
        return self.ever.ran

    @property
    def _most_bytes(self) -> int:
        return self.ever.most_bytes  # larger sizes may hold just as much


_ACTIONS: dict[Action, Callable[[ModelActions, Occasion], Schedule | None]] = {
    Action.PLAN_ALONE: ModelActions._do_plan_alone,
    Action.LOOK_UP: ModelActions._do_look_up,
    Action.KEEP_PLAN: ModelActions._do_keep_plan,
    Action.PUT_OFF: ModelActions._do_put_off,
    Action.SETTLE: ModelActions._do_settle,
    Action.PLAN_AS_MIN: ModelActions._do_plan_as_min,
    Action.PLAN_LATE: ModelActions._do_plan_late,
    Action.SAY_UNMET: ModelActions._do_say_unmet,
    Action.SHARE: ModelActions._do_share,
    Action.ADD_PATH: ModelActions._do_add_path,
    Action.COUNT_SCRATCH: ModelActions._do_count_scratch,
    Action.PLAN_GRAPHS: ModelActions._do_plan_graphs,
    Action.PLAN_CALLS: ModelActions._do_plan_calls,
    Action.START_AGAIN: ModelActions._do_start_again,
    Action.START_FOR_SIZES: ModelActions._do_start_for_sizes,
    Action.FORGET_FRAMES: ModelActions._do_forget_frames,
}
