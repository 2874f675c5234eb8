"""Makes problems with insides: two small ones for handmade steps, and any number of random ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any


def problem(ops, storages, starts, backward_outputs, forward_outputs=()):
    """Returns a document of format 2."""
    for i, op in enumerate(ops):
        op.setdefault("name", f"op_{i}")
        op.setdefault("flags", [])
    return {
        "format": "cutback.problem",
        "version": 2,
        "backward_starts": starts,
        "forward_outputs": list(forward_outputs),
        "backward_outputs": list(backward_outputs),
        "storages": storages,
        "ops": ops,
    }


def op(reads, storages, flags=(), **more):
    """Returns an op whose outputs are in these storages."""
    return {"in": reads, "out": [{"storage": s} for s in storages], "flags": list(flags), **more}


def member(reads=(), uses=(), time_ps=0, **more):
    """Returns a member of an inside."""
    return {"reads": list(reads), "uses": list(uses), "time_ps": time_ps, **more}


def two_branches():
    """Returns x, y -> one op with an inside -> a (of x), b (of x and y); the backward reads b, then
    a.

    Values: 0 x, 1 y, 2 a, 3 b, 4 tangent, 5 db, 6 da.
    """
    pair = op([0, 1], [2, 3], time_ps=100, workspace=8)
    pair["inside"] = [
        member([0], time_ps=10, workspace=16),
        member([], [0], time_ps=20),
        member([1], [0], time_ps=40, workspace=32),
    ]
    pair["out"][0]["member"], pair["out"][1]["member"] = 1, 2
    ops = [
        op([], [0], ["placeholder"]),
        op([], [1], ["placeholder"]),
        pair,
        op([], [4], ["placeholder", "backward"]),
        op([4, 3], [5], ["backward"], time_ps=1000),
        op([5, 2], [6], ["backward"], time_ps=1000),
    ]
    storages = [
        {"bytes": 64, "flags": ["static"]},
        {"bytes": 64, "flags": ["static"]},
        {"bytes": 1024},
        {"bytes": 2048},
        {"bytes": 64, "flags": ["static"]},
        {"bytes": 128},
        {"bytes": 256},
    ]
    return problem(ops, storages, 3, [6])


SPEED = {
    "name": "plain", "flops_per_s": {"f32": 1e12}, "bytes_per_s": 1e12, "launch_s": 0.0,
}  # fmt: skip
"""A device on which writing a byte takes a picosecond."""


def draw_inside(r: random.Random, reads: list[int], n_out: int) -> list[dict[str, Any]]:
    """Returns members, the last ``n_out`` of which are outputs. Each input is read, and each member
    is used."""
    inside: list[dict[str, Any]] = []
    for _ in range(r.randint(0, 2) + n_out):
        before = range(len(inside))
        uses = sorted(r.sample(before, min(len(inside), r.randint(0, 2))))
        own = sorted(r.sample(range(len(reads)), r.randint(0 if uses else 1, len(reads))))
        inside.append(
            member(own, uses, 10 * r.randint(0, 9), workspace=r.choice([0, 0, 64]), size=64)
        )
    read = {j for m in inside for j in m["reads"]}
    inside[-1]["reads"] = sorted({*inside[-1]["reads"], *(set(range(len(reads))) - read)})
    used = {j for m in inside for j in m["uses"]}
    loose = set(range(len(inside) - n_out)) - used
    inside[-1]["uses"] = sorted({*inside[-1]["uses"], *loose})
    return inside


def draw_inlinings(r: random.Random, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns half of the possible inlinings, some of them nested."""
    ops, found = document["ops"], list[dict[str, Any]]()
    maker = [i for i, o in enumerate(ops) for _ in o["out"]]
    storage = [out["storage"] for o in ops for out in o["out"]]
    static = [bool("static" in s.get("flags", [])) for s in document["storages"]]

    def may(v: int) -> bool:
        alone = len(ops[maker[v]]["out"]) == 1 or ops[maker[v]].get("inside")
        kept = {"placeholder", "view", "unknown"} & set(ops[maker[v]]["flags"])
        return bool(alone) and not kept and not static[storage[v]]

    for i, o in enumerate(ops):
        todo, seen = sorted(o["in"]), set[int]()
        while todo and "placeholder" not in o["flags"]:
            v = todo.pop()
            if v in seen:
                continue
            seen.add(v)
            if may(v) and storage.count(storage[v]) == 1 and r.random() < 0.5:
                scratch = r.choice([0, 0, 64])
                found.append({"value": v, "op": i, "time_ps": 10 * r.randint(0, 30)})
                found[-1]["workspace"] = scratch
                todo = sorted({*todo, *ops[maker[v]]["in"]})
    return found


