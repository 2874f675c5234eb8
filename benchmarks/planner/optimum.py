"""Finds the fastest schedule within a budget of bytes by constraint programming (OR-tools' CP-SAT).

    pip install ortools; python benchmarks/planner/optimum.py PROBLEM.json BUDGET_BYTES [SECONDS]

The program decides about large storages of the forward. Stage t ends with the t-th op of the
backward; before it, forward ops may be recomputed, each at most once and in order. Unknowns:

    runs[t, u]   op u is recomputed in stage t
    kept[t, s]   storage s is in memory when stage t begins
    first[u]     op u runs in the forward; false if none of its outputs is read there or kept

Bytes are counted before each op of a stage, for all runs at once. Two programs bound the optimum.
In one, small storages are live from their op to their last reader: its answer is a schedule, which
the caller can check. In the other they take no bytes: its answer is a lower bound for all schedules
that keep the order of ops and recompute nothing in the forward. Not supported: ops with insides,
constraints, regions.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortools.sat.python import cp_model

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "reference"))

import costs  # noqa: E402
from evaluate import ONCE, evaluate  # noqa: E402

# share of the bytes of all storages; the program does not decide about smaller ones
SMALL = 1 / 1000
WORKERS = 8  # kinds of search that take turns, even with fewer cores
Problem = dict[str, Any]


@dataclass
class Optimum:
    """The result: ``steps`` is the fastest schedule found and takes ``time_ps``, which is None if
    none was found. No schedule takes less than ``bound_ps``."""

    time_ps: int | None
    bound_ps: float
    steps: list[int] = field(default_factory=list)
    backward_starts: int = 0


class _Step:
    """A training step as storages with their makers and readers, and those that the program decides
    about."""

    def __init__(self, problem: Problem, device: costs.Device, small_take: bool) -> None:
        ops, storages = problem["ops"], problem["storages"]
        self.split, self.end = problem["backward_starts"], len(ops)
        self.flags = [set(op.get("flags", ())) for op in ops]
        self.scratch = [op.get("workspace", 0) for op in ops]
        static = {s for s, x in enumerate(storages) if "static" in x.get("flags", ())}
        self.bytes = [0 if s in static else x["bytes"] for s, x in enumerate(storages)]
        storage_of = [out["storage"] for op in ops for out in op["out"]]
        self.reads = [{storage_of[v] for v in op["in"]} for op in ops]
        self.maker: dict[int, int] = {}
        for i, op in enumerate(ops):
            for out in op["out"]:
                self.maker.setdefault(out["storage"], i)
        self.maker = {s: i for s, i in self.maker.items() if "placeholder" not in self.flags[i]}
        forward = {storage_of[v] for v in problem["forward_outputs"]}
        ends = {storage_of[v] for v in problem["backward_outputs"]}
        ends |= {s for s, storage in enumerate(storages) if storage.get("flags")}
        self.last = {s: max(self._readers(s), default=i) for s, i in self.maker.items()}
        for s, i in self.maker.items():
            self.last[s] = self.end if s in ends else max(self.last[s], i)
            if s in forward:
                self.last[s] = max(self.last[s], self.split - 1)
        idle = {"view", "placeholder"}
        self.work = [i for i in range(self.end) if not idle & self.flags[i]]
        seconds = {i: costs.op_seconds(ops[i], device) for i in self.work}
        self.ps = [costs.whole_ps(seconds.get(i, 0.0)) for i in range(self.end)]
        least = SMALL * sum(self.bytes[s] for s in self.maker)
        may = [s for s, i in self.maker.items() if i < self.split and not self.flags[i] & ONCE]
        may = [s for s in may if s not in forward | ends]
        self.free = [s for s in may if self.bytes[s] >= least]
        self.again = sorted({self.maker[s] for s in self.free})
        if not small_take:
            self.bytes = [
                0 if s in may and s not in self.free else n for s, n in enumerate(self.bytes)
            ]

    def _readers(self, s: int) -> list[int]:
        return [i for i, reads in enumerate(self.reads) if s in reads]

    def readers(self, s: int, begin: int, end: int) -> list[int]:
        """Returns the ops in [begin, end) that do work and read storage ``s``."""
        return [i for i in self._readers(s) if begin <= i < end and i in self.work]

    def fixed(self, op: int) -> int:
        """Returns the bytes live in every schedule while base op ``op`` runs."""
        free = set(self.free)
        there = (s for s, i in self.maker.items() if s not in free and i <= op <= self.last[s])
        return self.scratch[op] + sum(self.bytes[s] for s in there)


class _Program:
    """The unknowns and their constraints."""

    def __init__(self, step: _Step, budget: int) -> None:
        self.step, self.budget, self.model = step, budget, cp_model.CpModel()
        self.stages = [i for i in step.work if i >= step.split]
        new = self.model.new_bool_var
        n = len(self.stages)
        self.runs = {(t, u): new("") for t in range(n) for u in step.again}
        self.kept = {(t, s): new("") for t in range(n + 1) for s in step.free}
        self.first = {u: new("") for u in step.again}
        for s in step.free:
            self.model.add(self.kept[n, s] == 0)
        self._forward()
        for t in range(n):
            self._stage(t)
        extra = sum(step.ps[u] * run for (_, u), run in self.runs.items())
        self.model.minimize(extra - sum(step.ps[u] * (1 - run) for u, run in self.first.items()))

    def _forward(self) -> None:
        step, again = self.step, set(self.step.again)
        readers = {s: step.readers(s, 0, step.split) for s in step.free}
        for s in step.free:
            u = step.maker[s]
            self.model.add_implication(self.kept[0, s], self.first[u])
            for reader in readers[s]:
                if reader in again:
                    self.model.add_implication(self.first[reader], self.first[u])
                else:
                    self.model.add(self.first[u] == 1)
        for i in (i for i in step.work if i < step.split):
            here = [step.fixed(i)]
            for s in step.free:
                if step.maker[s] <= i <= max(readers[s], default=step.maker[s]):
                    here.append(step.bytes[s] * self.first[step.maker[s]])
                elif step.maker[s] < i:
                    here.append(step.bytes[s] * self.kept[0, s])
            fits = self.model.add(sum(here) <= self.budget)
            if i in again:
                fits.only_enforce_if(self.first[i])

    def _stage(self, t: int) -> None:
        step, base = self.step, self.stages[t]
        place = {u: k for k, u in enumerate(step.again)}
        present: dict[int, list[Any]] = {}
        for s in step.free:
            u, before = step.maker[s], self.kept[t, s]
            there, readers = [before, self.runs[t, u]], []
            self.model.add_bool_or([self.kept[t + 1, s].negated(), *there])
            for reader in step.readers(s, 0, step.split):
                if reader in place:
                    readers.append(reader)
                    self.model.add_bool_or([self.runs[t, reader].negated(), *there])
            if s in step.reads[base]:
                self.model.add_bool_or(there)
            present[s] = [before] * place[u]
            for k in range(place[u], len(place) + 1):
                if s in step.reads[base]:
                    present[s].append(1)
                    continue
                asks = [self.kept[t + 1, s]] + [self.runs[t, c] for c in readers if place[c] >= k]
                asks += [self.runs[t, u]] if k == place[u] else []
                here = self.model.new_bool_var("")
                for ask in asks:
                    self.model.add_implication(ask, here)
                present[s].append(here)
        beside = step.fixed(base) - step.scratch[base]
        beside -= sum(step.bytes[s] for s, i in step.maker.items() if i == base)
        for u, k in place.items():
            small = sum(step.bytes[s] for s, i in step.maker.items() if i == u and s not in present)
            here = sum(step.bytes[s] * present[s][k] for s in step.free)
            room = self.budget - beside - step.scratch[u] - small
            self.model.add(here <= room).only_enforce_if(self.runs[t, u])
        here = sum(step.bytes[s] * present[s][len(place)] for s in step.free)
        self.model.add(here <= self.budget - step.fixed(base))

    def solve(self, seconds: float) -> tuple[cp_model.CpSolver, bool]:
        """Returns the solver, and whether it found a schedule."""
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = WORKERS
        status = solver.solve(self.model)
        if status == cp_model.MODEL_INVALID:
            raise ValueError(self.model.validate())
        return solver, status in (cp_model.OPTIMAL, cp_model.FEASIBLE)

    def steps(self, solver: cp_model.CpSolver) -> tuple[list[int], int]:
        """Returns the schedule and the index where its backward starts. Views that need no tangent
        run with their base."""
        step, out = self.step, list[int]()
        views = {i for i in range(step.end) if "view" in step.flags[i]}
        views -= {i for i in views if "backward" in step.flags[i]}

        def run(op: int) -> None:
            made = {s for s, maker in step.maker.items() if maker == op}
            out.extend([op, *sorted(v for v in views if step.reads[v] & made)])

        for i in range(step.split):
            if i in step.work and (i not in self.first or solver.value(self.first[i])):
                run(i)
            elif i in views and not step.reads[i] & set(step.maker):
                out.append(i)
        starts, stage = len(out), {i: t for t, i in enumerate(self.stages)}
        for i in range(step.split, step.end):
            for u in step.again if i in stage else ():
                if solver.value(self.runs[stage[i], u]):
                    run(u)
            if i in views and not step.reads[i] & set(step.maker):
                out.append(i)
            elif i not in views:
                run(i)
        return out, starts


def optimum(problem: Problem, budget: int, device: costs.Device, seconds: float) -> Optimum:
    """Returns the fastest schedule of at most ``budget`` live bytes; the time limit applies to each
    program."""
    once = sum(_Step(problem, device, True).ps)
    program = _Program(_Step(problem, device, True), budget)
    solver, found = program.solve(seconds)
    low, relaxed = _Program(_Step(problem, device, False), budget).solve(seconds)
    bound = once + low.best_objective_bound if relaxed else math.inf
    if not found:
        return Optimum(None, bound)
    steps, starts = program.steps(solver)
    return Optimum(once + round(solver.objective_value), bound, steps, starts)


def main() -> None:
    """Runs the command line."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    problem = json.loads(Path(sys.argv[1]).read_text())
    budget, seconds = int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 60.0
    best = optimum(problem, budget, "cpu", seconds)
    if best.time_ps is None:
        print(f"nothing found; at least {best.bound_ps:.0f} ps")
        return
    judged = evaluate(problem, best.steps, best.backward_starts, "cpu")
    print(
        f"{judged.time_ps} ps ({best.time_ps}), at least {best.bound_ps:.0f}, once {judged.once_ps}"
    )
    print(f"{judged.peak_bytes} of {budget} bytes")


if __name__ == "__main__":
    main()
