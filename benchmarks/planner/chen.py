"""Places checkpoints at equal distances, as most people do by hand.

Chen et al., Training deep nets with sublinear memory cost, 2016, on the linearised forward: the
forward is divided into segments with equal numbers of ops. Values read by a later segment are kept,
and so are outputs and values of ops that run only once; before the backward first needs anything
else of a segment, the needed part of the segment is recomputed. Their choice is sqrt(n) segments;
with a budget, users try a few. Only problems in which each op makes one value in its own storage
are supported.
"""

from __future__ import annotations

from typing import Any

ONCE = {"random_stateful", "effect", "collective", "mutates", "unknown"}


def schedule(problem: dict[str, Any], segments: int) -> tuple[list[int], int]:
    """Returns the steps, and the index where the backward starts."""
    ops, starts = problem["ops"], problem["backward_starts"]
    run = [i for i, op in enumerate(ops) if "placeholder" not in op["flags"]]
    forward = [i for i in run if i < starts]
    segment = {i: k * segments // len(forward) for k, i in enumerate(forward)}
    ends = {*problem["forward_outputs"], *problem["backward_outputs"]}
    keep = {i for i in forward if i in ends or ONCE & set(ops[i]["flags"])}
    for i in forward:
        keep.update(a for a in ops[i]["in"] if a in segment and segment[a] != segment[i])
    needed = set()  # not kept, but read in the backward, directly or through others
    for i in reversed(run):
        if i >= starts or i in needed:
            needed.update(a for a in ops[i]["in"] if a in segment and a not in keep)
    steps, again = list(forward), set()
    for i in run[len(forward) :]:
        for a in ops[i]["in"]:
            if a in needed and segment[a] not in again:
                again.add(segment[a])
                steps += [j for j in forward if segment[j] == segment[a] and j in needed]
        steps.append(i)
    return steps, len(forward)
