"""The schedule that an eager region follows under a plan. The forward runs as written and autograd
orders the backward, so the plan decides only which forward values are held, and how long the result
of a rerun is held. The bytes of the resulting schedule are compared with the budget.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import deepcopy
from itertools import count

from ... import _native
from ...problem import Problem
from .described import ONCE, Described, set_apart


class Schedule:
    """The values that a region will hold and recompute: a plan, reduced to the decisions that an
    eager region can follow."""

    def __init__(
        self, seen: Described, plan: _native.Plan, gone: Collection[int] | None = None
    ) -> None:
        """Builds the schedule. ``gone`` has the values that a forward did not hold because it ran
        without a plan. A forward under a plan holds the results of ops whose inputs are overwritten
        later."""
        self.seen = seen
        self._gone = gone or ()
        self.steps: list[int] = []
        self._read_by: dict[int, set[int]] = {}
        self._makers = seen.problem.makers
        self._views = {i for i, op in enumerate(seen.ops) if "view" in op.flags}
        starts = next((i for i, op in enumerate(seen.ops) if "backward" in op.flags), len(seen.ops))
        self.starts = starts
        self._pinned = {i for i in range(starts) if ONCE & seen.ops[i].flags}
        self._made_once = seen.before_writes() - self._views if gone is None else set()
        self._pinned |= self._made_once
        self._wishes(plan, starts)
        self._follow(starts)

    def origin(self, value: int) -> int:
        """Returns the value that owns the storage of a view."""
        maker = self._makers[value]
        while maker in self._views and self.seen.ops[maker].inputs:
            value = self.seen.ops[maker].inputs[0]
            maker = self._makers[value]
        return value

    def makes_once(self, value: int) -> bool:
        """True if the value is held because its inputs are overwritten later."""
        return self._makers[value] in self._made_once

    def _wishes(self, plan: _native.Plan, starts: int) -> None:
        """Extracts from the plan's steps the values that the forward holds, and for each rerun in
        the backward, the last read of its results. Times are ids of backward ops."""
        runs: dict[int, int] = {}  # maps an op to its run: -1 in the forward, else a number
        number = count()
        reads: dict[tuple[int, int], int] = {}  # maps (value, run) to the last reader
        made: dict[tuple[int, int], int] = {}  # maps (value, run) to the time of the run
        now = starts
        self.held: set[int] = set()
        steps, backward_starts = [step.op for step in plan.steps], plan.backward_starts
        after = [starts] * len(steps)
        for place in range(len(steps) - 1, -1, -1):
            if steps[place] >= starts:
                now = steps[place]
            after[place] = now
        ops, first = self.seen.ops, self.seen.first
        for place, op_id in enumerate(steps):
            now = after[place]
            backward = place >= backward_starts
            for value in ops[op_id].inputs if backward else ():
                origin = self.origin(value)
                run = runs.get(self._makers[origin], -1)
                if run < 0 and self._makers[origin] < starts:
                    self.held.add(origin)
                else:
                    reads[origin, run] = now
            runs[op_id] = next(number) if backward and op_id < starts else -1
            for k in range(len(ops[op_id].outputs)):
                made[first[op_id] + k, runs[op_id]] = now
        self.held.difference_update(self._gone)
        # maps a value to (time of the rerun, time of the last read), in order
        self.lives: dict[int, list[tuple[int, int]]] = {}
        for (value, run), last in sorted(reads.items(), key=lambda item: item[0]):
            if run >= 0:
                self.lives.setdefault(value, []).append((made[value, run], last))

    def read_by(self, now: int) -> set[int]:
        """Returns the values that a backward op reads from its slots; for views, the viewed
        values."""
        known = self._read_by.get(now)
        if known is None:
            slots = self.seen.slots_of.get(now, ())
            known = self._read_by[now] = {self.origin(self.seen.slots[k]) for k in slots}
        return known

    def until(self, value: int, now: int) -> int:
        """Returns the time until which the plan needs a value that was made at time `now`."""
        last = -1
        for begin, end in self.lives.get(value, ()):
            if begin <= now:
                last = end
        return last

    def _follow(self, starts: int) -> None:
        """Simulates rerun.py and records its steps."""
        ops = self.seen.ops
        self.steps = [i for i in range(starts) if "placeholder" not in ops[i].flags]
        self._forward_steps = len(self.steps)
        pinned = self._pinned
        kept: dict[int, int] = {}
        for now in range(starts, len(ops)):
            kept = {v: last for v, last in kept.items() if last >= now}
            here = self.read_by(now)
            for slot in self.seen.slots_of.get(now, ()):
                wanted: set[int] = set()
                used: set[int] = set()
                stack = [self.seen.slots[slot]]
                while stack:
                    value = stack.pop()
                    maker = self._makers[value]
                    if value in kept:
                        used.add(value)
                        continue
                    if value in self.held or maker in pinned or maker in wanted:
                        continue
                    wanted.add(maker)
                    stack += ops[maker].inputs
                for value in used - here:
                    if kept[value] == now:
                        del kept[value]
                for maker in sorted(wanted):
                    self.steps.append(maker)
                    first = self.seen.first[maker]
                    for value in range(first, first + len(ops[maker].outputs)):
                        last = self.until(value, now)
                        if last > now or (last == now and value in here):
                            kept[value] = last
            self.steps.append(now)

    def _behind(self, values: Iterable[int]) -> set[int]:
        """Returns the held values that these values keep alive. A value references the ops that
        lead to it, whether or not those run again."""
        ops = self.seen.ops
        found: set[int] = set()
        seen: set[int] = set()
        stack = list(values)
        while stack:
            value = stack.pop()
            maker = self._makers[value]
            if value in seen or "placeholder" in ops[maker].flags:
                continue
            seen.add(value)
            if value in self.held or maker in self._pinned:
                found.add(value)
            else:
                stack += ops[maker].inputs
        return found

    def _as_held(self) -> Problem:
        """Returns the problem with extra reads that model references: each op also reads the values
        that are held until it has run (for its slots in the backward, for its inputs in the
        forward). A value that is overwritten but needed later exists as a copy, while a slot has
        the current contents of its memory."""
        problem = deepcopy(self.seen.problem)
        slots, slots_of = self.seen.slots, self.seen.slots_of
        read = {slot for row in slots_of.values() for slot in row}
        idle = [slots[k] for k in range(len(slots)) if k not in read]
        wanted = self._wanted_by_reruns()
        for now, op in enumerate(problem.ops):
            if now < self.starts:
                # nodes that no gradient reaches may live as long as the region's variables
                held_for = op.inputs if now < self.starts - 1 else [*op.inputs, *idle]
            elif now in slots_of:
                held_for = [slots[slot] for slot in slots_of[now]]
            else:
                continue
            held = self._behind(held_for)
            for value in held.difference(held_for):
                wanted[value] = max(wanted.get(value, -1), now)
            op.inputs = [*op.inputs, *sorted(held - set(op.inputs))]
        is_wanted = lambda value, now: wanted.get(value, -1) > now  # noqa: E731
        set_apart(problem.ops, problem.storages, is_wanted, copies_inputs=True)
        return problem

    def _wanted_by_reruns(self) -> dict[int, int]:
        """Maps the values that reruns make or read to the first op of the backward."""
        wanted: dict[int, int] = {}
        for op_id in self.steps[self._forward_steps :]:
            op = self.seen.ops[op_id]
            if op_id < self.starts:
                first = self.seen.first[op_id]
                made = range(first, first + len(op.outputs))
                wanted |= dict.fromkeys((*op.inputs, *made), self.starts)
        return wanted

    def live_bytes(self, device: str | None) -> int:
        """Returns the peak of live bytes of the schedule. ``device`` is as in
        :attr:`_native.Plan.device`.

        Raises:
            NotImplementedError: if a rerun reads memory that was overwritten in a way that the
                problem does not show (``set_``).
        """
        try:
            found = self._as_held().check().evaluate((self.steps, self._forward_steps), device)
        except ValueError as error:
            raise NotImplementedError(
                f"budget: a plan cannot account for memory that the region overwrites ({error}). "
                "Leave the budget out, or move the write out of the region"
            ) from error
        return found["peak_bytes"]
