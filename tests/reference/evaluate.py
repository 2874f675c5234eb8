#!/usr/bin/env python3
"""Independent evaluator of plans: recalculates the C planner's claims in plain Python.

    evaluate.py PROBLEM.json[.gz] PLAN.json[.gz] [DEVICE]

It knows the two file formats of docs/problem.md and shares no code with the library. It is written
for readability, and is slow. ``evaluate`` raises ``BrokenPlanError`` naming the first broken rule
and returns peak bytes, saved bytes and time; ``check_plan`` compares them with the numbers the plan
carries and checks that no two lives overlap in the arena.
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from costs import (
    Device,
    fused_work,
    is_fused,
    link_of,
    member_seconds,
    op_seconds,
    whole_ps,
    write_seconds,
)
from slices import slice_of, taken_reads

ONCE = {"random_stateful", "effect", "collective", "mutates", "unknown"}


def once_flags(problem: dict[str, Any]) -> set[str]:
    """Returns the flags that make an op of this problem run only once."""
    return ONCE - {"collective"} if problem.get("collective_again") else ONCE


class BrokenPlanError(ValueError):
    """Raised if the plan breaks a rule; the message names the step or the value."""


@dataclass
class Life:
    """One life of a storage, or of a step's scratch if ``storage`` is None, from step ``made`` to
    ``last``."""

    storage: int | None
    made: int
    last: int
    bytes: int


@dataclass
class Evaluation:
    """Numbers of one schedule: bytes, picoseconds, and how many runs were repeats."""

    peak_bytes: int
    saved_bytes: int
    time_ps: int
    once_ps: int
    recomputed: int
    lives: list[Life]
    stall_ps: int = 0
    out_bytes: int = 0
    in_bytes: int = 0
    over: dict[int, int] = field(default_factory=dict)
    """Places in ``lives``: of a life, and of the one whose memory it takes over."""

    @property
    def seconds(self) -> float:
        return self.time_ps * 1e-12


class Lanes:
    """Tracks copies to the host and back during the steps: the clock, and pending copies. Times are
    integers in picoseconds, so that the order of additions does not affect comparisons."""

    def __init__(self, link: float) -> None:
        self.link, self.clock, self.stall = link, 0, 0
        self.free = {"out": 0, "in": 0}
        self.ended: dict[int, int] = {}  # maps an op to the end of its last copy out
        self.ready: dict[int, int] = {}  # maps an op to the time when its outputs are available
        self.made: dict[int, int] = {}  # maps an op to the step that made its present outputs
        self.sent: dict[int, int] = {}  # maps an op to the step of its last copy out
        self.left: dict[int, int] = {}  # maps the id of a life to the step at which it left
        self.keeper: dict[int, int] = {}  # id of a life held to the end -> step of its value
        self.leaving: list[tuple[int, Life]] = []
        self.bytes = {"out": 0, "in": 0}

    def stall_until(self, when: int) -> None:
        self.stall += max(0, when - self.clock)
        self.clock = max(self.clock, when)

    def copy(self, way: str, op: int, size: int) -> int:
        if not self.link:
            raise BrokenPlanError(f"op {op} moves, but there is no link")
        start = max(self.free[way], self.clock, self.ended.get(op, 0) if way == "in" else 0.0)
        self.free[way] = start + int(size / self.link * 1e12 + 0.5)
        self.bytes[way] += size
        return self.free[way]

    def free_gone(self, step: int) -> int:
        """Ends the lives whose copies have ended; returns their bytes."""
        gone = 0
        while self.leaving and self.leaving[0][0] <= self.clock:
            life = self.leaving.pop(0)[1]
            if life.made >= step:
                life.bytes = 0
            life.last = max(life.last, step - 1)
            gone += life.bytes
        return gone


def load(path: str | Path) -> dict[str, Any]:
    """Reads a JSON file, gzipped or not."""
    data = Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    loaded: dict[str, Any] = json.loads(data)
    return loaded


class Walk:
    """Walks once over a schedule; there is a method for each kind of step."""

    def __init__(self, problem: dict[str, Any], n_step: int, backward_starts: int, device: Device):
        self.problem, self.device = problem, device
        self.end, self.starts = n_step, backward_starts
        self.ops, self.storages = problem["ops"], problem["storages"]
        self.storage_of = [out["storage"] for op in self.ops for out in op["out"]]
        self.maker = [i for i, op in enumerate(self.ops) for _ in op["out"]]
        self.first = list(accumulate((len(op["out"]) for op in self.ops), initial=0))
        self.flags = [set(op.get("flags", [])) for op in self.ops]
        self.held = [set(s.get("flags", [])) for s in self.storages]
        self.lives: list[Life] = []
        # maps a value to the life seen by its op's last run; None if it is static
        self.value_life: dict[int, Life | None] = {}
        self.newest: dict[int, Life] = {}  # maps a storage to its latest life
        self.own: dict[int, Life] = {}  # storage -> its first run's life, which is held
        self.written_by: dict[int, int] = {}  # maps a storage to the last op that mutated it
        self.written_at: dict[int, int] = {}
        self.runs: dict[int, int] = {}
        self.may_run_once = once_flags(problem)
        self.collective = -1  # the latest collective that ran for the first time
        self.ever: dict[int, set[int]] = {}  # op -> positions of the outputs made so far
        self.unread: dict[int, tuple[int, int]] = {}  # id of a life of an inside -> step, output
        self.inlinings = {(x["op"], x["value"]): x for x in problem.get("inlinings", [])}
        self.inlined: set[int] = set()  # values that a run inlined before their op made them
        self.again = 0  # number of reruns
        self.offers: list[tuple[int, Life, list[Life | None]]] = []  # step, output, inputs listed
        self.once_ps = 0
        self.work = fused_work(problem) if is_fused(device) else None
        self.lanes = Lanes(problem.get("link_bytes_per_s", 0.0) or link_of(device))
        self.crossing = 0  # bytes still being copied out when the backward starts, freed later
        # maps the storage of a parameter to that of the gradient that its update reads
        self.gradient_of = {s["updates"]: g for g, s in enumerate(self.storages) if "updates" in s}
        for i, kinds in enumerate(self.flags):
            if "placeholder" in kinds:
                for v in range(self.first[i], self.first[i + 1]):
                    self.value_life[v] = None

    def hold(self, life: Life | None, until: int) -> None:
        """Extends the life to at least that step."""
        if life is not None:
            life.last = max(life.last, until)

    def here(self, v: int, step: int) -> None:
        """Raises an error if the value's memory has been moved to the host with another value."""
        if id(self.value_life[v]) in self.lanes.left:
            raise BrokenPlanError(f"step {step}: value {v} is in memory moved to the host")

    def held_for(self, v: int) -> Life | None:
        """Returns the life held for a value: that of its op's first run."""
        return self.own.get(self.storage_of[v], self.value_life[v])

    def begin(self, s: int, t: int) -> Life:
        """Begins a new life of storage ``s``. It becomes the storage's own life if no life of it is
        on the device."""
        self.newest[s] = Life(s, t, t, self.storages[s]["bytes"])
        self.own.setdefault(s, self.newest[s])
        self.lives.append(self.newest[s])
        return self.newest[s]

    def enter_backward(self) -> None:
        """Checks what must be live between forward and backward."""
        for v in self.problem["forward_outputs"]:
            if v not in self.value_life:
                raise BrokenPlanError(f"forward output {v} does not exist when the backward starts")
            self.here(v, self.starts)
            to_end = "hold_end" in self.held[self.storage_of[v]]
            self.hold(self.held_for(v), self.end if to_end else self.starts)
            if to_end and self.maker[v] in self.lanes.made:
                made, key = self.lanes.made[self.maker[v]], id(self.held_for(v))
                self.lanes.keeper[key] = made if self.lanes.keeper.get(key, made) == made else -1
        for s, kinds in enumerate(self.held):
            if "hold_forward" in kinds and "static" not in kinds:
                if s not in self.own:
                    raise BrokenPlanError(f"storage {s} is not alive when the backward starts")
                self.hold(self.own[s], self.starts)

    def copy_out(self, t: int, i: int) -> None:
        """Starts copying op ``i``'s values out. Their memory is freed when the copy has ended."""
        lanes = self.lanes
        if i not in lanes.made:
            raise BrokenPlanError(f"step {t}: op {i} is not live and cannot leave")
        gone: dict[int, Life] = {}
        for v in range(self.first[i], self.first[i + 1]):
            life = self.value_life[v]
            if life is not None:  # the caller's memory stays
                gone[id(self.value_life.pop(v))] = life
        lanes.sent[i] = t
        lanes.ended[i] = lanes.copy("out", i, sum(life.bytes for life in gone.values()))
        for key, life in gone.items():
            if key in lanes.left or lanes.keeper.get(key, lanes.made[i]) != lanes.made[i]:
                raise BrokenPlanError(f"step {t}: op {i} leaves, but its memory is shared")
            lanes.left[key] = t
            if life.last == self.end:  # it stays, and so does its copy
                life = Life(life.storage, t + 1, t + 1, life.bytes)
                if t + 1 < self.end:
                    self.lives.append(life)
            else:
                self.hold(life, t)
                for latest in (self.newest, self.own):
                    if life.storage is not None and latest.get(life.storage) is life:
                        del latest[life.storage]
            lanes.leaving.append((lanes.ended[i], life))
        del lanes.made[i]

    def copy_in(self, t: int, i: int) -> None:
        """Gives op ``i``'s values new memory. They are available when the copy has ended."""
        size = 0
        fresh: dict[int, Life] = {}
        for k, out in enumerate(self.ops[i]["out"]):
            s = out["storage"]
            if self.written_at.get(s, -1) > self.lanes.sent[i]:
                raise BrokenPlanError(f"step {t}: storage {s} was written since it left")
            if "static" not in self.held[s] and s not in fresh:
                fresh[s] = self.begin(s, t)
                size += fresh[s].bytes
            self.value_life[self.first[i] + k] = fresh.get(s)
        self.lanes.ready[i] = self.lanes.copy("in", i, size)
        self.lanes.made[i] = t

    def made(self, t: int, i: int, outputs: Any) -> set[int]:
        """Returns the positions of the outputs that a run makes: all, unless the op has an
        inside."""
        every = set(range(len(self.ops[i]["out"])))
        if outputs is None:
            return every
        if not isinstance(outputs, list) or sorted(set(outputs)) != sorted(outputs):
            raise BrokenPlanError(f"step {t}: {outputs!r} is not a list of outputs")
        if not set(outputs) <= every or not outputs:
            raise BrokenPlanError(f"step {t}: op {i} makes none, or one that it does not have")
        if not self.ops[i].get("inside") and set(outputs) != every:
            raise BrokenPlanError(f"step {t}: op {i} has no inside and makes all of its outputs")
        return set(outputs)

    def took(self, i: int, made: set[int]) -> int:
        """Returns the picoseconds of a run of op ``i`` that makes these outputs."""
        op = self.ops[i]
        network = self.problem.get("network_bytes_per_s", 0.0)
        own = whole_ps(op_seconds(op, self.device, self.work[i] if self.work else None, network))
        if not op.get("inside"):
            return own
        size = {
            k: out.get("bytes", self.storages[out["storage"]]["bytes"])
            for k, out in enumerate(op["out"])
        }
        members, _ = slice_of(op, made)
        return (
            own
            + sum(whole_ps(member_seconds(op["inside"][m], self.device)) for m in members)
            + sum(whole_ps(write_seconds(size[k], self.device)) for k in made)
        )

    def check_taken(self, t: int, i: int, values: Any) -> set[int]:
        """Returns the values inlined by a run of op ``i``, which the problem must list."""
        if not isinstance(values, list) or sorted(set(values)) != sorted(values):
            raise BrokenPlanError(f"step {t}: {values!r} is not a list of values")
        for v in values:
            if (i, v) not in self.inlinings:
                raise BrokenPlanError(f"step {t}: op {i} may not take in value {v}")
        return set(values)

    def take_in(self, i: int, taken: set[int]) -> tuple[int, int]:
        """Returns picoseconds and scratch of the values inlined by a run of op ``i``."""
        time = scratch = 0
        for v in sorted(taken):
            x, there = self.inlinings[i, v], v - self.first[self.maker[v]]
            took = whole_ps(member_seconds({**x, "flags": ["fusible"]}, self.device))
            before = v in self.inlined or there in self.ever.get(self.maker[v], ())
            time, scratch = time + took, scratch + x.get("workspace", 0)
            if before:
                self.again += 1
            else:
                self.inlined.add(v)
                self.once_ps += took
        return time, scratch

    def read(self, t: int, reads: list[tuple[int, int]]) -> dict[int, Life | None]:
        """Returns the lives that a run reads, by storage; ``reads`` has (op, value) pairs."""
        seen: dict[int, Life | None] = {}
        for i, v in reads:
            s = self.storage_of[v]
            if v not in self.value_life:
                raise BrokenPlanError(
                    f"step {t}: op {i} needs value {v} of op {self.maker[v]}, not made yet"
                )
            if self.written_by.get(s, -1) > i:
                raise BrokenPlanError(
                    f"step {t}: op {i} reads storage {s} after op {self.written_by[s]} wrote it"
                )
            self.here(v, t)
            self.hold(self.value_life[v], t)
            self.unread.pop(id(self.value_life[v]), None)
            if self.value_life[v] is not None:
                self.lanes.stall_until(self.lanes.ready.get(self.maker[v], 0))
            seen[s] = self.value_life[v]
        return seen

    def once(self, i: int, made: set[int]) -> None:
        """Counts a run of op ``i``. The time of the first run includes everything that the op
        makes for the first time, unless it was inlined before."""
        before = self.ever.get(i)
        now = (before or set()) | {k for k in made if self.first[i] + k not in self.inlined}
        first = now != (before or set()) or (not made and before is None)
        if first:
            self.once_ps += self.took(i, now) - (self.took(i, before) if before else 0)
            self.ever[i] = now
        self.again += i in self.runs or (before is None and not first)
        self.runs[i] = self.runs.get(i, 0) + 1

    def check_collective(self, t: int, i: int) -> None:
        """If collectives may rerun, checks that their first runs keep their order and phase."""
        if not self.problem.get("collective_again") or "collective" not in self.flags[i]:
            return
        if i in self.runs:
            return
        if i < self.problem.get("backward_starts", len(self.ops)) and t >= self.starts:
            raise BrokenPlanError(f"step {t}: collective {i} first runs in the backward")
        if i < self.collective:
            raise BrokenPlanError(f"step {t}: collective {i} first runs after {self.collective}")
        self.collective = i

    def check_order(self, t: int, i: int) -> None:
        """Checks that ops of the backward run once, in the order of their ids. If reruns is "all",
        first runs may be late, except those of ops that run once."""
        if "backward" not in self.flags[i]:
            return
        every = self.problem.get("reruns", "forward") == "all"
        after = max((k for k in self.runs if "backward" in self.flags[k]), default=-1)
        if not every and (i in self.runs or i < after):
            raise BrokenPlanError(f"step {t}: backward op {i} is late or runs again")
        if i not in self.runs and i < after and self.flags[i] & self.may_run_once:
            raise BrokenPlanError(f"step {t}: op {i} may run only once and runs after {after}")
        tail = len(self.ops)
        while tail > self.problem.get("backward_starts", tail) and "effect" in self.flags[tail - 1]:
            tail -= 1
        if i < tail <= after:
            raise BrokenPlanError(f"step {t}: op {i} runs after {after}, an effect at the end")

    def run(self, t: int, i: int, outputs: Any = None, values: Any = ()) -> None:
        """Runs op ``i``, makes ``outputs`` (None means all) and inlines ``values``."""
        op = self.ops[i]
        made, inputs = self.made(t, i, outputs), set(range(len(op["in"])))
        workspace = op.get("workspace", 0)
        if op.get("inside"):
            members, inputs = slice_of(op, made)
            workspace += sum(op["inside"][m].get("workspace", 0) for m in members)
        if "backward" in self.flags[i] and t < self.starts:
            raise BrokenPlanError(f"step {t}: op {i} depends on a tangent and runs in the forward")
        if self.flags[i] & self.may_run_once and i in self.runs:
            raise BrokenPlanError(f"step {t}: op {i} may run only once")
        self.check_collective(t, i)
        self.check_order(t, i)
        taken = self.check_taken(t, i, values) if values != () else set()
        reads, used = taken_reads(self.problem, i, sorted(inputs), taken)
        if used != taken:
            raise BrokenPlanError(f"step {t}: op {i} takes in {taken - used}, which it reads not")
        seen = self.read(t, reads)
        for k, out in enumerate(op["out"]):
            s = out["storage"]
            if k not in made:
                continue
            if s in seen:
                if "mutates" in self.flags[i]:
                    self.written_by[s], self.written_at[s] = i, t
            elif "static" in self.held[s]:  # the caller's memory is written once
                seen[s] = None
                if k in self.ever.get(i, ()):
                    self.lives.append(Life(s, t, t, self.storages[s]["bytes"]))
                    if op.get("inside"):
                        self.unread[id(self.lives[-1])] = t, k
            else:
                seen[s] = self.begin(s, t)
                if op.get("inside"):
                    self.unread[id(seen[s])] = t, k
            self.value_life[self.first[i] + k] = seen[s]
        for j in [i, *(self.maker[v] for v in taken)]:
            if "view" in self.flags[j]:
                continue
            for v in self.ops[j]["in"]:  # a gradient outlives the readers of its parameter
                gradient = self.gradient_of.get(self.storage_of[v], -1)
                self.hold(self.own.get(gradient), t)
        if op.get("over") and not taken:
            listed = [self.storage_of[op["in"][k]] for k in op["over"]]
            output = seen[op["out"][0]["storage"]]
            assert output is not None
            self.offers.append((t, output, [seen[s] for s in listed]))
        self.once(i, made)
        more_time, scratch = self.take_in(i, taken)
        if workspace + scratch:
            self.lives.append(Life(None, t, t, workspace + scratch))
        self.lanes.clock += self.took(i, made) + more_time
        self.lanes.made[i], self.lanes.ready[i] = t, 0

    def over(self) -> dict[int, int]:
        """Returns the lives that reuse the memory of others, both by position. The life of a listed
        input must end with the step; if there are several, the first one is reused."""
        place = {id(life): i for i, life in enumerate(self.lives)}
        taken: dict[int, int] = {}
        keeps = self.problem.get("keep_saved", False)
        for t, output, inputs in self.offers:
            ends = [
                life
                for life in inputs
                if life is not None
                and life.last == t
                and not (keeps and life.made < self.starts <= t)
            ]
            if ends:
                taken[place[id(output)]] = place[id(ends[0])]
        return taken

    def take(self, t: int, step: Any) -> None:
        """Takes one step: an op id, an action and an id, or a run with a list of outputs."""
        action, i, *outputs = ("run", step) if isinstance(step, int) else step
        if action not in ("run", "out", "wait", "in"):
            raise BrokenPlanError(f"step {t}: unknown action {action!r}")
        if not 0 <= i < len(self.ops) or "placeholder" in self.flags[i]:
            raise BrokenPlanError(f"step {t}: {i} is not the id of an op that runs")
        if len(outputs) > 2:
            raise BrokenPlanError(f"step {t}: {step!r} says more than what it makes and takes in")
        if action != "run" and (outputs or self.ops[i].get("inside")):
            raise BrokenPlanError(f"step {t}: what an op with an inside makes does not move")
        if action in ("wait", "in") and i not in self.lanes.ended:
            raise BrokenPlanError(f"step {t}: op {i} was never offloaded")
        if action == "wait":
            self.lanes.stall_until(self.lanes.ended[i])
        gone = self.lanes.free_gone(t)
        self.crossing += gone if t == self.starts else 0
        if action != "wait":
            {"run": self.run, "out": self.copy_out, "in": self.copy_in}[action](t, i, *outputs)

    def finish(self) -> None:
        """Checks what must be live at the end."""
        for v in self.problem["backward_outputs"]:
            if v not in self.value_life:
                raise BrokenPlanError(f"backward output {v} does not exist at the end")
            self.here(v, self.end)
            own = "hold_end" in self.held[self.storage_of[v]]
            self.hold(self.held_for(v) if own else self.value_life[v], self.end)
        for s, kinds in enumerate(self.held):
            if "hold_end" not in kinds or "static" in kinds:
                continue
            if s not in self.own:
                raise BrokenPlanError(f"storage {s} is not alive at the end")
            self.hold(self.own[s], self.end)
        for g in self.gradient_of.values():
            if g not in self.own:
                raise BrokenPlanError(f"gradient storage {g} is never made")
            self.hold(self.own[g], self.starts)
            self.unread.pop(id(self.own[g]), None)
        for i, kinds in enumerate(self.flags):
            acts = kinds & (ONCE - {"unknown"}) and "placeholder" not in kinds
            if acts and i not in self.runs:
                raise BrokenPlanError(f"op {i} must run once, but does not run")
        for life in self.lives:
            if id(life) in self.unread and life.last == life.made:
                t, k = self.unread[id(life)]
                raise BrokenPlanError(f"step {t}: output {k} is made, but nobody reads it")


