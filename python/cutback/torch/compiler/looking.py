"""Observes the runs of a model's graphs and decides when plans must be made again.

When the backward of a graph begins, the calls that are pending are complete. This module looks at
the calls that were pending together, at the path that a step has taken, and at what earlier calls
of a step have left. If these exceed the budget, it warns and has plans made again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ... import budgets
from . import losses, paths, together
from .actions import ModelActions, Occasion
from .crossing import Run
from .records import Shown, key_of
from .scratch import MARGIN
from .sharing import bytes_in, saved_by
from .states import BEHIND, DUE, WHOLE, Event, State
from .together import MOST_CALLS, Together

if TYPE_CHECKING:
    from ...problem import Problem
    from ..types import GraphInput


class ModelSteps(ModelActions):
    """Observes the steps of a model."""

    def _end_min(self) -> None:
        """Makes graphs follow the plans in force again, after :meth:`_follow_min`."""
        as_min, self.steps.as_min = self.steps.as_min, {}
        for kept in self.graphs.in_use() if as_min else ():
            key = key_of(kept.graph.problem)
            if key in as_min:
                kept.follow(self.graphs.by_key[key].schedule)

    def _forget_earlier_steps(self, key: str, args: Sequence[GraphInput]) -> None:
        """Forgets pending calls of steps that have ended. Warns once that they hold memory."""
        kept = self.steps.pending.forget_earlier_steps(key, args)
        if kept is not None:
            self.steps.left.ended.clear()
        if not kept:
            return
        self.steps.trail.take()
        if not self.ever.told_of_kept:
            self.ever.told_of_kept = True
            known = self.graphs.by_key
            held = sum(n * saved_by(known[k]) for k, n in kept.items() if k in known)
            together.tell_of_kept(sum(kept.values()), held)

    def _on_backward(self, run: Run) -> None:
        """Handles the begin of a backward, the first of a step or a later one; ``run`` is the run
        of its graph.

        Raises:
            BudgetError: the step runs one graph once, and the graph cannot meet its share.
        """
        if self.state is State.UNMET and self.steps.seen is None:
            saves = self.options.on_infeasible == "warn"
            self._fire(Event.STEP_SAVES if saves else Event.STEP_KEEPS)
        self._look_at_pending()
        pending, beside = self.steps.backward_of(run)
        grows = self.steps.left.has_grown()
        if grows or beside > self.steps.beside_of(pending):
            known = frozenset(pending.items()) in self.steps.by_pattern
            again = max(pending.values(), default=0) > 1
            if (again and known) or (run.pipeline is not None and not again):
                self._count_what_is_left(pending, beside)
        self._look_at_loss(run, pending)

    def _look_at_loss(self, run: Run, pending: Together) -> None:
        """Warns once if a loss outside of the model takes the step over the budget. Several calls,
        and pipelines, have separate warnings."""
        known = self.graphs.by_key.get(run.key)
        others = sum(pending.values()) != 1 or run.pipeline is not None
        if self.ever.told_of_loss or known is None or others or self.options.offload:
            return
        limit = self.limit_bytes(1)
        if limit is None:
            return
        gone = max(0, _results_of(known.problem) - sum(run.alive().values()))
        least, held = losses.least_bytes(losses.losses_of_backward(), gone), saved_by(known) - gone
        if least and held + least > limit * (1 + MARGIN) and held + least >= limit + losses.LEAST:
            self.ever.told_of_loss = True
            losses.tell(least, held, self.name_limit(limit))

    def _count_what_is_left(self, pending: Together, beside: int) -> None:
        """Counts, under a budget in bytes, the gradients and kept results that earlier calls of the
        step have left while other calls are pending, as in pipeline schedules, and what a
        pipeline's loss takes."""
        steps, target = self.steps, self.options.target
        if bytes_in(target.budget) is None or target.measure == "saved":
            return
        beside = max(beside, steps.beside_of(pending))
        steps.left.bytes[frozenset(pending.items())] = beside
        shared, is_due = self._shared_budget(), self.state is State.CALLS_DUE
        held, limit = shared.held_now(pending)
        if held <= limit or not self._rounds_left:
            steps.share(pending)
            return
        self._fire(Event.CALLS_OVER, Occasion(calls=pending))
        held, _ = shared.held_now(pending, steps.as_min)
        if held > limit and not is_due:
            together.tell_of_left(beside, steps.left.loss, held, shared.named(pending, limit))

    def _look_at_pending(self) -> None:
        """Looks at the calls that were pending together, which are complete when the first backward
        begins."""
        steps, by_key = self.steps, self.graphs.by_key
        seen, steps.seen = steps.seen, None
        is_relative = self.options.target.is_relative
        is_new = self.state in WHOLE and steps.is_new_path(by_key, is_relative)
        shown = steps.look(by_key, seen is not None or self.state in BEHIND or is_new)
        if seen is None:
            if shown is not None:
                self._look_at_path(shown)
            if self.state not in DUE:
                self._end_min()
            return
        if shown is not None and Counter(shown.keys) == seen:
            steps.note(shown)
        self.ever.told_of_step = self._step_number()  # a later message says more
        if any(key not in by_key for key in seen):
            return
        if max(seen.values()) > MOST_CALLS:
            self._tell_of_too_many(seen)
            return
        shared = self._shared_budget()
        held, limit = shared.held_now(seen)
        steps.covered.append(seen)  # warned once
        if held <= limit and self.state is not State.UNMET:
            steps.share(seen)  # another planning round must not undo this
            self._note_shared(shared.shared(seen, held, limit))
            self._end_min()
            return
        if steps.as_min:
            held, limit = shared.held_now(seen, steps.as_min)
        may_plan = self._rounds_left
        if may_plan:
            self._fire(Event.CALLS_OVER, Occasion(calls=seen))
        if held <= limit:
            return
        budget = shared.named(seen, limit)
        together.tell_of_pending(sum(seen.values()), held, budget, not may_plan)

    def _note_shared(self, shared: budgets.Shared) -> None:
        """Records in each plan what the calls that share the budget take together."""
        for plan in self.plans:
            if plan.shared is None or plan.shared.calls <= shared.calls:
                plan.shared = shared

    def _step_number(self) -> tuple[int, int]:
        return self.graphs.rounds, self.sizes.growths

    def _look_at_path(self, shown: Shown) -> None:
        """Warns if the graphs of a step, which no plan covers together, exceed the budget: once for
        each path, or once a round while plans are due."""
        steps, shared, step = self.steps, self._shared_budget(), Counter(shown.keys)
        is_due = self.state in DUE
        told = self.ever.told_of_step == self._step_number() if is_due else False
        is_relative = self.options.target.is_relative
        if told or (not is_due and steps.covers_path(step, is_relative)):
            return
        self.ever.told_of_step = self._step_number()
        steps.note(shown)
        held, limit = shared.held_now(step)
        may_plan = self._rounds_left
        if not is_due and self.state is not State.GIVEN_UP:
            few = len(paths.sharing(shown, steps.paths)) <= paths.MOST_PATHS
            may_plan = few and shared.is_path(step) and not steps.knows(shown)
        if shared.is_path(step):
            steps.add_path(shown)
        steps.covered.append(step)
        if held <= limit:
            return
        budget = shared.named(step, limit)
        if is_due or self.state is State.GIVEN_UP:
            together.tell_of_first_step(len(shown.keys), held, budget, not may_plan)
        else:
            if may_plan:
                self._fire(Event.PATH_OVER, Occasion(path=shown))
            together.tell_of_path(len(shown.keys), held, budget, not may_plan)

    def _tell_of_too_many(self, seen: Together) -> None:
        """Warns once if more calls are pending than can be planned together."""
        some = Counter({key: min(n, MOST_CALLS) for key, n in seen.items()})
        shared = self._shared_budget()
        held, limit = shared.held_now(some)
        budget = shared.named(some, limit)
        self.steps.covered.append(Counter(dict.fromkeys(seen, sys.maxsize)))
        together.tell_of_too_many(sum(seen.values()), sum(some.values()), held, budget)


def _results_of(problem: Problem) -> int:
    """Returns the bytes of the results of a graph's forward."""
    storages = {problem.values[v].storage for v in problem.forward_outputs}
    rows = [problem.storages[s] for s in storages]
    return sum(storage.bytes for storage in rows if "static" not in storage.flags)