class Dice:
    """A small random problem: forward ops, some with insides, and a backward that reads their
    outputs, last first."""

    def __init__(self, seed: int, most: int = 4, inlines: bool = False) -> None:
        self.r = random.Random(seed)
        self.ops: list[dict[str, Any]] = [op([], [0], ["placeholder"])]
        self.storages: list[dict[str, Any]] = [{"bytes": 64, "flags": ["static"]}]
        self.values = [0]
        for _ in range(self.r.randint(2, most)):
            self.add(self.values[-4:])
        starts, forward = len(self.ops), self.values[1:]
        gradient = forward[-1]
        for v in reversed(forward):
            if self.r.random() < 0.8:
                gradient = self.add([gradient, v], ["backward"])
        if starts == len(self.ops):
            gradient = self.add([gradient], ["backward"])
        self.storages[-1]["flags"] = ["hold_end"]
        self.document = problem(self.ops, self.storages, starts, [gradient])
        if inlines:
            self.document["inlinings"] = draw_inlinings(random.Random(seed), self.document)

    def add(self, recent: list[int], flags: Sequence[str] = ()) -> int:
        r, late = self.r, bool(flags)
        reads = recent if late else r.sample(recent, min(len(recent), r.randint(1, 2)))
        reads = list(dict.fromkeys(reads))
        grouped = not late and r.random() < 0.6
        n_out = r.randint(1, 3) if grouped else 1
        made = op(reads, [len(self.storages) + k for k in range(n_out)], flags)
        made["time_ps"] = 10 * r.randint(1, 30)
        if r.random() < 0.2:
            made["workspace"] = 64 * r.randint(1, 4)
        if grouped:
            made["inside"] = draw_inside(r, reads, n_out)
            for k, out in enumerate(made["out"]):
                out["member"] = len(made["inside"]) - n_out + k
        self.ops.append(made)
        for _ in range(n_out):
            self.storages.append({"bytes": 64 * r.randint(1, 12)})
            self.values.append(len(self.values))
        return self.values[-1]


def casts():
    """Returns x -> h -> v, a cast twice as large as h, -> w; the backward reads w with v, then v
    and h.

    Values: 0 x, 1 h, 2 v, 3 w, 4 tangent, 5 dw, 6 dv. The op of dw may inline w and v, that of dv
    may inline v.
    """
    ops = [
        op([], [0], ["placeholder"]),
        op([0], [1], time_ps=500),
        op([1], [2], time_ps=50),
        op([2], [3], time_ps=60, workspace=8),
        op([], [4], ["placeholder", "backward"]),
        op([4, 3, 2], [5], ["backward"], time_ps=1000, workspace=16),
        op([5, 2, 1], [6], ["backward"], time_ps=1000),
    ]
    sizes = [64, 1024, 2048, 512, 64, 128, 256]
    storages = [{"bytes": size} for size in sizes]
    for s in (0, 4):
        storages[s]["flags"] = ["static"]
    made = problem(ops, storages, 4, [6])
    made["inlinings"] = [
        {"value": 2, "op": 5, "time_ps": 7, "workspace": 32},
        {"value": 3, "op": 5, "time_ps": 11, "workspace": 4},
        {"value": 2, "op": 6, "time_ps": 13},
    ]
    return made
