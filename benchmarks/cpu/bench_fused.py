"""Claim: on a CPU, forward and backward of memory-bound models are faster than the best of PyTorch,
eager or Inductor, whatever glibc does.

    python benchmarks/cpu/bench_fused.py [--only 3,4] [--rounds 9] [--threads 2] [--json FILE]
                                         [--jax PYTHON] [--quick]

`rows.py` has the rows. Each contestant is a separate process, all have the same inputs and number
of threads, and they run in turns, one at a time; a number is the median of the rounds. On one
thread it is processor time, which other load hardly affects, else elapsed time. PyTorch takes part
in four forms: eager and `torch.compile`, each with default settings and "kept", with glibc told to
keep freed memory (`contest.KEPT`). Exits with 1 if our gradients differ from PyTorch's.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import common
import contest
import rows
from common import save, summary
from contest import BEST_OF, Settings, Worker, WorkerError

COMMAND = "python benchmarks/cpu/bench_fused.py"
RATIO = "best / ours"
TOLERANCE = 1e-4  # of gradients, relative to the largest
Result = dict[str, Any]


def take_turns(workers: list[Worker], triad: Worker | None, rounds: int) -> dict[str, list[float]]:
    """Returns the milliseconds by name, round by round, including "products" and "triad"."""
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for worker in workers:
            times.setdefault(worker.name, []).append(worker.ask("step")["ms"])
            if worker.name == "ours" and worker.facts["products"]:
                times.setdefault("products", []).append(worker.ask("products")["ms"])
        if triad is not None:
            times.setdefault("triad", []).append(triad.ask("step")["ms"])
    return times


def compared(
    number: int,
    workers: list[Worker],
    triad: Worker | None,
    times: dict[str, list[float]],
    quick: bool,
) -> Result:
    """Returns the row of the table, without the distance of gradients."""
    row = rows.ROWS[number]
    facts = {worker.name: worker.facts for worker in workers}
    ms = {name: statistics.median(found) for name, found in times.items()}
    result: Result = {"row": f"{number} {row.name}", "unit": "ms", **summary(times["ours"])}
    result |= {name: ms[name] for name in facts if name not in ("ours", "jax")}
    if "jax" in facts:  # not installed in this environment, so its version is recorded only here
        result[f"JAX {facts['jax']['version']}"] = ms["jax"]
    best = min((ms[name] for name in BEST_OF if name in ms), default=None)
    if best is not None:
        result[RATIO] = best / ms["ours"]
        if row.limit is not None and not quick:
            result |= {"limit": row.limit, "met": result[RATIO] >= row.limit}
    if number in rows.MEMORY_BOUND:
        result["GB/s"] = 1e-6 * facts["ours"]["least_bytes"] / ms["ours"]
        if triad is not None:
            result["triad GB/s"] = 1e-6 * triad.facts["least_bytes"] / ms["triad"]
    if "products" in ms:
        result |= {"products": ms["products"], "ours / products": ms["ours"] / ms["products"]}
    result |= {name: facts["ours"][name] for name in ("peak_bytes", "arena_bytes")}
    result["first result"] = facts["ours"]["first"]
    if "inductor" in facts:
        result["Inductor's first"] = facts["inductor"]["first"]
    return result


def measure(number: int, names: list[str], settings: Settings, rounds: int) -> Result:
    """Starts the contestants of a row, runs them in turns, and ends them."""
    with contextlib.ExitStack() as stack:
        workers = []
        for name in names:
            if name == "jax" and number not in (*rows.MEMORY_BOUND, 10, 11):
                continue
            if rows.ROWS[number].eager_only and name.startswith("inductor"):
                continue
            try:
                workers.append(stack.enter_context(Worker(name, number, settings)))
            except WorkerError as reason:
                if name == "ours":
                    raise
                print(f"row {number} without {reason}", flush=True)
        triad = None
        if "eager kept" in names:
            triad = stack.enter_context(Worker("triad", number, settings))
        times = take_turns(workers, triad, rounds)
        result = compared(number, workers, triad, times, settings.quick)
        error = None if rows.ROWS[number].draws else contest.agreement(workers)
        if error is not None:
            result["gradient error"] = error
    return result


def text(result: Result) -> str:
    """Returns a row as text for humans."""
    line = [f"{result['row']}\n   ours {result['median']:.2f} ms"]
    line += [
        f"{name} {ms:.2f}"
        for name, ms in result.items()
        if name in ("ours kept", *BEST_OF) or name.startswith("JAX ")
    ]
    more = []
    if RATIO in result:
        verdict = f" (limit {result['limit']}: {met(result)})" if "limit" in result else ""
        more.append(f"best of PyTorch / ours {result[RATIO]:.2f}{verdict}")
    if "GB/s" in result:
        share = result["GB/s"] / result["triad GB/s"] if "triad GB/s" in result else None
        of = "" if share is None else f" of {result['triad GB/s']:.1f} ({share:.0%})"
        more.append(f"{result['GB/s']:.2f} GB/s{of}")
    if "products" in result:
        more.append(f"products alone {result['products']:.2f} ms, x{result['ours / products']:.2f}")
    more.append(f"peak {result['peak_bytes'] / 2**20:.1f} MiB")
    inductor = f", Inductor's {result[key]:.0f} ms" if (key := "Inductor's first") in result else ""
    more.append(f"first result {result['first result']:.0f} ms{inductor}")
    if "gradient error" in result:
        more.append(f"gradients apart by {result['gradient error']:.1e}")
    return ", ".join(line) + "\n   " + ", ".join(more)


def met(result: Result) -> str:
    """Returns the verdict as a word."""
    return "met" if result["met"] else "missed"


def mean_rows(results: list[Result]) -> list[Result]:
    """Returns the geometric means of `rows.MEANS`; without a verdict if rows are missing."""
    ratios = {int(result["row"].split()[0]): result.get(RATIO) for result in results}
    means = []
    for name, (numbers, limit) in rows.MEANS.items():
        found = [ratio for n in numbers if (ratio := ratios.get(n)) is not None]
        if not found:
            continue
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio in found))
        whole = len(found) == len(numbers)
        row: Result = {"row": name if whole else f"{name} that were run", RATIO: mean}
        means.append(row | ({"limit": limit, "met": mean >= limit} if whole else {}))
    return means


def parsed() -> argparse.Namespace:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--only", help='rows, as "3,4" or "1-9"; written to --json alone')
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=min(2, cores))
    parser.add_argument("--json", type=Path, help="file for the rows, not results/cpu_fused.json")
    parser.add_argument("--jax", help="interpreter of an environment that has JAX, to take part")
    parser.add_argument(
        "--quick", action="store_true", help="small shapes, one round, no Inductor: a smoke test"
    )
    options = parser.parse_args()
    try:
        options.numbers = rows.chosen(options.only)
    except ValueError as error:
        parser.error(f"--only: {error}")
    if options.threads < 1 or options.rounds < 1:
        parser.error("--threads and --rounds are at least 1")
    options.rounds = 1 if options.quick else options.rounds
    return options


def command(options: argparse.Namespace) -> str:
    """Returns the command that repeats the rows."""
    given = [f"--rounds {options.rounds} --threads {options.threads}"]
    given += [f"--only {options.only}"] if options.only else []
    given += ["--jax PYTHON"] if options.jax else []
    given += ["--quick"] if options.quick else []
    return " ".join([COMMAND, *given])


def keep(options: argparse.Namespace, results: list[Result], quiet: bool) -> None:
    """Writes the rows to the requested file."""
    if options.json is not None:
        common.RESULTS = options.json.parent
    elif options.only is not None or options.quick:
        return
    name = "cpu_fused" if options.json is None else options.json.stem
    save(name, command(options), results, "torch", quiet=quiet)


def main() -> int:
    """Measures the rows one after another, writing each when it is done, and then the means."""
    options = parsed()
    results: list[Result] = []
    load = os.getloadavg()[0]
    if load > 1 and not options.quick:
        print(f"Others run here (load {load:.1f}), which slows PyTorch's threads more than ours.")
    with tempfile.TemporaryDirectory() as caches:
        settings = Settings(options.threads, options.quick, caches, options.jax)
        names = contest.contestants(settings)
        for number in options.numbers:
            results.append(measure(number, names, settings, options.rounds))
            print(text(results[-1]), flush=True)
            keep(options, results, quiet=True)
    means = [] if options.quick else mean_rows(results)
    for mean in means:
        verdict = f" (limit {mean['limit']}: {met(mean)})" if "limit" in mean else ""
        print(f"{mean['row']}: best of PyTorch / ours {mean[RATIO]:.2f}{verdict}")
    keep(options, results + means, quiet=False)
    apart = [row["row"] for row in results if not row.get("gradient error", 0) <= TOLERANCE]
    for name in apart:
        print(f"{name}: gradients are not PyTorch's", file=sys.stderr)
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
