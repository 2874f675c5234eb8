"""Finds the fastest schedule of a small step within a budget of bytes if any op may run late or
again, by constraint programming: CP-SAT of OR-tools.

    found = faster(problem, budget, than_ps, "cpu", seconds=60)

Stage t ends with the t-th op of the given order. Before that op, each earlier op that may run again
does so at most once, in order. The first run of an op may be left out of its own stage; it is then
late. Unknowns:

    first[i]      op i runs in its own stage
    again[t, i]   op i runs in stage t, later than its own
    kept[t, s]    storage s is in memory when stage t begins

Views are free: they run before whatever reads them. Values that the forward returns stay until the
first op of the backward has run. Outputs do not reuse the memory of inputs. Ops keep their place if
they run once, if a flag keeps all their outputs to the end, or if they read or make memory that is
written later. Not supported: insides, inlinings, updates, constraints, regions and offloading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import costs
from evaluate import ONCE
from ortools.sat.python import cp_model

TICK = 1000  # picoseconds: the unit of time in the program
Problem = dict[str, Any]


@dataclass
class Found:
    """The result. ``steps`` is a schedule faster than the given time, or None; ``impossible`` says
    that there is no such schedule. No schedule of the program takes less than ``bound_ps``."""

    impossible: bool
    bound_ps: float
    steps: list[int] = field(default_factory=list)
    backward_starts: int = 0


class Step:
    """A step as storages: which op makes each storage, and which ops read it."""

    def __init__(self, problem: Problem, device: costs.Device) -> None:
        self.ops, storages = problem["ops"], problem["storages"]
        self.storage = [out["storage"] for op in self.ops for out in op["out"]]
        self.of = [i for i, op in enumerate(self.ops) for _ in op["out"]]
        self.flags = [set(op.get("flags", ())) for op in self.ops]
        self.kinds = [set(s.get("flags", ())) for s in storages]
        self.bytes = [s["bytes"] for s in storages]
        given = {self.storage[v] for v, i in enumerate(self.of) if "placeholder" in self.flags[i]}
        self.maker: dict[int, int] = {}
        for v, i in enumerate(self.of):
            s = self.storage[v]
            if s not in given and "static" not in self.kinds[s]:
                self.maker.setdefault(s, i)
        self.outputs = problem["forward_outputs"], problem["backward_outputs"]
        self.starts = problem["backward_starts"]
        self.reads = [{self.storage[v] for v in op["in"]} & set(self.maker) for op in self.ops]
        idle = {"placeholder", "view"}
        needed = self._needed()
        self.work = [i for i, f in enumerate(self.flags) if not f & idle and i in needed]
        self.made = {i: [s for s, j in self.maker.items() if j == i] for i in self.work}
        self.returned = {self.storage[v] for v in self.outputs[0]} & set(self.maker)
        self.returned |= {s for s in self.maker if "hold_forward" in self.kinds[s]}
        self.held = {s for s in self.maker if "hold_end" in self.kinds[s]}
        self.ends = self.held | ({self.storage[v] for v in self.outputs[1]} & set(self.maker))
        self.ps = {i: costs.whole_ps(costs.op_seconds(self.ops[i], device)) for i in self.work}
        self.split = next((i for i in self.work if i >= self.starts), len(self.ops))
        self.tail = len(self.ops)
        while self.tail > self.starts and "effect" in self.flags[self.tail - 1]:
            self.tail -= 1
        self.movable = {i for i in self.work if self._may_move(i)}
        self.last = self._last_stages()

    def _needed(self) -> set[int]:
        """Returns the ops that a result or an effect needs."""
        todo = [self.of[v] for outputs in self.outputs for v in outputs]
        todo += [i for i, f in enumerate(self.flags) if f & (ONCE - {"unknown"})]
        todo += [i for s, i in self.maker.items() if self.kinds[s]]
        needed = set[int]()
        while todo:
            i = todo.pop()
            if i not in needed:
                needed.add(i)
                todo += [self.of[v] for v in self.ops[i]["in"]]
                todo += [self.maker[s] for s in self.reads[i]]
        return needed

    def _may_move(self, i: int) -> bool:
        writers = [j for j in self.work if "mutates" in self.flags[j]]
        written = {out["storage"] for j in writers for out in self.ops[j]["out"]}
        touched = {self.storage[v] for v in self.ops[i]["in"]} | set(self.made[i])
        views = [j for j, f in enumerate(self.flags) if "view" in f and f & ONCE]
        fixed = {self.maker.get(s) for j in views for s in self.reads[j]}
        kept = all(s in self.held for s in self.made[i])
        return not (
            self.flags[i] & ONCE or touched & written or kept or i == self.split or i in fixed
        )

    def _last_stages(self) -> dict[int, int]:
        """Returns, for each storage, the last op in the given order in whose stage it may be
        read."""
        last, end = dict.fromkeys(self.maker, -1), len(self.ops)
        for i in reversed(self.work):
            use = max([i, *(last[s] for s in self.made[i])]) if i in self.movable else i
            for s in self.reads[i]:
                last[s] = max(last[s], use)
            for s in self.made[i]:
                if s in self.ends:
                    last[s] = end
        return {s: max(k, self.split if s in self.returned else -1) for s, k in last.items()}

    def steps(self, runs: list[int]) -> tuple[list[int], int]:
        """Returns the schedule of these runs, with views where they are needed."""
        out, made, starts = list[int](), dict[int, int](), -1
        remade = dict.fromkeys(self.maker, -1)  # maps a storage to a step

        def bring(v: int) -> None:
            i, s = self.of[v], self.storage[v]
            if "view" in self.flags[i] and made.get(i, -2) < remade.get(s, -1):
                for u in self.ops[i]["in"]:
                    bring(u)
                made[i] = len(out)
                out.append(i)

        def enter() -> int:
            for v in self.outputs[0]:
                bring(v)
            return len(out)

        for i in runs:
            if starts < 0 and i == self.split:
                starts = enter()
            for v in self.ops[i]["in"]:
                bring(v)
            made[i] = len(out)
            remade.update(dict.fromkeys(self.made[i], len(out)))
            out.append(i)
        starts = starts if starts >= 0 else enter()
        for v in self.outputs[1]:
            bring(v)
        return out, starts


class _Program:
    """The unknowns and their constraints."""

    def __init__(self, step: Step, budget: int) -> None:
        self.step, self.budget, self.model = step, budget, cp_model.CpModel()
        self.storages = [s for s in step.maker if step.maker[s] in step.ps]
        self.place = {i: t for t, i in enumerate(step.work)}
        end = len(step.work)
        self.until = {
            s: max((t for i, t in self.place.items() if i <= step.last[s]), default=0)
            if step.last[s] < len(step.ops)
            else end
            for s in step.maker
        }
        new = self.model.new_bool_var
        one = self.model.new_constant(1)
        movable = step.movable
        self.first = {i: new("") if i in movable else one for i in step.work}
        self.again = {(t, i): new("") for i in movable for t in self._stages(i)}
        self.kept = {
            (t, s): new("")
            for s in self.storages
            for t in range(self.place[step.maker[s]] + 1, self.until[s] + 1)
        }
        for s in self.storages:
            self._hold(s)
        for t in range(end):
            self._stage(t)
        runs = sum(step.ps[i] // TICK * x for (_, i), x in self.again.items())
        self.time = runs + sum(step.ps[i] // TICK * x for i, x in self.first.items())

    def _stages(self, i: int) -> range:
        """Returns the stages in which a movable op may run, besides its own."""
        step = self.step
        last = max((self.until[s] for s in step.made[i]), default=0)
        last = min(last, len(step.work) - 1)
        if i >= step.tail or "backward" in step.flags[i]:
            last = min([last, *(t for j, t in self.place.items() if j >= step.tail)])
        return range(self.place[i] + 1, last + 1)

    def _hold(self, s: int) -> None:
        """Requires results of the forward to be kept until the backward begins, and others to the
        end."""
        step, end = self.step, len(self.step.work)
        if s in step.ends:
            self.model.add(self.kept[end, s] == 1)
        if s in step.returned:
            split = self.place.get(step.split, end)
            self.model.add(self.first[step.maker[s]] == 1)
            for t in range(self.place[step.maker[s]] + 1, min(split, self.until[s]) + 1):
                self.model.add(self.kept[t, s] == 1)
        for t in range(end):  # a flag holds what the first run made
            if s in step.held and (t, s) in self.kept:
                self.model.add_implication(self.kept[t, s], self.kept[t + 1, s])

    def _sources(self, t: int, s: int) -> list[Any]:
        """Returns the unknowns, one of which must be true if an op of stage t reads the storage."""
        maybe = (self.kept.get((t, s)), self.again.get((t, self.step.maker[s])))
        return [x for x in maybe if x is not None]

    def _present(self, t: int, s: int, late: list[int]) -> list[Any]:
        """Returns, for each run of the stage and then for its last op, whether the storage
        exists."""
        step, model = self.step, self.model
        maker, base = step.maker[s], step.work[t]
        kept, leaves = self.kept.get((t, s)), self.kept.get((t + 1, s))
        here: list[Any] = [0] * (len(late) + 1)
        if maker == base:
            here[-1] = self.first[base]
            return here
        asks = [
            x
            for x in (leaves, self.first[base] if s in step.reads[base] else None)
            if x is not None
        ]
        now: Any = 0
        for k in range(len(late), -1, -1):
            if k < len(late):
                i = late[k]
                asks = [self.again[t, i]] if s in step.reads[i] or i == maker else []
            if asks:
                before, now = now, model.new_bool_var("")
                for x in [*asks, *([] if isinstance(before, int) else [before])]:
                    model.add_implication(x, now)
            here[k] = now
            if k < len(late) and late[k] == maker:
                here[:k] = [kept if kept is not None else 0] * k
                break
        if s in step.returned and base == step.split:
            here = [1] * len(here)
        return here

    def _stage(self, t: int) -> None:
        step, model, base = self.step, self.model, self.step.work[t]
        late = [i for i in step.work if (t, i) in self.again]
        there: dict[int, list[Any]] = {}
        for s in self.storages:
            if self.place[step.maker[s]] > t:
                continue
            sources, leaves = self._sources(t, s), self.kept.get((t + 1, s))
            if leaves is not None:
                own = [self.first[base]] if step.maker[s] == base else []
                model.add_bool_or([leaves.negated(), *sources, *own])
            if len(sources) == 2 and s not in step.held:
                model.add_bool_or([x.negated() for x in sources])
            for i in late:
                if s in step.reads[i]:
                    model.add_bool_or([self.again[t, i].negated(), *sources])
            if s in step.reads[base]:
                model.add_bool_or([self.first[base].negated(), *sources])
            if s in step.held and (t, step.maker[s]) in self.again and leaves is not None:
                model.add_implication(self.again[t, step.maker[s]], leaves)
            there[s] = self._present(t, s, late)
        for k, i in enumerate([*late, base]):
            own = step.ops[i].get("workspace", 0)
            copies = [
                s for s in step.made[i] if s in step.held and (t, s) in self.kept and i != base
            ]
            here = sum(step.bytes[s] * x[k] for s, x in there.items())
            here += sum(step.bytes[s] * self.kept[t, s] for s in copies)
            fits = model.add(here <= self.budget - own)
            fits.only_enforce_if(self.again[t, i] if k < len(late) else self.first[base])

    def accept_only(self, ops: list[int]) -> bool:
        """Fixes the unknowns to the runs of a schedule; False if it runs an op in a stage in which
        the program has no such run."""
        step, base, stage, seen = self.step, -1, list[int](), set[tuple[int, int]]()
        firsts = set[int]()
        for i in (i for i in ops if i in self.place):
            if i > base and i not in firsts:
                base = i
                firsts.add(i)
                seen |= {(self.place[i], j) for j in stage}
                stage = []
            elif i in stage or i not in step.movable:
                return False
            else:
                stage.append(i)
        if stage or not seen <= self.again.keys():
            return False
        for key, x in self.again.items():
            self.model.add(x == (key in seen))
        for i in step.movable:
            self.model.add(self.first[i] == (i in firsts))
        return True

    def runs(self, solver: cp_model.CpSolver) -> list[int]:
        """Returns the ops in the order in which they run."""
        out = list[int]()
        for t, base in enumerate(self.step.work):
            out += [
                i for i in self.step.work if (t, i) in self.again and solver.value(self.again[t, i])
            ]
            out += [base] * bool(solver.value(self.first[base]))
        return out


def time_of(problem: Problem, budget: int, steps: list[int], device: costs.Device) -> int | None:
    """Returns the time of a schedule in picoseconds, as the program counts it; -1 if the schedule
    exceeds the budget; None if it runs an op twice in one stage."""
    program = _Program(Step(problem, device), budget)
    if not program.accept_only(steps):
        return None
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    if solver.solve(program.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return -1
    return int(solver.value(program.time)) * TICK


def faster(
    problem: Problem, budget: int, than_ps: int, device: costs.Device, seconds: float,
    workers: int = 8,
) -> Found:  # fmt: skip
    """Returns a schedule of at most ``budget`` live bytes and fewer than ``than_ps`` picoseconds,
    the fastest found in the given seconds."""
    step = Step(problem, device)
    program = _Program(step, budget)
    program.model.add(program.time <= (than_ps - 1) // TICK)
    program.model.minimize(program.time)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    status = solver.solve(program.model)
    if status == cp_model.MODEL_INVALID:
        raise ValueError(program.model.validate())
    bound_ps = than_ps if status == cp_model.INFEASIBLE else solver.best_objective_bound * TICK
    found = Found(status == cp_model.INFEASIBLE, bound_ps)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        found.steps, found.backward_starts = step.steps(program.runs(solver))
    return found
