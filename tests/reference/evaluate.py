#!/usr/bin/env python3
"""Independent evaluator of plans: what the C planner claims, worked out again in plain Python.

    evaluate.py PROBLEM.json[.gz] PLAN.json[.gz] [DEVICE]

It knows the two file formats of docs/problem.md and shares no code with the library. It is written
to be read, and is slow. ``evaluate`` raises ``BrokenPlanError`` naming the first broken rule and
returns peak bytes, saved bytes and time; ``check_plan`` compares them with the numbers the plan
carries and checks that no two lives overlap in the arena.
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

ONCE = {"random_stateful", "effect", "collective", "mutates", "unknown"}
DEVICES = {  # flop/s by work class, bytes/s, seconds a launch; as in csrc/plan/cost.c
    "cpu": ({"f32": 100e9, "f64": 50e9, "f16": 100e9, "bf16": 100e9, "int": 50e9}, 20e9, 1e-6),
    "a100": (
        {"f32": 156e12, "f64": 19.5e12, "f16": 312e12, "bf16": 312e12, "int": 19.5e12},
        1.555e12,
        2e-6,
    ),
}


class BrokenPlanError(ValueError):
    """The plan breaks a rule; the text names the step or the value."""


@dataclass
class Life:
    """One life of one storage (``storage`` None: a step's scratch), steps ``made`` to ``last``."""

    storage: int | None
    made: int
    last: int
    bytes: int


@dataclass
class Evaluation:
    """Numbers of one schedule: bytes, seconds, and how many runs were repeats."""

    peak_bytes: int
    saved_bytes: int
    seconds: float
    once_seconds: float
    recomputed: int
    lives: list[Life]


def load(path: str | Path) -> dict[str, Any]:
    """Reads a JSON file, gzipped or not."""
    data = Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    loaded: dict[str, Any] = json.loads(data)
    return loaded


def fused_work(problem: dict[str, Any]) -> list[tuple[int, int]]:
    """(bytes moved, launches) of each op where pointwise chains run as one kernel: ops that fuse
    with their only reader make groups, or ``group`` says so; a group pays for what crosses it."""
    ops = problem["ops"]
    outs_of = [out for op in ops for out in op["out"]]
    storage_of = [out["storage"] for out in outs_of]
    stored = problem["storages"]
    flags = [set(op.get("flags", [])) for op in ops]
    work = [i for i in range(len(ops)) if not {"view", "placeholder"} & flags[i]]
    late = [i >= problem["backward_starts"] for i in range(len(ops))]
    root: dict[int, int] = {}
    for i, op in enumerate(ops):
        for out in op["out"]:
            if "static" not in stored[out["storage"]].get("flags", []):
                root.setdefault(out["storage"], i)
    values = list(accumulate((len(op["out"]) for op in ops), initial=0))

    def moved(v: int) -> int:
        whole = int(stored[storage_of[v]]["bytes"])
        return min(whole, int(outs_of[v].get("bytes", whole)))

    reads = {i: {storage_of[v]: v for v in reversed(ops[i]["in"])} for i in work}  # first of each
    makes = {
        i: {s: v for v in range(values[i], values[i + 1]) if root.get(s := storage_of[v]) == i}
        for i in work
    }
    readers: dict[int, list[int]] = {}
    for i in work:
        for s in reads[i]:
            readers.setdefault(s, []).append(i)
    leaves = {storage_of[v] for v in problem["forward_outputs"] + problem["backward_outputs"]}
    leaves |= {s for s in range(len(stored)) if stored[s].get("flags")}
    group = {i: {i} for i in work}

    def join(a: int, b: int) -> None:
        joined = group[a] | group[b]
        group.update(dict.fromkeys(joined, joined))

    by_number: dict[int, int] = {}
    for i in work:
        if "group" in ops[i]:
            join(i, by_number.setdefault(ops[i]["group"], i))
            continue
        if "fusible" not in flags[i] or "reduction" in flags[i] or len(makes[i]) == 0:
            continue
        outs = {out["storage"] for out in ops[i]["out"]}
        partners = [set(readers.get(s, [])) for s in outs]
        one = len(partners[0]) == 1 and all(x == partners[0] for x in partners)
        if not one or outs & leaves or outs != set(makes[i]):
            continue
        (j,) = partners[0]
        if "group" not in ops[j] and "fusible" in flags[j] and late[i] == late[j]:
            join(i, j)

    def inside(s: int, mine: set[int]) -> bool:
        users = readers.get(s, [])
        if s not in root or s in leaves or not users or not mine >= {root[s], *users}:
            return False
        return len({late[i] for i in (root[s], *users)}) == 1

    result = []
    for i, op in enumerate(ops):
        moves, launches = op.get("bytes", 0), 1
        if i in group and len(group[i]) > 1:
            launches = int(i == max(group[i]))
            for s, v in reads[i].items():
                if inside(s, group[i]) or any(s in reads[j] for j in group[i] if j < i):
                    moves -= moved(v)
            moves -= sum(moved(v) for s, v in makes[i].items() if inside(s, group[i]))
        result.append((max(0, moves), launches))
    return result


def op_seconds(
    op: dict[str, Any], device: str | dict[str, Any], work: tuple[int, int] | None = None
) -> float:
    """Roofline time of one run of an op; ``work``: its bytes and launches, unless its own."""
    flags = op.get("flags", [])
    if "view" in flags or "placeholder" in flags:
        return 0.0
    if op.get("time_ps", -1) >= 0:
        return float(op["time_ps"]) * 1e-12
    if isinstance(device, str):
        flops, bandwidth, launch = DEVICES[device.removesuffix("+fused")]
    else:
        flops, bandwidth, launch = (device[k] for k in ("flops_per_s", "bytes_per_s", "launch_s"))
    arithmetic = op.get("flops", 0.0) / flops[op.get("class", "f32")]
    bytes_, launches = work or (op.get("bytes", 0), 1)
    return float(max(arithmetic, bytes_ / bandwidth) + launches * launch)


def is_fused(device: str | dict[str, Any]) -> bool:
    """Does this device run pointwise chains as one kernel?"""
    return device.endswith("+fused") if isinstance(device, str) else device.get("fused", False)


def evaluate(
    problem: dict[str, Any],
    steps: list[int],
    backward_starts: int,
    device: str | dict[str, Any] = "cpu",
) -> Evaluation:
    """Walks ``steps`` (op ids; the backward is from ``backward_starts`` on); checks all rules."""
    ops, storages = problem["ops"], problem["storages"]
    storage_of = [out["storage"] for op in ops for out in op["out"]]
    maker = [i for i, op in enumerate(ops) for _ in op["out"]]
    first_value = list(accumulate((len(op["out"]) for op in ops), initial=0))
    flags = [set(op.get("flags", [])) for op in ops]
    held = [set(s.get("flags", [])) for s in storages]
    end = len(steps)

    work = fused_work(problem) if is_fused(device) else None
    lives: list[Life] = []
    value_life: dict[int, Life | None] = {}  # value -> life its op last saw; None: static
    newest: dict[int, Life] = {}  # storage -> its latest life
    written_by: dict[int, int] = {}  # storage -> last op that mutated it
    runs: dict[int, int] = {}
    seconds = once_seconds = 0.0
    for i, op in enumerate(ops):
        if "placeholder" in flags[i]:
            for k in range(len(op["out"])):
                value_life[first_value[i] + k] = None

    def hold(life: Life | None, until: int) -> None:
        if life is not None:
            life.last = max(life.last, until)

    def enter_backward() -> None:
        for v in problem["forward_outputs"]:
            if v not in value_life:
                raise BrokenPlanError(f"forward output {v} does not exist when the backward starts")
            hold(value_life[v], end if "hold_end" in held[storage_of[v]] else backward_starts)
        for s, kinds in enumerate(held):
            if "hold_forward" in kinds and "static" not in kinds:
                if s not in newest:
                    raise BrokenPlanError(f"storage {s} is not alive when the backward starts")
                hold(newest[s], backward_starts)

    if not 0 <= backward_starts <= end:
        raise BrokenPlanError(f"backward starts at {backward_starts} of {end} steps")
    for t, i in enumerate(steps):
        if t == backward_starts:
            enter_backward()
        if not 0 <= i < len(ops) or "placeholder" in flags[i]:
            raise BrokenPlanError(f"step {t}: {i} is not the id of an op that runs")
        op = ops[i]
        if "backward" in flags[i] and t < backward_starts:
            raise BrokenPlanError(f"step {t}: op {i} depends on a tangent and runs in the forward")
        if flags[i] & ONCE and i in runs:
            raise BrokenPlanError(f"step {t}: op {i} may run only once")
        seen: dict[int, Life | None] = {}
        for v in op["in"]:
            s = storage_of[v]
            if v not in value_life:
                raise BrokenPlanError(
                    f"step {t}: op {i} needs value {v} of op {maker[v]}, not made yet"
                )
            if written_by.get(s, -1) > i:
                raise BrokenPlanError(
                    f"step {t}: op {i} reads storage {s} after op {written_by[s]} wrote it"
                )
            hold(value_life[v], t)
            seen[s] = value_life[v]
        for k, out in enumerate(op["out"]):
            s = out["storage"]
            if s in seen:
                if "mutates" in flags[i]:
                    written_by[s] = i
            elif "static" in held[s]:
                seen[s] = None
            else:
                seen[s] = newest[s] = Life(s, t, t, storages[s]["bytes"])
                lives.append(newest[s])
            value_life[first_value[i] + k] = seen[s]
        if op.get("workspace", 0):
            lives.append(Life(None, t, t, op["workspace"]))
        took = op_seconds(op, device, work[i] if work else None)
        seconds += took
        if i not in runs:
            once_seconds += took
        runs[i] = runs.get(i, 0) + 1
    if backward_starts == end:
        enter_backward()
    for v in problem["backward_outputs"]:
        if v not in value_life:
            raise BrokenPlanError(f"backward output {v} does not exist at the end")
        hold(value_life[v], end)
    for s, kinds in enumerate(held):
        if "hold_end" in kinds and "static" not in kinds:
            if s not in newest:
                raise BrokenPlanError(f"storage {s} is not alive at the end")
            hold(newest[s], end)
    for i in range(len(ops)):
        if flags[i] & (ONCE - {"unknown"}) and "placeholder" not in flags[i] and i not in runs:
            raise BrokenPlanError(f"op {i} must run once and does not run")

    change = [0] * (end + 2)
    for life in lives:
        change[life.made] += life.bytes
        change[life.last + 1] -= life.bytes
    live = peak = 0
    for t in range(end):
        live += change[t]
        peak = max(peak, live)
    saved = sum(life.bytes for life in lives if life.made < backward_starts <= life.last)
    return Evaluation(peak, saved, seconds, once_seconds, sum(runs.values()) - len(runs), lives)


def check_arena(lives: list[Life], rows: list[list[Any]], align: int, arena_bytes: int) -> None:
    """Rows (storage, made, last, bytes, offset) are these lives, in the arena, without overlap."""
    if [[x.storage, x.made, x.last, x.bytes] for x in lives] != [row[:4] for row in rows]:
        raise BrokenPlanError("the lives in the plan are not those of its steps")
    alive: list[list[Any]] = []
    for row in sorted(rows, key=lambda r: int(r[1])):
        _, made, _, size, offset = row
        if offset % align or offset + size > arena_bytes:
            raise BrokenPlanError(
                f"life {row} is not aligned or leaves the arena of {arena_bytes} bytes"
            )
        alive = [other for other in alive if other[2] >= made]
        for other in alive:
            if size and other[3] and offset < other[4] + other[3] and other[4] < offset + size:
                raise BrokenPlanError(f"lives {other} and {row} overlap")
        alive.append(row)


def check_plan(
    problem: dict[str, Any], plan: dict[str, Any], device: str | dict[str, Any] = "cpu"
) -> Evaluation:
    """Compares all numbers of a plan with its steps: to the byte, and to a picosecond an op."""
    result = evaluate(problem, plan["steps"], plan["backward_starts"], device)
    numbers = plan["numbers"]
    for key, own in (
        ("live_bytes", result.peak_bytes),
        ("saved_bytes", result.saved_bytes),
        ("total_bytes", result.peak_bytes + problem.get("static_bytes", 0)),
        ("recomputed", result.recomputed),
    ):
        if numbers[key] != own:
            raise BrokenPlanError(f"the plan says {key} {numbers[key]}, its steps give {own}")
    for key, seconds in (("time_ps", result.seconds), ("once_ps", result.once_seconds)):
        if abs(numbers[key] - seconds * 1e12) > len(plan["steps"]) + 1:
            raise BrokenPlanError(
                f"the plan says {key} {numbers[key]}, its steps take {seconds * 1e12:.0f}"
            )
    check_arena(result.lives, plan["lives"], problem.get("align", 64), numbers["arena_bytes"])
    budget = plan.get("budget_bytes")
    if budget is not None and numbers[f"{plan['measure']}_bytes"] > budget:
        raise BrokenPlanError(
            f"the plan needs {numbers[plan['measure'] + '_bytes']} bytes, its budget is {budget}"
        )
    return result


def main(argv: list[str]) -> int:
    """Checks one plan and prints its numbers; 1 when it is broken."""
    if len(argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        result = check_plan(load(argv[1]), load(argv[2]), argv[3] if len(argv) == 4 else "cpu")
    except BrokenPlanError as broken:
        print(f"broken: {broken}", file=sys.stderr)
        return 1
    extra = result.seconds / result.once_seconds - 1 if result.once_seconds else 0.0
    print(f"peak {result.peak_bytes} saved {result.saved_bytes} bytes, extra time {extra:.4%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
