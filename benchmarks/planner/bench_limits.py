"""Claim: plans of the traced graphs are faster than PyTorch's at its own peaks, close to the bound,
and take a second or so to find.

python benchmarks/planner/bench_limits.py [GRAPH ...]

The referee of the tests checks every plan (`tests/plan/scores.py`). Results without times are the
same on every machine: `planner_limits` (one line per limit), `planner_budgets` (one line per graph:
extra time in % at shares of the save-all peak; "bound" is the plan's own lower bound on it,
"prototype" the result of a prototype of the search) and `planner_points` (one line per point of
PyTorch's sweep). Times: `planner_times` and `planner_time_limits` are wall times on a quiet
machine, with one thread per processor, from the text of a problem to that of the answer unless
marked "parsed".
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
sys.path.insert(0, str(HERE.parents[1] / "tests" / "plan"))

from common import save  # noqa: E402

import scores  # noqa: E402
from cutback import BudgetError, _native, budgets  # noqa: E402

COMMAND = "python benchmarks/planner/bench_limits.py"
LIMIT = {"conservative": 0.79, "aggressive": 0.48}  # mean saved bytes relative to autograd's
LADDER = 50  # number of budgets


def line(what: str, value: float | None, limit: float, better: str = "at most") -> dict[str, Any]:
    """Returns a row of `planner_limits`."""
    good = value is not None and (value <= limit if better == "at most" else value >= limit)
    met = "yes" if good else "no"
    return {"what": what, "value": value, "asked": f"{better} {limit:g}", "met": met}


def percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 3)


def budget_row(name: str) -> dict[str, Any]:
    """Returns the extra time at shares of the peak, and the smallest peak."""
    g = scores.graph(name)
    row: dict[str, Any] = {"graph": name, "ops": g.n_op}
    for share, reached in zip(scores.SHARES, scores.REACHED[name], strict=True):
        own = scores.plan_at(name, share)
        label = f"{100 * share:.0f} %"
        row[label] = None if own is None else percent(own.extra)
        row[f"{label} bound"] = None if own is None else percent(own.bound)
        row[f"{label} prototype"] = reached
    least = scores.plan(name, "min")
    if least is not None:
        lowest = min(r["peak_bytes"] for r in g.sweep)
        valid = min(r["peak_bytes"] for r in g.sweep if not r["redrawn"])
        row |= {"min peak %": percent(least.peak / g.whole), "min extra %": percent(least.extra)}
        row |= {"PyTorch lowest %": percent(lowest / g.whole)}
        row |= {"PyTorch lowest valid %": percent(valid / g.whole)}
    return row


def point_rows(name: str) -> list[dict[str, Any]]:
    """Returns our result at every Pareto point of PyTorch's sweep, including points where it
    redraws masks."""
    g, rows = scores.graph(name), []
    for point in g.points():
        own = scores.plan(name, point.peak)
        rows.append(
            {
                "graph": name,
                "peak %": percent(point.peak / g.whole),
                "PyTorch extra %": percent(point.extra),
                "extra %": None if own is None else percent(own.extra),
                "ratio": None if own is None else round(own.extra / point.extra, 3),
                "PyTorch redraws": point.redrawn,
            }
        )
    return rows


def preset_lines(names: list[str]) -> list[dict[str, Any]]:
    """Returns saved bytes relative to autograd's; a graph that saves only inputs counts as 0."""
    rows = []
    for preset, limit in LIMIT.items():
        ratio: dict[str, float] = {}
        for name in names:
            g = scores.graph(name)
            whole = scores.referee.reference(g.traced, g.traced["reference"]["autograd"])
            number = budgets.PRESETS.index(preset)
            plan = json.loads(
                _native.Problem.read(g.problem).plan(preset=number, device=scores.DEVICE).to_json()
            )
            saved = plan["numbers"]["saved_bytes"]
            ratio[name] = 0.0 if name == "evonorm_s0" else saved / whole["saved_bytes"]
        rows.append(line(f"saved by {preset}, mean", sum(ratio.values()) / len(ratio), limit))
        if "transformer_encoder" in ratio:
            own = 0.89 if preset == "conservative" else 0.629
            value = ratio["transformer_encoder"]
            rows.append(line(f"saved by {preset}, transformer_encoder", value, own))
    return rows


