"""Claim: if outputs may reuse the memory of inputs, the smallest peaks are smaller.

python benchmarks/planner/bench_over.py [GRAPH ...]

Makes the smallest plans of the traced graphs within 40 % extra time, with forward reruns only and
with `reruns: "all"`, with and without memory reuse. `tests/reference/evaluate_traced.py` checks
every plan. Peaks and extra times do not depend on the machine.
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

import evaluate_traced as referee  # noqa: E402
from common import GRAPHS, GRAPHS_DEVICE, save  # noqa: E402

import cutback  # noqa: E402

COMMAND = "python benchmarks/planner/bench_over.py"
NAMES = ("vit_base", "t5_base", "resnet50_bn", "resnet152_bn", "transformer_encoder",
         "gpt2_small_plain", "bert_base")  # fmt: skip


def row_of(name: str, reruns: str) -> dict[str, Any]:
    """Returns the smallest peaks of a graph, in percent of saving everything without memory
    reuse."""
    path = GRAPHS / f"{name}.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()))
    row: dict[str, Any] = {"graph": name, "reruns": reruns}
    whole = cutback.plan(document, device=GRAPHS_DEVICE).numbers["live_bytes"]
    for over, label in ((False, "without"), (True, "with")):
        fields = {"over": over, "reruns": reruns}
        plan = cutback.plan({**document, **fields}, budget="min", device=GRAPHS_DEVICE)
        graph = {**referee.load(path), **fields}
        judged = referee.evaluate(graph, plan.document["steps"], plan.document["backward_starts"])
        if judged["peak_bytes"] != plan.numbers["live_bytes"]:
            raise AssertionError(f"{name}: the referee measures {judged['peak_bytes']} bytes")
        numbers = plan.numbers
        row[f"{label} %"] = round(100 * numbers["live_bytes"] / whole, 2)
        row[f"{label} arena %"] = round(100 * numbers["arena_bytes"] / whole, 2)
        row[f"{label} extra %"] = round(100 * (numbers["time_ps"] / numbers["once_ps"] - 1), 1)
    return row


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("graphs", nargs="*", default=list(NAMES))
    names = parser.parse_args().graphs
    rows = [row_of(name, reruns) for name in names for reruns in ("forward", "all")]
    save("planner_over", COMMAND, rows)


if __name__ == "__main__":
    main()
