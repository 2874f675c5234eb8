"""Claim: positions have not made planning for bytes slower, and later searches have made no plan
worse.

python benchmarks/planner/bench_unchanged.py [--older PYTHON] [--plans | --seconds] [GRAPH ...]

PYTHON is the interpreter of an environment with an older cutback, such as the last commit without
positions (`git worktree add ../older 369a555a^`, with an environment in it). Without this option,
nothing runs.

`planner_unchanged` plans each traced graph for budgets near shares of saving everything: at a
position, and for exactly the bytes that it stands for, because one byte less may be the target of a
rung, which saves a search. Processor seconds on one thread, from the problem to the plan, are the
minimum of two rounds in which the versions alternate. "extra %" is the plan's extra time. Below 10
%, where the plan at position 0 cannot be the answer, a budget may take 1.1 times the older
planner's time; elsewhere, and at a position, 1.3 times, or 0.5 s more. If plans differ, "older
extra %" is the older one's.

With `--seconds`, only this is measured. Under load all versions take longer, and the 0.5 s become
the stricter limit. Even processor seconds scatter by 30 % beside other work. So the committed rows
are those of their date and commit, from a machine without other work, and later versions were
compared by the instructions that valgrind counts for a few of the rows.

`planner_no_worse` (the only result with `--plans`) compares the plans for ten shares of saving
everything and for `min`, with forward reruns only and with `reruns: "all"`. No budget that the
older version meets may be refused, no plan may take over 0.5 points more extra time, and no
smallest plan may be larger. The older version supports only forward reruns. "worst points" is the
largest difference in extra time; if it is negative, all plans are faster.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
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

PLAN_SHARES = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.35, 0.3, 0.25)
MOST_POINTS = 0.5
PLANS = """
import json, sys
import cutback
path, fields, shares, device = sys.argv[1], *map(json.loads, sys.argv[2:4]), sys.argv[4]
graph = json.loads(cutback.files.read_text(path))
everything = cutback.plan(json.dumps(graph), device=device).numbers["live_bytes"]
budgets = [*(f"{int(share * everything)}B" for share in shares), "min"]
out = []
for plan in cutback.plans(json.dumps({**graph, **fields}), budgets, measure="live", device=device):
    if isinstance(plan, cutback.BudgetError):
        out.append(None)
        continue
    numbers = plan.numbers
    extra = 100 * (numbers["time_ps"] / numbers["once_ps"] - 1)
    out.append([100 * numbers["live_bytes"] / everything, extra])
print(json.dumps(out))
"""


def planned(python: str, path: Path, budgets: list[Any]) -> list[list[float | None]]:
    """Returns seconds and extra time of a plan for each budget, with the interpreter's version."""
    done = subprocess.run(
        [python, "-c", PLAN, str(path), json.dumps(budgets), GRAPHS_DEVICE],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answers: list[list[float | None]] = json.loads(done.stdout)
    return answers


def position_of(ends: Any, limit: int) -> float | None:
    """Returns the position of these bytes, or None if they are out of range."""
    if not ends.smallest < limit <= ends.everything:
        return None
    return float((limit - ends.smallest) / (ends.everything - ends.smallest))


def limit_of(ends: Any, position: float) -> int:
    """Returns the bytes that a position stands for."""
    return int(ends.smallest + math.ceil(Fraction(position) * (ends.everything - ends.smallest)))


def rows_of(older: str, path: Path) -> list[dict[str, Any]]:
    """Returns one row per share."""
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


Peaks = list[list[float] | None]
"""For each budget: percent of saving everything, and percent of extra time; None: refused."""


def plans_of(python: str, path: Path, fields: dict[str, str]) -> Peaks:
    """Returns the plans of the interpreter's version for all budgets."""
    done = subprocess.run(
        [python, "-c", PLANS, str(path), json.dumps(fields), json.dumps(PLAN_SHARES),
         GRAPHS_DEVICE],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answers: Peaks = json.loads(done.stdout)
    return answers


def compare_plans(older: str, path: Path, reruns: str) -> dict[str, Any]:
    """Returns one row: what the older version meets, and where the newer one is worse."""
    before = plans_of(older, path, {})
    now = plans_of(sys.executable, path, {} if reruns == "forward" else {"reruns": reruns})
    refused, points = 0, [0.0]
    for old, new in zip(before[:-1], now[:-1], strict=True):
        refused += old is not None and new is None
        if old and new:
            points.append(new[1] - old[1])
    times = [plan[1] for plan in now[:-1] if plan]
    old_least, least = before[-1], now[-1]
    assert old_least and least
    worst = max(points[1:], default=0.0)
    met = (
        not refused
        and worst <= MOST_POINTS
        and least[0] <= old_least[0]
        and all(a <= b for a, b in pairwise(times))
    )
    return {
        "graph": path.name.removesuffix(".json.gz"),
        "reruns": reruns,
        "older meets": sum(plan is not None for plan in before[:-1]),
        "meets": sum(plan is not None for plan in now[:-1]),
        "refused": refused,
        "worst points": round(worst, 2),
        "mean points": round(sum(points) / max(1, len(points) - 1), 2),
        "older smallest %": round(old_least[0], 2),
        "smallest %": round(least[0], 2),
        "met": "yes" if met else "no",
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--older", help="interpreter of an environment with an older cutback")
    parser.add_argument("--plans", action="store_true", help="compare plans only, not seconds")
    parser.add_argument("--seconds", action="store_true", help="compare seconds only, not plans")
    parser.add_argument("graphs", nargs="*", help="names in tests/data/graphs; all unless given")
    options = parser.parse_args()
    if not options.older:
        print("skipped: no older version to compare with")
        return
    cutback.set_num_threads(1)
    rows, plans = [], []
    for path in sorted(GRAPHS.glob("*.json.gz")):
        if options.graphs and path.name.removesuffix(".json.gz") not in options.graphs:
            continue
        for reruns in () if options.seconds else ("forward", "all"):
            plans.append(compare_plans(options.older, path, reruns))
            print(plans[-1], flush=True)
        if not options.plans:
            rows += rows_of(options.older, path)
            print(*rows[-len(SHARES) :], sep="\n", flush=True)
    if not options.graphs and not options.seconds:
        save("planner_no_worse", f"{COMMAND} --plans", plans)
    if not options.graphs and not options.plans:
        save("planner_unchanged", f"{COMMAND} --seconds", rows)


if __name__ == "__main__":
    main()
