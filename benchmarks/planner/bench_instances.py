"""Claim: on re-creations of published instances, plans are faster than an online greedy (DTR) and
checkpoints at equal distances (Chen), and near the optimum where an integer program proves one.

python benchmarks/planner/bench_instances.py [NAME ...] [--long]

The rows give extra time in % at budgets in % of the peak of saving everything. The evaluator of the
tests (`tests/reference/evaluate.py`) checks every plan, with the times of an A100's data sheet.
models.py describes the instances; they are made from formulas, so figures can be compared within
this table, but not with those in papers. "bound" is the plan's own lower bound; plans that compute
a value several times may beat it. "Chen" is the best number of segments, up to 100, that fits; a
separate row has the figures of sqrt(n) segments. An empty field means that no plan that fits was
found. `--long` adds the two large random graphs and "optimum": Checkmate's integer program
(`tests/reference/milp.py`) with HiGHS for at most 120 s each, "none" if it proves that nothing
fits.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parents[1] / "tests" / "reference"))

import chen  # noqa: E402
import costs  # noqa: E402
import dtr  # noqa: E402
import evaluate  # noqa: E402
import models  # noqa: E402
from common import save  # noqa: E402

import cutback  # noqa: E402

COMMAND = "python benchmarks/planner/bench_instances.py"
DEVICE = "a100"
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
MOST_SEGMENTS = 100
LARGE = ("layered_500", "layered_1000")
MOST_OPS = 100  # largest problem given to the integer program
SECONDS = 120.0


def percent(seconds: float | None, once: float) -> float | None:
    return None if seconds is None else round(100 * (seconds / once - 1), 3)


class Instance:
    """A problem, with everything that does not depend on the budget."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problem = models.make(name)
        self.text = json.dumps(self.problem)
        self.seconds = [costs.op_seconds(op, DEVICE) for op in self.problem["ops"]]
        run = [i for i, op in enumerate(self.problem["ops"]) if "placeholder" not in op["flags"]]
        starts = self.problem["backward_starts"]
        self.n, self.n_forward = len(run), sum(i < starts for i in run)
        whole = self.judge(run, self.n_forward)
        self.whole, self.once = whole.peak_bytes, whole.once_ps * 1e-12
        # a graph without a backward needs no checkpoints
        tried = range(1, min(self.n_forward, MOST_SEGMENTS) + 1) if self.n_forward < self.n else ()
        self.segments = {k: self.judge(*chen.schedule(self.problem, k)) for k in tried}

    def judge(self, steps: list[int], starts: int) -> evaluate.Evaluation:
        """Evaluates a rival's schedule, which may run backward ops late."""
        problem = {**self.problem, "version": 3, "reruns": "all"}
        return evaluate.evaluate(problem, steps, starts, DEVICE)

    def ours(self, budget: int) -> tuple[float | None, float | None, float]:
        """Returns the extra time, its bound and the planning seconds."""
        begin = time.perf_counter()
        try:
            plan = cutback.plan(self.text, budget=budget, device=DEVICE)
        except cutback.BudgetError:
            return None, None, time.perf_counter() - begin
        spent = time.perf_counter() - begin
        found = evaluate.check_plan(self.problem, plan.document, DEVICE)
        bound = plan.numbers["lower_bound_ps"]
        low = None if bound is None else percent(bound * 1e-12, self.once)
        return percent(found.seconds, self.once), low, spent

    def greedy(self, budget: int) -> float | None:
        """Returns the extra time of DTR, with the better of its two ways to treat released
        tensors."""
        found = []
        for eager in (True, False):
            made = dtr.schedule(self.problem, self.seconds, budget, eager)
            if made is not None:
                found.append(self.judge(*made))
                assert found[-1].peak_bytes <= budget
        return percent(min((f.seconds for f in found), default=None), self.once)

    def distances(self, budget: int) -> float | None:
        fit = [found.seconds for found in self.segments.values() if found.peak_bytes <= budget]
        return percent(min(fit, default=None), self.once)

    def optimum(self, budget: int) -> float | str | None:
        if self.n > MOST_OPS or not self.segments:
            return "not tried"
        import milp

        best = milp.optimum(self.problem, budget, DEVICE, SECONDS)
        if not best.proven:
            return "not proven"
        return "none" if best.seconds is None else percent(best.seconds, self.once)


def rows_of(name: str, long: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns rows without and with times. A method that found nothing is not tried with smaller
    budgets."""
    made = Instance(name)
    about = {"graph": name, "ops": made.n}
    rows, times = [], []
    others = {"DTR %": made.greedy, "Chen %": made.distances}
    if long:
        others["optimum %"] = made.optimum
    ours: float | None = 0.0
    for share in SHARES:
        budget = int(share * made.whole)
        row = {**about, "budget %": f"{100 * share:.0f}"}
        if ours is not None:
            ours, bound, spent = made.ours(budget)
            times.append({**row, "plan ms": 1e3 * spent})
            row |= {"extra %": ours, "bound %": bound}
        for key in list(others):
            row[key] = others[key](budget)
            if row[key] in (None, "none"):
                del others[key]
        if ours is None and not others:
            break
        rows.append(row)
        print(row, flush=True)
    if made.segments:
        root = made.segments[min(max(made.segments), round(math.sqrt(made.n_forward)))]
        peak = f"sqrt(n) segments: {100 * root.peak_bytes / made.whole:.1f}"
        rows.append({**about, "budget %": peak, "Chen %": percent(root.seconds, made.once)})
    return rows, times


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(models.MODELS)}, gpt:OPS")
    parser.add_argument("--long", action="store_true", help="the integer program as well")
    options = parser.parse_args()
    rows, times = [], []
    default = [name for name in models.MODELS if options.long or name not in LARGE]
    for name in options.names or default:
        more, spent = rows_of(name, options.long)
        rows += more
        times += spent
    save("planner_instances", COMMAND + " --long" * options.long, rows, "scipy")
    save("planner_instance_times", COMMAND, times)


if __name__ == "__main__":
    main()
