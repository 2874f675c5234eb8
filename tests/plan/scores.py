"""Compares plans of the traced graphs with those of PyTorch's partitioner. The tests of this folder
assert on the results, and ``benchmarks/planner`` reports them.

Every plan goes through the referee (``tests/reference/evaluate_traced.py``), which shares no code
with the library; peaks and times here are the referee's. Shares are of the peak of the traced order
("save-all"), extra times of running everything once.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import cutback
from cutback import BudgetError, _native, budgets, files

TESTS = Path(__file__).resolve().parents[1]
DATA = TESTS / "data" / "graphs"
sys.path.insert(0, str(TESTS / "reference"))

import evaluate_traced as referee  # noqa: E402

DEVICE = "a100"
NAMES = sorted(path.name.removesuffix(".json.gz") for path in DATA.glob("*.json.gz"))
FAST = ("evonorm_s0", "transformer_encoder")  # the rest takes minutes

SHARES = (0.7, 0.5, 0.4, 0.3, 0.2)
# Extra time in % that a prototype of the search reached at these shares; None if it found no plan.
REACHED: dict[str, tuple[float | None, ...]] = {
    "bert_base": (7.0, 13.3, 18.2, 23.7, None),
    "evonorm_s0": (None, None, None, None, None),
    "gpt2_small_plain": (6.9, 14.7, 20.7, 28.3, None),
    "gpt_96layers_plain": (5.3, 10.3, 13.1, 17.6, 23.1),
    "llama_32layers": (3.4, 7.7, 12.3, 18.8, 25.0),
    "resnet152_bn": (1.7, 5.8, 10.4, 15.7, 23.1),
    "resnet50_bn": (1.8, 4.9, 9.1, 14.1, 29.3),
    "resnet50_evonorm": (2.1, 6.2, 8.8, 12.0, 15.7),
    "t5_base": (5.5, 10.8, 15.0, 20.8, 27.0),
    "transformer_encoder": (6.2, 11.5, 16.9, 22.7, None),
    "unet": (3.5, 10.8, 15.7, 27.4, None),
    "vit_base": (5.4, 11.0, 14.4, 17.7, 22.5),
}

# Limits that tests assert and benchmarks print next to their results.
SLACK = 0.003  # extra time over REACHED, as a share
OVER_BOUND = {0.7: 1.05, 0.5: 1.06, 0.4: 1.07, 0.3: 1.10}  # geometric means
POINT_WORST, POINT_MEAN = 0.8, 0.3  # our extra time over PyTorch's at its points
POINT_SMALL, POINT_NEAR = 0.01, 0.001  # below this extra time the difference does not matter
# largest peaks of `min` with `reruns: "all"`, as shares of the save-all peak
LATE_MIN = {"gpt2_small_plain": 0.292, "resnet152_bn": 0.11, "t5_base": 0.18, "vit_base": 0.095}
# extra time allowed for `min`; its peak relative to PyTorch's lowest
MIN_EXTRA, MIN_MEAN = 0.4, 0.55


class Judged(NamedTuple):
    """A plan as measured by the referee."""

    peak: int
    time_ps: int
    extra: float  # relative to the time of running everything once
    bound: float | None  # the plan's lower bound on it, or None
    recomputed: int


class Point(NamedTuple):
    """A plan of PyTorch's sweep that no other plan of the sweep dominates."""

    peak: int
    extra: float
    redrawn: int  # random ops that are recomputed, which gives wrong gradients


@dataclass
class Graph:
    """A traced graph, for the referee and for the planner."""

    name: str
    traced: dict[str, Any]
    problem: str
    whole: int  # peak of the traced order
    sweep: list[dict[str, Any]]  # the referee's results for PyTorch's plans, by falling budget

    @property
    def n_op(self) -> int:
        return len(self.traced["nodes"])

    def points(self) -> list[Point]:
        """Returns PyTorch's Pareto points, smallest peak first."""
        front: list[Point] = []
        for row in sorted(self.sweep, key=lambda row: (row["peak_bytes"], row["overhead"])):
            if not front or row["overhead"] < front[-1].extra:
                front.append(Point(row["peak_bytes"], row["overhead"], row["redrawn"]))
        return front

    def judge(self, plan: str) -> Judged:
        """Returns the referee's result. Raises an error if a rule is broken, or if the referee's
        counts differ from the plan's."""
        document = json.loads(plan)
        own, starts = document["numbers"], document["backward_starts"]
        theirs = referee.evaluate(self.traced, document["steps"], starts, DEVICE)
        assert theirs["peak_bytes"] == own["live_bytes"], (self.name, document["budget_bytes"])
        assert theirs["time_ps"] == own["time_ps"]
        assert theirs["redrawn"] == 0
        bound, once = own["lower_bound_ps"], own["once_ps"]
        return Judged(
            peak=theirs["peak_bytes"],
            time_ps=own["time_ps"],
            extra=theirs["overhead"],
            bound=None if bound is None else bound / once - 1,
            recomputed=theirs["recomputed"],
        )


