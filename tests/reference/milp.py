#!/usr/bin/env python3
"""Finds the exact optimum of small problems as an integer program, solved by HiGHS through SciPy.

    milp.py PROBLEM.json[.gz] BUDGET_BYTES [DEVICE]

The formulation is Checkmate's (Jain et al., 2020). Stage k ends with the op at position k of the
given order; before it, forward ops of earlier positions may run again, in order. Unknowns:

    R[k, i]  op i runs in stage k
    S[k, i]  the value of op i is in memory when stage k begins
    F[k, i, j]  the value of op i is freed right after op j of stage k: j is its last reader there
             and the next stage does not begin with it
    U[k, j]  bytes in memory while op j of stage k runs (whether it does or not)

A forward op need not run in its own stage if no op of that stage needs it. It supports problems in
which every op makes one value in its own storage, without scratch, regions and constraints, and
plans that rerun only forward ops.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

sys.path.insert(0, str(Path(__file__).parent))
from costs import op_seconds
from evaluate import load, once_flags


@dataclass
class Optimum:
    """The result. ``seconds`` is None if no plan fits; ``proven`` is False if the time ran out
    first."""

    seconds: float | None
    proven: bool


class _Program:
    """Columns and rows of the integer program, in the order of creation."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.whole: list[int] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []

    def column(self, low: float, high: float, cost: float = 0.0, whole: bool = True) -> int:
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(high)
        self.whole.append(int(whole))
        return len(self.cost) - 1

    def row(self, terms: list[tuple[int | None, float]], low: float, high: float) -> None:
        """Adds a row; terms without a column are zero."""
        sums: dict[int, float] = {}
        for column, factor in terms:
            if column is not None:
                sums[column] = sums.get(column, 0.0) + factor
        self.rows.append((sums, low, high))

    def solve(self, seconds: float) -> Any:
        entries = [(r, c, v) for r, (terms, _, _) in enumerate(self.rows) for c, v in terms.items()]
        i, j, v = (np.array(column) for column in zip(*entries, strict=True))
        matrix = coo_array((v, (i, j)), shape=(len(self.rows), len(self.cost))).tocsr()
        return milp(
            np.array(self.cost),
            constraints=LinearConstraint(
                matrix, [row[1] for row in self.rows], [row[2] for row in self.rows]
            ),
            bounds=Bounds(np.array(self.low), np.array(self.high)),
            integrality=np.array(self.whole),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )


class _Stages:
    """The problem by position in the given order, without placeholders and their values."""

    def __init__(self, problem: dict[str, Any], device: str) -> None:
        ops = problem["ops"]
        maker = [i for i, op in enumerate(ops) for _ in op["out"]]
        runs = [i for i, op in enumerate(ops) if "placeholder" not in op.get("flags", ())]
        place = {op: k for k, op in enumerate(runs)}
        ends = {maker[v] for v in problem["forward_outputs"] + problem["backward_outputs"]}
        self.n = len(runs)
        self.reads = [
            sorted({place[maker[v]] for v in ops[i]["in"] if maker[v] in place}) for i in runs
        ]
        self.bytes = [problem["storages"][ops[i]["out"][0]["storage"]]["bytes"] for i in runs]
        self.held = [i in ends for i in runs]
        starts = problem["backward_starts"]
        flags = [set(ops[i].get("flags", ())) for i in runs]
        once, network = once_flags(problem), problem.get("network_bytes_per_s", 0.0)
        self.seconds = [op_seconds(ops[i], device, None, network) for i in runs]
        self.fixed = [i >= starts or i in ends or bool(flags[k] & once) for k, i in enumerate(runs)]
        self.stays = [fixed or "collective" in flags[k] for k, fixed in enumerate(self.fixed)]
        self.readers = [[j for j in range(self.n) if i in self.reads[j]] for i in range(self.n)]


def _build(s: _Stages, budget: int) -> _Program:
    p = _Program()
    scale = 1.0 / max(1, max(s.bytes))
    pairs = [(k, i) for k in range(s.n) for i in range(k + 1)]
    runs, there, free, used = {}, {}, {}, {}
    for k, i in pairs:
        must, may = s.stays[i] and k == i, not s.fixed[i] or k == i
        runs[k, i] = p.column(int(must), int(may), 1e6 * s.seconds[i])
        used[k, i] = p.column(0, budget * scale, whole=False)
        if i < k:
            there[k, i] = p.column(int(s.held[i]), 1)

    def begins(k: int, i: int) -> int | None:
        return there.get((k, i))

    for k, j in pairs:
        for i in s.reads[j]:
            p.row([(runs[k, j], 1), (runs[k, i], -1), (begins(k, i), -1)], -np.inf, 0)
        if k + 1 < s.n:
            p.row([(there[k + 1, j], 1), (runs[k, j], -1), (begins(k, j), -1)], -np.inf, 0)
        for i in (*s.reads[j], j):
            _add_free(p, s, k, i, j, runs, there, free)
    for k in range(s.n):
        _add_memory(p, s, k, scale, runs, there, free, used)
    for i in range(s.n):
        p.row([(runs[k, i], 1) for k in range(i, s.n)], 0 if not s.readers[i] else 1, np.inf)
    return p


def _add_free(
    p: _Program, s: _Stages, k: int, i: int, j: int, runs: Any, there: Any, free: Any
) -> None:
    """Constrains a value to be freed exactly if j runs, no later reader in the stage does, and the
    next stage does not use it."""
    later = [runs[k, x] for x in s.readers[i] if j < x <= k]
    keep = there.get((k + 1, i)) if k + 1 < s.n else None
    always = k + 1 == s.n and s.held[i]
    free[k, i, j] = column = p.column(0, 0 if always else 1)
    hazards = [(runs[k, j], -1.0), (keep, 1.0), *((x, 1.0) for x in later)]
    if always:
        return
    p.row([(column, 1), *hazards], 0, np.inf)  # 1 - free <= 1 - run + others
    most = len(later) + 2
    p.row([(column, most), *hazards], -np.inf, most - 1)  # 1 - run + others <= most (1 - free)


def _add_memory(
    p: _Program, s: _Stages, k: int, scale: float, runs: Any, there: Any, free: Any, used: Any
) -> None:
    def size(i: int) -> float:
        return s.bytes[i] * scale

    first = [(there[k, i], size(i)) for i in range(k)]
    p.row([(used[k, 0], -1), (runs[k, 0], size(0)), *first], 0, 0)
    for j in range(1, k + 1):
        freed = [(free[k, i, j - 1], -size(i)) for i in (*s.reads[j - 1], j - 1)]
        p.row([(used[k, j], -1), (used[k, j - 1], 1), (runs[k, j], size(j)), *freed], 0, 0)


def optimum(
    problem: dict[str, Any], budget: int, device: str = "cpu", seconds: float = 60.0
) -> Optimum:
    """Returns the least time of a plan whose live bytes never exceed ``budget``."""
    answer = _build(_Stages(problem, device), budget).solve(seconds)
    if answer.status == 2:
        return Optimum(None, True)
    return Optimum(None if answer.x is None else answer.fun * 1e-6, answer.status == 0)


def _arguments(argv: list[str]) -> Iterator[Any]:
    yield load(argv[1])
    yield int(argv[2])
    yield argv[3] if len(argv) > 3 else "cpu"


if __name__ == "__main__":
    print(optimum(*_arguments(sys.argv)))