def compat_line(names: list[str]) -> dict[str, Any]:
    """Returns the graphs on which torch-compat saves PyTorch's set."""
    same = 0
    for name in names:
        text = scores.files.read_text(scores.DATA / f"{name}.json.gz")
        cut = _native.Problem.read(text).cut_json(budgets.parse_preset("torch-compat"), False)[0]
        theirs = scores.graph(name).traced["reference"]["sweep"][0]["saved"]
        same += json.loads(cut)["saved"] == sorted(theirs)
    return line("graphs on which torch-compat saves PyTorch's set", same, len(names), "at least")


def point_lines(names: list[str], points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sums up results over PyTorch's points."""
    right = [row for row in points if not row["PyTorch redraws"]]
    met = [row for row in right if row["extra %"] is not None]
    near = 100 * scores.POINT_NEAR
    beaten = [row for row in met if row["extra %"] <= row["PyTorch extra %"] + near]
    ratios = [ratio for _, _, ratio in scores.point_ratios(names)]
    redrawn = [ratio for _, _, ratio in scores.point_ratios(names, redrawn=True)]
    wrong = len(points) - len(right)
    rows = [
        line("PyTorch's points met with no more time", len(beaten), len(right), "at least"),
        line("extra time over PyTorch's, mean", scores.geometric_mean(ratios), scores.POINT_MEAN),
        line("extra time over PyTorch's, worst", max(ratios), scores.POINT_WORST),
    ]
    if redrawn:
        found = f"{len(redrawn)} of {wrong}"
        mean, worst = scores.geometric_mean(redrawn), max(redrawn)
        rows += [
            {"what": "points where PyTorch redraws masks, met", "value": found},
            {"what": "extra time over PyTorch's there, mean", "value": mean},
            {"what": "extra time over PyTorch's there, worst", "value": worst},
        ]
    return rows


def budget_lines(names: list[str]) -> list[dict[str, Any]]:
    """Sums up results over shares of the peak."""
    rows = []
    for k, share in enumerate(scores.SHARES):
        over: list[float | None] = []
        for name in names:
            own, reached = scores.plan_at(name, share), scores.REACHED[name][k]
            if reached is not None:
                over.append(None if own is None else 100 * own.extra - reached)
        worst = max((x for x in over if x is not None), default=0.0) if None not in over else None
        what = f"extra time over the prototype's at {100 * share:.0f} %, points, worst"
        rows.append(line(what, worst, 100 * scores.SLACK))
    for share, limit in scores.OVER_BOUND.items():
        ratios = scores.over_bound(names, share)
        if ratios:
            what = f"extra time over the bound at {100 * share:.0f} %, mean"
            rows.append(line(what, scores.geometric_mean(ratios), limit))
    least = scores.geometric_mean([scores.min_over_lowest(name) for name in names])
    rows.append(line("smallest peak over PyTorch's lowest, mean", least, scores.MIN_MEAN))
    above = 0
    for name in names:
        own = scores.plan(name, "min")
        valid = [r["peak_bytes"] for r in scores.graph(name).sweep if not r["redrawn"]]
        above += own is None or own.peak > min(valid)
    rows.append(line("graphs where it is above PyTorch's lowest valid one", above, 0))
    return rows


def cut_ms(problem: str) -> float:
    """Returns the best of five times from the parsed problem to the cut, as measured by the
    library."""
    number = budgets.parse_preset("torch-compat")
    answers = [
        json.loads(_native.Problem.read(problem).cut_json(number, False)[0]) for _ in range(5)
    ]
    return float(min(answer["solve_ms"] for answer in answers))


def first_plan_ms(problem: str, budget: int) -> float | None:
    """Returns the time of the shortest search that finds a plan, with time limits that grow by a
    quarter, or None."""
    limit, asked = 0.005, budgets.parse(budget, "live")
    while limit < 20:
        begin = time.perf_counter()
        try:
            _native.Problem.read(problem).plan(
                preset=0, budget=asked, device=scores.DEVICE, time_limit=limit
            ).to_json()
            return 1e3 * (time.perf_counter() - begin)
        except (BudgetError, RuntimeError):
            limit *= 1.25
    return None


def ladder_s(name: str) -> float:
    """Returns the seconds of one search that finds plans for fifty budgets."""
    g = scores.graph(name)
    shares = [1 - 0.8 * k / (LADDER - 1) for k in range(LADDER)]
    several = [budgets.parse(int(g.whole * share), "live") for share in shares]
    begin = time.perf_counter()
    _native.Problem.read(g.problem).plans(several, preset=0, device=scores.DEVICE)
    return time.perf_counter() - begin


def time_row(name: str) -> dict[str, Any]:
    """Returns the planning times of one graph, in milliseconds and seconds."""
    g = scores.graph(name)
    asked: dict[str, int | str] = {}
    for share in scores.SHARES:
        asked[f"plan {100 * share:.0f} % s"] = scores.budget_at(name, share)
    asked["plan min s"] = "min"
    for budget in asked.values():
        scores.plan(name, budget)
    cut = cut_ms(scores.files.read_text(scores.DATA / f"{name}.json.gz"))
    theirs = [row["seconds"] for row in g.traced["reference"]["sweep"] if "error" not in row]
    begin = time.perf_counter()
    _native.Problem.read(g.problem).to_json()
    row: dict[str, Any] = {"graph": name, "ops": g.n_op}
    row["read and write ms"] = 1e3 * (time.perf_counter() - begin)
    row |= {"cut ms (parsed)": cut, "PyTorch's partitioner s": theirs[0]}
    row["PyTorch / cut"] = 1e3 * theirs[0] / cut
    row["first plan at 50 % ms"] = first_plan_ms(g.problem, g.whole // 2)
    return row | {label: scores.SPENT[name, budget] for label, budget in asked.items()}


def time_lines(times: list[dict[str, Any]], fifty: float) -> list[dict[str, Any]]:
    """Returns the worst of `planner_times`, for graphs of about 3,000 and of up to 20,000 ops."""
    cuts, ratios = ([row[key] for row in times] for key in ("cut ms (parsed)", "PyTorch / cut"))
    rows = [
        line("one cut, ms, worst", max(cuts), 10),
        line("PyTorch's partitioner / one cut, least", min(ratios), 200, "at least"),
    ]
    for label, least, most, first, best in (
        ("about 3,000 ops", 0, 5000, 100, 2),
        ("8,000 to 20,000 ops", 5000, 10**9, 500, 5),
    ):
        group = [row for row in times if least < row["ops"] <= most]
        firsts = [row["first plan at 50 % ms"] or 0 for row in group]
        plans = [row[key] for row in group for key in row if key.startswith("plan ")]
        if group:
            rows.append(line(f"first plan at 50 %, {label}, ms, worst", max(firsts), first))
            rows.append(line(f"best plan of any budget, {label}, s, worst", max(plans), best))
    return [*rows, line(f"{LADDER} budgets in one search, about 3,000 ops, s", fifty, 10)]


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", nargs="*", choices=[*scores.NAMES, []])
    parser.add_argument("--no-times", action="store_true", help="no results with times")
    options = parser.parse_args()
    names = options.graphs or scores.NAMES
    plans = [budget_row(name) for name in names]
    points = [row for name in names for row in point_rows(name)]
    lines = [
        compat_line(names),
        *preset_lines(names),
        *point_lines(names, points),
        *budget_lines(names),
    ]
    for row in lines:
        print(row)
    save("planner_limits", COMMAND, lines)
    save("planner_budgets", COMMAND, plans)
    save("planner_points", COMMAND, points)
    if not options.no_times:
        times = [time_row(name) for name in names]
        middle = "resnet50_bn" if "resnet50_bn" in names else names[-1]
        lines = time_lines(times, ladder_s(middle))
        for row in lines:
            print(row)
        save("planner_times", COMMAND, times)
        save("planner_time_limits", COMMAND, lines)


if __name__ == "__main__":
    main()
