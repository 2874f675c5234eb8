#!/usr/bin/env python3
"""Fuzzes each target for a while and reports the results.

    tests/fuzz/run.py BUILD --seconds 60 [--jobs 2] [TARGET...]

BUILD is a build folder of the CMake preset `fuzz`. Inputs that reach new code are kept in
BUILD/corpus/<target> from run to run. Prints executions and edges of each target; exits with 1 if
one of them has found something, and names the file. An input that takes longer than --timeout
seconds is a finding.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from make_seeds import TARGETS

TEXT = {"graph_text", "run"}  # targets that read graphs as text
LONGEST = {"build": 512, "problem": 16384, "json": 16384}  # bytes per input
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}


@dataclass(frozen=True)
class Result:
    """The coverage of a target, and the files that make it fail."""

    target: str
    executions: int
    edges: int
    features: int
    corpus: int
    status: int
    log: Path
    findings: tuple[Path, ...]


def last_number(pattern: str, text: str) -> int:
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def fuzz(build: Path, target: str, seconds: int, timeout: int) -> Result:
    corpus, findings = build / "corpus" / target, build / "findings" / target
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    before = set(findings.iterdir())
    log = build / "findings" / f"{target}.log"
    command = [
        build / "tests/fuzz" / f"fuzz_{target}",
        corpus,
        build / "seeds" / target,
        f"-max_total_time={seconds}",
        f"-timeout={timeout}",
        f"-report_slow_units={timeout}",
        f"-max_len={LONGEST.get(target, 4096)}",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-artifact_prefix={findings}/",
    ]
    if target != "build":
        command.append(f"-dict={build / 'seeds' / ('text' if target in TEXT else 'json')}.dict")
    with log.open("wb") as out:
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **SANITIZERS}
        )
    text = log.read_text(errors="replace")
    return Result(
        target,
        last_number(r"number_of_executed_units: (\d+)", text) or last_number(r"#(\d+)\s", text),
        last_number(r"cov: (\d+)", text),
        last_number(r"ft: (\d+)", text),
        sum(1 for _ in corpus.iterdir()),
        done.returncode,
        log,
        tuple(sorted(set(findings.iterdir()) - before)),
    )


def tell(results: list[Result]) -> None:
    print(f"{'target':12} {'executions':>11} {'edges':>7} {'features':>9} {'corpus':>7}  found")
    for r in results:
        found = "nothing" if r.status == 0 and not r.findings else f"see {r.log}"
        row = f"{r.target:12} {r.executions:11,} {r.edges:7,} {r.features:9,} {r.corpus:7,}"
        print(f"{row}  {found}")
        for path in r.findings:
            print(f"    {path}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("targets", nargs="*", metavar="target")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--jobs", type=int, default=2, help="targets at one time")
    parser.add_argument("--timeout", type=int, default=10, help="seconds for one input")
    a = parser.parse_args()
    unknown = set(a.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    build = a.build.resolve()
    make_seeds = Path(__file__).with_name("make_seeds.py")
    subprocess.run([sys.executable, make_seeds, build, build / "seeds"], check=True)
    with ThreadPoolExecutor(a.jobs) as pool:
        jobs = [pool.submit(fuzz, build, t, a.seconds, a.timeout) for t in a.targets or TARGETS]
        results = [job.result() for job in jobs]
    tell(results)
    return int(any(r.status or r.findings for r in results))


if __name__ == "__main__":
    sys.exit(main())
