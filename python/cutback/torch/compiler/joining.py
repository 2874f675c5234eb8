"""The problem of several graphs that run one after another, and a graph's part of its plan.

The forwards run in order and the backwards in reverse. What one graph hands to the next is counted
where it is made, outputs to the end; the gradient that comes back is counted on both sides, so that
the plan errs on the safe side.
"""

from __future__ import annotations

from typing import Any

from ..graph.moving import Move, Schedule


def join(documents: list[dict[str, Any]]) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """The problem of several graphs that run one after another; by its op ids, (graph, op)."""
    pieces = [(g, 0, d["backward_starts"]) for g, d in enumerate(documents)]
    pieces += [(g, d["backward_starts"], len(d["ops"])) for g, d in enumerate(documents)][::-1]
    first_value = []  # of each op of each graph
    for d in documents:
        at, rows = 0, []
        for op in d["ops"]:
            rows.append(at)
            at += len(op["out"])
        first_value.append(rows)
    first_storage = [0]
    for d in documents:
        first_storage.append(first_storage[-1] + len(d["storages"]))
    order: list[tuple[int, int]] = []
    value: list[dict[int, int]] = [{} for _ in documents]
    n_values = 0
    for g, begin, end in pieces:
        for i in range(begin, end):
            order.append((g, i))
            for k in range(len(documents[g]["ops"][i]["out"])):
                value[g][first_value[g][i] + k] = n_values
                n_values += 1
    ops = []
    for g, i in order:
        op = documents[g]["ops"][i]
        outs = [{**out, "storage": out["storage"] + first_storage[g]} for out in op["out"]]
        ins = [value[g][v] for v in op["in"]]
        ops.append({**op, "name": f"{op['name']}@{g}", "in": ins, "out": outs})
    joined = {
        **documents[0],
        "backward_starts": sum(d["backward_starts"] for d in documents),
        "static_bytes": sum(d["static_bytes"] for d in documents),
        "storages": [s for d in documents for s in d["storages"]],
        "ops": ops,
    }
    for key in ("forward_outputs", "backward_outputs"):
        joined[key] = [value[g][v] for g, d in enumerate(documents) for v in d[key]]
    return joined, order


def part_of(schedule: Schedule, order: list[tuple[int, int]], graph: int) -> Schedule:
    """What a joint schedule says of one graph. A move that stands between the graph's forward and
    its backward, while others run, is drawn to the side that holds less memory."""
    steps, start = schedule
    mine = [
        (t, step)
        for t, step in enumerate(steps)
        if order[step if isinstance(step, int) else step.op][0] == graph
    ]
    runs = [t for t, step in mine if isinstance(step, int)]
    begins = min((t for t in runs if t >= start), default=len(steps))
    ends = max((t for t in runs if t < start), default=-1)
    early: list[int | Move] = []
    late: list[int | Move] = []
    for t, step in mine:
        if isinstance(step, int):
            (early if t < start else late).append(order[step][1])
        else:
            first = t <= ends if step.action == "in" else t < begins
            (early if first else late).append(step._replace(op=order[step.op][1]))
    return Schedule(early + late, len(early))