@cache
def graph(name: str) -> Graph:
    """Returns a graph of ``tests/data/graphs``."""
    path = DATA / f"{name}.json.gz"
    traced = referee.load(path)
    rows = [row for row in traced["reference"]["sweep"] if "error" not in row]
    return Graph(
        name=name,
        traced=traced,
        problem=_native.Problem.read(files.read_text(path)).to_json(),
        whole=referee.reference(traced, traced["reference"]["autograd"])["peak_bytes"],
        sweep=[referee.reference(traced, row) for row in rows],
    )


# Processor seconds per answer, from text to text (the planner uses one thread).
SPENT: dict[tuple[str, int | str], float] = {}


@cache
def plan(name: str, budget: int | str) -> Judged | None:
    """Returns a plan for a peak in bytes or ``"min"``, or None if the planner finds none."""
    g = graph(name)
    asked = budgets.parse(budget, "live")
    begin = time.perf_counter()
    try:
        text = _native.Problem.read(g.problem).plan(preset=0, budget=asked, device=DEVICE).to_json()
    except BudgetError:
        return None
    finally:
        SPENT[name, budget] = time.perf_counter() - begin
    return g.judge(text)


def plans_late(name: str, above: Sequence[int]) -> list[Judged]:
    """Returns the plan of ``"min"`` with ``reruns: "all"``, and those of budgets ``above`` bytes
    larger."""
    g = graph(name)
    fields = {"over": False, "reruns": "all"}
    late = replace(g, traced={**g.traced, **fields})
    problem = {**json.loads(files.read_text(DATA / f"{name}.json.gz")), **fields}
    least = cutback.plan(problem, budget="min", device=DEVICE)
    bytes_ = [int(least.numbers["live_bytes"]) + more for more in above]
    larger = [cutback.plan(problem, budget=n, device=DEVICE) for n in bytes_]
    return [late.judge(plan.to_json()) for plan in (least, *larger)]


def budget_at(name: str, share: float) -> int:
    """Returns a share of the save-all peak, in bytes."""
    return int(share * graph(name).whole)


def plan_at(name: str, share: float) -> Judged | None:
    """Returns a plan for a share of the save-all peak."""
    return plan(name, budget_at(name, share))


def geometric_mean(values: Iterable[float], least: float = 0.05) -> float:
    """Returns the geometric mean. Values below ``least`` count as ``least``, so that a single 0
    does not decide the mean."""
    logs = [math.log(max(value, least)) for value in values]
    return math.exp(sum(logs) / len(logs))


def point_ratios(names: Sequence[str], redrawn: bool = False) -> list[tuple[str, Point, float]]:
    """Returns (graph, point, our extra time / PyTorch's) where PyTorch's is large enough for a
    ratio; only points that we meet, and those where PyTorch redraws random numbers only on
    request."""
    rows = []
    for name in names:
        for point in graph(name).points():
            own = None
            if point.extra > POINT_SMALL and bool(point.redrawn) == redrawn:
                own = plan(name, point.peak)
            if own is not None:
                rows.append((name, point, own.extra / point.extra))
    return rows


def over_bound(names: Sequence[str], share: float) -> list[float]:
    """Returns our extra time divided by the plan's own lower bound on it, if both exist."""
    found = [plan_at(name, share) for name in names]
    return [own.extra / own.bound for own in found if own is not None and own.bound]


def min_over_lowest(name: str) -> float:
    """Returns the peak of ``min`` divided by the lowest of PyTorch's sweep, whether or not it
    redraws."""
    own = plan(name, "min")
    assert own is not None
    return own.peak / min(row["peak_bytes"] for row in graph(name).sweep)


_ALONE = """
import json, sys
from cutback import BudgetError, _native
with open(sys.argv[1], encoding="utf-8") as file:
    problem = file.read()
try:
    budget = (1, int(sys.argv[2]), 0.0, 1)
    print(_native.Problem.read(problem).plan(budget=budget, device="a100").to_json())
except BudgetError:
    print("null")
"""


def plan_alone(g: Graph, file: Path, budget: int) -> Judged | None:
    """Plans like ``plan``, but in a separate process; ``file`` contains the problem's text."""
    # the format that the process passes on
    assert budgets.parse(budget, "live") == (1, budget, 0.0, 1)
    command = [sys.executable, "-c", _ALONE, str(file), str(budget)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return None if done.stdout.strip() == "null" else g.judge(done.stdout)


def plans_alone(name: str, folder: Path, n: int) -> list[tuple[int, Judged | None]]:
    """Returns ``n`` falling budgets from the save-all peak to a little below that of ``min``, each
    in a separate process."""
    g, least = graph(name), plan(name, "min")
    assert least is not None
    low = 0.97 * least.peak
    asked = [int(g.whole - (g.whole - low) * k / (n - 1)) for k in range(n)]
    file = folder / f"{name}.json"
    file.write_text(g.problem, encoding="utf-8")
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(zip(asked, pool.map(lambda b: plan_alone(g, file, b), asked), strict=True))
