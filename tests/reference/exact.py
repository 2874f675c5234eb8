"""Finds the exact optimum of tiny problems: a shortest path over memory contents.

A state is the position in the given order and the forward values in memory. An event drops a value,
reruns a forward op, or continues with the op at the position, which may be skipped if it may run
later. It supports problems in which every op makes one value in its own storage, without views,
scratch, regions, constraints and forward outputs.
"""

from __future__ import annotations

import heapq
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from evaluate import once_flags


class _Problem:
    def __init__(self, problem: dict[str, Any]) -> None:
        ops = problem["ops"]
        self.ops = ops
        self.order = [i for i, op in enumerate(ops) if "placeholder" not in op.get("flags", ())]
        self.size = [problem["storages"][op["out"][0]["storage"]]["bytes"] for op in ops]
        self.reads = [
            frozenset(v for v in op["in"] if "placeholder" not in ops[v].get("flags", ()))
            for op in ops
        ]
        starts, self.ends = problem["backward_starts"], set(problem["backward_outputs"])
        self.forward = {i for i in self.order if i < starts}
        once = once_flags(problem)
        self.stays = {i for i in self.order if "collective" in ops[i].get("flags", ())}
        self.free = {
            i
            for i in self.forward
            if not set(ops[i].get("flags", ())) & once and i not in self.ends
        }
        self.last = {
            v: max((j for j in self.order if v in self.reads[j]), default=v) for v in self.order
        }

    def alive_after(self, op: int, memory: frozenset[int]) -> frozenset[int]:
        """Returns the memory without backward values after their last reader."""
        keep = self.forward | self.ends
        return frozenset(v for v in memory if v in keep or self.last[v] > op)


def optimum(problem: dict[str, Any], budget: int) -> int | None:
    """Returns the least picoseconds of a schedule of at most ``budget`` live bytes, or None."""
    p = _Problem(problem)
    start = (0, frozenset[int]())
    best = {start: 0}
    heap = [(0, 0, start)]
    count = 0
    while heap:
        time, _, state = heapq.heappop(heap)
        if time > best[state]:
            continue
        k, memory = state
        if k == len(p.order):
            return time
        base = p.order[k]
        events = [(0, (k, memory - {v})) for v in memory & p.forward if v not in p.ends]
        if base in p.free - p.stays:
            events.append((0, (k + 1, memory)))
        earlier = [i for i in p.order[:k] if i in p.free and i not in memory]
        for op in (*earlier, base):
            after = memory | {op}
            if not p.reads[op] <= memory or sum(p.size[v] for v in after) > budget:
                continue
            there = p.alive_after(op, after) if op == base else after
            events.append((p.ops[op]["time_ps"], (k + (op == base), there)))
        for cost, to in events:
            if time + cost < best.get(to, sys.maxsize):
                best[to] = time + cost
                count += 1
                heapq.heappush(heap, (time + cost, count, to))
    return None
