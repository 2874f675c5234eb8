"""Claim: recomputing and offloading together is faster than either alone under the same peak.

python benchmarks/planner/bench_offload.py [GRAPH ...]

Gives, for each graph at 50 and 30 % of the save-everything peak on the device a100 (25 GB/s per
direction), the extra time of plans that only recompute, only offload, and do both, with the bytes
offloaded and the time spent waiting for copies. `none` means that no plan fits. Planning times are
wall times on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from common import GRAPHS, GRAPHS_DEVICE, save  # noqa: E402

from cutback import BudgetError, _native, budgets, files  # noqa: E402


def numbers_of(text: str, share: float, offload: bool | str) -> tuple[dict[str, Any] | None, float]:
    """Returns the numbers of a plan, or None if nothing fits, and the seconds of planning."""
    budget = budgets.with_options(budgets.parse(f"{share}x", "live"), offload, None, False)
    begin = time.perf_counter()
    try:
        found = _native.Problem.read(text).plan(budget=budget, device=GRAPHS_DEVICE)
    except BudgetError:
        return None, time.perf_counter() - begin
    numbers: dict[str, Any] = json.loads(found.to_json())["numbers"]
    return numbers, time.perf_counter() - begin


def extra(numbers: dict[str, Any] | None, key: str = "time_ps") -> float | None:
    """Returns by how many percent the time exceeds that of running everything once."""
    if numbers is None:
        return None
    beyond = numbers[key] - numbers["once_ps"] if key == "time_ps" else numbers.get(key, 0)
    return 100 * float(beyond) / max(1, numbers["once_ps"])


def measure(path: Path, share: float) -> dict[str, Any]:
    """Returns one row."""
    text = _native.Problem.read(files.read_text(path)).to_json()
    row: dict[str, Any] = {"graph": path.name.split(".")[0], "share": share}
    for name, offload in (("recompute", False), ("offload", "only"), ("joint", True)):
        numbers, seconds = numbers_of(text, share, offload)
        row[f"{name}_extra_%"] = extra(numbers)
        row[f"{name}_plan_s"] = seconds
        if numbers is None or not offload:
            continue
        row[f"{name}_out_bytes"] = numbers.get("out_bytes", 0)
        row[f"{name}_stall_%"] = extra(numbers, "stall_ps")
    return row


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", type=Path)
    options = parser.parse_args()
    paths = options.graphs or sorted(GRAPHS.glob("*.json.gz"))
    rows = []
    for path in paths:
        for share in (0.5, 0.3):
            rows.append(measure(path, share))
            print(json.dumps(rows[-1]), flush=True)
    save("planner_offload", "python benchmarks/planner/bench_offload.py", rows)


if __name__ == "__main__":
    main()