def evaluate(
    problem: dict[str, Any], steps: list[Any], backward_starts: int, device: Device = "cpu"
) -> Evaluation:
    """Walks ``steps`` (see ``Walk.take``; the backward starts at ``backward_starts``); checks all
    rules."""
    end = len(steps)
    if not 0 <= backward_starts <= end:
        raise BrokenPlanError(f"backward starts at {backward_starts} of {end} steps")
    walk = Walk(problem, end, backward_starts, device)
    for t, step in enumerate(steps):
        if t == backward_starts:
            walk.enter_backward()
        walk.take(t, step)
    if backward_starts == end:
        walk.enter_backward()
    walk.finish()
    lives, lanes = walk.lives, walk.lanes
    time_ps, lanes.clock = lanes.clock, max([lanes.clock, *lanes.free.values()])
    gone = lanes.free_gone(end)
    saved = walk.crossing + (gone if backward_starts == end else 0)
    change = [0] * (end + 2)
    for life in lives:
        change[life.made] += life.bytes
        change[life.last + 1] -= life.bytes
    over = walk.over()
    for to in over:  # while that step runs, both lives share memory
        change[lives[to].made] -= lives[to].bytes
        change[lives[to].made + 1] += lives[to].bytes
    live = peak = 0
    for t in range(end):
        live += change[t]
        peak = max(peak, live)
    saved += sum(life.bytes for life in lives if life.made < backward_starts <= life.last)
    moved = lanes.bytes
    return Evaluation(
        peak, saved, time_ps, walk.once_ps, walk.again, lives, lanes.stall, moved["out"],
        moved["in"], over,
    )  # fmt: skip


