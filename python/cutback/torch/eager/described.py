"""An eager region as a problem (docs/problem.md), and the mapping between the two."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from ... import _native
from ...problem import HELD, Flag, Op, Problem, Storage

if TYPE_CHECKING:
    import weakref

    import torch
    from torch import Tensor

    from .arguments import Op as TorchOp
    from .arguments import Shapes

ONCE: frozenset[Flag] = frozenset(
    {"random_stateful", "unknown", "effect", "mutates", "placeholder"}
)
"""Flags of ops that never run again."""


@dataclass
class Described:
    """A region's problem, and how its ops and values map to the region."""

    problem: Problem
    values: list[int]
    """The storage of each value."""
    keys: dict[tuple[int, int], int]
    """Maps (node number, result index) to the value."""
    funcs: list[tuple[TorchOp, Shapes]]
    """The op of each node, and the shapes of its results."""
    slots_of: dict[int, list[int]]
    """Maps a backward op to the slots that it reads."""
    slots: list[int]
    """The value of each slot."""
    made: list[tuple[int, weakref.ref[torch.UntypedStorage], weakref.ref[Tensor]]]
    """Storages made in the region: storage id, storage, tensor."""

    def keeps(self) -> bool:
        """True if memory made in the region is still alive: the region has filled a cache or made
        parameters, and its next run may differ. Call it after the results are freed."""
        return any(storage() is not None for _, storage, _ in self.made)

    @property
    def ops(self) -> list[Op]:
        """The region's operations."""
        return self.problem.ops

    @cached_property
    def first(self) -> list[int]:
        """The id of the first value of each op."""
        sizes = (len(op.outputs) for op in self.ops)
        return [0, *accumulate(sizes)][:-1]

    @cached_property
    def checked(self) -> _native.Problem:
        """The problem as a checked object of the core."""
        return self.problem.check()

    def all_again(self) -> tuple[Problem, set[int]]:
        """Returns the problem of this region if everything that can be recomputed is recomputed,
        and the set of the recomputed values. Values written in place and values saved by a policy
        inside are not among them.

        Each in-place write gets separate memory in this problem, because the old contents are
        recomputed or copied for the ops that read them and run again.
        """
        problem = deepcopy(self.problem)
        ops, storages = problem.ops, problem.storages
        set_apart(ops, storages)
        last_write = _last_writes(ops)  # last op that writes into each shared memory
        again = set()
        storage_of = [value.storage for value in problem.values]
        id = 0
        for now, op in enumerate(ops[: problem.backward_starts]):
            touched = {storage_of[v] for v in op.inputs} | {v.storage for v in op.outputs}
            stays = bool(op.flags & (ONCE | {"view"})) or any(
                last_write.get(s, -1) > now for s in touched
            )
            for value in op.outputs:
                if not (stays or value.constraint != "free" or storages[value.storage].flags):
                    value.constraint = "must_recompute"
                    again.add(id)
                id += 1
        return problem, again

    def before_writes(self) -> set[int]:
        """Returns the ops that read memory that is overwritten later."""
        last_write = _last_writes(self.ops)
        return {
            now
            for now, op in enumerate(self.ops)
            if any(last_write.get(self.values[v], -1) > now for v in op.inputs)
        }

    def identity(self) -> bytes:
        """Returns a hash of the problem. Regions with equal identities share a plan."""
        return hashlib.blake2b(self.checked.to_json().encode()).digest()


def _last_writes(ops: list[Op]) -> dict[int, int]:
    """Maps each storage to the last op that writes into it in place."""
    return {
        value.storage: now
        for now, op in enumerate(ops)
        if "mutates" in op.flags
        for value in op.outputs
    }


def set_apart(
    ops: list[Op],
    storages: list[Storage],
    is_wanted: Callable[[int, int], bool] = lambda value, now: True,
    copies_inputs: bool = False,
) -> None:
    """Gives the result of an in-place write separate memory if ``is_wanted(value, op)`` is true for
    a value that the op overwrites. Memory from outside is not changed unless ``copies_inputs`` is
    set. It then counts twice from the write to the end, because the region copies the old value."""
    if any(op.kind.startswith("aten.set_") for op in ops):
        return  # set_ hides which storage a tensor is in
    now_in = list(range(len(storages)))  # maps a storage to the one that has its contents now
    holds: dict[int, list[int]] = {}  # maps a storage to the values in it since the last write
    id = 0
    for now, op in enumerate(ops):
        for value in op.outputs:
            named = value.storage
            if "mutates" in op.flags:
                old = storages[now_in[named]]
                before = holds.pop(named, [])
                is_static = "static" in old.flags
                stays = is_static and not copies_inputs
                if not stays and any(is_wanted(v, now) for v in before):
                    storages.append(replace(old, flags=HELD if is_static else old.flags))
                    if not is_static:
                        old.flags = frozenset()
                    now_in[named] = len(storages) - 1
            holds.setdefault(named, []).append(id)
            value.storage = now_in[named]
            id += 1
