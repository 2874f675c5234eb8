"""Draws random traced graphs of at most ten nodes, and the problems that result from groups and
inlinings."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from insides import draw_inlinings, problem

POINTWISE = ("aten.mul.Tensor", "aten.relu.default", "aten.add.Tensor", "aten.mm.default")


class Program:
    """A traced graph: two inputs, up to four forward nodes, and a backward that reads their values,
    last first."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.nodes: list[dict[str, Any]] = []
        self.sizes: list[int] = []
        primal = self.add("placeholder", [], role="primal")
        forward = [primal]
        for _ in range(self.r.randint(2, 4)):
            recent = forward[-3:]
            forward.append(self.add("op", self.r.sample(recent, min(len(recent), 2))))
        self.starts = len(self.nodes)
        gradient = self.add("placeholder", [], role="tangent")
        for v in reversed(forward[1:]):
            if self.r.random() < 0.85:
                gradient = self.add("op", [gradient, v])
        if gradient == self.starts:
            gradient = self.add("op", [gradient, forward[-1]])
        self.graph = {
            "name": f"random {seed}",
            "nodes": self.nodes,
            "storage_bytes": self.sizes,
            "forward_outputs": [],
            "backward_outputs": [gradient],
            "static_inputs": [],
        }

    def add(self, kind: str, inputs: Iterable[int], **more: Any) -> int:
        size = 256 * self.r.randint(1, 12)
        self.sizes.append(size)
        call = kind == "op"
        out = {"shape": [size // 4], "dtype": "float32", "bytes": size}
        node = {
            "kind": "call_function" if call else "placeholder",
            "op": self.r.choice(POINTWISE) if call else "placeholder",
            "name": f"node_{len(self.nodes)}",
            "inputs": sorted(inputs),
            "out": [{**out, "storage": len(self.sizes) - 1}],
            "flops": 10**6 * self.r.randint(0, 9) if call else 0,
            **more,
        }
        self.nodes.append(node)
        return len(self.nodes) - 1


def draw_groups(r: random.Random, p: dict[str, Any]) -> list[list[int]]:
    """Draws groups of neighbouring ops of one phase, each of which runs as one op."""
    groups: list[list[int]] = []
    for i, op in enumerate(p["ops"]):
        mine = {"placeholder", "backward"} & set(op["flags"])
        last = groups[-1] if groups else []
        same = last and mine == {"placeholder", "backward"} & set(p["ops"][last[-1]]["flags"])
        if same and "placeholder" not in mine and len(last) < 3 and r.random() < 0.5:
            last.append(i)
        else:
            groups.append([i])
    return groups


def make_inside(p: dict[str, Any], group: list[int], ends: set[int]) -> dict[str, Any]:
    """Returns the op that replaces a group of several. Its values keep the ids that they have in
    the problem."""
    inside: list[dict[str, Any]] = []
    reads = sorted({v for i in group for v in p["ops"][i]["in"]} - set(group))
    for i in group:
        op = p["ops"][i]
        inside.append({
            "reads": [reads.index(v) for v in op["in"] if v in reads],
            "uses": [group.index(v) for v in op["in"] if v in group],
            "time_ps": op["time_ps"],
            "size": p["storages"][op["out"][0]["storage"]]["bytes"],
        })  # fmt: skip
    read = {v for i, op in enumerate(p["ops"]) for v in op["in"] if i not in group} | ends
    used = {v for i in group for v in p["ops"][i]["in"]}
    outs = [i for i in group if i in read or i not in used]
    return {"in": reads, "made": outs, "inside": inside, "time_ps": 100}


def grouped(r: random.Random, p: dict[str, Any]) -> dict[str, Any]:
    """Returns a problem of ops with one value each (with the op's id), after groups are drawn."""
    ends = set(p["backward_outputs"])
    rows: list[dict[str, Any]] = []
    for group in draw_groups(r, p):
        op = p["ops"][group[0]]
        row = {"in": op["in"], "made": group, "time_ps": op.get("time_ps", 0)}
        if len(group) > 1:
            row = make_inside(p, group, ends)
        rows.append({**row, "flags": op["flags"], "late": group[0] >= p["backward_starts"]})
    number = {v: n for n, v in enumerate(v for row in rows for v in row["made"])}
    storages: list[dict[str, Any]] = []
    ops: list[dict[str, Any]] = []
    for row in rows:
        out = []
        for v in row["made"]:
            out.append({"storage": len(storages)})
            storages.append(dict(p["storages"][p["ops"][v]["out"][0]["storage"]]))
        made = {"in": [number[v] for v in row["in"]], "out": out, "flags": row["flags"]}
        made["time_ps"] = row["time_ps"]
        if "inside" in row:
            made["inside"] = row["inside"]
            first = ops_before(rows, row)
            for k, v in enumerate(row["made"]):
                out[k]["member"] = v - first
        ops.append(made)
    starts = next((i for i, row in enumerate(rows) if row["late"]), len(rows))
    found = problem(ops, storages, starts, sorted(number[v] for v in ends))
    found["inlinings"] = draw_inlinings(r, found)
    return found


def ops_before(rows: list[dict[str, Any]], row: dict[str, Any]) -> int:
    """Returns the number of ops before the first of a row."""
    return sum(len(x.get("inside", [0])) for x in rows[: rows.index(row)])
