"""Draws random small graphs of this package, with random groups and inlinings."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import numpy as np
from costs import op_seconds, whole_ps
from insides import SPEED

import cutback

ROW = json.dumps(SPEED)
UNARY = ("tanh", "gelu", "relu", "square", "silu", "neg")
BINARY = ("add", "mul", "sub", "maximum")


class Drawn:
    """A graph of two inputs, a weight per column, and up to ``most`` operations on matrices of one
    shape: pointwise ops, reductions of rows and columns that are read again, norms, dropout, and
    products, which are in no group. Its loss is a sum of everything."""

    def __init__(self, seed: int, most: int = 5) -> None:
        self.r = random.Random(seed)
        self.graph = cutback.Graph()
        self.shape = (self.r.choice([3, 8, 40]), self.r.choice([5, 32, 64]))
        self.full = [
            self.graph.input("x", self.shape),
            self.graph.input("y", self.shape, role="param"),
        ]
        self.weight = self.graph.input("w", self.shape[1:], role="param")
        self.square = self.graph.input("s", (self.shape[1],) * 2, role="param")
        self.small: list[Any] = []
        for _ in range(self.r.randint(2, most)):
            self.full.append(self.draw())
        self.graph.output(self.graph.op("sum", self.full[-1], axes=(), keepdims=False), "loss")
        self.wrt = [1, 2, 3]

    def draw(self) -> Any:
        op, r = self.graph.op, self.r
        x = r.choice(self.full[-3:])
        kind = r.randrange(10)
        if kind < 3:
            return op(r.choice(UNARY), x)
        if kind < 6:
            return op(r.choice(BINARY), x, r.choice([*self.full, *self.small[-1:], self.weight]))
        if kind == 6:
            axis = r.choice([0, 1])
            self.small.append(op(r.choice(["sum", "mean"]), x, axes=(axis,), keepdims=True))
            return op("add", x, self.small[-1])
        if kind == 7:
            return op("layer_norm", x, self.weight, self.weight, eps=1e-3)[0]
        if kind == 8:
            return op("dropout", x, p=0.25, stream=self.graph.next_stream())
        return op("matmul", x, self.square) if r.random() < 0.5 else op("softmax", x)

    def compile(self, **options: Any) -> Any:
        return self.graph._native.compile(self.wrt, **options)


def try_groups(drawn: Drawn, groups: list[list[int]], inlinings: list[list[int]]) -> Any:
    """Returns the compiled step, or None if these groups are impossible."""
    try:
        return drawn.compile(groups=json.dumps({"groups": groups, "inlinings": inlinings}))
    except NotImplementedError:
        return None


def draw_groups(drawn: Drawn, p: dict[str, Any]) -> list[list[int]]:
    """Draws groups of nearby ops of one phase and one side that can run as one kernel."""
    r, groups, used = drawn.r, list[list[int]](), set[int]()
    flags = [set(op.get("flags", [])) for op in p["ops"]]
    starts = p["backward_starts"]

    def kind(i: int) -> tuple[bool, bool]:
        return "backward" in flags[i], i >= starts

    free = [i for i, f in enumerate(flags) if not f & {"placeholder", "view"}]
    for at, i in enumerate(free):
        group = [i] if i not in used and r.random() < 0.8 else []
        for j in free[at + 1 : at + 6]:
            wanted = group and j not in used and kind(j) == kind(i) and r.random() < 0.7
            if wanted and try_groups(drawn, [*groups, [*group, j]], []):
                group.append(j)
        if len(group) > 1:
            groups.append(group)
            used |= set(group)
    return groups


def draw_inlinings(drawn: Drawn, p: dict[str, Any]) -> list[list[int]]:
    """Returns values that later ops might inline; impossible ones are left out."""
    pairs = []
    value = 0
    for i, op in enumerate(p["ops"]):
        for _ in op["out"]:
            pairs += [[value, j] for j in range(i + 1, len(p["ops"])) if drawn.r.random() < 0.5]
            value += 1
    return pairs


def run(step: Any) -> tuple[list[bytes], int]:
    """Returns (bits of all results, measured peak)."""
    values = np.random.default_rng(7)
    inputs = [values.standard_normal(shape, dtype="f4") for _, _, shape, *_ in step.inputs]
    outputs = [np.full(row[2], np.nan, "f4") for row in step.outputs]
    peak, *_ = step.run(inputs=inputs, outputs=outputs, seed=3, random_step=5)
    return [array.tobytes() for array in outputs], peak


def with_times(problem: dict[str, Any]) -> dict[str, Any]:
    """Returns the problem with the modelled work as measured times."""
    problem = copy.deepcopy(problem)
    members = [m for op in problem["ops"] for m in op.get("inside", [])]
    for x in (*problem["ops"], *members, *problem.get("inlinings", [])):
        x.setdefault("flags", [])
        x.setdefault("workspace", 0)
        x["time_ps"] = x.get("time_ps", whole_ps(op_seconds(x, SPEED)))
    return problem
