"""An eager region as a problem (docs/problem.md), and how that maps to the region."""

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
    """A problem, and how it maps to the region."""

    problem: Problem
    values: list[int]
    """The storage of each value."""
    keys: dict[tuple[int, int], int]
    """(number of the node, result) -> value."""
    funcs: list[tuple[TorchOp, Shapes]]
    """The op of each node, and the shapes of its results."""
    slots_of: dict[int, list[int]]
    """Backward op -> slots that it reads."""
    slots: list[int]
    """The value of each slot."""
    made: list[tuple[int, weakref.ref[torch.UntypedStorage], weakref.ref[Tensor]]]

    def keeps(self) -> bool:
        """Has the program kept what the region made? To be asked when its results are gone. Then
        it has filled a cache, or made its parameters, and may do something else the next time."""
        return any(storage() is not None for _, storage, _ in self.made)

    @property
    def ops(self) -> list[Op]:
        """The region's operations."""
        return self.problem.ops

    @cached_property
    def first(self) -> list[int]:
        """By op, the first value that it makes."""
        sizes = (len(op.outputs) for op in self.ops)
        return [0, *accumulate(sizes)][:-1]

    @cached_property
    def checked(self) -> _native.Problem:
        """The problem in the core."""
        return self.problem.check()

    def all_again(self) -> tuple[Problem, set[int]]:
        """The problem of this region when it saves nothing that can run again, and which values
        that is: not what is written in place, nor what a policy inside it saves.

        What a write leaves is memory of its own there: what was in it before can be made again, or
        is copied, for the ops that read it and run again.
        """
        problem = deepcopy(self.problem)
        ops, storages = problem.ops, problem.storages
        set_apart(ops, storages)
        last_write = _last_writes(ops)  # those into memory that was not set apart matter
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
        """The ops that read what is overwritten later."""
        last_write = _last_writes(self.ops)
        return {
            now
            for now, op in enumerate(self.ops)
            if any(last_write.get(self.values[v], -1) > now for v in op.inputs)
        }

    def identity(self) -> bytes:
        """What has to be equal for two regions to have one plan: their problem, op for op."""
        return hashlib.blake2b(self.checked.to_json().encode()).digest()


def _last_writes(ops: list[Op]) -> dict[int, int]:
    """Storage -> the last op that writes into it in place."""
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
    """Gives what writes leave memory of its own, where ``is_wanted(value, op)`` says that a value
    which the op overwrites is wanted later. Memory from outside is left as it is, unless
    ``copies_inputs``: then there are two from the write on, as the region copies the old value.
    Both are counted to the end."""
    if any(op.kind.startswith("aten.set_") for op in ops):
        return  # what lies where is not known
    now_in = list(range(len(storages)))  # storage -> where what it holds lies now
    holds: dict[int, list[int]] = {}  # storage -> values in it since the last write
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
