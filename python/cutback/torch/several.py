"""One budget over the several graphs of a model with graph breaks.

PyTorch compiles such a model piece by piece: the first graph is fixed and has run before the second
is seen. So the first step plans the first graph under the whole budget and the others as small as
they get, and notes their problems. The next call joins the problems, plans them as one, and
compiles anew with the parts of that plan. (A share of the first graph that no plan meets is the
smallest plan as well: it may be met by all together.) From then on the budget holds for the whole
step. A graph that turns up later, for other shapes, is planned as small as it gets and joins the
next round.

The joined problem runs the forwards in order and the backwards in reverse. What one graph hands to
the next is counted where it is made, outputs to the end; the gradient that comes back is counted
on both sides, so that the plan errs on the safe side.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._guards import CompileContext

from .. import BudgetError, budgets
from ..planning import Plan
from .graphs import UnsupportedGraphError
from .importer import Imported
from .moving import Move, Schedule
from .partition import Partitioner
from .saved_plans import Part, SavedPlans, check_part, plan_of

MOST_ROUNDS = 4
"""How often a model is compiled anew because other graphs than the planned ones turned up."""

MOST_GROWTHS = 16
"""How often a model is compiled anew because sizes are larger than those it was planned for."""

_SMALLEST = 100.0  # the share of time that the smallest plan may cost


class _Calls(threading.local):
    """Calls of models that this thread is in, innermost last: how often each graph ran."""

    def __init__(self) -> None:
        self.counts: list[Counter[int | None]] = []


_calls = _Calls()


class LargerError(Exception):
    """A call, of which nothing has run yet, has larger sizes than its plan was made for."""


def join(documents: list[dict[str, Any]]) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """The problem of several graphs that run one after another; by its op ids, (graph, op)."""
    pieces = [(g, 0, d["backward_starts"]) for g, d in enumerate(documents)]
    pieces += [(g, d["backward_starts"], len(d["ops"])) for g, d in enumerate(documents)][::-1]
    first_value = []  # of each op of each graph
    for d in documents:
        at, rows = 0, []
        for op in d["ops"]:
            rows.append(at)
            at += len(op["out"])
        first_value.append(rows)
    first_storage = [0]
    for d in documents:
        first_storage.append(first_storage[-1] + len(d["storages"]))
    order: list[tuple[int, int]] = []
    value: list[dict[int, int]] = [{} for _ in documents]
    n_values = 0
    for g, begin, end in pieces:
        for i in range(begin, end):
            order.append((g, i))
            for k in range(len(documents[g]["ops"][i]["out"])):
                value[g][first_value[g][i] + k] = n_values
                n_values += 1
    ops = []
    for g, i in order:
        op = documents[g]["ops"][i]
        outs = [{**out, "storage": out["storage"] + first_storage[g]} for out in op["out"]]
        ins = [value[g][v] for v in op["in"]]
        ops.append({**op, "name": f"{op['name']}@{g}", "in": ins, "out": outs})
    joined = {
        **documents[0],
        "backward_starts": sum(d["backward_starts"] for d in documents),
        "static_bytes": sum(d["static_bytes"] for d in documents),
        "storages": [s for d in documents for s in d["storages"]],
        "ops": ops,
    }
    for key in ("forward_outputs", "backward_outputs"):
        joined[key] = [value[g][v] for g, d in enumerate(documents) for v in d[key]]
    return joined, order


def part_of(schedule: Schedule, order: list[tuple[int, int]], graph: int) -> Schedule:
    """What a joint schedule says of one graph. A move that stands between the graph's forward and
    its backward, while others run, is drawn to the side that holds less memory."""
    steps, start = schedule
    mine = [
        (t, step)
        for t, step in enumerate(steps)
        if order[step if isinstance(step, int) else step.op][0] == graph
    ]
    runs = [t for t, step in mine if isinstance(step, int)]
    begins = min((t for t in runs if t >= start), default=len(steps))
    ends = max((t for t in runs if t < start), default=-1)
    early: list[int | Move] = []
    late: list[int | Move] = []
    for t, step in mine:
        if isinstance(step, int):
            (early if t < start else late).append(order[step][1])
        else:
            first = t <= ends if step.action == "in" else t < begins
            (early if first else late).append(step._replace(op=order[step.op][1]))
    return Schedule(early + late, len(early))


class ModelPartitioner(Partitioner):
    """The partitioner of one model: a budget in bytes or a share is one budget for all graphs."""

    def __init__(self, *args: Any, given: SavedPlans | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._given = given
        """Plans from a file: nothing is planned then."""
        self._met: dict[int, dict[str, Any]] = {}  # graphs of the file that were compiled
        self._joint: Plan | None = None  # the plan that _parts are of
        self._shared = self.budget is not None and self.budget[0] in budgets.BOUNDS
        self.one_graph = self._shared if given is None else given.whole
        self._documents: dict[int | None, dict[str, Any]] = {}  # by frame, as they were compiled
        self._parts: list[Part] = []
        self._stale = False
        self._rounds = 0
        self._outgrown = False
        self._growths = 0
        self.is_last = False
        """Does the model end with the graph that is compiled?"""
        self._unmet: BudgetError | None = None
        """The first graph alone cannot meet a share; with others, all together may."""

    def needs_another_round(self) -> bool:
        """Has the last step shown graphs that one plan should hold? If so, makes that plan; the
        model is then to be compiled anew.

        Raises:
            BudgetError: no plan of all graphs meets the budget.
        """
        if not self._stale or self._rounds >= MOST_ROUNDS:
            return False
        documents = list(self._documents.values())
        joined, order = join(documents)
        before, self.plans = self.plans, []
        try:
            schedule = self._plan(joined)
        except BaseException:
            self.plans = before
            raise
        self._parts = [
            Part(document, *part_of(schedule, order, g)) for g, document in enumerate(documents)
        ]
        self._joint = self.plans[-1]
        self._documents = {}
        self._stale = False
        self._rounds += 1
        self.compiler_notes = []
        return True

    def counted(
        self, run: Callable[..., Any], frame: int | None, sizes: list[tuple[int, int]]
    ) -> Callable[..., Any]:
        """The same function, whose runs in one call of the model are counted.

        Args:
            sizes: of a planned graph for sizes that change, which arguments are sizes, and those
                that it was planned for. Smaller ones take less; larger ones are planned anew.
        """

        @functools.wraps(run)
        def call(*args: Any) -> Any:
            for i, planned in sizes:
                if args[i] > planned:
                    self._outgrow(args[i], planned)
            if _calls.counts:
                _calls.counts[-1][frame] += 1
            return run(*args)

        return call

    def _outgrow(self, size: int, planned: int) -> None:
        if self._growths < MOST_GROWTHS:
            self._outgrown = True  # the next call, if this one is under way
            if _calls.counts and not _calls.counts[-1]:
                raise LargerError
        elif self._growths == MOST_GROWTHS:
            self._growths += 1
            warnings.warn(
                f"a size of {size} was planned as {planned}, and plans were made anew for larger "
                f"sizes {MOST_GROWTHS} times: the budget may not hold. Begin with the largest "
                "sizes, or pass dynamic=False",
                stacklevel=2,
            )

    def begins_anew(self) -> bool:
        """Have sizes grown beyond the plans in force? If so, forgets those; the model is then to be
        compiled anew."""
        if not self._outgrown:
            return False
        self._outgrown = self._stale = False
        self._growths += 1
        self._rounds = 0
        self._documents, self._parts, self._joint = {}, [], None
        self.plans, self.compiler_notes = [], []
        return True

    @property
    def bounds_sizes(self) -> bool:
        """Does a plan for some sizes hold for no larger ones?"""
        return self._shared and self._given is None

    @contextlib.contextmanager
    def one_call(self) -> Iterator[None]:
        """A call of the model. A graph that runs several times in it, such as a layer with a break
        inside, holds its memory several times.

        Raises:
            UnsupportedGraphError: there is one.
            BudgetError: the model is one graph, for which no plan meets the budget.
        """
        runs: Counter[int | None] = Counter()
        _calls.counts.append(runs)
        try:
            yield
        finally:
            _calls.counts.pop()
        most = max(runs.values(), default=0)
        if self._shared and most > 1:
            raise UnsupportedGraphError(
                f"one graph of the model runs {most} times in a step (a graph break inside a part "
                "that is used several times), and a budget over such a step is not supported in "
                "this version: remove the break (fullgraph=True says where it is), or use "
                "budget=None or 'min'"
            )
        if self._unmet is not None and len(self._documents) == 1 and torch.is_grad_enabled():
            raise self._unmet.with_traceback(None) from None

    def saved(self) -> SavedPlans:
        """The plans in force, to be written to a file; what was read from one stays as it is."""
        if self._given is not None:
            return self._given
        if self._joint is None:
            saved = super().saved()
        else:
            saved = SavedPlans()
            saved.add(self._joint, self._parts, self.total)
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
            self._check_total(given, saved.total)
            if k in saved.graphs and all(g in self._met for g in saved.graphs):
                documents = [self._met[g] for g in saved.graphs]
                whole = documents[0] if len(documents) == 1 else join(documents)[0]
                self._note(plan_of(whole, saved))
        return schedule

    def _check_total(self, given: SavedPlans, then: list[int] | None) -> None:
        """Raises: ValueError: the plans of a file count another model or optimizer."""
        if self.total is None or then is None or list(self.total) == then:
            return
        raise ValueError(
            f"{given.source}: its plans count a model of {then[0]:,} bytes, optimizer states of "
            f"{then[1]:,} and a step of {then[2]:,}; these have {self.total.model_bytes:,}, "
            f"{self.total.state_bytes:,} and {self.total.step_bytes:,}: plan anew for them"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "_documents": {},
            "_parts": [],
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
        self._documents[self.frame()] = graph.document
        for part in self._parts:
            if part.document == graph.document:
                return Schedule(part.steps, part.backward_starts)
        if len(self._documents) == 1 and not self._parts:
            self._unmet = None
            try:
                return super()._choose(graph)
            except BudgetError as error:
                if self.is_last or not budgets.is_share(self.budget):
                    raise  # all together hold more bytes
                self._unmet = error.with_traceback(None)
        else:
            self._stale = True
            self._unmet = None
        whole, self.budget = self.budget, budgets.parse("min", self.measure, _SMALLEST)
        try:
            return super()._choose(graph)
        finally:
            self.budget = whole
