"""Plans calls that are pending together (their backward has yet to run) under one budget.

A model that is called twice before ``backward()`` (contrastive losses, discriminators, layers with
a graph break inside) holds what each call saved. No graph shows that, so runs are counted. A run is
pending from its forward until its node of autograd's graph begins to run or is freed. Calls that
were pending together in one step are planned together for the next steps. Writing parameters ends a
step; earlier runs no longer count after that, because only their results are kept.

All runs of a graph share its code, so they have one schedule. It is found by bisection over budgets
of the single graphs. The criterion is the evaluator's figure for all runs together, with the
forwards in order and the backwards in reverse.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_iter

from ... import BudgetError, budgets, schedule
from ...problem import Problem
from ...schedule import bytes_of as measured
from ...schedule import save_all_bytes
from ..graph.leaves import KIND
from ..graph.moving import Move, Schedule
from .joining import OWN, lenient
from .options import Made, Target, modest, smallest

if TYPE_CHECKING:
    from torch.autograd.graph import Node
    from torch.fx.node import Argument

MOST_CALLS = 16
"""Maximum number of runs of one graph that are planned together."""

_ROUNDS = 5  # steps of the bisection
_NEAR = 4  # maximum number of nodes between a result and the compiled node that it comes from

Together = Counter[str]
"""The number of pending runs of each graph, by its key."""


class _Calls(threading.local):
    """The calls of models that this thread is in, innermost last, with the number of runs of each
    graph."""

    def __init__(self) -> None:
        self.counts: list[Counter[int | None]] = []


calls = _Calls()


def compiled_node(result: Argument) -> Node | None:
    """Returns the node of autograd's graph that a compiled function left."""
    for tensor in tree_iter(result):
        node = tensor.grad_fn if isinstance(tensor, torch.Tensor) else None
        for _ in range(_NEAR):
            if node is None:
                break
            if type(node).__name__ == "CompiledFunctionBackward":
                return node
            node = node.next_functions[0][0] if node.next_functions else None
    return None


