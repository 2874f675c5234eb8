"""Builds steps whose lower bounds are easily wrong, with known plans for them.

problem, steps = rerun_before_the_gap(200)
problem = random_net(seed)
"""

from __future__ import annotations

import random
from typing import Any

Problem = dict[str, Any]
MB = 10**6


class Step:
    """A training step, built op by op. ``add`` returns the op's first value."""

    def __init__(self) -> None:
        self.ops: list[dict[str, Any]] = []
        self.storages: list[dict[str, Any]] = []
        self.storage_of: list[int] = []
        self.backward = False

    def add(
        self,
        reads: list[int],
        bytes_: float | list[float],
        ms: float = 1,
        flags: tuple[str, ...] = (),
        workspace: float = 0,
        held: tuple[str, ...] = (),
    ) -> int:
        """Adds an op that reads values and makes one of each size, in MB; without sizes, a view."""
        sizes = bytes_ if isinstance(bytes_, list) else [bytes_]
        first = len(self.storage_of)
        out = []
        for size in sizes:
            self.storages.append({"bytes": int(size * MB), "flags": list(held)})
            out.append({"storage": len(self.storages) - 1})
        if not sizes:
            out = [{"storage": self.storage_of[reads[0]]}]
            flags = (*flags, "view")
        self.storage_of += [o["storage"] for o in out]
        if self.backward and "placeholder" not in flags:
            flags = (*flags, "backward")
        op = {"name": f"op_{len(self.ops)}", "flags": list(flags), "in": reads, "out": out}
        if "placeholder" not in flags and "view" not in flags:
            op |= {"time_ps": int(ms * 10**9), "workspace": int(workspace * MB)}
        self.ops.append(op)
        return first

    def problem(self, starts: int, results: list[int], gradients: list[int]) -> Problem:
        return {
            "format": "cutback.problem",
            "version": 2,
            "backward_starts": starts,
            "forward_outputs": results,
            "backward_outputs": gradients,
            "storages": self.storages,
            "ops": self.ops,
        }


def rerun_before_the_gap(pads: int) -> tuple[Problem, list[int]]:
    """Returns a step, and a schedule in base order that fits 105 MB: ``v`` is recomputed once,
    while the large ``u`` that it is made from is still live for another reader. Later ``u`` would
    have to be kept or recomputed."""
    s = Step()
    x = s.add([], 1, flags=("placeholder",), held=("static",))
    u = s.add([x], 40, 1000)
    v = s.add([u], 30, 10)
    a = s.add([v], 0.1)
    b = s.add([a], 0.1, workspace=60)
    c = s.add([u, b], 0.1)
    value = s.add([c], 0.1, workspace=70)
    padding = []
    for _ in range(pads):
        value = s.add([value], 0.001)
        padding.append(value)
    loss = s.add([value], 0.001)
    starts, s.backward = len(s.ops), True
    t = s.add([loss], 0.1, workspace=70)
    for value in reversed(padding):
        t = s.add([t, value], 0.001)
    gradient = s.add([t, v], 0.1, held=("hold_end",))
    steps = list(range(1, len(s.ops)))
    steps.insert(steps.index(c), v)
    return s.problem(starts, [loss], [gradient]), steps


def recurrence(n: int) -> Problem:
    """Returns an unrolled recurrence: each step makes something small that is read much later."""
    s = Step()
    w = s.add([], 1, flags=("placeholder",), held=("static",))
    h = s.add([w], 4, 0.1)
    made = []
    for _ in range(n):
        x = s.add([w], 6, 0.4)
        y = s.add([h, w], 6, 0.4)
        z = s.add([x, y], 6, 0.2)
        made.append((x, h, z))
        h = s.add([z], 4, 0.3)
    loss = s.add([h], 0.001)
    starts, s.backward = len(s.ops), True
    g, gradient = s.add([loss], 4), None
    for x, before, z in reversed(made):
        dz = s.add([g, z], 6, 0.3)
        part = s.add([dz, x, before], 5, 0.8)
        gradient = part if gradient is None else s.add([gradient, part], 5, 0.2)
        g = s.add([dz, w], 4, 0.4)
    last = s.add([gradient or g, g], 1, held=("hold_end",))
    return s.problem(starts, [loss], [last])


def random_net(seed: int, most: int = 24, views: bool = True) -> Problem:
    """Returns a net of fewer than ``most`` layers with skips, views, ops with two outputs, ops that
    run once, scratch, values of no bytes, and several results. A backward reads the layers'
    outputs; sometimes there is no backward."""
    draw = random.Random(seed)
    s = Step()
    weight = s.add([], 1, flags=("placeholder",), held=("static",))
    values, layers = [s.add([weight], draw.uniform(1, 20))], []
    for _ in range(draw.randrange(3, most)):
        near = values[-1] if draw.random() < 0.7 else draw.choice(values[-5:])
        reads = [near] if draw.random() < 0.6 else [near, draw.choice(values)]
        size = draw.choice([0, 0.1, 4, 10, 10, 20, 40])
        workspace = draw.choice([0, 0, 0, 5, 40, 80])
        once = ("random_stateful",) if draw.random() < 0.1 else ()
        ms = draw.choice([0.1, 1, 1, 5, 10, 100])
        kind = draw.random()
        if kind < 0.08 and not views:
            made = s.add([near], size, ms, once, workspace)
        elif kind < 0.08:
            made = s.add([near], [])
        elif kind < 0.2:
            made = s.add(reads, [size, draw.choice([0.1, 4, 10])], ms, once, workspace)
        else:
            held = ("hold_end",) if draw.random() < 0.04 else ()
            made = s.add(reads, size, ms, once, workspace, held)
        values.append(made)
        layers.append((made, [*reads, made, *([made + 1] if 0.08 <= kind < 0.2 else [])]))
    results = [s.add([values[-1]], 0.01)]
    if draw.random() < 0.4:
        results.append(draw.choice(values[1:]))
    starts = len(s.ops)
    if draw.random() < 0.08:
        return s.problem(starts, results, [])
    s.backward = True
    g = s.add([results[0]], draw.choice([1, 10]), workspace=draw.choice([0, 50]))
    gradients = []
    for _, near in reversed(layers):
        if draw.random() < 0.2:
            continue
        some = sorted({v for v in near if draw.random() < 0.7})
        g = s.add([g, *some], draw.choice([0.1, 4, 10, 20]), draw.choice([1, 5]), (),
                  draw.choice([0, 0, 20]))  # fmt: skip
        if draw.random() < 0.3:
            gradients.append(s.add([g], 0.5, held=("hold_end",)))
    return s.problem(starts, results, [*gradients, g])
