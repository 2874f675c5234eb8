"""Helpers of all benchmarks: interleaved timing, machine and versions, JSON rows."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = COMMITTED = ROOT / "benchmarks" / "results"
GRAPHS = ROOT / "tests" / "data" / "graphs"  # traced from PyTorch models
GRAPHS_DEVICE = "a100"  # row of the cost model that these graphs are planned for


def _first_line(path: str, key: str) -> str:
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(key):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"


# What rows depend on: all code, without the files that benchmarks write.
_MEASURED = (
    "csrc", "cuda", "python", "cmake", "CMakeLists.txt", "pyproject.toml", "examples", "benchmarks",
    ":!benchmarks/results", ":!benchmarks/*.md",
)  # fmt: skip


def commit() -> str:
    """Returns the short hash of the checkout, with "+" if its code differs from the commit's."""
    try:
        head = subprocess.check_output(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True
        ).strip()
        dirty = subprocess.check_output(
            ["git", "status", "--porcelain", "-uno", "--", *_MEASURED], cwd=ROOT, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if dirty.strip() else "")


def machine() -> dict[str, Any]:
    """Returns the machine of a row: processor, instruction set of the kernels, cores, system."""
    from cutback import _native

    return {
        "cpu": _first_line("/proc/cpuinfo", "model name"),
        "isa": _native.machine()["isa"],
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(terse=True),
    }


def versions(*names: str) -> dict[str, str]:
    """Returns versions of Python and of installed distributions."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def interleave(
    candidates: Mapping[str, Callable[[], Any]], rounds: int, warmup: int = 3
) -> dict[str, dict[str, float]]:
    """Times each candidate once per round, alternating the order, so that other load and the caches
    left by the previous candidate affect all equally. Returns milliseconds."""
    for run in candidates.values():
        for _ in range(warmup):
            run()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds):
        for name in reversed(candidates) if turn % 2 else candidates:
            run = candidates[name]
            begin = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: summary(row) for name, row in times.items()}


def summary(ms: list[float]) -> dict[str, float]:
    """Returns the median with minimum and maximum."""
    return {"median": statistics.median(ms), "min": min(ms), "max": max(ms)}


def median_interval(values: Sequence[float], share: float = 0.95) -> tuple[float, float] | None:
    """Returns a confidence interval for the median of the distribution that the values are drawn
    from.

    Its ends are the k-th smallest and k-th largest value, whatever the distribution: each value is
    above or below the median with equal probability, so the interval misses if fewer than k are on
    one side. Returns None if there are too few values.
    """
    n, row = len(values), sorted(values)
    k, missed = 0, 0.0  # probability that fewer than k + 1 are below the median
    while k < n // 2 and 2 * (missed := missed + math.comb(n, k) / 2**n) <= 1 - share:
        k += 1
    return (row[k - 1], row[n - k]) if k else None


def written(name: str) -> list[dict[str, Any]]:
    """Returns the rows of results/NAME.json."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows


def save(
    name: str, command: str, rows: list[dict[str, Any]], *packages: str, quiet: bool = False
) -> Path:
    """Writes results/NAME.json: the rows, and everything needed to repeat them.

    Rows in the repository belong to a commit: if the checkout differs from it, they go to
    results/dirty instead, which git ignores.
    """
    at, folder = commit(), RESULTS
    if at.endswith("+") and RESULTS == COMMITTED:
        folder = RESULTS / "dirty"
        print(f"{name}: files differ from commit {at[:-1]}, so the rows go to {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    document = {
        "benchmark": name,
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": at,
        "machine": machine(),
        "versions": versions("cutback", "numpy", *packages),
        "rows": rows,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    if not quiet:
        print(f"wrote {path}")
    return path
