"""Claim: plans that count the measured scratch of kernels keep the allocator's peak within the
budget, without taking more time.

python benchmarks/pytorch/bench_scratch.py [--least]

`torch_scratch`: nets of convolutions at position 0.7. "before" and "after" are the allocator's peak
divided by the budget, under the first plan and under the one that counts scratch (limit: 1.02,
unless a warning says that no plan meets it). "ms before" and "ms after" are processor milliseconds
of a step, on one thread, medians over turns. "time" is the median of the ratios of each turn
(limit: 1.02); "least" and "most" bound it with 95 % confidence.

`torch_scratch_least` (the only result with `--least`) has no measured times: it gives the modelled
time of a step relative to its first plan, under the plan that counts scratch ("after") and under
the fastest possible one ("least"). "proof" names the source of that bound: the planner, or, if that
is more than 2 % below the plan and OR-tools is installed, constraint programming
(`planner/optimum.py`: plans that run nothing again in the forward and keep the order of ops).
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parent / "planner"))
sys.path.insert(0, str(HERE.parents[1] / "tests" / "torch" / "compiler"))

from common import median_interval, save
from test_conv_nets import Inverted, Next, Residual, net, peak_by_profiler, run

import cutback.torch as ct

COMMAND = "python benchmarks/pytorch/bench_scratch.py"
NETS = {"ResNet": Residual, "EfficientNet": Inverted, "ConvNeXt": Next}
POSITION, ROUNDS = 0.7, 25
MOST_OVER, SECONDS = 0.02, 120.0


def processor_ms(work: Callable[[], Any]) -> float:
    """Returns the milliseconds of processor time."""
    begin = time.process_time()
    work()
    return 1e3 * (time.process_time() - begin)


def row_of(name: str, width: int, size: int) -> dict[str, Any]:
    """Measures one net, with blocks like those of ``name``."""
    model, inputs = net(NETS[name], width, size)
    after = ct.compile(model, budget=POSITION)
    run(after, inputs, 1)
    with tempfile.TemporaryDirectory() as folder:
        after.save_plans(Path(folder) / "plans.json")
        torch._dynamo.reset()
        before = ct.compile(copy.deepcopy(model), plans=Path(folder) / "plans.json")
        run(before, inputs, 2)
    after = ct.compile(model, budget=POSITION)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run(after, inputs, 4)
    limit = after.plans[0].position.limit
    times: dict[str, list[float]] = {"before": [], "after": []}
    steps = {"before": before, "after": after}
    for turn in range(ROUNDS):
        for which in ("before", "after")[:: 1 if turn % 2 else -1]:
            step = steps[which]
            times[which].append(processor_ms(lambda step=step: run(step, inputs)))  # type: ignore[misc]
    ratios = [b / a for a, b in zip(times["before"], times["after"], strict=True)]
    interval = median_interval(ratios)
    assert interval is not None
    return {
        "net": f"{name}, width {width}, {size} x {size}",
        "before": round(peak_by_profiler(before, inputs) / limit, 3),
        "after": round(peak_by_profiler(after, inputs) / limit, 3),
        "warned": "yes" if any("scratch" in str(w.message) for w in said) else "no",
        "ms before": statistics.median(times["before"]),
        "ms after": statistics.median(times["after"]),
        "time": round(statistics.median(ratios), 3),
        "least": round(interval[0], 3),
        "most": round(interval[1], 3),
    }


def least_of(name: str, width: int, size: int) -> dict[str, Any]:
    """Returns the bound for one net."""
    model, inputs = net(NETS[name], width, size)
    step = ct.compile(model, budget=POSITION)
    run(step, inputs, 1)
    first = int(step.plans[0].numbers["time_ps"])
    run(step, inputs, 3)
    plan = step.plans[0]
    numbers = plan.numbers
    after, least, proof = int(numbers["time_ps"]), int(numbers["lower_bound_ps"]), "planner"
    if after > (1 + MOST_OVER) * least and importlib.util.find_spec("ortools"):
        import optimum

        problem = {k: v for k, v in plan.problem.items() if k != "fingerprint"}
        best = optimum.optimum(problem, int(numbers["budget_bytes"]), "cpu", SECONDS)
        if best.bound_ps > least:
            least, proof = round(best.bound_ps), "CP-SAT"
    return {
        "net": f"{name}, width {width}, {size} x {size}",
        "ops": len(plan.problem["ops"]),
        "after": round(after / first, 4),
        "least": round(max(1, least / first), 4),
        "over": round(after / max(first, least), 4),
        "proof": proof,
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--least", action="store_true", help="only the bounds, without times")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for result, row in (("torch_scratch_least", least_of), ("torch_scratch", row_of)):
        rows = []
        for name in NETS:
            for width, size in ((16, 32), (32, 48)):
                torch._dynamo.reset()
                rows.append(row(name, width, size))
                print(rows[-1], flush=True)
        save(result, f"{COMMAND} --least" if row is least_of else COMMAND, rows, "torch")
        if options.least:
            return


if __name__ == "__main__":
    main()
