"""Claim: the arena of a plan equals the live bytes at its fullest moment, or is slightly larger.

python benchmarks/planner/bench_packing.py [GRAPH ...]

`planner_packing`: plans of the traced graphs for budgets on live bytes. Each budget's column is the
arena in percent above the live bytes; both are rounded up to the grain of offsets, buffer by
buffer. "most" is the largest of them, "without gaps" counts plans with 0. "min arena" is the
smallest arena within 40 % extra time, and "min live" the smallest live bytes, in percent of the
bytes of saving everything. "seconds" is the processor time of all these plans, in one search for
live bytes and one for the arena. `planner_buffers`: instances like those of MiniMalloc
(`tests/reference/buffers.py`), placed in the block from which they were cut.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(ROOT / "tests" / "reference"))

from buffers import CAPACITY, HARD, tight_buffers  # noqa: E402
from common import GRAPHS, GRAPHS_DEVICE, save  # noqa: E402

import cutback  # noqa: E402
from cutback.placement import Buffer, place  # noqa: E402

COMMAND = "python benchmarks/planner/bench_packing.py"
GRAIN = 64
LEAST_BYTES = 2**20  # of saving everything; arenas of smaller graphs are not worth packing
BUDGETS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, "min")


def least_arena(document: dict[str, Any]) -> int:
    """Returns the live bytes at the fullest moment, each buffer rounded up to the grain."""
    change: dict[int, int] = {}
    for _, made, last, size, _ in document["lives"]:
        grains = -(-size // GRAIN) * GRAIN
        change[made] = change.get(made, 0) + grains
        change[last + 1] = change.get(last + 1, 0) - grains
    live = most = 0
    for moment in sorted(change):
        live += change[moment]
        most = max(most, live)
    return most


def row_of(path: Path) -> dict[str, Any] | None:
    """Returns the row of a graph, or None if it is too small."""
    text = gzip.decompress(path.read_bytes()).decode()
    row: dict[str, Any] = {"graph": path.name.removesuffix(".json.gz")}
    gaps: list[float] = []
    begin = time.process_time()
    plans = cutback.plans(text, BUDGETS, device=GRAPHS_DEVICE)
    smallest = cutback.plan(text, budget="min", device=GRAPHS_DEVICE, measure="arena").numbers
    seconds = time.process_time() - begin
    whole = smallest["save_all_live_bytes"]
    if whole < LEAST_BYTES:
        return None
    for budget, plan in zip(BUDGETS, plans, strict=True):
        if isinstance(plan, cutback.BudgetError):
            continue
        least = least_arena(plan.document)
        gaps.append(100 * (plan.numbers["arena_bytes"] / least - 1))
        name = budget if isinstance(budget, str) else f"{100 * budget:.0f} %"
        row[name] = round(gaps[-1], 3)
        if budget == "min":
            row["min live"] = round(100 * plan.numbers["live_bytes"] / whole, 2)
    row["min arena"] = round(100 * smallest["arena_bytes"] / whole, 2)
    row["most"] = round(max(gaps), 3)
    row["without gaps"] = f"{sum(gap == 0 for gap in gaps)} of {len(gaps)}"
    row["seconds"] = seconds
    return row


def buffers_row(seed: int, n: int) -> dict[str, Any]:
    """Measures one instance."""
    buffers = [Buffer(str(k), *row) for k, row in enumerate(tight_buffers(seed, n))]
    begin = time.process_time()
    try:
        place(buffers, CAPACITY)
        fits = True
    except ValueError:
        fits = False
    return {"buffers": len(buffers), "fits": fits, "seconds": time.process_time() - begin}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", nargs="*", help="names in tests/data/graphs; all unless given")
    options = parser.parse_args()
    found = sorted(GRAPHS.glob("*.json.gz"))
    rows = []
    for path in found:
        if options.graphs and path.name.removesuffix(".json.gz") not in options.graphs:
            continue
        row = row_of(path)
        if row:
            rows.append(row)
            print(row, flush=True)
    save("planner_packing", COMMAND, rows)
    if not options.graphs:
        save("planner_buffers", COMMAND, [buffers_row(seed, n) for seed, n in HARD])


if __name__ == "__main__":
    main()
