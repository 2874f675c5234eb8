"""Claim: with memory reuse, updates inside the plan, packed masks and slices together, the smallest
peaks are a third of the lowest that PyTorch's partitioner reaches.

    python benchmarks/planner/bench_together.py [GRAPH ...]

Makes the smallest plans of the traced graphs within 40 % extra time, with `reruns: "all"`. Slices
(`cutback.with_slices`) cut the loss of language models and perceptrons into at most eight pieces;
graphs without such chains stay whole. Peaks and extra times are in percent of saving everything,
plain; "PyTorch lowest" is the lowest peak of its own budgets on the plain graph, and "half, extra
%" the extra time at half of saving everything, with `exact=True`.
`tests/reference/evaluate.py` checks every plan. No times are measured. If graphs are named, nothing
is saved.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parents[1] / "tests" / "reference"))

import evaluate  # noqa: E402
import evaluate_traced as referee  # noqa: E402
from bench_updates import with_updates  # noqa: E402
from common import GRAPHS, GRAPHS_DEVICE, save  # noqa: E402

import cutback  # noqa: E402
from cutback import _native  # noqa: E402

COMMAND = "python benchmarks/planner/bench_together.py"
NAMES = tuple(sorted(path.name.removesuffix(".json.gz") for path in GRAPHS.glob("*.json.gz")))


def problem_of(graph: dict[str, Any]) -> dict[str, Any]:
    """Returns the problem of a graph with memory reuse and updates inside the plan."""
    problem = json.loads(_native.Problem.read(json.dumps(graph)).to_json())
    return with_updates(graph, problem)


def planned(
    problem: dict[str, Any], whole: int, budget: int | str = "min"
) -> tuple[int, float, float]:
    """Returns a plan's bytes, its percent of saving everything, and its extra time in percent."""
    exact = budget != "min"
    plan = cutback.plan(problem, budget=budget, device=GRAPHS_DEVICE, exact=exact)
    steps, starts = plan.document["steps"], plan.document["backward_starts"]
    judged = evaluate.evaluate(problem, steps, starts, GRAPHS_DEVICE).peak_bytes
    numbers = plan.numbers
    if judged != numbers["live_bytes"]:
        raise AssertionError(f"the referee measures {judged} bytes, not {numbers['live_bytes']}")
    extra = 100 * (numbers["time_ps"] / numbers["once_ps"] - 1)
    return judged, round(100 * judged / whole, 2), round(extra, 1)


def row_of(name: str) -> dict[str, Any]:
    """Returns the smallest peaks of a graph, without slices and with them."""
    path = GRAPHS / f"{name}.json.gz"
    plain = json.loads(gzip.decompress(path.read_bytes()))
    traced = referee.load(path)
    sweep = [row for row in traced["reference"]["sweep"] if "error" not in row]
    lowest = min(referee.reference(traced, row)["peak_bytes"] for row in sweep)
    whole = cutback.plan(plain, device=GRAPHS_DEVICE).numbers["save_all_live_bytes"]
    graph = {**plain, "over": True, "reruns": "all"}
    row: dict[str, Any] = {"graph": name, "PyTorch lowest %": round(100 * lowest / whole, 2)}
    unpacked = problem_of(graph)
    problem = cutback.with_packed(unpacked).document()
    least, row["whole %"], row["whole extra %"] = planned(problem, whole)
    pieces = cutback.with_slices(unpacked)
    if len(pieces.ops) > len(unpacked["ops"]):
        cut = cutback.with_packed(pieces).document()
        found, row["sliced %"], row["sliced extra %"] = planned(cut, whole)
        least, problem = min((least, problem), (found, cut), key=lambda pair: pair[0])
    if least < whole // 2:
        row["half, extra %"] = planned(problem, whole, whole // 2)[2]
    row["over PyTorch's lowest"] = round(least / lowest, 3)
    print(row, flush=True)
    return row


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*")
    names = parser.parse_args().graphs
    rows = [row_of(name) for name in names or NAMES]
    logs = [math.log(row["over PyTorch's lowest"]) for row in rows]
    mean = math.exp(sum(logs) / len(logs))
    rows.append({"graph": "mean", "over PyTorch's lowest": round(mean, 3)})
    if names:
        print(rows[-1])
    else:
        save("planner_together", COMMAND, rows)


if __name__ == "__main__":
    main()
