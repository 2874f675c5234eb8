"""Problems with insides: two small ones that tests say steps of, and any number at random."""

from __future__ import annotations


def problem(ops, storages, starts, backward_outputs, forward_outputs=()):
    """A document of format 2."""
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
    """An op whose outputs lie in these storages."""
    return {"in": reads, "out": [{"storage": s} for s in storages], "flags": list(flags), **more}


def member(reads=(), uses=(), time_ps=0, **more):
    """A member of an inside."""
    return {"reads": list(reads), "uses": list(uses), "time_ps": time_ps, **more}


def two_branches():
    """x, y -> one op with an inside -> a (of x), b (of x and y); the backward reads b, then a.

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
