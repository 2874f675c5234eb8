"""Claim: planning for a position takes little more time than planning for its bytes, and position 0
is close to ``"min"``.

python benchmarks/planner/bench_positions.py [GRAPH ...]

`planner_positions`: one line per traced graph. "0 above min" is how far the bytes of position 0 are
above those of ``"min"``, in percent of saving everything (limit: 2). "bytes s" and "position s" are
seconds of processor time, on one thread, from the problem to the plan, for a budget in bytes and
for the position with the same bytes, which gives the same plan. Both are means over three
positions. "most more s" is the largest difference of the three. A position may take 1.3 times as
long, or 0.5 s longer.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from common import GRAPHS, GRAPHS_DEVICE, save  # noqa: E402

import cutback  # noqa: E402

COMMAND = "python benchmarks/planner/bench_positions.py"
POSITIONS = (0.25, 0.5, 0.75)
MOST_RATIO, MOST_MORE_S, MOST_ABOVE = 1.3, 0.5, 2.0


def planned(text: str, budget: float | str) -> tuple[cutback.Plan, float]:
    """Returns a plan, and the processor seconds it took."""
    begin = time.process_time()
    plan = cutback.plan(text, budget=budget, device=GRAPHS_DEVICE)
    return plan, time.process_time() - begin


def row_of(path: Path) -> dict[str, Any]:
    """Measures one graph."""
    text = cutback.files.read_text(path)
    in_bytes = at_position = more = 0.0
    met = True
    for k in POSITIONS:
        plan, slow = planned(text, k)
        same, fast = planned(text, f"{plan.numbers['budget_bytes']}B")
        assert plan.numbers["time_ps"] == same.numbers["time_ps"]
        met &= slow <= max(MOST_RATIO * fast, fast + MOST_MORE_S)
        in_bytes, at_position, more = in_bytes + fast, at_position + slow, max(more, slow - fast)
    least = cutback.plan(text, budget="min", device=GRAPHS_DEVICE).numbers["live_bytes"]
    assert plan.position is not None
    above = 100 * (plan.position.smallest - least) / plan.position.everything
    return {
        "graph": path.name.removesuffix(".json.gz"),
        "0 above min": round(above, 3),
        "bytes s": in_bytes / len(POSITIONS),
        "position s": at_position / len(POSITIONS),
        "most more s": more,
        "met": "yes" if met and above <= MOST_ABOVE else "no",
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", nargs="*", help="names in tests/data/graphs; all unless given")
    options = parser.parse_args()
    cutback.set_num_threads(1)
    rows = []
    for path in sorted(GRAPHS.glob("*.json.gz")):
        if options.graphs and path.name.removesuffix(".json.gz") not in options.graphs:
            continue
        rows.append(row_of(path))
        print(rows[-1], flush=True)
    if not options.graphs:
        save("planner_positions", COMMAND, rows)


if __name__ == "__main__":
    main()