class Pending:
    """Runs of planned graphs whose backward has yet to begin."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count()
        self._runs: dict[int, str] = {}
        self._seen: dict[str, tuple[weakref.ref[torch.Tensor], int]] = {}  # a parameter's version
        self.counts: Together = Counter()

    def __reduce__(self) -> tuple[type[Pending], tuple[()]]:
        return Pending, ()  # a copy of the partitioner has no runs

    def __bool__(self) -> bool:
        return bool(self._runs)

    def began(self, key: str, node: Node, on_backward: Callable[[], None]) -> Together | None:
        """Records that a graph has run. Returns what is pending now, if that is more than this run.

        Args:
            node: its node in autograd's graph.
            on_backward: called before its backward."""
        number = next(self._numbers)
        with self._lock:
            self._runs[number] = key
            self.counts[key] += 1
            now = Counter(self.counts) if len(self._runs) > 1 else None

        def begins(gradients: Sequence[torch.Tensor | None]) -> None:
            try:
                on_backward()
            finally:
                self._ended(number)

        # A hook at the end would make PyTorch hold the incoming gradients until then.
        node.register_prehook(begins)
        weakref.finalize(node, self._ended, number).atexit = False
        return now

    def forget_earlier_steps(self, key: str, args: Sequence[object]) -> Together | None:
        """Forgets pending runs if a parameter of a graph that is about to run was written since its
        last run. Returns those runs, or None if no parameter was written."""
        tensors = (t for t in args if isinstance(t, torch.Tensor))
        leaf = next((t for t in tensors if t.is_leaf and t.requires_grad), None)
        if leaf is None:
            return None
        version = leaf._version
        with self._lock:
            ref, before = self._seen.get(key, (None, version))
            self._seen[key] = weakref.ref(leaf), version
            if before == version or ref is None or ref() is not leaf:
                return None
            for other, (known, _) in self._seen.items():
                parameter: torch.Tensor | None = known()
                if parameter is not None:
                    self._seen[other] = known, parameter._version
            earlier, self.counts, self._runs = self.counts, Counter(), {}
        return earlier

    def _ended(self, number: int) -> None:
        with self._lock:
            key = self._runs.pop(number, None)
            if key is not None:
                self.counts[key] -= 1
                if not self.counts[key]:
                    del self.counts[key]


def covers(known: list[Together], wanted: Together) -> bool:
    """True if a known pattern has at least as many runs of each graph."""
    return any(all(have[key] >= n for key, n in wanted.items()) for have in known)


def steps_of(
    schedules: list[Schedule], order: list[tuple[int, int]], joined: Problem
) -> schedule.Schedule:
    """Joins the schedules of graphs, and returns the start of the backward. Additional ops of the
    joined problem keep their place: between forwards and backwards, or before the copies at the end
    of a backward."""
    place = {pair: i for i, pair in enumerate(order)}
    steps: list[schedule.Step | int] = []

    def add(g: int, part: Sequence[Move | int]) -> None:
        for step in part:
            if isinstance(step, Move):
                if step.action != "end":  # the evaluator derives this
                    steps.append(schedule.Step(place[g, step.op], step.action))
            else:
                steps.append(place[g, step])

    def copies(g: int, late: Sequence[Move | int]) -> int:
        """Returns the first step of a backward that copies a gradient."""
        kinds = [isinstance(s, int) and joined.ops[place[g, s]].kind == KIND for s in late]
        return kinds.index(True) if True in kinds else len(late)

    starts = None
    for k, (g, _) in enumerate(order):
        late = k >= joined.backward_starts
        if late and starts is None:
            starts = len(steps)
        if g == OWN:
            steps.append(k)
            continue
        is_copy = late and joined.ops[k].kind == KIND
        before = order[k - 1][0] if k and k != joined.backward_starts else OWN
        if before == g and (not is_copy or joined.ops[k - 1].kind == KIND):
            continue
        mine = schedules[g]
        if not late:
            add(g, mine.steps[: mine.backward_starts])
            continue
        part = mine.steps[mine.backward_starts :]
        split = copies(g, part)
        add(g, part[split:] if is_copy else part[:split])
    return schedule.Schedule(steps, len(steps) if starts is None else starts)


def bytes_of(
    joined: Problem, order: list[tuple[int, int]], schedules: list[Schedule], measure: str
) -> int:
    """Returns the bytes that graphs hold together: at the peak, or between forward and backward."""
    found = lenient(joined).check().evaluate(steps_of(schedules, order, joined), "cpu")
    return found["saved_bytes"] if measure == "saved" else found["peak_bytes"]


def save_all(problem: Problem) -> Schedule:
    """Returns a schedule that runs every op once, in order."""
    runs = [i for i, op in enumerate(problem.ops) if "placeholder" not in op.flags]
    return Schedule(runs, sum(i < problem.backward_starts for i in runs))


Choice = dict[str, Made]
"""One plan for each graph."""

Make = Callable[[Problem, Target], Made]
"""Makes a plan of a problem for a target."""


def without_budget(make: Make, problems: dict[str, Problem], target: Target) -> Choice:
    """Returns the plans of graphs for a target without a budget."""
    return {key: make(problem, target) for key, problem in problems.items()}


def small_choices(make: Make, problems: dict[str, Problem], free: Target) -> list[Choice]:
    """Returns plans of graphs that are small and cost little extra time: one choice with small
    peaks, and one that saves little."""
    kinds = dict.fromkeys((free.measure, "saved"))
    return [{key: make(d, modest(kind)) for key, d in problems.items()} for kind in kinds]


def choose(
    make: Make,
    problems: dict[str, Problem],
    free: Target,
    excess: Callable[[Choice], int],
    time_of: Callable[[Choice], int],
) -> Choice:
    """Returns the fastest plans found that fit together, or else those that exceed the limit least.
    A graph's peak matters little while other runs of it wait, because then their saved bytes
    dominate. So this tries budgets on live and on saved bytes of the single graphs, from the
    smallest plans to saving everything, and also the plans without a budget.

    Args:
        free: the target without a budget.
        excess: returns the bytes by which all pending runs exceed the budget.
        time_of: returns the time of a choice.
    """

    def rank(choice: Choice, excess: int) -> tuple[int, int]:
        # sums of gradients and the like, which plans do not count, are added to saved bytes
        return excess, sum(int(made.plan.numbers["saved_bytes"]) for made in choice.values())

    nearest = without_budget(make, problems, free)
    over = rank(nearest, excess(nearest))
    if over[0] <= 0:
        return nearest
    fitting: list[Choice] = []
    for kind in dict.fromkeys((free.measure, "saved")):
        least = {key: make(d, smallest(kind)) for key, d in problems.items()}
        least_over = rank(least, excess(least))
        if least_over[0] <= 0:
            at = _between(make, problems, least, "saved" if kind == "saved" else "live")
            fitting += [least, _bisect(lambda choice: excess(choice) <= 0, at, least)]
        elif least_over < over:
            nearest, over = least, least_over
    for choice in small_choices(make, problems, free):
        choice_over = rank(choice, excess(choice))
        if choice_over[0] <= 0:
            fitting.append(choice)
        elif choice_over < over:
            nearest, over = choice, choice_over
    return min(fitting, key=time_of) if fitting else nearest


def _between(
    make: Make, problems: dict[str, Problem], least: Choice, kind: str
) -> Callable[[float], Choice | None]:
    """Returns a function that gives plans between the smallest ones (0) and those that save
    everything (1)."""
    span = {
        key: (measured(plan.numbers, kind), save_all_bytes(plan.numbers, kind))
        for key, (plan, _) in least.items()
    }

    def at(part: float) -> Choice | None:
        def target(least: int, most: int) -> Target:
            return Target(budgets.of_bytes(int(least + part * (most - least)), kind), kind)

        try:
            return {key: make(d, target(*span[key])) for key, d in problems.items()}
        except BudgetError:
            return None

    return at


def _bisect(
    fits: Callable[[Choice], bool], at: Callable[[float], Choice | None], smallest: Choice
) -> Choice:
    """Returns the largest choice that fits, starting from the smallest, which fits."""
    largest = at(1.0)
    if largest is not None and fits(largest):
        return largest
    best, low, high = smallest, 0.0, 1.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        choice = at(middle)
        if choice is not None and fits(choice):
            best, low = choice, middle
        else:
            high = middle
    return best


def _over(held: int, budget: str) -> str:
    return f"hold {budgets.text(held)} ({held} bytes), over the budget of {budget}"


def refusal(held: int, limit: int, calls: int) -> BudgetError:
    """Returns the error for the case that no plans fit together."""
    several = calls if calls > 1 else None
    return BudgetError(reason="budget", budget_bytes=limit, smallest_bytes=held, calls=several)


def tell_of_pending(calls: int, held: int, budget: str, final: bool) -> None:
    """Warns that calls were pending together although no plan covered them together."""
    then = "From the next step on they share the budget"
    if final:
        then = "They are not planned together: run the backward earlier, or give a smaller budget"
    warnings.warn(
        f"{calls} calls of the model were pending together before a backward, and each was "
        f"planned separately: together they {_over(held, budget)} for all of them. {then}",
        stacklevel=4,
    )


def tell_of_left(left: int, loss: int, held: int, budget: str) -> None:
    """Warns that earlier calls of a step left memory, or that the schedule of a pipeline holds
    memory or computes a loss. This counts in addition to the pending calls.

    Args:
        loss: bytes that a loss of the schedule takes only while it runs."""
    runs = f"; a loss takes {budgets.text(loss)} ({loss} bytes) while it and its backward run"
    warnings.warn(
        f"besides the pending calls, the step holds {budgets.text(left)} ({left} bytes): gradients "
        "and kept results of earlier calls and, in a pipeline, the schedule's send and receive "
        f"buffers and what its losses keep{runs if loss else ''}. With these, the pending calls "
        f"{_over(held, budget)}. They are counted from the next step on",
        stacklevel=4,
    )


def tell_of_kept(calls: int, held: int) -> None:
    """Warns that kept results of earlier steps hold what those steps saved."""
    warnings.warn(
        "results of the model are kept from earlier steps without a backward, and with them what "
        f"their calls saved: about {budgets.text(held)} ({held} bytes) on top of the budget, from "
        f"{calls} call{'s' * (calls > 1)} so far. Keep result.detach() instead",
        stacklevel=4,
    )


def tell_of_too_many(calls: int, planned: int, held: int, budget: str) -> None:
    """Warns that more calls were pending than are planned together."""
    warnings.warn(
        f"{calls} calls of the model were pending together before a backward, and at most "
        f"{MOST_CALLS} of a graph are planned together: {planned} of them hold "
        f"{budgets.text(held)} ({held} bytes), and the budget of {budget} for all of them may not "
        "hold. Run the backward earlier, or give a smaller budget",
        stacklevel=4,
    )


def tell_of_path(graphs: int, held: int, budget: str, final: bool) -> None:
    """Warns that a step ran graphs that no plan covers together, or for which no plan meets the
    budget."""
    then = "From the next step on, plans are made for all paths that steps have taken"
    if final:
        then = "Plans that keep every path to its budget were not found: give a smaller budget"
    warnings.warn(
        f"steps take different paths through the model: {graphs} graphs of one path together "
        f"{_over(held, budget)}, because other paths need other plans for some of them. {then}",
        stacklevel=4,
    )


def tell_of_rounds(rounds: int) -> None:
    """Warns that no plan of several graphs covers a new graph, and that no more such plans will be
    made."""
    warnings.warn(
        f"plans of several graphs were made again {rounds} times because new graphs appeared, and "
        "now there is another one: from now on each new graph gets its own smallest plan, and the "
        "budget of the whole step may not hold. Begin with the step that has the most graphs, or "
        "remove the graph breaks (fullgraph=True names the first)",
        stacklevel=3,
    )


def tell_of_first_step(graphs: int, held: int, budget: str, final: bool) -> None:
    """Warns that the graphs of one call were planned one after another."""
    then = "They are not planned again" if final else "The next step has one plan for all of them"
    warnings.warn(
        f"the model was split into {graphs} graphs, which this first step plans one after another: "
        f"together they {_over(held, budget)}. {then}",
        stacklevel=4,
    )
