"""One budget over the several graphs of a model with graph breaks.

PyTorch compiles such a model piece by piece: the first graph is fixed and has run before the second
is seen. So the first step plans the first graph under the whole budget and the others as small as
they get, and notes their problems. The next call joins the problems, plans them as one, and
compiles anew with the parts of that plan (:mod:`compiler.joining`). By then the first step has
shown what goes from graph to graph (:mod:`compiler.crossing`). If no plan of the first graph meets
the budget, it is as small as it gets, too: all together may take less, as its results need not live
to the end. From then on the budget holds for the whole step. A graph that turns up later, for other
shapes, is planned as small as it gets and joins the next round.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._guards import CompileContext

from ... import BudgetError, budgets
from ...planner.plan import Plan
from ..graph import moving
from ..graph.importer import Imported
from ..graph.moving import Move, Schedule
from . import reference, together
from .crossing import AT_MOST, Ends, Run, Trail, common_of
from .growing import Sizes
from .joining import Common, join, part_of
from .partition import Partitioner
from .saved_plans import Part, SavedPlans, check_part, check_total, plan_of
from .together import MOST_CALLS, SMALLEST, Choice, Pending, Together

MOST_ROUNDS = 4
"""How often a model is compiled anew because other graphs than the planned ones turned up."""

INFEASIBLE = ("error", "min", "warn")


class _Graph(NamedTuple):
    """A graph that was compiled, and what its plan says of it."""

    document: dict[str, Any]
    schedule: Schedule
    frame: int | None
    ends: Ends
    own: dict[str, Any] | None
    """The problem that a share counts from, if it is another one."""


class ModelPartitioner(Partitioner):
    """The partitioner of one model: a budget in bytes or a share is one budget for all graphs."""

    def __init__(
        self,
        *args: Any,
        given: SavedPlans | None = None,
        on_infeasible: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if on_infeasible not in (None, *INFEASIBLE):
            raise ValueError(
                f"on_infeasible={on_infeasible!r} is not one of {', '.join(INFEASIBLE)}"
            )
        self.on_infeasible = on_infeasible
        self._given = given
        """Plans from a file: nothing is planned then."""
        self.has_plans = given is not None
        self._met: dict[int, dict[str, Any]] = {}  # graphs of the file that were compiled
        self._joint: Plan | None = None  # the plan that _parts are of
        self._shared = self.budget is not None and self.budget[0] in budgets.BOUNDS
        self.one_graph = self._shared if given is None else given.whole
        self._documents: dict[int | None, dict[str, Any]] = {}  # by frame, as they were compiled
        self._parts: list[Part] = []
        self._stale = False
        self._rounds = 0
        self._told_of_rounds = False
        self._told_of_step = (-1, 0)  # round and sizes of which it was said what they take
        self._waited = 0  # calls since graphs turned up that a step may not be through with
        self.is_last = False
        """Does the model end with the graph that is compiled?"""
        self._unmet: BudgetError | None = None
        """The first graph alone cannot meet the budget; with others, all together may."""
        self._unmet_later = False
        """Had a step been planned before?"""
        self._graphs: dict[str, _Graph] = {}  # by key, those of the round
        self.latest: str | None = None
        """Key of the training graph that was compiled last."""
        self._pending = Pending()
        self._trail = Trail()
        self._step: tuple[list[str], Common] | None = None
        """Graphs of the last step, by key in the order of their forwards, and what they share."""
        self._joint_common: Common | None = None
        self._commons: dict[frozenset[Any], tuple[list[str], Common]] = {}  # by pattern
        self._seen: Together | None = None  # pending together in this step, not looked at yet
        self._patterns: list[Together] = []  # what has to share the budget
        self._covered: list[Together] = []  # what does
        self._ran = False
        self._sizes = Sizes()
        self._wholes: dict[Any, int] = {}  # pattern -> what its share counts from
        self._most = 0  # the largest budget in bytes that was planned for

    @property
    def waits(self) -> bool:
        """Is the model to be compiled anew before it is called again?"""
        return self._sizes.outgrown or (self._stale and self._rounds < MOST_ROUNDS)

    def needs_another_round(self) -> bool:
        """Has the last step shown graphs that one plan should hold? If so, makes that plan; the
        model is then to be compiled anew.

        Raises:
            BudgetError: no plan of all graphs meets the budget.
        """
        if self._pending:
            if self._seen is not None or (self._stale and (self._patterns or self._may_wait())):
                return False  # a step is under way
        else:
            self._look_at_pending()
        if not self._stale or self._rounds >= MOST_ROUNDS:
            return False
        if self._patterns:
            self._plan_together()
            return True
        keys, common = self._graphs_of_round()
        documents = [self._graphs[key].document for key in keys]
        joined, order = join(documents, common)
        own = self._own_of(keys, common)
        before, self.plans = self.plans, []
        try:
            schedule = self._plan(joined, own)
        except BudgetError as error:
            if common is None or not common.exact:
                error = BudgetError(budgets.without_floor(str(error), AT_MOST))
            if (
                self.on_infeasible is None and self._rounds == self._sizes.growths == 0
            ):  # seen whole now
                self.plans = before
                raise error from None
            schedule = self._go_on(joined, error)
        except BaseException:
            self.plans = before
            raise
        self._parts = [
            Part(document, *part_of(schedule, order, g)) for g, document in enumerate(documents)
        ]
        self._joint, self._joint_common, self.shared_by_calls = self.plans[-1], common, False
        self._covered = [Counter(keys)]
        self._next_round()
        return True

    def _may_wait(self) -> bool:
        """May the step show more calls? Results of old ones may be held for ever."""
        self._waited += 1
        return self._waited <= MOST_CALLS

    def _graphs_of_round(self) -> tuple[list[str], Common | None]:
        """Keys of the graphs that one plan is to hold, in the order of their forwards, and what
        they have in common, if a step has shown it."""
        keys = [self._key_of(document) for document in self._documents.values()]
        if self._step is not None and sorted(self._step[0]) == sorted(keys):
            return self._step
        return keys, None

    def _next_round(self) -> None:
        self._documents = {}
        self._stale = False
        self._waited = 0
        self._rounds += 1
        self.compiler_notes, self.kernels = [], None

    # ---- calls that are pending together --------------------------------------------------------

    @staticmethod
    def _key_of(document: dict[str, Any]) -> str:
        return hashlib.blake2b(json.dumps(document, sort_keys=True).encode()).hexdigest()

    def _note_graph(self, graph: Imported, schedule: Schedule) -> None:
        key = self.latest = self._key_of(graph.document)
        self._graphs[key] = _Graph(
            graph.document, schedule, self.frame(), Ends.of(graph), self._own(graph)
        )

    def _own_of(self, keys: list[str], common: Common | None = None) -> dict[str, Any] | None:
        """The joint problem that a share counts from. None: that of the graphs as they are."""
        if self.policy is None:
            return None
        owns = [self._graphs[key].own or self._graphs[key].document for key in keys]
        return join(owns, common)[0]

    def _began(self, key: str | None, args: Sequence[Any], result: Any) -> None:
        """A graph has run; ``key``: of a training graph."""
        self._ran |= key is not None
        if key is None or not self._shared or key not in self._graphs:
            return
        node = together.compiled_node(result)
        if node is None:
            return
        self._trail.add(Run(key, node, args, result), args)
        now = self._pending.began(key, node, self._on_backward)
        if now is None or together.covers(self._covered, now):
            return
        frames = Counter(self._graphs[k].frame for k in now.elements() if k in self._graphs)
        if max(frames.values(), default=0) > 1:  # several graphs of one call have their own round
            self._seen = now

    def _on_backward(self) -> None:
        """The first backward of a step begins, or another one.

        Raises:
            BudgetError: there is one graph, for which no plan meets the budget.
        """
        self._look_at_pending()
        self._tell_unmet()

    def _tell_unmet(self) -> None:
        """Raises: BudgetError: the step is one graph, for which no plan meets the budget."""
        if self._unmet is None or len(self._documents) != 1:
            return
        self._say_infeasible(str(self._unmet), later=self._unmet_later)
        self._unmet = None  # said once

    def _look_at_pending(self) -> None:
        """What was pending together is complete when the first backward begins."""
        seen, self._seen = self._seen, None
        shown = self._look_at_step(seen)
        if seen is None:
            if shown:
                self._tell_of_first_step(*shown)
            return
        self._told_of_step = self._rounds, self._sizes.growths  # what follows says more
        if any(key not in self._graphs for key in seen):
            return
        if max(seen.values()) > MOST_CALLS:
            self._tell_of_too_many(seen)
            return
        held, limit = self._together(seen, {k: self._graphs[k].schedule for k in seen})
        self._covered.append(seen)  # said once
        if held <= limit:
            self._share(seen)  # where there is another round, that must not undo it
            return
        final = self._rounds >= MOST_ROUNDS
        if not final:
            self._share(seen)
            self._stale = True
        together.tell_of_pending(sum(seen.values()), held, limit, final)

    def _tell_of_first_step(self, keys: list[str], common: Common) -> None:
        """Are graphs that were planned one after another too large together? Said once a round."""
        now = self._rounds, self._sizes.growths
        if self._told_of_step == now:
            return
        self._told_of_step = now
        self._commons[frozenset(Counter(keys).items())] = keys, common
        held, limit = self._together(Counter(keys), {k: self._graphs[k].schedule for k in keys})
        if held > limit:
            together.tell_of_first_step(len(keys), held, limit, self._rounds >= MOST_ROUNDS)

    def _look_at_step(self, seen: Together | None) -> tuple[list[str], Common] | None:
        """Notes what the graphs of a step have in common, where a plan over them is to come."""
        runs = self._trail.take()
        unknown = any(run.key not in self._graphs for run in runs)
        if len(runs) < 2 or unknown or not (self._stale or seen):
            return None
        graphs = [self._graphs[run.key] for run in runs]
        common = common_of(runs, [g.document for g in graphs], [g.ends for g in graphs])
        keys = [run.key for run in runs]
        self._step = keys, common
        if seen is not None and Counter(keys) == seen:
            self._commons[frozenset(seen.items())] = keys, common
        return self._step

    def _tell_of_too_many(self, seen: Together) -> None:
        """More calls than are planned together: said once, of any number."""
        some = Counter({key: min(n, MOST_CALLS) for key, n in seen.items()})
        held, limit = self._together(some, {k: self._graphs[k].schedule for k in some})
        self._covered.append(Counter(dict.fromkeys(seen, sys.maxsize)))
        together.tell_of_too_many(sum(seen.values()), sum(some.values()), held, limit)

    def _share(self, seen: Together) -> None:
        self._patterns = [p for p in self._patterns if not together.covers([seen], p)]
        self._patterns.append(seen)

    def held_bytes(self, document: dict[str, Any]) -> int:
        """What a graph holds that runs as it is."""
        return together.bytes_of(
            document, [(0, i) for i in range(len(document["ops"]))], [together.save_all(document)],
            "live",
        )  # fmt: skip

    def limit_bytes(self, runs: int) -> int | None:
        """What plans of live bytes keep to: the budget of a plan for the whole model; for
        ``"min"``, which plans each graph by itself, no more than all of them take.

        Args:
            runs: of one graph in a call, at most.
        """
        told = self._sizes.told
        if self.budget is None or self.measure != "live" or not self.plans or told:
            return None
        if not self._shared:
            return runs * sum(int(plan.numbers["live_bytes"]) for plan in self.plans)
        limit: int | None = self.plans[0].numbers["budget_bytes"]
        return limit if len(self.plans) == 1 else None

    @property
    def limit_name(self) -> str:
        """What :meth:`limit_bytes` is."""
        return "budget" if self._shared else "smallest plans"

    def bytes_of_budget(self) -> int | None:
        """The budget, if it is one in bytes."""
        return self.budget[1] if self.budget is not None and self.budget[0] == 1 else None

    def _together(self, pattern: Together, schedules: dict[str, Schedule]) -> tuple[int, int]:
        """Bytes that graphs hold together, and those that they may."""
        pattern_key = frozenset(pattern.items())
        keys, common = self._commons.get(pattern_key, (list(pattern.elements()), None))
        joined, order = join([self._graphs[key].document for key in keys], common)
        if self.offload or moving.wants_moves(joined):
            joined = moving.with_link(joined, self.row)
        static = 0 if self.total is None else self.total.static_bytes
        assert self.budget is not None
        held = together.bytes_of(joined, order, [schedules[k] for k in keys], self.measure)
        kind, limit, share = self.budget[:3]
        if kind not in budgets.BOUNDS or budgets.is_share(self.budget):
            if pattern_key not in self._wholes:
                self._wholes[pattern_key] = self._whole(keys, common, joined, order)
            limit = int(share * (self._wholes[pattern_key] + static))
        return held + static, limit

    def _whole(
        self, keys: list[str], common: Common | None, joined: dict[str, Any], order: Any
    ) -> int:
        """What a share of calls that are pending together counts from: what they take without a
        budget."""
        own = self._own_of(keys, common)
        measure = "saved" if self.measure == "saved" else "live"
        whole = reference.bytes_of(json.dumps(own or joined), self.row, measure)
        if own is not None or self.total is not None or self.fastest:
            return whole
        documents = {key: self._graphs[key].document for key in keys}
        plans = together.without_budget(self._make, documents)
        schedules = [plans[key][1] for key in keys]
        return max(whole, together.bytes_of(joined, order, schedules, self.measure))

    def _over(self, choice: Choice) -> tuple[int, int, int, int]:
        """How far plans are over the budget; what they hold and may hold, in how many calls."""
        schedules = {key: schedule for key, (_, schedule) in choice.items()}
        rows = [(*self._together(p, schedules), sum(p.values())) for p in self._patterns]
        return max((held - limit, held, limit, n) for held, limit, n in rows)

    def _time_of(self, choice: Choice) -> int:
        """Of the calls that are pending together."""
        runs = sum(self._patterns, Counter())
        return sum(runs[key] * int(plan.numbers["time_ps"]) for key, (plan, _) in choice.items())

    def _plan_together(self) -> None:
        """One schedule for each graph that was pending with others, so that all meet the budget."""
        keys = list(dict.fromkeys(key for pattern in self._patterns for key in pattern))
        documents = {key: self._graphs[key].document for key in keys}
        alone = {k: g.document for k, g in self._graphs.items() if k not in documents}
        before, self.plans = self.plans, []
        try:
            chosen = together.choose(
                self._make, documents, self.measure,
                lambda choice: self._over(choice)[0], self._time_of,
            )  # fmt: skip
            excess, *figures = self._over(chosen)
            if excess > 0:
                commons = [self._commons.get(frozenset(p.items())) for p in self._patterns]
                exact = all(known is not None and known[1].exact for known in commons)
                why = "" if exact else f"; {AT_MOST}"
                self._say_infeasible(together.what_is_over(*figures) + why, later=True)
                if self.on_infeasible == "warn":
                    chosen = {k: self._save_all(d) for k, d in documents.items()}
            parts = []
            for key, (plan, schedule) in chosen.items():
                self._note(plan)
                parts.append(Part(documents[key], *schedule))
            for document in alone.values():
                own = self._own_of([self._key_of(document)])
                parts.append(Part(document, *self._plan(document, own)))
        except BaseException:
            self.plans = before
            raise
        self._parts, self._joint, self.shared_by_calls = parts, None, True
        self._covered = [*self._patterns, *(Counter({key: 1}) for key in alone)]
        self._next_round()

    def _go_on(self, document: dict[str, Any], error: BudgetError) -> Schedule:
        """The schedule of a problem for which no plan meets the budget.

        Raises:
            BudgetError: it is to be one.
        """
        wish = self.on_infeasible or ("min" if self._ran else "error")
        if wish == "error":
            raise error
        whole, fastest = self.budget, self.fastest
        self.budget, self.fastest = None, True
        if wish == "min":
            self.budget = budgets.parse("min", self.measure, SMALLEST)
        try:
            schedule = self._plan(document)
        finally:
            self.budget, self.fastest = whole, fastest
        name = f"{self.measure}_bytes"
        if self.plans[-1].numbers[name] > self._most:  # else larger sizes may hold as much
            self._say_infeasible(f"{error}", later=self._ran)
        return schedule

    def _say_infeasible(self, text: str, later: bool) -> None:
        """Raises: BudgetError: where it is to be one."""
        wish = self.on_infeasible or ("min" if later else "error")
        if wish == "error":
            raise BudgetError(text)
        what = "the smallest plan is" if wish == "min" else "all is saved, and no budget is"
        warnings.warn(f"{text}. As on_infeasible={wish!r} has it, {what} in force", stacklevel=2)

    def counted(
        self,
        run: Callable[..., Any],
        frame: int | None,
        sizes: list[tuple[int, int]],
        key: str | None = None,
    ) -> Callable[..., Any]:
        """The same function, whose runs in one call of the model are counted.

        Args:
            key: of a training graph.
            sizes: of a planned graph for sizes that change, which arguments are sizes, and those
                that it was planned for. Smaller ones take less; larger ones are planned anew.
        """

        @functools.wraps(run)
        def call(*args: Any) -> Any:
            counts = together.calls.counts
            for i, planned in sizes:
                if args[i] > planned:
                    self._sizes.outgrow(args[i], planned, bool(counts) and not counts[-1])
            if counts:
                counts[-1][frame] += 1
            result = run(*args)
            self._began(key, args, result)
            return result

        return call

    def begins_anew(self) -> bool:
        """Have sizes grown beyond the plans in force? If so, forgets those; the model is then to be
        compiled anew."""
        if not self._sizes.begin_anew():
            return False
        self._stale = self.shared_by_calls = False
        self._rounds = 0
        self._documents, self._parts, self._joint = {}, [], None
        self._graphs, self._patterns, self._covered, self._seen = {}, [], [], None
        self._step, self._commons = None, {}
        self.plans, self.compiler_notes, self.kernels = [], [], None
        return True

    def larger(self, inputs: Sequence[Any]) -> dict[Any, int]:
        """See :meth:`growing.Sizes.larger`; of the graph that is being compiled."""
        return self._sizes.larger(self.frame(), inputs) if self.bounds_sizes else {}

    @property
    def bounds_sizes(self) -> bool:
        """Does a plan for some sizes hold for no larger ones?"""
        return self._shared and self._given is None

    @contextlib.contextmanager
    def one_call(self) -> Iterator[Counter[int | None]]:
        """A call of the model; counts by frame what of ours it runs.

        Raises:
            BudgetError: the model is one graph, for which no plan meets the budget.
        """
        runs: Counter[int | None] = Counter()
        together.calls.counts.append(runs)
        try:
            yield runs
        finally:
            together.calls.counts.pop()
        if torch.is_grad_enabled():
            self._tell_unmet()

    def saved(self) -> SavedPlans:
        """The plans in force, to be written to a file; what was read from one stays as it is."""
        if self._given is not None:
            return self._given
        if self._joint is None:
            saved = super().saved()
        else:
            saved = SavedPlans()
            saved.add(self._joint, self._parts, self.total, self._joint_common)
        saved.whole = self.one_graph
        return saved

    def _look_up(self, given: SavedPlans, document: dict[str, Any]) -> Schedule:
        """A graph's part of the plans of a file."""
        k = given.find(document)
        self._met[k] = document
        schedule = given.graphs[k].schedule()
        if any(isinstance(step, Move) for step in schedule.steps):
            self._check_moves()
        check_part(document, schedule)
        for saved in given.plans:
            check_total(given, saved.total, self.total)
            if k in saved.graphs and all(g in self._met for g in saved.graphs):
                documents = [self._met[g] for g in saved.graphs]
                common = None if saved.common is None else Common.of(saved.common)
                whole = documents[0] if len(documents) == 1 else join(documents, common)[0]
                self._note(plan_of(whole, saved))
        return schedule

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "_documents": {},
            "_parts": [],
            "_graphs": {},
            "_pending": None,
            "_trail": None,
            "_step": None,
            "_joint_common": None,
            "_commons": {},
            "_seen": None,
            "_met": {},
            "_unmet": None,
        }

    def frame(self) -> int | None:
        """PyTorch's number of the code that is being compiled."""
        now = CompileContext.current_compile_id()
        return None if now is None else now.frame_id

    def _has_limit(self) -> bool:
        # a plan of several graphs is not made anew for one of them
        return super()._has_limit() and len(self._documents) == 1 and not self._parts

    def _choose(self, graph: Imported) -> Schedule:
        if self._given is not None:
            return self._look_up(self._given, graph.document)
        if not self._shared:
            return super()._choose(graph)
        schedule = self._choose_shared(graph)
        self._note_graph(graph, schedule)
        return schedule

    def _tell_of_rounds(self) -> None:
        """A graph turned up that no plan of several graphs knows, and there will be no more."""
        if self._rounds < MOST_ROUNDS or self._told_of_rounds:
            return
        self._told_of_rounds = True
        warnings.warn(
            f"plans of several graphs were made anew {MOST_ROUNDS} times, as other graphs than the "
            "planned ones turned up, and again there is one: from now on each new one is planned "
            "as small as it gets, by itself, and the budget of the whole step may not hold. Begin "
            "with the step that has most graphs, or take the graph breaks out "
            "(fullgraph=True names the first)",
            stacklevel=2,
        )

    def _choose_shared(self, graph: Imported) -> Schedule:
        self._documents[self.frame()] = graph.document
        for part in self._parts:
            if part.document == graph.document:
                return Schedule(part.steps, part.backward_starts)
        if len(self._documents) == 1 and not self._parts:
            self._unmet = None
            try:
                schedule = super()._choose(graph)
                self._most = max(self._most, self.plans[-1].numbers["budget_bytes"] or 0)
                return schedule
            except BudgetError as error:
                if self.is_last:
                    return self._go_on(graph.document, error)
                self._unmet, self._unmet_later = error.with_traceback(None), self._ran
        else:
            self._stale = True
            self._unmet = None
            self._tell_of_rounds()
        whole, self.budget = self.budget, budgets.parse("min", self.measure, SMALLEST)
        try:
            schedule = super()._choose(graph)
        finally:
            self.budget = whole
        if self.plans[-1].numbers[f"{self.measure}_bytes"] <= self._most:
            self._unmet = None  # larger sizes may hold as much
        return schedule
