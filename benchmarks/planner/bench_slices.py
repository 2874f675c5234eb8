"""Claim: with slices, the logits of a language model are never whole in memory, for little extra
time.

    python benchmarks/planner/bench_slices.py [--only NAME]

The head of a language model, a product with cross entropy and their gradients, is measured in a run
of the step; bytes are those of activations, gradients and scratch. Times are processor time,
medians of alternating steps. In the rows `made again` the gradient of the loss depends on the loss,
so the backward recomputes the logits. "product" names the code that multiplies matrices: NumPy's
OpenBLAS, Cutback's own kernel (OpenBLAS is limited to narrower vectors, so Cutback does not use
it), or ATen in a PyTorch step. Each of these rows is measured in a separate process with one
thread. "beside gradients / logits" is the sliced peak without the two gradients, divided by the
bytes of the logits. Traced graphs are only planned, and the referee checks their plans; percentages
are of saving everything whole.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parent.parent / "tests" / "reference"))

import evaluate  # noqa: E402
from common import GRAPHS, GRAPHS_DEVICE, save  # noqa: E402

import cutback as cb  # noqa: E402
from cutback import _native  # noqa: E402
from cutback.nn import functional as F  # noqa: E402

COMMAND = "python benchmarks/planner/bench_slices.py"
VOCABULARY, TOKENS, WIDTH, STEPS = 50_257, 2_048, 256, 3
AGAIN = "head, made again"
TRACED = ("gpt2_small_plain", "bert_base", "llama_32layers")


def head(w: Any, h: Any, labels: Any) -> Any:
    """Returns the loss of the last layer of a language model."""
    return F.cross_entropy(h @ w.T, labels)


def scaled(w: Any, h: Any, labels: Any) -> Any:
    """Returns the square of that loss, whose gradient depends on its value."""
    loss = head(w, h, labels)
    return loss * loss


def seconds(step: Callable[[], Any]) -> float:
    """Returns the processor time of a step."""
    began = time.process_time()
    step()
    return time.process_time() - began


def arrays() -> tuple[Any, Any, Any]:
    """Returns the weights of a head, its rows and labels."""
    random = np.random.default_rng(0)
    return (
        0.02 * random.standard_normal((VOCABULARY, WIDTH), np.float32),
        random.standard_normal((TOKENS, WIDTH), np.float32),
        random.integers(0, VOCABULARY, TOKENS),
    )


def native_steps(loss: Callable[..., Any], budget: str | None) -> tuple[list[Any], list[int]]:
    """Returns a whole and a sliced step, and their measured peaks."""
    cb.set_num_threads(1)
    args, steps, peaks = arrays(), [], []
    for options in ({}, {"slices": True, "budget": budget}):
        step = cb.value_and_grad(loss, (0, 1), **options)
        step(*args)
        peaks.append(int(step.stats.peak_bytes))
        steps.append(partial(step, *args))
    return steps, peaks


def torch_steps() -> tuple[list[Any], list[int]]:
    """Returns the same steps in PyTorch, and the peaks of their plans."""
    import torch

    import cutback.torch as ct

    torch.set_num_threads(1)
    w, h, labels = (torch.from_numpy(a) for a in arrays())
    w.requires_grad_(), h.requires_grad_()

    def model(w: Any, h: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(h @ w.T, labels)

    def run(step: Any) -> None:
        w.grad = h.grad = None
        step(w, h, labels).backward()

    steps = [ct.compile(model), ct.compile(model, budget="smallest", slices=True)]
    for step in steps:
        run(step)
    peaks = [int(step.plans[0].numbers["live_bytes"]) for step in steps]
    return [partial(run, step) for step in steps], peaks


def head_row(name: str, product: str) -> dict[str, Any]:
    """Returns bytes and times of a head, whole and sliced."""
    if product == "ATen":
        (whole, cut), peaks = torch_steps()
    elif name == AGAIN:
        (whole, cut), peaks = native_steps(scaled, "min")
    else:
        (whole, cut), peaks = native_steps(head, None)
    pairs = [(seconds(whole), seconds(cut)) for _ in range(STEPS)]
    logits, gradients = TOKENS * VOCABULARY * 4, (VOCABULARY + TOKENS) * WIDTH * 4
    return {
        "model": name,
        "product": product,
        "vocabulary": VOCABULARY,
        "tokens": TOKENS,
        "width": WIDTH,
        "logits, bytes": logits,
        "whole, bytes": peaks[0],
        "sliced, bytes": peaks[1],
        "sliced / logits": round(peaks[1] / logits, 4),
        "beside gradients / logits": round((peaks[1] - gradients) / logits, 4),
        "time, sliced / whole": round(statistics.median(b / a for a, b in pairs), 3),
    }


def apart(name: str, product: str) -> dict[str, Any]:
    """Runs :func:`head_row` in a separate process."""
    settings = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if product == "own":
        settings["OPENBLAS_CORETYPE"] = "Nehalem"
    command = [sys.executable, __file__, "--head", json.dumps([name, product])]
    environment = {**os.environ, **settings}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def planned(problem: dict[str, Any]) -> tuple[float, float, float]:
    """Returns the smallest peak in bytes, its extra time in percent, and the bytes of saving
    everything."""
    plan = cb.plan(problem, budget="min", device=GRAPHS_DEVICE)
    steps, starts, numbers = (
        plan.document["steps"], plan.document["backward_starts"], plan.numbers,
    )  # fmt: skip
    judged = evaluate.evaluate(problem, steps, starts).peak_bytes
    if judged != numbers["live_bytes"]:
        raise AssertionError(f"the referee measures {judged} bytes")
    extra = 100 * (numbers["time_ps"] / numbers["once_ps"] - 1)
    return judged, extra, cb.plan(problem, device=GRAPHS_DEVICE).numbers["save_all_live_bytes"]


def traced_row(name: str) -> dict[str, Any]:
    """Returns the smallest peaks of a traced graph, whole and in pieces."""
    path = GRAPHS / f"{name}.json.gz"
    graph = {**json.loads(gzip.decompress(path.read_bytes())), "over": True}
    whole = json.loads(_native.Problem.read(json.dumps(graph)).to_json())
    row: dict[str, Any] = {"model": name, "budget": "min"}
    everything = 0.0
    for label, problem in (("whole", whole), ("sliced", cb.with_slices(whole).document())):
        peak, extra, saved = planned(problem)
        everything = everything or saved
        row[f"{label} %"] = round(100 * peak / everything, 2)
        row[f"{label}, extra %"] = round(extra, 1)
    return row


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="the row to measure; nothing is saved")
    parser.add_argument("--head", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.head:
        print(json.dumps(head_row(*json.loads(options.head))))
        return
    only = options.only
    heads = [(name, product) for name in ("head", AGAIN) for product in ("OpenBLAS", "own")]
    cases = [
        *((name, partial(apart, name, product)) for name, product in [*heads, (AGAIN, "ATen")]),
        *((name, partial(traced_row, name)) for name in TRACED),
    ]
    rows = [make() for name, make in cases if only in (None, name)]
    if only is None:
        save("planner_slices", COMMAND, rows, "torch")
    else:
        print(*rows, sep="\n")


if __name__ == "__main__":
    main()
