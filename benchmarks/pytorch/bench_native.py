"""Claim: with `codegen="native"` a training step of a PyTorch model on a CPU takes no longer than
with PyTorch's kernels, and much less if matrix products are a small part of it.

python benchmarks/pytorch/bench_native.py [--models "GPT;MLP"] [--rounds 9] [--threads 1] [--quick]

Times forward and backward of the models of `native_models.py`: with PyTorch eager, with
`torch.compile` (Inductor), and with `cutback.torch.compile`, with our own kernels and with
PyTorch's (`codegen=`). Each model is measured in separate processes, under both waiting policies of
OpenMP's threads and with both settings of glibc for large blocks: by default it returns them to the
system, and each new one costs page faults. `--quick` uses only the default settings. Times are wall
times on all cores. With `--threads 1` they are processor times on one thread, which other load on
the machine changes little; then threads never wait for each other, so only one waiting policy is
measured. `--no-inductor` leaves out `torch.compile`, which takes minutes to compile some models,
and `--add` writes the rows of the given models and keeps those of the others. Each round pauses,
then times each candidate in a block of several steps, whose mean counts. The row has the median of
the blocks, and the median over rounds of the ratio of eager's block to the candidate's. `first s`
is the time of the first step, compilation included; `peak bytes` are those that a step allocates at
its peak.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from common import RESULTS, commit, machine, save, written
from native_models import MODELS, WAYS

import cutback.torch
from cutback.torch import MemoryTracker

REST_S = 0.5  # before each round
BLOCK_S = 0.25  # seconds of steps per block, at least one step
WAITS = {"default": {}, "passive": {"OMP_WAIT_POLICY": "passive"}}
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**34)}
MALLOCS = {"default": {}, "kept": KEPT}

CODEGEN = 'codegen="eager"'
FILE = "torch_native"
Row = dict[str, Any]
Step = Callable[[], Any]
Clock = Callable[[], float]


# ---- one process: one model under one setting ---------------------------------------------------


def ways(name: str, inductor: bool) -> dict[str, Callable[[nn.Module], Any]]:
    """Returns the candidates of a model, as functions that make them."""
    ours = cutback.torch.compile
    made: dict[str, Callable[[nn.Module], Any]] = {
        "eager": lambda model: model,
        **({"torch.compile": torch.compile} if inductor else {}),
        CODEGEN: functools.partial(ours, codegen="eager"),
    }
    for more in ({}, *WAYS.get(name, ())):
        options = {"codegen": "native", **more}
        what = ", ".join(
            f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in options.items()
        )
        made[what] = functools.partial(ours, **options)
    return made


def step_of(model: Any, inputs: tuple[torch.Tensor, ...]) -> Step:
    """Returns a function that runs forward and backward."""
    leaves = [*model.parameters(), *(x for x in inputs if x.requires_grad)]

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        model(*inputs).backward()

    return step


def block_ms(step: Step, steps: int, clock: Clock) -> float:
    """Returns the mean milliseconds of the steps of a block."""
    begin = clock()
    for _ in range(steps):
        step()
    return 1e3 * (clock() - begin) / steps


def steps_per_block(step: Step, clock: Clock) -> int:
    """Warms up, and returns how many steps take about the time of a block."""
    ms = block_ms(step, 4, clock)  # ours measures scratch in its first steps
    if ms < 1e3 * BLOCK_S:
        ms = block_ms(step, 3, clock)
    return max(1, round(1e3 * BLOCK_S / ms))


def peak_bytes(step: Step) -> int:
    """Returns the bytes that a step allocates at its peak, gradients included."""
    with MemoryTracker() as memory:
        step()
    return memory.peak_bytes


def measure(options: argparse.Namespace) -> list[Row]:
    """Returns a row for each candidate of the model `options.one`."""
    name, rounds, threads = options.one, options.rounds, options.threads
    if threads is not None:
        torch.set_num_threads(threads)
        cutback.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    MemoryTracker()  # before Inductor loads code, so that trackers see its buffers
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    steps: dict[str, Step] = {}
    first: dict[str, float] = {}
    for what, make in ways(name, not options.no_inductor).items():
        steps[what] = step_of(make(copy.deepcopy(model)), inputs)
        first[what] = block_ms(steps[what], 1, clock) / 1e3
    counts = {what: steps_per_block(step, clock) for what, step in steps.items()}
    peaks = {what: peak_bytes(step) for what, step in steps.items()}
    blocks: dict[str, list[float]] = {what: [] for what in steps}
    for turn in range(rounds):
        time.sleep(REST_S)
        for what in reversed(steps) if turn % 2 else steps:
            blocks[what].append(block_ms(steps[what], counts[what], clock))
    return [
        {
            "model": name,
            "what": what,
            "unit": "ms",
            "clock": "processor" if threads == 1 else "wall",
            "threads": torch.get_num_threads(),
            "median": round(statistics.median(ms), 3),
            "eager / this": _ratio(blocks["eager"], ms),
            f"{CODEGEN} / this": _ratio(blocks[CODEGEN], ms),
            "first s": round(first[what], 2),
            "peak bytes": peaks[what],
        }
        for what, ms in blocks.items()
    ]


def _ratio(theirs: list[float], ours: list[float]) -> float:
    return round(statistics.median(e / t for e, t in zip(theirs, ours, strict=True)), 3)


# ---- all of them --------------------------------------------------------------------------------


def in_process(name: str, options: argparse.Namespace, setting: dict[str, str]) -> list[Row]:
    """Returns the rows of a model, measured in another process."""
    command = [sys.executable, __file__, "--one", name, "--rounds", str(options.rounds)]
    command += [] if options.threads is None else ["--threads", str(options.threads)]
    command += ["--no-inductor"] if options.no_inductor else []
    done = subprocess.run(
        command, env={**os.environ, **setting}, stdout=subprocess.PIPE, text=True, check=True
    )
    rows: list[Row] = json.loads(done.stdout.splitlines()[-1])
    return rows


def _settings(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Returns the pairs of a waiting policy and a setting of malloc that are measured."""
    waits = ["default"] if options.quick or options.threads == 1 else list(WAITS)
    mallocs = ["default"] if options.quick else list(MALLOCS)
    return [(w, m) for w in waits for m in mallocs]


