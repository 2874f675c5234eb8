"""An eager region as a problem (docs/problem.md), and how that maps to the region."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ONCE = {"random_stateful", "unknown", "effect", "mutates", "placeholder"}
"""Flags of ops that never run again."""


@dataclass
class Described:
    """A problem, and how it maps to the region."""

    text: str
    ops: list[dict[str, Any]]
    values: list[int]
    """The storage of each value."""
    keys: dict[tuple[int, int], int]
    """(number of the node, result) -> value."""
    funcs: list[Any]
    """The function of each node."""
    slots_of: dict[int, list[int]]
    """Backward op -> slots that it reads."""
    slots: list[int]
    """The value of each slot."""
    made: list[tuple[int, Any, Any]]

    def keeps(self) -> bool:
        """Has the program kept what the region made? To be asked when its results are gone. Then
        it has filled a cache, or made its parameters, and may do something else the next time."""
        return any(storage() is not None for _, storage, _ in self.made)

    def all_again(self) -> tuple[str, set[int]]:
        """The problem of this region when it saves nothing that can run again, and which values
        that is: not what is written in place, nor what a policy inside it saves.

        What a write leaves is memory of its own there: what was in it before can be made again, or
        is copied, for the ops that read it and run again.
        """
        problem = json.loads(self.text)
        ops, storages = problem["ops"], problem["storages"]
        set_apart(ops, storages)
        last_write = _last_writes(ops)  # those into memory that was not set apart matter
        again = set()
        storage_of = [out["storage"] for op in ops for out in op["out"]]
        value = 0
        for now, op in enumerate(ops[: problem["backward_starts"]]):
            stays = {*ONCE, "view"} & set(op["flags"])
            touched = {storage_of[v] for v in op["in"]} | {out["storage"] for out in op["out"]}
            stays |= {s for s in touched if last_write.get(s, -1) > now}
            for out in op["out"]:
                if not (stays or "constraint" in out or storages[out["storage"]]["flags"]):
                    out["constraint"] = "must_recompute"
                    again.add(value)
                value += 1
        return json.dumps(problem), again

    def before_writes(self) -> set[int]:
        """The ops that read what is overwritten later."""
        last_write = _last_writes(self.ops)
        return {
            now
            for now, op in enumerate(self.ops)
            if any(last_write.get(self.values[v], -1) > now for v in op["in"])
        }

    def identity(self) -> Any:
        """What has to be equal for two regions to have one plan: their problem, op for op."""
        return hashlib.blake2b(self.text.encode()).digest()


def _last_writes(ops: list[dict[str, Any]]) -> dict[int, int]:
    """Storage -> the last op that writes into it in place."""
    return {
        out["storage"]: now
        for now, op in enumerate(ops)
        if "mutates" in op["flags"]
        for out in op["out"]
    }


def set_apart(
    ops: list[dict[str, Any]],
    storages: list[dict[str, Any]],
    is_wanted: Callable[[int, int], bool] = lambda value, now: True,
    copies_inputs: bool = False,
) -> None:
    """Gives what writes leave memory of its own, where ``is_wanted(value, op)`` says that a value
    which the op overwrites is wanted later. Memory from outside is left as it is, unless
    ``copies_inputs``: then there are two from the write on, as the region copies the old value.
    Both are counted to the end."""
    if any(op["kind"].startswith("aten.set_") for op in ops):
        return  # what lies where is not known
    now_in = list(range(len(storages)))  # storage -> where what it holds lies now
    holds: dict[int, list[int]] = {}  # storage -> values in it since the last write
    value = 0
    for now, op in enumerate(ops):
        for out in op["out"]:
            named = out["storage"]
            if "mutates" in op["flags"]:
                old = storages[now_in[named]]
                before = holds.pop(named, [])
                is_static = "static" in old["flags"]
                stays = is_static and not copies_inputs
                if not stays and any(is_wanted(v, now) for v in before):
                    storages.append({**old, "flags": ["hold_end"] if is_static else old["flags"]})
                    if not is_static:
                        old["flags"] = []
                    now_in[named] = len(storages) - 1
            holds.setdefault(named, []).append(value)
            out["storage"] = now_in[named]
            value += 1
