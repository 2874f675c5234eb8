"""Makes schedules with late or repeated backward ops from a schedule of any plan."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from evaluate import ONCE


def op_of(step: Any) -> int:
    """Returns the op of a step."""
    return step if isinstance(step, int) else int(step[1])


def is_run(step: Any) -> bool:
    """True if the step runs an op; False if it copies to or from the host."""
    return isinstance(step, int) or step[0] == "run"


class Late:
    """Moves backward ops in schedules of one problem (``docs/problem.md``)."""

    def __init__(self, problem: dict[str, Any]) -> None:
        self.ops = problem["ops"]
        self.maker: list[int] = []
        self.storage: list[int] = []
        for i, op in enumerate(self.ops):
            self.maker += [i] * len(op["out"])
            self.storage += [out["storage"] for out in op["out"]]
        self.flags = [set(op.get("flags", ())) for op in self.ops]
        self.tail = len(self.ops)  # effects at the very end, after everything else
        while self.tail and "effect" in self.flags[self.tail - 1]:
            self.tail -= 1

    def reads(self, step: Any) -> set[int]:
        """Returns the ops whose values a step may read, including those of inlined values."""
        taken = step[3] if not isinstance(step, int) and len(step) > 3 else ()
        ops = {op_of(step), *(self.maker[v] for v in taken)}
        return {self.maker[v] for i in ops for v in self.ops[i]["in"]} | (ops - {op_of(step)})

    def storages(self, step: Any) -> set[int]:
        """Returns the storages that a step may read."""
        return {self.storage[v] for v in self.ops[op_of(step)]["in"]}

    def writes(self, step: Any) -> set[int]:
        """Returns the storages that a step writes into, besides those that it makes."""
        op = self.ops[op_of(step)]
        if "mutates" not in self.flags[op_of(step)]:
            return set()
        return {out["storage"] for out in op["out"]} & self.storages(step)

    def may_move(self, step: Any) -> bool:
        """True if a run of the step may come later, or be repeated."""
        flags = self.flags[op_of(step)]
        return is_run(step) and "backward" in flags and not flags & ONCE

    def last_place(self, steps: list[Any], t: int) -> int:
        """Returns the last position before which step ``t`` may move, counted before the step is
        removed."""
        op, storages = op_of(steps[t]), self.storages(steps[t])
        for k in range(t + 1, len(steps)):
            if op in self.reads(steps[k]) or storages & self.writes(steps[k]):
                return k
            if op_of(steps[k]) == op or op_of(steps[k]) >= self.tail:
                return k
        return len(steps)

    def delays(self, steps: list[Any], starts: int, rng: random.Random, share: float) -> list[Any]:
        """Moves about a ``share`` of the backward's single runs to their first reader or to the
        end."""
        steps = list(steps)
        runs = Counter(op_of(step) for step in steps)
        wanted = [s for s in steps[starts:] if runs[op_of(s)] == 1 and rng.random() < share]
        for step in reversed(wanted):
            t = next(t for t, other in enumerate(steps) if op_of(other) == op_of(step))
            last = self.last_place(steps, t)
            if not self.may_move(step) or last == t + 1:
                continue
            steps.insert(last if rng.random() < 0.6 else rng.randint(t + 1, last), step)
            del steps[t]
        return steps

    def reruns(self, steps: list[Any], starts: int, rng: random.Random, share: float) -> list[Any]:
        """Repeats about a ``share`` of the backward's ops before one of their later readers. For
        ops with an inside, repeats only those with one output, because some of several outputs
        would be useless."""
        added: list[tuple[int, Any]] = []
        for t in range(starts, len(steps)):
            op = self.ops[op_of(steps[t])]
            in_vain = "inside" in op and len(op["out"]) > 1
            if not self.may_move(steps[t]) or in_vain or rng.random() >= share:
                continue
            places = list(self._later_readers(steps, t))
            if places:
                added.append((rng.choice(places), steps[t]))
        steps = list(steps)
        for place, step in sorted(added, key=lambda x: -x[0]):
            steps.insert(place, step)
        return steps

    def _later_readers(self, steps: list[Any], t: int) -> Iterator[int]:
        """Yields positions before which the step may rerun for a reader after its first one."""
        op, storages, seen = op_of(steps[t]), self.storages(steps[t]), False
        for k in range(t + 1, len(steps)):
            if op_of(steps[k]) == op or op_of(steps[k]) >= self.tail:
                return
            if op in self.reads(steps[k]):
                if seen:
                    yield k
                seen = True
            if storages & self.writes(steps[k]):
                return