def check_arena(
    lives: list[Life], rows: list[list[Any]], align: int, arena_bytes: int, over: dict[int, int]
) -> None:
    """Checks that the rows (storage, made, last, bytes, offset) are these lives, in the arena,
    without overlap, except for lives that reuse the memory of others (``over``, both by
    position)."""
    if [[x.storage, x.made, x.last, x.bytes] for x in lives] != [row[:4] for row in rows]:
        raise BrokenPlanError("the lives in the plan are not those of its steps")
    for to, taken in over.items():
        if rows[to][4] != rows[taken][4] or rows[to][3] != rows[taken][3]:
            raise BrokenPlanError(f"life {rows[to]} is not where {rows[taken]} was")
    shared = {(id(rows[taken]), id(rows[to])) for to, taken in over.items()}
    alive: list[list[Any]] = []
    for row in sorted(rows, key=lambda r: int(r[1])):
        _, made, _, size, offset = row
        if offset % align or offset + size > arena_bytes:
            raise BrokenPlanError(
                f"life {row} is not aligned or leaves the arena of {arena_bytes} bytes"
            )
        alive = [other for other in alive if other[2] >= made]
        for other in alive:
            if (id(other), id(row)) in shared:
                continue
            if size and other[3] and offset < other[4] + other[3] and other[4] < offset + size:
                raise BrokenPlanError(f"lives {other} and {row} overlap")
        alive.append(row)


