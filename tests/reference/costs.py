"""Computes times of runs and copies on a device: the independent evaluator's version of the cost
model, in plain Python. It shares no code with the library."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

DEVICES = {  # flop/s by work class, bytes/s, seconds per launch; as in csrc/plan/model/cost.c
    "cpu": ({"f32": 100e9, "f64": 50e9, "f16": 100e9, "bf16": 100e9, "int": 50e9}, 20e9, 1e-6),
    "a100": (
        {"f32": 156e12, "f64": 19.5e12, "f16": 312e12, "bf16": 312e12, "int": 19.5e12},
        1.555e12,
        2e-6,
    ),
}


Device = str | dict[str, Any]  # a name, or a row of the cost model
LINKS = {"cpu": 10e9, "a100": 25e9}  # bytes/s to the host, one direction


def fused_work(problem: dict[str, Any]) -> list[tuple[int, int]]:
    """Returns (bytes moved, launches) of each op on a device that runs pointwise chains as one
    kernel. Ops that fuse with their only reader form groups, unless ``group`` gives the groups. A
    group moves the values that cross its boundary."""
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

    # the first of each
    reads = {i: {storage_of[v]: v for v in reversed(ops[i]["in"])} for i in work}
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
        if ops[i].get("inside"):
            continue
        outs = {out["storage"] for out in ops[i]["out"]}
        partners = [set(readers.get(s, [])) for s in outs]
        one = len(partners[0]) == 1 and all(x == partners[0] for x in partners)
        if not one or outs & leaves or outs != set(makes[i]):
            continue
        (j,) = partners[0]
        alone = "group" not in ops[j] and not ops[j].get("inside")
        if alone and "fusible" in flags[j] and late[i] == late[j]:
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
    op: dict[str, Any],
    device: str | dict[str, Any],
    work: tuple[int, int] | None = None,
    network: float = 0.0,
) -> float:
    """Returns the roofline time of one run of an op. ``work`` replaces the op's own bytes and
    launches; ``network`` has the bytes per second of collectives, if known."""
    flags = op.get("flags", [])
    if "view" in flags or "placeholder" in flags:
        return 0.0
    if op.get("time_ps", -1) >= 0:
        return float(op["time_ps"]) * 1e-12
    points: dict[str, float] = {}
    if isinstance(device, str):
        flops, bandwidth, launch = DEVICES[device.removesuffix("+fused")]
    else:
        flops, bandwidth, launch = (device[k] for k in ("flops_per_s", "bytes_per_s", "launch_s"))
        points = device.get("point_per_s", {}) if "fusible" in flags else {}
    kind = op.get("class", "f32")
    rate = points.get(kind, points.get("f32")) or flops.get(kind, flops["f32"])
    arithmetic = op.get("flops", 0.0) / rate
    bytes_, launches = work or (op.get("bytes", 0), 1)
    if network and "collective" in flags:
        bandwidth = min(bandwidth, network)
    return float(max(arithmetic, bytes_ / bandwidth) + launches * launch)


def member_seconds(member: dict[str, Any], device: Device) -> float:
    """Returns the time of one member of an op with an inside, without the op's launch."""
    flags = [x for x in member.get("flags", []) if x != "view"]
    if member.get("time_ps", -1) >= 0:
        return float(member["time_ps"]) * 1e-12
    return op_seconds({**member, "flags": flags}, device, (member.get("bytes", 0), 0))


def write_seconds(size: int, device: Device) -> float:
    """Returns the time for writing one output of an op with an inside."""
    row = DEVICES[device.removesuffix("+fused")][1] if isinstance(device, str) else None
    return size / float(device["bytes_per_s"] if isinstance(device, dict) else row or 0.0)


def whole_ps(seconds: float) -> int:
    """Converts to picoseconds, rounded once."""
    return int(seconds * 1e12 + 0.5)


def is_fused(device: str | dict[str, Any]) -> bool:
    """True if this device runs pointwise chains as one kernel."""
    return device.endswith("+fused") if isinstance(device, str) else device.get("fused", False)


def link_of(device: Device) -> float:
    """Returns bytes per second in one direction, or 0 if there is no link."""
    if isinstance(device, str):
        return LINKS[device.removesuffix("+fused")]
    return float(device.get("link_bytes_per_s", 0.0))
