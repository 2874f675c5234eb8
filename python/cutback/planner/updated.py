"""Rewrites problems so that an optimizer steps parameters during the backward ("updates
inside")."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..problem import Problem, Storage


def _parameters(problem: Problem) -> list[int]:
    """Returns the values that may be parameters, in order: those marked as parameters, or, if none
    is marked, all arguments."""
    every: list[int] = []
    marked: list[int] = []
    first = 0
    for op in problem.ops:
        if "placeholder" in op.flags and len(op.outputs) == 1:
            every.append(first)
            if "parameter" in op.flags:
                marked.append(first)
        first += len(op.outputs)
    values, storages = problem.values, problem.storages
    return [v for v in marked or every if "static" in storages[values[v].storage].flags]


def _pairs(problem: Problem) -> dict[int, int]:
    """Maps the storage of each gradient to that of its parameter. Gradients are in the order of
    their parameters and have the same types, so each belongs to the next parameter of its type."""
    values = problem.values
    owners = _parameters(problem)
    pairs: dict[int, int] = {}
    at = 0
    for v in problem.backward_outputs:
        wanted = values[v].type
        found = (k for k in range(at, len(owners)) if wanted and values[owners[k]].type == wanted)
        owner = next(found, None)
        if owner is not None:
            pairs[values[v].storage] = values[owners[owner]].storage
            at = owner + 1
    return pairs


def gradients_of(problem: Problem) -> set[int]:
    """Returns the storages of a step's gradients, both those that are returned and those that an
    update inside the step consumes."""
    inside = {s for s, storage in enumerate(problem.storages) if storage.updates is not None}
    values = problem.values  # a list that is made on each access
    returned = {values[v].storage for v in problem.backward_outputs}
    return inside | {s for s in returned if "static" not in problem.storages[s].flags}


def with_updates(problem: Problem) -> Problem:
    """Returns a problem in which an optimizer updates parameters during the backward, to estimate
    how much memory that would save.

    A gradient is then freed as soon as nothing reads its parameter any more, and is not returned
    (``updates`` in ``docs/problem.md``). A problem does not say which argument a gradient belongs
    to. Both are in the same order, so each gradient is assumed to belong to the next argument of
    its type. Gradients without such an argument, or whose memory other results share, live to the
    end. ``updates="inside"`` of :func:`cutback.compile` and ``cutback.torch.compile`` knows the
    parameters and is exact.

    Args:
        problem: the problem, which is not changed.

    Returns:
        A new problem with the same operations.
    """
    storage_of = [value.storage for value in problem.values]
    ends = [*problem.forward_outputs, *problem.backward_outputs]
    returned = Counter(storage_of[v] for v in ends)
    written = {storage_of[v] for op in problem.ops if "mutates" in op.flags for v in op.inputs}
    makers = Counter(value.storage for op, value in problem.made() if "view" not in op.flags)
    pairs = _pairs(problem)
    owned = Counter(pairs.values())
    storages = [replace(storage) for storage in problem.storages]
    for gradient, parameter in pairs.items():
        alone = returned[gradient] == makers[gradient] == owned[parameter] == 1
        taken = {gradient, parameter} & written or "static" in storages[gradient].flags
        if alone and not taken and returned[parameter] == 0:
            storages[gradient] = Storage(storages[gradient].bytes, updates=parameter)
    kept = [v for v in problem.backward_outputs if storages[storage_of[v]].updates is None]
    return replace(problem, storages=storages, backward_outputs=kept)
