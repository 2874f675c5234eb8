"""Runs some checks under compute-sanitizer: memcheck, racecheck, synccheck and initcheck in
parallel.

python sanitizer.py --list sanitizer     python sanitizer.py --item sanitizer

A trial of ten seconds comes first; if the tool cannot attach to the device, nothing else runs.
Matrix products use our own kernels, because those of cuBLASLt take minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import items
import package
import processes

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
CHECKS = ("row 4", "row 9 in f16", "row 6", "row 1", "row 5", "optimizer adamw", "row 11", "row 8")
TRIAL, SECONDS = 10, 80
REFUSAL = re.compile(
    r"Device not supported|not supported on|Unable to|Failed to|error 999|Target application"
)
SUMMARY = re.compile(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)")


def read(text: str) -> dict[str, Any]:
    """Returns the tool's last summary and first errors."""
    found: dict[str, Any] = {}
    if summaries := SUMMARY.findall(text):
        found["summary"] = summaries[-1].strip()
    lines = [
        line.removeprefix("=========").strip()
        for line in text.splitlines()
        if line.startswith("=====")
    ]
    errors = [
        line
        for line in lines
        if re.match(
            r"(Invalid|Error|Warning|Race|Barrier|Uninitialized|Program hit|Divergent)", line
        )
    ]
    if errors:
        found["errors"] = errors[:10]
    return found


def _child(tool: str, checks: tuple[str, ...], seconds: float) -> processes.Child:
    command = [
        "compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--print-limit", "20",
        sys.executable, str(HERE / "checks.py"), "--each", *checks,
    ]  # fmt: skip
    variables = os.environ | {"CUTBACK_CUBLASLT": "none"}
    log = package.folder() / "logs" / "sanitizer" / f"{tool}.{len(checks)}"
    return processes.Child(command, variables, seconds, log)


def _result(child: processes.Child, asked: int) -> dict[str, Any]:
    printed = child.text(child.out, 1 << 20) + child.text(child.err, 1 << 20)
    ran = printed.count('"check"')
    found = {"checks": ran, "of": asked, "seconds": round(child.seconds, 1), **read(printed)}
    if how := processes.ended(child):
        found["ended"] = how
    if "summary" not in found and not child.late:
        found["says"] = " | ".join(printed.strip().splitlines()[:4])[:400]
    return found


def sanitizer() -> dict[str, Any]:
    """Returns a result for each tool, or a one-line reason why there is none."""
    if not shutil.which("compute-sanitizer"):
        return {"left out": "there is no compute-sanitizer"}
    trial = _child("memcheck", ("index",), TRIAL)
    trial.wait()
    result: dict[str, Any] = {"trial": _result(trial, 1)}
    items.show(result)
    text = trial.text(trial.out) + trial.text(trial.err)
    if result["trial"]["checks"] == 0 and not trial.late:  # a slow machine is not a refusal
        refusal = next((line for line in text.splitlines() if REFUSAL.search(line)), "")
        why = refusal.removeprefix("=========").strip()
        why = why or result["trial"].get("ended", "it ran no check")
        return result | {"left out": f"compute-sanitizer cannot be used here: {why}"[:300]}
    before = signal.getsignal(signal.SIGTERM)
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_end.append(number))
    waiting, running = list(TOOLS), dict[str, processes.Child]()
    most = int(os.environ.get("CUTBACK_GPU_JOBS", "0")) or len(TOOLS)
    while waiting or running:
        while waiting and len(running) < most and not asked_to_end:
            tool = waiting.pop(0)
            running[tool] = _child(tool, CHECKS, SECONDS)
        for tool, child in list(running.items()):
            if asked_to_end:
                child.stop()
            if asked_to_end or child.poll():
                result[tool] = _result(child, len(CHECKS))
                del running[tool]
                items.show(result)
        if asked_to_end:
            break
        time.sleep(0.1)
    signal.signal(signal.SIGTERM, before)
    return result


if __name__ == "__main__":
    sys.exit(items.main({"sanitizer": lambda: {"sanitizer": (TRIAL + SECONDS + 10, sanitizer)}}))
