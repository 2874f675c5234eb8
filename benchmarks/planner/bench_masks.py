"""Claim: masks kept as bits lower the smallest peaks of models with dropout.

python benchmarks/planner/bench_masks.py [GRAPH ...]

Compares the smallest plans of traced graphs within 40 % extra time, plain and with
`cutback.with_packed`: with forward reruns only, then with `reruns: "all"` and memory reuse. Peaks
and extra times are in percent of saving everything, plain. `tests/reference/evaluate.py` checks
every plan. No times are measured.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(ROOT / "tests" / "reference"))

import evaluate  # noqa: E402
from common import GRAPHS, GRAPHS_DEVICE, save  # noqa: E402

import cutback  # noqa: E402
from cutback.problem import Problem  # noqa: E402

COMMAND = "python benchmarks/planner/bench_masks.py"
NAMES = ("bert_base", "transformer_encoder")


def smallest(problem: Problem) -> dict[str, Any]:
    """Returns the numbers of the smallest plan within 40 % extra time, checked by the referee."""
    plan = cutback.plan(problem, budget="min", device=GRAPHS_DEVICE)
    document = plan.document
    judged = evaluate.evaluate(
        problem.document(), document["steps"], document["backward_starts"], GRAPHS_DEVICE
    )
    if judged.peak_bytes != plan.numbers["live_bytes"]:
        raise AssertionError(f"the referee measures {judged.peak_bytes} bytes")
    return dict(plan.numbers)


def row_of(name: str, reruns: str, over: bool) -> dict[str, Any]:
    """Returns the smallest peaks of a graph, plain and packed."""
    document = json.loads(gzip.decompress((GRAPHS / f"{name}.json.gz").read_bytes()))
    everything = cutback.plan(document, device=GRAPHS_DEVICE).numbers
    plain = Problem.read(json.dumps({**document, "over": over, "reruns": reruns}))
    row: dict[str, Any] = {"graph": name, "reruns": reruns, "reuse": "yes" if over else "no"}
    for problem, label in ((plain, "plain"), (cutback.with_packed(plain), "packed")):
        numbers = smallest(problem)
        row[f"{label} %"] = round(100 * numbers["live_bytes"] / everything["live_bytes"], 2)
        extra = numbers["time_ps"] / everything["once_ps"] - 1
        row[f"{label} extra %"] = round(100 * extra, 1)
    return row


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("graphs", nargs="*", default=list(NAMES))
    names = parser.parse_args().graphs
    ways = (("forward", False), ("all", True))
    save("planner_masks", COMMAND, [row_of(name, *way) for name in names for way in ways])


if __name__ == "__main__":
    main()
