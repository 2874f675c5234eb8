"""What a plan file must hold before anything reads it: keys, types and ranges.

The schedule itself is checked by the core, against the problem.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

DECISIONS = ("save", "recompute", "offload")
NUMBERS = (
    "arena_bytes", "live_bytes", "saved_bytes", "total_bytes", "save_all_arena_bytes",
    "save_all_live_bytes", "save_all_saved_bytes", "time_ps", "once_ps", "recomputed",
)  # fmt: skip
OPTIONAL = ("stall_ps", "out_bytes", "in_bytes", "host_bytes")
MOST = 2**63


def _count(x: Any) -> bool:
    return type(x) is int and 0 <= x < MOST


def _count_or_none(x: Any) -> bool:
    return x is None or _count(x)


def _text(x: Any) -> bool:
    return isinstance(x, str)


def _device(x: Any) -> bool:
    return _text(x) or (isinstance(x, dict) and _text(x.get("name")))


def _step(x: Any) -> bool:
    """An op; or an action, an op, and of a run perhaps what it makes and what it takes in."""
    if not isinstance(x, list):
        return _count(x)
    named = 2 <= len(x) <= 4 and _text(x[0]) and _count(x[1])
    return named and all(isinstance(ids, list) and all(map(_count, ids)) for ids in x[2:])


def _decision(x: Any) -> bool:
    return (
        isinstance(x, dict)
        and _count(x.get("value"))
        and x.get("decision") in DECISIONS
        and _text(x.get("reason"))
    )


def _life(x: Any) -> bool:
    return isinstance(x, list) and len(x) == 5 and _count_or_none(x[0]) and all(map(_count, x[1:]))


def _all(each: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda rows: isinstance(rows, list) and all(map(each, rows))


def _numbers(x: Any) -> bool:
    gap = x.get("gap") if isinstance(x, dict) else None
    return (
        isinstance(x, dict)
        and all(_count(x.get(key)) for key in NUMBERS)
        and all(_count(x[key]) for key in OPTIONAL if key in x)
        and _count_or_none(x.get("lower_bound_ps"))
        and (gap is None or (isinstance(gap, (int, float)) and abs(gap) < MOST))
        and x.get("bound_class") in (None, "trivial", "any", "ordered")
    )


_KEYS: dict[str, Callable[[Any], bool]] = {
    "fingerprint": _text, "numbers": _numbers, "steps": _all(_step), "decisions": _all(_decision),
    "lives": _all(_life), "backward_starts": _count, "device": _device, "preset": _text,
    "measure": _text, "budget_bytes": _count_or_none,
}  # fmt: skip


def check_plan(document: Any, path: str | os.PathLike[str]) -> None:
    """Is this a plan, whatever it is for?

    Raises:
        ValueError: it is none; the text names the key.
    """
    where = os.fspath(path)
    if not isinstance(document, dict):
        raise ValueError(f"{where}: this is no plan: it is no object")
    for key, fits in _KEYS.items():
        if key not in document:
            raise ValueError(f"{where}: this is no plan: it has no {key!r}")
        if not fits(document[key]):
            raise ValueError(f"{where}: a damaged plan: {key!r} is not as a plan has it")


def check_fits(
    document: Mapping[str, Any], problem: Mapping[str, Any], path: str | os.PathLike[str]
) -> None:
    """Do the ids of a plan exist in a problem?

    Raises:
        ValueError: they do not.
    """
    n_values = sum(len(op["out"]) for op in problem["ops"])
    n_steps, n_storages = len(document["steps"]), len(problem["storages"])
    n_ops = len(problem["ops"])
    ids = [step if isinstance(step, int) else step[1] for step in document["steps"]]
    if (
        any(row["value"] >= n_values for row in document["decisions"])
        or any(not 0 <= first <= last <= n_steps for _, first, last, _, _ in document["lives"])
        or any(row[0] is not None and row[0] >= n_storages for row in document["lives"])
        or any(op >= n_ops for op in ids)
        or document["backward_starts"] > n_steps
    ):
        raise ValueError(f"{os.fspath(path)}: a plan of another graph, or a damaged one")
