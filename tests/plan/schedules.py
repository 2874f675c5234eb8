"""Makes small random steps, and random schedules for them that do not come from a search.

problem = random_step(random.Random(seed))
for steps, starts in random_schedules(problem, draw, 40): ...
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

Problem = dict[str, Any]
SIZES = (0, 1, 64, 64, 128, 256, 1024, 4096)
TIMES = (0, 1, 5, 10, 100, 1000, 10**6)


def random_step(draw: random.Random) -> Problem:
    """Returns a step of up to 17 ops. The backward may return forward values, memory may be held by
    flags, and some ops run only once. Every op is needed, because unread values are returned."""
    storages: list[dict[str, Any]] = [{"bytes": 64, "flags": ["static"]}]
    ops: list[dict[str, Any]] = [
        {"name": "x", "flags": ["placeholder"], "in": [], "out": [{"storage": 0}]}
    ]
    forward, n_forward, n_backward = 1, draw.randint(2, 9), draw.randint(1, 7)
    for i in range(n_forward + n_backward):
        backward = i >= n_forward
        n_values = sum(len(op["out"]) for op in ops)
        reads = {draw.randrange(n_values if backward else forward) for _ in range(3)}
        if backward:
            reads.add(draw.randrange(max(0, n_values - 3), n_values))
        flags = ["backward"] if backward else []
        if draw.random() < 0.08:
            flags.append("random_stateful")
        out = []
        for _ in range(1 if draw.random() < 0.8 else 2):
            kinds = ("hold_end",) if backward else ("hold_forward", "hold_end")
            held = [f for f in kinds if draw.random() < 0.05]
            storages.append({"bytes": draw.choice(SIZES), "flags": held})
            out.append({"storage": len(storages) - 1})
        ops.append(
            {
                "name": f"op_{i}",
                "flags": flags,
                "in": sorted(reads),
                "out": out,
                "time_ps": draw.choice(TIMES),
                "workspace": draw.choice((0, 0, 0, 0, 64, 1024)),
            }
        )
        forward += 0 if backward else len(out)
    n_values = sum(len(op["out"]) for op in ops)
    unread = set(range(1, n_values)) - {v for op in ops for v in op["in"]}
    results = [v for v in range(1, forward) if draw.random() < 0.15]
    gradients = {v for v in range(1, n_values) if draw.random() < 0.15} | unread
    return {
        "format": "cutback.problem",
        "version": 2,
        "backward_starts": 1 + n_forward,
        "forward_outputs": results,
        "backward_outputs": sorted(gradients),
        "storages": storages,
        "ops": ops,
    }


def random_schedules(
    problem: Problem, draw: random.Random, n: int, late_holds: bool
) -> Iterator[tuple[list[int], int]]:
    """Yields schedules in base order in which forward ops run late, again, or both. Some are
    invalid, and the referee refuses them. With ``late_holds``, values held to the end may also be
    made late."""
    ops = problem["ops"]
    maker = [i for i, op in enumerate(ops) for _ in op["out"]]
    starts = problem["backward_starts"]
    held = {
        i
        for i, op in enumerate(ops)
        if any("hold_end" in problem["storages"][o["storage"]]["flags"] for o in op["out"])
    }
    due = [maker[v] for v in problem["forward_outputs"]]
    due += [
        i
        for i, op in enumerate(ops[:starts])
        if any("hold_forward" in problem["storages"][o["storage"]]["flags"] for o in op["out"])
    ]
    free = {i for i in range(1, starts) if "random_stateful" not in ops[i]["flags"]}
    for _ in range(n):
        late, again, deep = draw.choice((0, 0.3, 0.6, 1)), draw.choice((0, 0.1, 0.4)), draw.random()
        steps: list[int] = []
        done: set[int] = {0}
        cross = 0

        def run(i: int, done: set[int] = done, steps: list[int] = steps,
                again: float = again, deep: float = deep) -> None:  # fmt: skip
            for v in ops[i]["in"]:
                m = maker[v]
                if m not in done or (m in free and draw.random() < again * deep):
                    run(m)
            steps.append(i)
            done.add(i)

        for i in range(1, len(ops)):
            if i == starts:
                for m in [m for m in due if m not in done]:
                    run(m)
                cross = len(steps)
            if i in free and (late_holds or i not in held) and draw.random() < late:
                continue
            run(i)
        for v in problem["backward_outputs"]:
            if maker[v] not in done:
                run(maker[v])
        if len(steps) < 60:
            yield _without_vain_runs(problem, maker, steps, cross)


def _without_vain_runs(
    problem: Problem, maker: list[int], steps: list[int], cross: int
) -> tuple[list[int], int]:
    """Drops runs whose results are never read, because the referee refuses those."""
    while True:
        used: set[int] = set()
        latest: dict[int, int] = {}
        first: dict[int, int] = {}
        for at, i in enumerate(steps):
            if at == cross:
                used |= {latest.get(maker[v], -1) for v in problem["forward_outputs"]}
            used |= {latest.get(maker[v], -1) for v in problem["ops"][i]["in"]}
            latest[i] = at
            first.setdefault(i, at)
        if cross == len(steps):
            used |= {latest.get(maker[v], -1) for v in problem["forward_outputs"]}
        used |= {latest.get(maker[v], -1) for v in problem["backward_outputs"]}
        for i, at in first.items():
            out = problem["ops"][i]["out"]
            if "random_stateful" in problem["ops"][i]["flags"] or any(
                {"hold_end", "hold_forward"} & set(problem["storages"][o["storage"]]["flags"])
                for o in out
            ):
                used.add(at)
        vain = [at for at in range(len(steps)) if at not in used]
        if not vain:
            return steps, cross
        steps = steps[: vain[-1]] + steps[vain[-1] + 1 :]
        cross -= vain[-1] < cross
