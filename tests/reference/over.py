"""Draws random lists of inputs whose memory outputs may reuse (``docs/problem.md``)."""

from __future__ import annotations

import random
from typing import Any


def may_be_over(problem: dict[str, Any], i: int) -> list[int]:
    """Returns the positions of the inputs that op ``i`` may list."""
    op, storages = problem["ops"][i], problem["storages"]
    outs = [out for o in problem["ops"] for out in o["out"]]
    flags = set(op.get("flags", ()))
    if len(op["out"]) != 1 or op.get("inside") or flags & {"view", "mutates", "placeholder"}:
        return []
    kept = {outs[v]["storage"] for v in problem["forward_outputs"] + problem["backward_outputs"]}
    kept |= {s for s, storage in enumerate(storages) if storage.get("flags")}
    reads = [outs[v]["storage"] for v in op["in"]]
    to = op["out"][0]["storage"]
    if "static" in storages[to].get("flags", ()):
        return []

    def is_whole(out: dict[str, Any]) -> bool:
        size = storages[out["storage"]]["bytes"]
        return bool(out.get("bytes", size) == size)

    return [
        k
        for k, (v, s) in enumerate(zip(op["in"], reads, strict=True))
        if s not in kept
        and reads.count(s) == 1
        and storages[s]["bytes"] == storages[to]["bytes"]
        and is_whole(outs[v])
        and is_whole(op["out"][0])
    ]


def list_over(problem: dict[str, Any], rng: random.Random, share: float = 0.8) -> dict[str, Any]:
    """Returns the problem, in format 3, whose ops list a ``share`` of the allowed inputs, in any
    order."""
    ops = []
    for i, op in enumerate(problem["ops"]):
        listed = [k for k in may_be_over(problem, i) if rng.random() < share]
        rng.shuffle(listed)
        ops.append({**op, "over": listed} if listed else op)
    return {**problem, "version": 3, "ops": ops}
