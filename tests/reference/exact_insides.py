"""Finds the exact optimum of tiny problems with insides: a shortest path, in plain Python.

Like ``exact.py``, but an op with an inside may run for any set of its outputs, at the cost of the
members that they need, and a run may inline any values that the problem allows.

A state is the position in the given order and the values in memory. An event drops a value,
recomputes forward values, or continues with the op at the position, which makes the outputs that no
later run could make and any of the others. Every op has a measured time and every value its own
storage; there are no views or constraints, and forward outputs are in the caller's memory.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from slices import slice_of, taken_reads

State = tuple[int, frozenset[int]]


def subsets(of: set[int]) -> Iterator[set[int]]:
    for n in range(len(of) + 1):
        for some in combinations(sorted(of), n):
            yield set(some)


class Small:
    """A problem, with lookup tables for the search."""

    def __init__(self, problem: dict[str, Any]) -> None:
        self.problem, self.ops = problem, problem["ops"]
        self.inlinings: dict[int, dict[int, dict[str, Any]]] = {}
        for x in problem.get("inlinings", []):
            self.inlinings.setdefault(x["op"], {})[x["value"]] = x
        self.first, self.maker = [], []
        for i, op in enumerate(self.ops):
            self.first.append(len(self.maker))
            self.maker += [i] * len(op["out"])
        outs = [out for op in self.ops for out in op["out"]]
        self.size = [problem["storages"][out["storage"]]["bytes"] for out in outs]
        flags = [problem["storages"][out["storage"]].get("flags", []) for out in outs]
        self.static = {v for v, kinds in enumerate(flags) if "static" in kinds}
        self.ends = {v for v, kinds in enumerate(flags) if "hold_end" in kinds}
        self.ends |= {*problem["backward_outputs"], *problem["forward_outputs"]}
        self.room = [0 if v in self.static else size for v, size in enumerate(self.size)]
        self.order = [i for i, op in enumerate(self.ops) if "placeholder" not in op["flags"]]
        self.useful = self.find_useful()
        self.along = [0] * len(self.ops)  # bytes of outputs that no op reads
        for v, i in enumerate(self.maker):
            if v not in self.useful and not self.ops[i].get("inside"):
                self.along[i] += self.room[v]
        starts = problem["backward_starts"]
        self.free = {v for v in self.useful if self.maker[v] < starts and v not in self.ends}
        self.last = {v: self.maker[v] for v in self.useful}
        for i in self.order:
            for v in self.reads(i, self.made_by(i)):
                self.last[v] = i

    def made_by(self, i: int) -> set[int]:
        n = len(self.ops[i]["out"])
        return set(range(self.first[i], self.first[i] + n)) & self.useful

    def inputs(self, i: int, made: set[int]) -> set[int]:
        """Returns the positions of the inputs that op ``i`` reads to make these values."""
        op = self.ops[i]
        if op.get("inside"):
            return slice_of(op, [v - self.first[i] for v in made])[1]
        return set(range(len(op["in"])))

    def reads(self, i: int, made: set[int], taken: Iterable[int] = ()) -> set[int]:
        """Returns the values that op ``i`` reads to make ``made``, if it inlines ``taken``."""
        read, _ = taken_reads(self.problem, i, sorted(self.inputs(i, made)), set(taken))
        return {v for _, v in read} - self.static

    def takes_in(self, i: int, made: set[int]) -> Iterator[set[int]]:
        """Yields all sets of values that op ``i`` may inline when it makes these values."""
        may = {v for v in self.inlinings.get(i, {}) if v in self.free}
        for some in subsets(may):
            if taken_reads(self.problem, i, sorted(self.inputs(i, made)), some)[1] == some:
                yield some

    def find_useful(self) -> set[int]:
        self.useful = set(self.ends)
        for i in reversed(self.order):
            if made := self.made_by(i):
                self.useful |= self.reads(i, made)
        return self.useful

    def takes(self, i: int, made: set[int]) -> tuple[int, int]:
        """Returns the picoseconds and the scratch bytes of a run. Writing a byte takes a
        picosecond."""
        op = self.ops[i]
        if not op.get("inside"):
            return op["time_ps"], op.get("workspace", 0)
        members, _ = slice_of(op, [v - self.first[i] for v in made])
        inside = [op["inside"][m] for m in members]
        time = op["time_ps"] + sum(m["time_ps"] for m in inside) + sum(self.size[v] for v in made)
        return time, op.get("workspace", 0) + sum(m.get("workspace", 0) for m in inside)

    def events(self, k: int, memory: frozenset[int]) -> Iterator[tuple[int, set[int], bool]]:
        """Yields the runs that may follow a state: the op, the values that it makes, and whether it
        is the op at the position."""
        for i in self.order[: k + 1]:
            made = self.made_by(i)
            free = made & self.free if self.ops[i].get("inside") else made
            if i == self.order[k]:
                fixed = made - self.free
                free = made & self.free
                whole = not self.ops[i].get("inside")
                choices = [set(), free] if whole and free else subsets(free)
                for some in choices:
                    if fixed | some:
                        yield i, fixed | some, True
            elif made & self.free:
                whole = not self.ops[i].get("inside")
                for some in [made] if whole else subsets(free):
                    if some and not some & memory:
                        yield i, some, False


def optimum(problem: dict[str, Any], budget: int) -> int | None:
    """Returns the least picoseconds of a schedule of at most ``budget`` live bytes, or None."""
    p = Small(problem)
    start: State = (0, frozenset())
    best, heap, count = {start: 0}, [(0, 0, start)], 0
    while heap:
        time, _, state = heapq.heappop(heap)
        if time > best[state]:
            continue
        k, memory = state
        if k == len(p.order):
            return time
        after: list[tuple[int, State]] = [(0, (k, memory - {v})) for v in memory & p.free]
        if p.made_by(p.order[k]) <= p.free:
            after.append((0, (k + 1, memory)))
        for i, made, base in p.events(k, memory):
            own, scratch = p.takes(i, made)
            there = memory | made
            if made & memory:
                continue
            keep = p.free | p.ends
            left = frozenset(v for v in there if v in keep or p.last[v] > i) if base else there
            for taken in p.takes_in(i, made):
                more = [p.inlinings[i][v] for v in taken]
                room = sum(p.room[v] for v in there) + p.along[i]
                room += sum(x["workspace"] for x in more)
                if p.reads(i, made, taken) <= memory and room + scratch <= budget:
                    takes = own + sum(x["time_ps"] for x in more)
                    after.append((takes, (k + base, left)))
        for cost, to in after:
            if time + cost < best.get(to, sys.maxsize):
                best[to] = time + cost
                count += 1
                heapq.heappush(heap, (time + cost, count, to))
    return None
