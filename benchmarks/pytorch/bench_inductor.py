"""Claim: with Inductor as the code generator, our plan needs no more memory than `torch.compile` at
any of its budgets, at a similar step time.

python benchmarks/pytorch/bench_inductor.py [--models BERT,ViT] [--out FOLDER]

Compares `torch.compile(model)` under `activation_memory_budget` 1, 0.5 and 0 with
`cutback.torch.compile(model, codegen="inductor")` without a budget and under the peaks measured for
PyTorch. Peaks are those of live tensors and of Inductor's buffers, without parameters and inputs. A
PyTorch plan is invalid, and not compared, if its loss from the same seed equals that of budget 1
(so the forward's masks are the same) but its gradients differ (`apart`, the relative length of the
difference).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._functorch import config

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import common
import step_models
from bench_side_by_side import Row, Subject, distance, eager_step, gradients, interleave, one_step
from common import save, summary

import cutback
import cutback.torch

COMMAND = "python benchmarks/pytorch/bench_inductor.py"
MODELS = ("BERT", "Llama", "ViT")
BUDGETS = (1.0, 0.5, 0.0)
TORCH, OURS = "torch.compile", "cutback, inductor"
MOST_DISTANCE = 1e-3  # of gradients, by rounding


def with_own_code(model: torch.nn.Module) -> Callable[..., Any]:
    """Wraps the model in a new function, because Dynamo caches by code, not by model."""

    def step(*inputs: Any) -> Any:
        return model(*inputs)

    step.__code__ = step.__code__.replace()
    return step


def measured(
    row: Row, case: step_models.Case, compiled: Callable[..., Any]
) -> tuple[Subject, list[torch.Tensor]]:
    """Compiles in a first step, then measures the peak and the gradients of another."""
    subject = Subject([row], eager_step(compiled, case.inputs), case.model)
    torch.manual_seed(1)
    row["loss"] = subject.run().item()
    with cutback.torch.MemoryTracker() as memory:
        one_step(subject)
    row["peak bytes"] = memory.peak_bytes
    return subject, gradients(case.model)


def theirs(name: str, budget: float) -> tuple[Subject, list[torch.Tensor]]:
    """Returns the step of `torch.compile` under its own budget, and its gradients."""
    case = step_models.make(name)
    compiled = torch.compile(with_own_code(case.model), dynamic=False, fullgraph=True)
    with config.patch(activation_memory_budget=budget, enable_autograd_cache=False):
        return measured({"model": name, "subject": TORCH, "budget": budget}, case, compiled)


def ours(name: str, budget: int | None) -> tuple[Subject, list[torch.Tensor]]:
    """Returns the step of our plan, compiled by Inductor, and its gradients.

    Raises:
        BudgetError: if no plan fits.
    """
    case = step_models.make(name)
    compiled = cutback.torch.compile(
        with_own_code(case.model), budget=budget, codegen="inductor", dynamic=False
    )
    row: Row = {"model": name, "subject": OURS, "budget": budget}
    subject, found = measured(row, case, compiled)
    row["planned peak"] = compiled.plans[0].numbers["live_bytes"]
    return subject, found


def find_subjects(name: str) -> list[Subject]:
    """Returns all subjects of a model, compiled."""
    subjects = []
    reference: list[torch.Tensor] = []
    peaks = set()
    for budget in BUDGETS:
        subject, found = theirs(name, budget)
        reference = reference or found
        (row,) = subject.rows
        row["apart"] = distance(found, reference)
        same = math.isclose(row["loss"], (subjects or [subject])[0].rows[0]["loss"], rel_tol=1e-5)
        row["valid"] = "no" if same and row["apart"] > MOST_DISTANCE else "yes"
        if row["valid"] == "yes":
            peaks.add(row["peak bytes"])
        subjects.append(subject)
        print(row, flush=True)
    reference = []
    for bound in (None, *sorted(peaks, reverse=True)):
        try:
            subject, found = ours(name, bound)
        except cutback.BudgetError as error:
            print(f"{name}, {bound}: {error}")
            continue
        reference = reference or found
        subject.rows[0]["apart"] = distance(found, reference)
        subjects.append(subject)
        print(subject.rows[0], flush=True)
    return subjects


def compare(subjects: list[Subject], times: list[list[float]]) -> None:
    """Adds our time and peak relative to PyTorch's to the rows of its valid plans."""
    own = {
        subject.rows[0]["budget"]: (ms, subject.rows[0]["peak bytes"])
        for subject, ms in zip(subjects, times, strict=True)
        if subject.rows[0]["subject"] == OURS
    }
    for subject, ms in zip(subjects, times, strict=True):
        (row,) = subject.rows
        row.update(summary(ms), unit="ms")
        if row.get("valid") != "yes":
            continue
        found, size = own.get(row["peak bytes"], ([math.inf] * len(ms), math.inf))
        row["our peak / its"] = size / row["peak bytes"]
        row["our time / its"] = statistics.median(a / b for a, b in zip(found, ms, strict=True))


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", help="some of them, by comma; nothing is written without --out")
    parser.add_argument("--out", type=Path, help="folder for the rows, not results/")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=11, help="steps of each subject")
    options = parser.parse_args()
    names = MODELS if options.models is None else tuple(options.models.split(","))
    for name in names:
        if name not in step_models.MODELS:
            parser.error(f"--models: no {name!r} among {', '.join(step_models.MODELS)}")
    torch.set_num_threads(options.threads)
    common.RESULTS = options.out or common.RESULTS
    cutback.torch.MemoryTracker()  # before Inductor loads code, so that trackers see its buffers
    rows: list[Row] = []
    for name in names:
        torch._dynamo.reset()
        subjects = find_subjects(name)
        with torch.compiler.set_stance("fail_on_recompile"):
            times = interleave(subjects, options.rounds, time.perf_counter)
        compare(subjects, times)
        new = [row for subject in subjects for row in subject.rows]
        for row in new:
            print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
        rows += new
    if options.out is not None or options.models is None:
        command = f"{COMMAND} --rounds {options.rounds} --threads {options.threads}"
        save("pytorch_inductor", command, rows, "torch", "transformers")


if __name__ == "__main__":
    main()