def main() -> None:
    """Measures, prints and writes the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", help="names, separated by semicolons")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-inductor", action="store_true", help="leave out torch.compile")
    parser.add_argument("--add", action="store_true", help="keep the file's rows of other models")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options)))
        return
    rows: list[Row] = []
    at = {"isa": machine()["isa"], "commit": commit()}  # kept rows are of others
    names = options.models.split(";") if options.models else list(MODELS)
    for name in names:
        for wait, malloc in _settings(options):
            for found in in_process(name, options, {**WAITS[wait], **MALLOCS[malloc]}):
                row = {**found, "waiting": wait, "malloc": malloc, **at}
                print(
                    f"{name:18} {row['what']:60} waiting {wait:8} malloc {malloc:8} "
                    f"{row['median']:9.2f} ms  eager / this {row['eager / this']:5.2f}  "
                    f"{CODEGEN} / this {row[f'{CODEGEN} / this']:5.2f}  "
                    f"first {row['first s']:6.2f} s",
                    flush=True,
                )
                rows.append(row)
    if options.add:
        known = written(FILE) if (RESULTS / f"{FILE}.json").exists() else []
        rows = [r for r in known if r["model"] not in names] + rows
    if options.add or not (options.quick or options.models):
        given = "" if options.threads is None else f" --threads {options.threads}"
        save(FILE, f"python benchmarks/pytorch/bench_native.py{given}", rows, "torch")


if __name__ == "__main__":
    main()
