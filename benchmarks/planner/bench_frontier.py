"""Claim: computing the whole frontier of a traced graph takes milliseconds, and one cut takes less
than 10 ms.

python benchmarks/planner/bench_frontier.py [GRAPH ...]

Graphs are problems or traced graphs; the default is tests/data/graphs. `cut_ms` starts from the
parsed problem (facts, network, flow); the other times include reading the problem's text, which
takes most of the time, and writing the answer's text.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from common import GRAPHS, GRAPHS_DEVICE, interleave, save  # noqa: E402

from cutback import _native, budgets, files  # noqa: E402


def cut_ms(text: str, preset: int, rounds: int) -> float:
    """Returns the best time for facts, network and flow of a preset, as measured by the library
    itself."""
    answers = [
        json.loads(_native.Problem.read(text).cut_json(preset, False)[0]) for _ in range(rounds)
    ]
    return float(min(answer["solve_ms"] for answer in answers))


def measure(path: Path, rounds: int) -> dict[str, Any]:
    """Returns one row: sizes, times in milliseconds, and the distance of points from the bound."""
    traced = files.read_text(path)
    text = _native.Problem.read(traced).to_json()
    every = budgets.parse_preset("recompute_all")
    times = interleave(
        {
            "cut": lambda: _native.Problem.read(text).cut_json(0, False),
            "frontier": lambda: _native.Problem.read(text).frontier_json(every, GRAPHS_DEVICE),
        },
        rounds,
        warmup=1,
    )
    front = json.loads(_native.Problem.read(text).frontier_json(every, GRAPHS_DEVICE))
    once = max(1, front["once_ps"])
    gaps = [(t - b) / once for t, b in zip(front["time_ps"], front["bound_ps"], strict=True)]
    saved = front["saved_bytes"]
    steps = [b - a for a, b in pairwise(saved)]
    return {
        "graph": path.name.split(".")[0],
        "ops": len(json.loads(text)["ops"]),
        "cut_ms": cut_ms(text, budgets.parse_preset("conservative"), rounds),
        "cut_from_text_ms": times["cut"]["min"],
        "frontier_ms": times["frontier"]["min"],
        "points": len(saved),
        "corners": front["kind"].count("hull"),
        "largest_gap_%": 100 * max(steps, default=0) / max(1, saved[-1] - saved[0]),
        "over_bound_mean_%": 100 * sum(gaps) / len(gaps),
        "over_bound_max_%": 100 * max(gaps),
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    paths = options.graphs or sorted(GRAPHS.glob("*.json.gz"))
    rows = [measure(path, options.rounds) for path in paths]
    save("planner_frontier", "python benchmarks/planner/bench_frontier.py", rows)


if __name__ == "__main__":
    main()
