"""Claim: positions have not made planning in bytes slower.

python benchmarks/planner/bench_unchanged.py [--older PYTHON] [GRAPH ...]

PYTHON is the interpreter of an environment with an older cutback, such as the last commit without
positions (`git worktree add ../older 369a555a^`, with an environment in it). Without it nothing
runs.

`planner_unchanged`: for each traced graph, budgets near shares of saving everything: a position,
and exactly the bytes that it stands for, because one byte less may be the target of a rung, which
saves a search. Processor seconds on one thread, from the problem to the plan, are the minimum of
two rounds in which the versions alternate. "extra %" is the plan's extra time. Below 10 %, where
the plan at position 0 cannot be the answer, a budget may take 1.1 times the older planner's time;
elsewhere, and at a position, 1.3 times, or 0.5 s more. If plans differ, "older extra %" is the
older one's.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from common import GRAPHS, GRAPHS_DEVICE, save  # noqa: E402

import cutback  # noqa: E402

COMMAND = "python benchmarks/planner/bench_unchanged.py --older PYTHON"
SHARES = (0.9, 0.7, 0.5, 0.35)
ROUNDS = 2
LITTLE_EXTRA = 10.0
MOST_RATIO, MOST_RATIO_ELSEWHERE, MOST_MORE_S = 1.1, 1.3, 0.5
PLAN = """
import json, sys, time
import cutback
cutback.set_num_threads(1)
text = cutback.files.read_text(sys.argv[1])
out = []
for budget in json.loads(sys.argv[2]):
    begin = time.process_time()
    try:
        numbers = cutback.plan(text, budget=budget, device=sys.argv[3]).numbers
        extra = 100 * (numbers["time_ps"] / numbers["once_ps"] - 1)
    except cutback.BudgetError:
        extra = None
    out.append([time.process_time() - begin, extra])
print(json.dumps(out))
"""


def planned(python: str, path: Path, budgets: list[Any]) -> list[list[float | None]]:
    """Seconds and extra time of a plan for each budget, with the interpreter's version."""
    done = subprocess.run(
        [python, "-c", PLAN, str(path), json.dumps(budgets), GRAPHS_DEVICE],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answers: list[list[float | None]] = json.loads(done.stdout)
    return answers


def position_of(ends: Any, limit: int) -> float | None:
    """The position of these bytes, or None if they are out of range."""
    if not ends.smallest < limit <= ends.everything:
        return None
    return float((limit - ends.smallest) / (ends.everything - ends.smallest))


def limit_of(ends: Any, position: float) -> int:
    """The bytes that a position stands for."""
    return int(ends.smallest + math.ceil(Fraction(position) * (ends.everything - ends.smallest)))


def rows_of(older: str, path: Path) -> list[dict[str, Any]]:
    """One row per share."""
    ends = cutback.plan(cutback.files.read_text(path), budget=1.0, device=GRAPHS_DEVICE).position
    assert ends is not None
    limits = [int(share * ends.everything) for share in SHARES]
    positions = [position_of(ends, limit) for limit in limits]
    limits = [
        limit if k is None else limit_of(ends, k)
        for limit, k in zip(limits, positions, strict=True)
    ]
    budgets: list[Any] = [f"{limit}B" for limit in limits]
    asked = budgets + [k for k in positions if k is not None]
    before, now = [], []
    for _ in range(ROUNDS):
        before.append(planned(older, path, budgets))
        now.append(planned(sys.executable, path, asked))
    at_position = iter(range(len(budgets), len(asked)))
    rows = []
    for i, share in enumerate(SHARES):
        extra, older_extra = now[0][i][1], before[0][i][1]
        if extra is None or older_extra is None:
            continue
        old = min(float(answers[i][0] or 0) for answers in before)
        new = min(float(answers[i][0] or 0) for answers in now)
        elsewhere = max(MOST_RATIO_ELSEWHERE * old, old + MOST_MORE_S)
        met = new <= (MOST_RATIO * old if extra < LITTLE_EXTRA else elsewhere)
        row: dict[str, Any] = {
            "graph": path.name.removesuffix(".json.gz"),
            "budget": f"{share}x",
            "extra %": round(extra, 2),
            "older extra %": round(older_extra, 2),
            "older s": round(old, 3),
            "bytes s": round(new, 3),
            "ratio": round(new / old, 3),
        }
        if positions[i] is not None:
            j = next(at_position)
            at = min(float(answers[j][0] or 0) for answers in now)
            row["position s"] = round(at, 3)
            met &= at <= elsewhere
        rows.append({**row, "met": "yes" if met else "no"})
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--older", help="interpreter of an environment with an older cutback")
    parser.add_argument("graphs", nargs="*", help="names in tests/data/graphs; all unless given")
    options = parser.parse_args()
    if not options.older:
        print("skipped: no older version to compare with")
        return
    cutback.set_num_threads(1)
    rows = []
    for path in sorted(GRAPHS.glob("*.json.gz")):
        if options.graphs and path.name.removesuffix(".json.gz") not in options.graphs:
            continue
        rows += rows_of(options.older, path)
        print(*rows[-len(SHARES) :], sep="\n", flush=True)
    if not options.graphs:
        save("planner_unchanged", COMMAND, rows)


if __name__ == "__main__":
    main()
