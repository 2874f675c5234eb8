"""The launches of a compiled step on a GPU: its groups, each with its operations, the bytes and
operations that it needs, and its kernels with registers, memory and occupancy from the driver."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

PRODUCTS = ("matmul",)
SHOWN = 3  # kinds of operations shown in a group's name


def _flops(ops: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the operations by unit: products by dtype, everything else as ``points``."""
    found: dict[str, float] = {}
    for op in ops:
        dtype = op["out"][0]["type"].partition("[")[0]
        key = f"products {dtype}" if op["kind"] in PRODUCTS else "points"
        if op.get("flops"):
            found[key] = found.get(key, 0) + op["flops"]
    return found


def _name(kinds: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(kinds))
    more = len(distinct) - SHOWN
    return "+".join(distinct[:SHOWN]) + (f"+{more} more" if more > 0 else "")


def groups(executable: Any) -> list[dict[str, Any]]:
    """Returns the groups of a compiled step in order, with ``launches`` (docs/problem.md,
    "Launches")."""
    told = json.loads(executable.text("launches"))["launches"]
    kernels = json.loads(executable.text("kernels"))["groups"]
    plan, ops = executable.plan.document["steps"], executable.plan.problem["ops"]
    found = []
    for number, group in enumerate(kernels):
        found.append(
            {
                "ops": _name([op["kind"] for op in group["ops"]]),
                "bytes": group["read_bytes"] + group["written_bytes"],
                "flops": _flops([ops[plan[step]] for step in group["steps"]]),
                "launches": [
                    {k: v for k, v in x.items() if k != "group"}
                    for x in told
                    if x["group"] == number
                ],
            }
        )
    rest = [x for x in told if x["group"] >= len(kernels)]
    if rest:
        found.append({"ops": "states and counts", "bytes": 0, "flops": {}, "launches": rest})
    return found


def update(executable: Any) -> list[dict[str, Any]]:
    """Returns the kernels of the optimizer's step."""
    found: list[dict[str, Any]] = json.loads(executable.text("launches"))["update"]
    return found
