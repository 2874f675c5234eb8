"""DTR's greedy algorithm, re-implemented from its paper for our problems: an online method that
makes no plan.

Kirisame et al., Dynamic tensor rematerialization, ICLR 2021. Ops run in the given order. When an
allocation does not fit, the resident tensor with the least

    h = cost of its evicted neighbourhood / (bytes x time since its last use)

is evicted, one after another, until it does; an evicted input is recomputed before it is read, its
own inputs first. The neighbourhood of a tensor is everything that would have to be recomputed with
it: itself and the evicted components that touch it, kept as classes of an equivalence relation as
in the paper's prototype ("h_DTR_eq"). A tensor that the program has released is evicted at once
("eager eviction") and recomputed only when another needs it; or, in the paper's other variant, it
stays until its memory is needed. Ops that may run only once, and outputs, stay. `schedule` returns
the steps, which any evaluator of plans can check. Only problems in which each op makes one value in
its own storage are supported.
"""

from __future__ import annotations

import sys
from typing import Any

ONCE = {"random_stateful", "effect", "collective", "mutates", "unknown"}


class OutOfMemoryError(Exception):
    """Raised if no value can be evicted."""


class _Classes:
    """Sets of evicted tensors with the cost of each set. A tensor that leaves a set only takes its
    cost along, because splitting a set would need a search."""

    def __init__(self, n: int) -> None:
        self.up = list(range(n))
        self.cost = [0.0] * n

    def root(self, i: int) -> int:
        while self.up[i] != i:
            self.up[i] = self.up[self.up[i]]
            i = self.up[i]
        return i

    def join(self, a: int, b: int) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self.up[a] = b
            self.cost[b] += self.cost[a]


class _Run:
    """Simulates one run. Tensors, ops and storages have the same number."""

    def __init__(self, problem: dict[str, Any], seconds: list[float], budget: int) -> None:
        ops, n = problem["ops"], len(problem["ops"])
        self.budget, self.seconds = budget, seconds
        self.given = ["placeholder" in op["flags"] for op in ops]
        self.ins = [[a for a in dict.fromkeys(op["in"]) if not self.given[a]] for op in ops]
        self.bytes = [storage["bytes"] for storage in problem["storages"]]
        self.readers: list[list[int]] = [[] for _ in range(n)]
        for i, ins in enumerate(self.ins):
            for a in ins:
                self.readers[a].append(i)
        self.to_read = [len(readers) for readers in self.readers]
        ends = {*problem["forward_outputs"], *problem["backward_outputs"]}
        self.stays = [i in ends or bool(ONCE & set(op["flags"])) for i, op in enumerate(ops)]
        self.resident: set[int] = set()
        self.made = [False] * n
        self.locks = [0] * n
        self.used = [0.0] * n
        self.live, self.clock = 0, 0.0
        self.classes = _Classes(n)
        self.inside = [-1] * n  # the member of `classes` that an evicted tensor was added as
        self.steps: list[int] = []

    def score(self, i: int) -> float:
        near = (j for j in (*self.ins[i], *self.readers[i]) if self.inside[j] >= 0)
        roots = {self.classes.root(self.inside[j]) for j in near}
        cost = self.seconds[i] + sum(self.classes.cost[r] for r in roots)
        stale = max(self.clock - self.used[i], 1e-12)
        return cost / (max(1, self.bytes[i]) * stale)

    def evict(self, i: int) -> None:
        self.resident.discard(i)
        self.live -= self.bytes[i]
        member = len(self.classes.up)  # a new member each time; old ones stay in their sets
        self.classes.up.append(member)
        self.classes.cost.append(self.seconds[i])
        self.inside[i] = member
        for j in (*self.ins[i], *self.readers[i]):
            if self.inside[j] >= 0 and self.made[j]:
                self.classes.join(member, self.inside[j])

    def make_room(self, size: int) -> None:
        while self.live + size > self.budget:
            free = [i for i in self.resident if not self.locks[i] and not self.stays[i]]
            if not free:
                raise OutOfMemoryError
            self.evict(min(free, key=lambda i: (self.score(i), i)))

    def run(self, i: int) -> None:
        """Runs op i, after making its inputs."""
        held = []
        for a in self.ins[i]:
            if a not in self.resident:
                self.run(a)
            self.locks[a] += 1  # must not be evicted to make room for another input
            held.append(a)
        self.make_room(self.bytes[i])
        self.live += self.bytes[i]
        self.resident.add(i)
        if self.inside[i] >= 0:
            self.classes.cost[self.classes.root(self.inside[i])] -= self.seconds[i]
            self.inside[i] = -1
        self.made[i] = True
        self.steps.append(i)
        self.clock += self.seconds[i]
        for a in held:
            self.locks[a] -= 1
            self.used[a] = self.clock
        self.used[i] = self.clock

    def release(self, i: int) -> None:
        """Releases the inputs of op i, which the program has read."""
        for a in (*self.ins[i], i):
            if a != i:
                self.to_read[a] -= 1
            if self.to_read[a] == 0 and a in self.resident and not self.stays[a]:
                self.evict(a)


def schedule(
    problem: dict[str, Any],
    seconds: list[float],
    budget: int,
    eager: bool = True,
    most_runs: int = 5,
) -> tuple[list[int], int] | None:
    """Returns the steps and the index where the backward starts, or None if memory runs out or the
    steps exceed ``most_runs`` times the number of ops. ``seconds`` has the time of each op,
    ``budget`` is in bytes, and ``eager`` evicts what the program releases."""
    run = _Run(problem, seconds, budget)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 10 * len(problem["ops"]) + 1000))
    starts = None
    try:
        for i in range(len(problem["ops"])):
            if i == problem["backward_starts"]:
                starts = len(run.steps)
            if run.given[i]:
                continue
            run.run(i)
            if eager:
                run.release(i)
            if len(run.steps) > most_runs * len(problem["ops"]):
                return None
    except OutOfMemoryError:
        return None
    finally:
        sys.setrecursionlimit(limit)
    return run.steps, len(run.steps) if starts is None else starts
