"""Claim: planning a GPT of 3,000 to 1,000,000 ops for half its peak takes seconds, and the memory
of a few copies of the problem.

python benchmarks/planner/bench_scale.py [OPS ...] [--long]

Each row is measured in a separate process: wall seconds with one thread per processor, from the
text of the problem to the text of the plan; the same in processor seconds ("processor s", which
other programs hardly affect); and its largest resident set minus the size after reading the
problem's text. "first" is the first plan of the search that fits. "hull" is the extra time on the
frontier's convex hull (blocks may be recomputed in part) at the point where the saved bytes, plus
what saving everything needs besides them, fill the budget; "bound" is the plan's own. `--long` adds
budgets of 30 and 20 %.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))

import models  # noqa: E402
from common import save  # noqa: E402

from cutback import _native, budgets  # noqa: E402

COMMAND = "python benchmarks/planner/bench_scale.py"
CHILD = """
import json, re, sys, time
from cutback import BudgetError, _native
with open(sys.argv[1], encoding="utf-8") as file:
    problem = file.read()
share, first = float(sys.argv[2]), sys.argv[3] == "first"
def mib():  # of this program; getrusage counts the parent's from before the exec as well
    with open("/proc/self/status") as status:
        return int(re.search("VmHWM:\\s+([0-9]+) kB", status.read())[1]) / 1024
def plan(limit):
    begin, worked = time.perf_counter(), time.process_time()
    text = _native.Problem.read(problem).plan(
        budget=(2, 0, share, 1), device="a100", time_limit=limit
    ).to_json()
    return time.perf_counter() - begin, time.process_time() - worked, text
before, limit, found = mib(), 0.01 if first else 0.0, None
while found is None and limit < 100:
    try:
        found = plan(limit)
    except (BudgetError, RuntimeError):
        if not first:
            break
        limit *= 2
row = {"seconds": None, "processor s": None}
row |= {"text MiB": len(problem) / 2**20, "more RSS MiB": mib() - before}
if found:
    seconds, worked, text = found
    n = json.loads(text)["numbers"]
    row |= {"seconds": seconds, "processor s": worked}
    row["peak %"] = 100 * n["live_bytes"] / n["save_all_live_bytes"]
    row["extra %"] = 100 * (n["time_ps"] / n["once_ps"] - 1)
    row["room for saved"] = round(share * n["save_all_live_bytes"])
    row["room for saved"] -= n["save_all_live_bytes"] - n["save_all_saved_bytes"]
    if n["lower_bound_ps"]:
        row["bound %"] = 100 * (n["lower_bound_ps"] / n["once_ps"] - 1)
print(json.dumps(row))
"""


def measure(file: Path, share: float, what: str) -> dict[str, Any]:
    """Makes one plan in a separate process."""
    command = [sys.executable, "-c", CHILD, str(file), str(share), what]
    row: dict[str, Any] = json.loads(subprocess.check_output(command, text=True))
    return row


def hull(problem: str, saved: int) -> float:
    """Returns the extra time in % on the convex hull of time against saved bytes."""
    preset = budgets.parse_preset("recompute_all")
    found = json.loads(_native.Problem.read(problem).frontier_json(preset, "a100"))
    least = float(np.interp(saved, found["saved_bytes"], found["bound_ps"]))
    return 100 * (least / found["once_ps"] - 1)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ops", nargs="*", type=int, default=[3_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--long", action="store_true", help="more budgets")
    options = parser.parse_args()
    rows = []
    for n_op in options.ops:
        problem = models.gpt(n_op)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "gpt.json"
            file.write_text(json.dumps(problem))
            for share in (0.5, 0.3, 0.2) if options.long else (0.5,):
                for what in ("first", "best"):
                    row = {"graph": problem["source"], "ops": len(problem["ops"])}
                    row |= {"budget %": f"{100 * share:.0f}", "plan": what}
                    row |= measure(file, share, what)
                    room = row.pop("room for saved", None)
                    if room is not None:
                        row["hull %"] = hull(file.read_text(), room)
                    rows.append(row)
                    print(rows[-1], flush=True)
    save("planner_scale", COMMAND, rows)


if __name__ == "__main__":
    main()
