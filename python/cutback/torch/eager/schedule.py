"""What an eager region will do under a plan: the forward runs as it is written, autograd orders the
backward, and what is left of the plan is which forward values are held and how long the result of a
rerun is. That is a schedule of its own, whose bytes are what counts against a budget.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import deepcopy
from itertools import count

from ... import _native
from ...problem import Problem
from .described import ONCE, Described, set_apart


class Schedule:
    """What a region holds and reruns, as it will happen: the steps of a plan, cut down to what an
    eager region can follow."""

    def __init__(
        self, seen: Described, plan: _native.Plan, gone: Collection[int] | None = None
    ) -> None:
        """``gone``: values that the forward did not hold, which has run without a plan. A forward
        under a plan holds what ops make that read what is overwritten later."""
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
        """The value whose storage a view lies in."""
        maker = self._makers[value]
        while maker in self._views and self.seen.ops[maker].inputs:
            value = self.seen.ops[maker].inputs[0]
            maker = self._makers[value]
        return value

    def makes_once(self, value: int) -> bool:
        """Is it held because what it is made from is overwritten?"""
        return self._makers[value] in self._made_once

    def _wishes(self, plan: _native.Plan, starts: int) -> None:
        """From the plan's steps: which values the forward holds, and for each run of an op in the
        backward, until where its results are read. Times are ids of backward ops."""
        runs: dict[int, int] = {}  # op -> its run: -1 in the forward, else a number
        number = count()
        reads: dict[tuple[int, int], int] = {}  # (value, run) -> last reader
        made: dict[tuple[int, int], int] = {}  # (value, run) -> time of the run
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
        # value -> (time it is made, time of the last read), in order
        self.lives: dict[int, list[tuple[int, int]]] = {}
        for (value, run), last in sorted(reads.items(), key=lambda item: item[0]):
            if run >= 0:
                self.lives.setdefault(value, []).append((made[value, run], last))

    def read_by(self, now: int) -> set[int]:
        """What a backward op saved, or that saved values are views of."""
        known = self._read_by.get(now)
        if known is None:
            slots = self.seen.slots_of.get(now, ())
            known = self._read_by[now] = {self.origin(self.seen.slots[k]) for k in slots}
        return known

    def until(self, value: int, now: int) -> int:
        """The last time at which the plan wants a value that was made at time `now`."""
        last = -1
        for begin, end in self.lives.get(value, ()):
            if begin <= now:
                last = end
        return last

    def _follow(self, starts: int) -> None:
        """The steps that rerun.py will take."""
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
        """What is held as long as these values are: they point at the ops that lead to them,
        whether or not those run again."""
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
        """The problem, where ops also read what is held until they have run: that of the slots of
        backward ops, and that of the tensors which forward ops read. What is overwritten and wanted
        later by ops that have read it is there in a copy; a slot has what is in its memory."""
        problem = deepcopy(self.seen.problem)
        slots, slots_of = self.seen.slots, self.seen.slots_of
        read = {slot for row in slots_of.values() for slot in row}
        idle = [slots[k] for k in range(len(slots)) if k not in read]
        wanted = self._wanted_by_reruns()
        for now, op in enumerate(problem.ops):
            if now < self.starts:
                # nodes that no gradient reaches may be there as long as the region's variables
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
        """What is made or read again, all of it behind the forward: value -> the backward's first
        op."""
        wanted: dict[int, int] = {}
        for op_id in self.steps[self._forward_steps :]:
            op = self.seen.ops[op_id]
            if op_id < self.starts:
                first = self.seen.first[op_id]
                made = range(first, first + len(op.outputs))
                wanted |= dict.fromkeys((*op.inputs, *made), self.starts)
        return wanted

    def live_bytes(self, device: str | None) -> int:
        """Peak of the schedule; ``device``: as :attr:`_native.Plan.device` has it.

        Raises:
            NotImplementedError: a rerun reads what was overwritten, in a way that the problem does
                not show (``set_``).
        """
        try:
            found = self._as_held().check().evaluate((self.steps, self._forward_steps), device)
        except ValueError as error:
            raise NotImplementedError(
                f"budget: a plan cannot count what the region overwrites ({error}). Leave the "
                "budget out, then the region works as always, or move the write out of it"
            ) from error
        return found["peak_bytes"]