def check_plan(
    problem: dict[str, Any], plan: dict[str, Any], device: str | dict[str, Any] = "cpu"
) -> Evaluation:
    """Compares all numbers of a plan with its steps: to the byte, and to a picosecond per op."""
    result = evaluate(problem, plan["steps"], plan["backward_starts"], device)
    numbers = plan["numbers"]
    for key, own in (
        ("live_bytes", result.peak_bytes),
        ("saved_bytes", result.saved_bytes),
        ("total_bytes", result.peak_bytes + problem.get("static_bytes", 0)),
        ("recomputed", result.recomputed),
        ("time_ps", result.time_ps),
        ("once_ps", result.once_ps),
        ("out_bytes", result.out_bytes),
        ("in_bytes", result.in_bytes),
    ):
        if numbers.get(key, 0) != own:
            raise BrokenPlanError(f"the plan says {key} {numbers.get(key)}, its steps give {own}")
    align, arena = problem.get("align", 64), numbers["arena_bytes"]
    check_arena(result.lives, plan["lives"], align, arena, result.over)
    budget = plan.get("budget_bytes")
    if budget is not None and numbers[f"{plan['measure']}_bytes"] > budget:
        raise BrokenPlanError(
            f"the plan needs {numbers[plan['measure'] + '_bytes']} bytes, its budget is {budget}"
        )
    return result


def main(argv: list[str]) -> int:
    """Checks one plan and prints its numbers; returns 1 if it is broken."""
    if len(argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        result = check_plan(load(argv[1]), load(argv[2]), argv[3] if len(argv) == 4 else "cpu")
    except BrokenPlanError as broken:
        print(f"broken: {broken}", file=sys.stderr)
        return 1
    extra = result.time_ps / result.once_ps - 1 if result.once_ps else 0.0
    print(f"peak {result.peak_bytes} saved {result.saved_bytes} bytes, extra time {extra:.4%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
