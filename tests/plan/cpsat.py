"""Finds schedules of small steps that are faster than a given time, by constraint programming over
the whole class of schedules that the bound covers.

steps = faster(problem, budget, than=bound, effort=5.0)

Base ops keep their order. Before each of them, also in the forward, each earlier forward op that
may rerun does so at most once, in order. Its first run may move from the forward to one of these
places. The rules allow everything that the program allows, so each answer is a plan (which the
caller checks). It does not find all plans: returned values stay until the backward has run its
first op, a second copy of a live value counts separately, and effort is limited. Problems have no
views, insides, constraints or regions here.
"""

from __future__ import annotations

from typing import Any

from ortools.sat.python import cp_model

ONCE = {"random_stateful", "effect", "collective", "mutates", "unknown"}
UNIT = 10**4  # bytes: sizes are rounded up to multiples of this, budgets down
TICK = 10**7  # picoseconds


class _Model:
    """One step as a program; ``runs[t, u]``: op u runs in stage t, which ends with base op t."""

    def __init__(self, problem: dict[str, Any], budget: int, than: int) -> None:
        self.ops = problem["ops"]
        self.problem, self.starts = problem, problem["backward_starts"]
        self.storages = problem["storages"]
        self.of = [o["storage"] for op in self.ops for o in op["out"]]
        self.flags = [set(op["flags"]) for op in self.ops]
        assert not any("view" in f for f in self.flags)
        self.work = [u for u, f in enumerate(self.flags) if "placeholder" not in f]
        given = {o["storage"] for u, op in enumerate(self.ops) for o in op["out"]
                 if "placeholder" in self.flags[u]}  # fmt: skip
        self.decided = [s for s in range(len(self.storages)) if s not in given]
        self.end = {s for s in self.decided if "hold_end" in self.storages[s]["flags"]}
        self.end |= {self.of[v] for v in problem["backward_outputs"]}
        self.returned = {self.of[v] for v in problem["forward_outputs"]}
        self.cp = cp_model.CpModel()
        self.budget, self.than = budget // UNIT, than
        self.runs: dict[tuple[int, int], cp_model.IntVar] = {}
        self._fill()

    def makes(self, u: int) -> set[int]:
        return {o["storage"] for o in self.ops[u]["out"]} & set(self.decided)

    def reads(self, u: int) -> set[int]:
        return {self.of[v] for v in self.ops[u]["in"]} & set(self.decided)

    def may_rerun(self, u: int) -> bool:
        kept = self.makes(u) <= self.end
        return u < self.starts and not self.flags[u] & ONCE and not kept

    def size(self, s: int) -> int:
        return -(-int(self.storages[s]["bytes"]) // UNIT)

    def _is_held(self, s: int, t: int) -> bool:
        """True if the value is held after its base run: until the first op of the backward has run,
        or to the end."""
        return s in self.end or (s in self.returned and (t < self.starts or t == self.first))

    def _fill(self) -> None:
        cp = self.cp
        self.first = next((u for u in self.work if u >= self.starts), -1)
        there: dict[int, Any] = dict.fromkeys(self.decided, 0)
        based: set[int] = set()  # storages whose op is earlier in base order
        for t in self.work:
            for u in [*(u for u in self.work if u < t and self.may_rerun(u)), t]:
                held = self.makes(u) & (self.end | self.returned)
                late = u == t and self.may_rerun(u) and not held
                run = cp.new_bool_var(f"run {t} {u}") if u < t or late else cp.new_constant(1)
                self.runs[t, u] = run
                there = self._event(run, u, t, there, based)
            based |= self.makes(t)
        for s in self.end:
            if not isinstance(there[s], int):
                cp.add(there[s] == 1)
        time = sum(self._ticks(u) * run for (_, u), run in self.runs.items())
        cp.add(time <= (self.than - 1) // TICK)

    def _ticks(self, u: int) -> int:
        return int(self.ops[u].get("time_ps", 0)) // TICK

    def _event(self, run: Any, u: int, t: int, there: dict[int, Any], based: set[int]) -> Any:
        """Lets op u run or not, and returns the memory content afterwards."""
        cp, made = self.cp, self.makes(u)
        for s in self.reads(u):
            cp.add_implication(run, there[s]) if not isinstance(there[s], int) else cp.add(run == 0)
        scratch = -(-int(self.ops[u].get("workspace", 0)) // UNIT)
        own = scratch + sum(self.size(s) for s in made)
        cp.add(sum(self.size(s) * x for s, x in there.items()) + own * run <= self.budget)
        after: dict[int, Any] = {}
        for s in self.decided:
            if s not in made and isinstance(there[s], int):
                after[s] = 0
                continue
            after[s] = cp.new_bool_var(f"there {t} {u} {s}")
            cp.add(after[s] <= there[s] + (run if s in made else 0))
            if s in based | (made if u == t else set()) and self._is_held(s, t):
                cp.add(after[s] == 1)
        return after


Steps = tuple[list[int], int]
"""Ops in the order in which they run, and where the backward starts among them."""


def faster(
    problem: dict[str, Any], budget: int, than: int, effort: float
) -> tuple[Steps | None, bool]:
    """Returns a schedule within a budget that takes less time than ``than`` picoseconds, or None;
    and whether the search was complete. Deterministic: ``effort`` is in seconds of the solver's
    deterministic clock."""
    model = _Model(problem, budget, than)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model.cp)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, status == cp_model.INFEASIBLE
    ran = [(t, u) for (t, u), run in model.runs.items() if solver.value(run)]
    split = next((i for i, (t, _) in enumerate(ran) if t == model.first), len(ran))
    return ([u for _, u in ran], split), True
