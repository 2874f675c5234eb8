"""An eager region as a problem (docs/problem.md), and how that maps to the region."""

from __future__ import annotations

import hashlib
import json
from typing import Any

ONCE = {"random_stateful", "unknown", "effect", "mutates", "placeholder"}
"""Flags of ops that never run again."""


class Described:
    """A problem, and how it maps to the region."""

    def __init__(
        self,
        text: str,
        ops: list[dict[str, Any]],
        values: list[int],
        keys: dict[tuple[int, int], int],
        funcs: list[Any],
        slots_of: dict[int, list[int]],
        slots: list[int],
        made: list[tuple[int, Any, Any]],
    ) -> None:
        self.text = text
        self.ops = ops
        self.values = values  # storage of each
        self.keys = keys  # (number of the node, result) -> value
        self.funcs = funcs  # of each node
        self.slots_of = slots_of  # backward op -> slots it reads
        self.slots = slots  # value of each
        self._made = made

    def keeps(self) -> bool:
        """Has the program kept what the region made? To be asked when its results are gone. Then
        it has filled a cache, or made its parameters, and may do something else the next time."""
        return any(storage() is not None for _, storage, _ in self._made)

    def all_again(self) -> tuple[str, set[int]]:
        """The problem of this region when it saves nothing that can run again, and which values
        that is: not what is written in place, or made of it, nor what a policy inside it saves."""
        problem = json.loads(self.text)
        ops, storages = problem["ops"], problem["storages"]
        written = {out["storage"] for op in ops if "mutates" in op["flags"] for out in op["out"]}
        again = set()
        value = 0
        for op in ops[: problem["backward_starts"]]:
            touched = {self.values[v] for v in op["in"]} | {o["storage"] for o in op["out"]}
            stays = {*ONCE, "view"} & set(op["flags"]) or touched & written
            for out in op["out"]:
                if not (stays or "constraint" in out or storages[out["storage"]]["flags"]):
                    out["constraint"] = "must_recompute"
                    again.add(value)
                value += 1
        return json.dumps(problem), again

    def identity(self) -> Any:
        """What has to be equal for two regions to have one plan: their problem, op for op."""
        return hashlib.blake2b(self.text.encode()).digest()
