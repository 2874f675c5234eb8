"""Claim: on a small step the planner's answers are optimal, or within 1 % of a step.

pip install ortools; python benchmarks/planner/bench_optimum.py [--deep] [NAME ...] [--seconds N]
    [--states N]

Compares our plan with CP-SAT's (`optimum.py`) for the demo's ConvNet and for re-creations of VGG16,
FCN8 and a U-Net (`models.py`), with times of the device `cpu`. CP-SAT gets N seconds (60) for its
schedule and N more for its bound. "unused" is the part of the budget that our plan leaves unused.
If "extra" and "proven" are equal, no schedule without reruns in the forward takes less time, so the
rest of the budget could not be used. That proof ignores small storages, so its bound may be
slightly below the optimum. The evaluator of the tests checks the schedules of both. Nothing runs
without OR-tools.

`planner_deep_optimum` (with `--deep`): steps of eight small networks traced by PyTorch
(`tests/reference/deep_nets.py`) at five budgets between the smallest plan and saving everything,
where any op may run late or again. A best-first search (`tests/reference/best_first.py`) looks for
a schedule that is faster by more than 0.5 % of a step, and if it has seen N states without a
result, CP-SAT (`deep_optimum.py`) runs for the given seconds. "optimum" is "proven" if there is no
such schedule, "open" if neither search decides, and otherwise the extra time of the fastest
schedule. "proven %" is the highest bound.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parents[1] / "examples" / "demo"))
sys.path.insert(0, str(HERE.parents[1] / "tests" / "reference"))

if importlib.util.find_spec("ortools") is None:
    print("skipped: pip install ortools")
    sys.exit(0)

import best_first  # noqa: E402
import deep_optimum  # noqa: E402
import evaluate  # noqa: E402
import models  # noqa: E402
import optimum  # noqa: E402
from common import save  # noqa: E402

import cutback as cb  # noqa: E402
import run as demo  # noqa: E402

COMMAND = "python benchmarks/planner/bench_optimum.py"
DEVICE = "cpu"
NAMES = ("convnet", "vgg16", "fcn8", "unet")
SHARES = (0.98, 0.95, 0.92, *(s / 100 for s in range(90, 20, -4)))


def convnet() -> dict[str, Any]:
    """Returns the demo's ConvNet, in the planner's form."""
    task = demo.conv_task(1)
    params, extra = task.start()
    step = cb.compile(task.loss, optimizer=task.optimizer(), preset="autograd")
    step(params, *extra, *next(task.batches()))
    return dict(step.plan.problem)


def percent(time_ps: float | None, once: float) -> float | None:
    """Returns the extra time in percent of running everything once."""
    return None if time_ps is None else round(100 * (time_ps / once - 1), 3)


def judge(problem: dict[str, Any], best: optimum.Optimum, budget: int) -> None:
    """Checks that CP-SAT's schedule is valid and takes the stated time."""
    if best.time_ps is None:
        return
    found = evaluate.evaluate(problem, best.steps, best.backward_starts, DEVICE)
    if found.peak_bytes > budget or found.time_ps != best.time_ps:
        raise AssertionError(f"{found.peak_bytes} of {budget} bytes, {found.time_ps} ps")


def rows_of(name: str, seconds: float) -> list[dict[str, Any]]:
    """Returns one row per budget, down to the smallest that has a plan."""
    problem = models.make(name) if name in models.MODELS else convnet()
    text, rows = json.dumps(problem), []
    whole = cb.plan(text, preset="autograd", device=DEVICE).numbers
    budgets = [int(share * whole["live_bytes"]) for share in SHARES]
    answers = cb.plans(text, budgets, device=DEVICE)
    for share, budget, plan in zip(SHARES, budgets, answers, strict=True):
        row: dict[str, Any] = {"graph": name, "budget %": round(100 * share, 1)}
        best = optimum.optimum(problem, budget, DEVICE, seconds)
        judge(problem, best, budget)
        once = whole["once_ps"]
        ours = None
        if not isinstance(plan, Exception):
            found = evaluate.check_plan(problem, plan.document, DEVICE)
            ours = percent(found.time_ps, once)
            row |= {"unused %": round(100 * (1 - found.peak_bytes / budget), 2)}
        row |= {"extra %": ours, "optimum %": percent(best.time_ps, once)}
        row |= {"proven %": percent(best.bound_ps, once) if best.bound_ps < float("inf") else None}
        if ours is None and best.time_ps is None:
            break
        rows.append(row)
        print(row, flush=True)
    return rows


DEEP_SHARES = (0.02, 0.2, 0.4, 0.6, 0.8)
CLOSE = 0.005


def deep_row(
    name: str, problem: dict[str, Any], plan: Any, seconds: float, states: int
) -> dict[str, Any]:
    """Returns one row: our plan, and whether a much faster one exists."""
    numbers = plan.numbers
    once, budget = numbers["once_ps"], numbers["budget_bytes"]
    asked = numbers["time_ps"] - int(CLOSE * once)
    best = best_first.best(problem, budget, asked, DEVICE, states)
    says: Any = "open" if best.ended else "proven"
    bound = best.bound_ps
    if best.ended or best.ps is not None:
        found = deep_optimum.faster(problem, budget, asked, DEVICE, seconds)
        says = "proven" if found.impossible else says if best.ended else "open"
        bound = max(bound, int(found.bound_ps))
        if found.steps:
            judged = evaluate.evaluate(problem, found.steps, found.backward_starts, DEVICE)
            if judged.peak_bytes > budget:
                raise AssertionError(f"{name}: {judged.peak_bytes} of {budget} bytes")
            says = percent(judged.time_ps, once)
    return {
        "net": name,
        "ops": len(problem["ops"]),
        "budget %": round(100 * budget / numbers["save_all_live_bytes"], 1),
        "extra %": percent(numbers["time_ps"], once),
        "optimum": says,
        "proven %": percent(max(bound, numbers["lower_bound_ps"]), once),
    }


def deep_rows(name: str, seconds: float, states: int) -> list[dict[str, Any]]:
    """Returns one row per budget."""
    import deep_nets

    problem, rows = deep_nets.traced(name), []
    options: dict[str, Any] = {"measure": "live", "device": DEVICE}
    whole = cb.plan(problem, **options).numbers["live_bytes"]
    least = cb.plan(problem, budget="min", max_extra=10.0, **options).numbers["live_bytes"]
    budgets = [int(least + share * (whole - least)) for share in DEEP_SHARES]
    for plan in cb.plans(problem, budgets, **options):
        rows.append(deep_row(name, problem, plan, seconds, states))
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--states", type=int, default=4_000_000)
    parser.add_argument("--deep", action="store_true", help="only steps of small traced networks")
    options = parser.parse_args()
    rows = []
    if options.deep:
        import deep_nets

        for name in options.names or deep_nets.NETS:
            rows += deep_rows(name, options.seconds, options.states)
        command = f"{COMMAND} --deep --seconds {options.seconds:g} --states {options.states}"
        save("planner_deep_optimum", command, rows,
             "ortools", "torch")  # fmt: skip
        return
    for name in options.names or NAMES:
        rows += rows_of(name, options.seconds)
    save("planner_optimum", f"{COMMAND} --seconds {options.seconds:g}", rows, "ortools")


if __name__ == "__main__":
    main()
