"""One budget over calls that are pending together: those whose backward has yet to run.

A model that is called twice before ``backward()`` (contrastive losses, discriminators, layers with
a graph break inside) holds what each call saved. No graph shows that, so runs are counted: a run is
pending from its forward until its node of autograd's graph begins to run, or is gone. What was seen
pending together in one step is planned together for the next ones.

All runs of a graph share its code, so they have one schedule. It is found by bisection over targets
for the single graphs, from the smallest plans to saving everything; what counts is the evaluator's
figure for all of them together, forwards in order, backwards in reverse.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from ... import _native
from ..graph.leaves import KIND
from ..graph.moving import Move, Schedule
from .joining import OWN

MOST_CALLS = 16
"""Runs of one graph that are planned together."""

_ROUNDS = 5  # of the bisection
_NEAR = 4  # nodes between a result and the compiled node that it comes from

Together = Counter[str]
"""How often each graph, by its key, is pending at one time."""


class _Calls(threading.local):
    """Calls of models that this thread is in, innermost last: how often each graph ran."""

    def __init__(self) -> None:
        self.counts: list[Counter[int | None]] = []


calls = _Calls()


def compiled_node(result: Any) -> Any:
    """The node of autograd's graph that a compiled function left."""
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
        self.counts: Together = Counter()

    def __bool__(self) -> bool:
        return bool(self._runs)

    def began(self, key: str, node: Any, on_backward: Callable[[], None]) -> Together | None:
        """A graph has run: what is pending now, if more than this run is.

        Args:
            node: what it left in autograd's graph."""
        number = next(self._numbers)
        with self._lock:
            self._runs[number] = key
            self.counts[key] += 1
            now = Counter(self.counts) if len(self._runs) > 1 else None

        def begins(gradients: Any) -> None:
            try:
                on_backward()
            finally:
                self._ended(number)

        # Not a hook for its end: for that PyTorch would hold the incoming gradients all the while.
        node.register_prehook(begins)
        weakref.finalize(node, self._ended, number).atexit = False
        return now

    def _ended(self, number: int) -> None:
        with self._lock:
            key = self._runs.pop(number, None)
            if key is not None:
                self.counts[key] -= 1
                if not self.counts[key]:
                    del self.counts[key]


def covers(known: list[Together], wanted: Together) -> bool:
    """Is there a pattern with at least as many runs of each graph?"""
    return any(all(have[key] >= n for key, n in wanted.items()) for have in known)


def _steps(
    schedules: list[Schedule], order: list[tuple[int, int]], joined: dict[str, Any]
) -> tuple[list[int | list[Any]], int]:
    """Schedules of joined graphs as one; and where the backward starts. What the joined problem has
    beside the graphs stands where it does there: between forwards and backwards, or before the
    copies at the end of one."""
    place = {pair: i for i, pair in enumerate(order)}
    steps: list[int | list[Any]] = []

    def add(g: int, part: Sequence[Any]) -> None:
        for step in part:
            if isinstance(step, Move):
                if step.action != "end":  # the evaluator knows by itself
                    steps.append([step.action, place[g, step.op]])
            else:
                steps.append(place[g, step])

    def copies(g: int, late: Sequence[Any]) -> int:
        """The first step of a backward that copies a gradient."""
        kinds = [isinstance(s, int) and joined["ops"][place[g, s]]["kind"] == KIND for s in late]
        return kinds.index(True) if True in kinds else len(late)

    starts = None
    for k, (g, _) in enumerate(order):
        late = k >= joined["backward_starts"]
        if late and starts is None:
            starts = len(steps)
        if g == OWN:
            steps.append(k)
            continue
        is_copy = late and joined["ops"][k]["kind"] == KIND
        before = order[k - 1][0] if k and k != joined["backward_starts"] else OWN
        if before == g and (not is_copy or joined["ops"][k - 1]["kind"] == KIND):
            continue
        schedule = schedules[g]
        if not late:
            add(g, schedule.steps[: schedule.backward_starts])
            continue
        part = schedule.steps[schedule.backward_starts :]
        split = copies(g, part)
        add(g, part[split:] if is_copy else part[:split])
    return steps, len(steps) if starts is None else starts


def bytes_of(
    joined: dict[str, Any], order: list[tuple[int, int]], schedules: list[Schedule], measure: str
) -> int:
    """What graphs hold together: the peak, or what is alive between forward and backward."""
    steps, starts = _steps(schedules, order, joined)
    schedule = {"steps": steps, "backward_starts": starts, "device": "cpu"}
    found = json.loads(_native.evaluate_json(json.dumps(joined), json.dumps(schedule), "cpu"))
    return int(found["saved_bytes" if measure == "saved" else "peak_bytes"])


def save_all(document: dict[str, Any]) -> Schedule:
    """Every op once, in order."""
    ops = document["ops"]
    runs = [i for i, op in enumerate(ops) if "placeholder" not in op["flags"]]
    return Schedule(runs, sum(i < document["backward_starts"] for i in runs))


def bisect(
    fits: Callable[[Any], bool], at: Callable[[float], Any], smallest: Any, largest: Any
) -> Any:
    """The largest choice that fits, between one that does and one that may not."""
    if fits(largest):
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
