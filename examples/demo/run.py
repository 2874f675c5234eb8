"""Train two models under three plans each and show that the numbers agree, bit for bit.

    python examples/demo/run.py [--out demo] [--steps-gpt N] [--steps-conv N] [--device cuda]

Each model trains from the same seed under save-everything, the min-cut, and a budget of half of
save-everything's peak. The table compares planned and measured memory, and says whether the trained
parameters are the same bits. On a GPU (--device cuda) only the GPT is trained, as a captured step,
because convolutions are not implemented there yet.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import convnet
import data
import gpt
import numpy as np

import cutback as cb
from cutback import cuda, cuda_libraries, report

Batches = Iterator[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Task:
    """A model to train: new parameters, batches, and a description of the result."""

    name: str
    start: Callable[
        [], tuple[Any, tuple[Any, ...]]
    ]  # -> parameters, further arguments before the batch
    loss: Callable[..., Any]
    batches: Callable[[], Batches]
    score: Callable[[Any, tuple[Any, ...], float], str]
    optimizer: Callable[[], cb.optim.AdamW]
    steps: int


@dataclass
class Result:
    """One trained run."""

    plan: str
    step: Any
    params: Any
    ms: float
    score: str
    timeline: list[int] | None  # bytes measured during each step of the schedule
    same: str = ""


def progress(task: str, plan: str, steps: int) -> Iterator[int]:
    """Yields step numbers behind a progress bar, or an occasional line if tqdm is missing."""
    try:
        from tqdm import trange

        yield from trange(steps, desc=f"{task} / {plan}", leave=False, mininterval=0.5)
    except ImportError:
        for i in range(steps):
            if i % max(1, steps // 5) == 0:
                print(f"{task} / {plan}: step {i} of {steps}", file=sys.stderr)
            yield i


def train(task: Task, plan: str, **options: Any) -> Result:
    """Train from the task's seed under one plan."""
    params, extra = task.start()
    step = cb.compile(task.loss, optimizer=task.optimizer(), seed=7, **options)
    if options.get("device"):  # one graph of the GPU; a call copies its batch there
        params, extra = cuda.to_device((params, extra))
        call: Callable[..., Any] = step.capture(params, *extra)
    else:
        call = partial(step, params, *extra)
    batches = task.batches()
    times, losses = [], []
    for _ in progress(task.name, plan, task.steps):
        x, y = next(batches)
        begin = time.perf_counter()
        losses.append(float(call(x, y)))
        times.append(time.perf_counter() - begin)
    params, extra = cuda.to_host((params, extra))
    recent = float(np.mean(losses[-min(20, len(losses)) :]))
    # Bytes are measured on the host, where attention is one operation; a GPU runs several.
    timeline = None
    if not options.get("device"):
        timeline = step.profile(params, *extra, x, y).timeline()
    score = task.score(params, extra, recent)
    return Result(plan, step, params, 1e3 * float(np.median(times)), score, timeline)


def same_bits(a: Any, b: Any) -> bool:
    """True if two pytrees of arrays agree in every bit."""
    if isinstance(a, dict):
        return all(same_bits(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return all(same_bits(x, y) for x, y in zip(a, b, strict=True))
    return a.tobytes() == b.tobytes()


def run(task: Task, device: str | None) -> list[Result]:
    """Returns the three plans of one model; the others are compared with the first."""
    everything = train(task, "save everything", preset="autograd", device=device)
    half = everything.step.planned.arena_bytes // 2
    results = [
        everything,
        train(task, "min-cut", preset="aggressive", device=device),
        train(task, "half the memory", budget=half, device=device),
    ]
    for result in results:
        result.same = "yes" if same_bits(result.params, everything.params) else "NO"
    return results


def gpt_task(steps: int) -> Task:
    """Returns a character-level GPT on the text of the standard library."""
    text = data.stdlib_text()
    config = gpt.GPTConfig(vocab=len(text.alphabet))

    def loss(params: Any, tokens: cb.Array, labels: cb.Array) -> cb.Array:
        return gpt.loss(params, tokens, labels, config)

    return Task(
        name="GPT",
        start=lambda: (gpt.init(config, np.random.default_rng(1)), ()),
        loss=loss,
        batches=lambda: data.text_batches(text, batch=16, context=config.context, seed=2),
        score=lambda params, extra, recent: f"loss {recent:.3f}",
        optimizer=lambda: cb.optim.AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
        steps=steps,
    )


def conv_task(steps: int) -> Task:
    """Returns a convolutional net on handwritten digits."""
    digits = data.digits()
    config = convnet.ConvConfig()

    def start() -> tuple[Any, tuple[Any, ...]]:
        params, states = convnet.init(config, np.random.default_rng(3))
        return params, (states,)

    def loss(params: Any, states: Any, images: cb.Array, labels: cb.Array) -> cb.Array:
        return convnet.loss(params, states, images, labels, config)

    def score(params: Any, extra: tuple[Any, ...], recent: float) -> str:
        def classify(p: Any, s: Any, x: cb.Array) -> cb.Array:
            return convnet.logits(p, s, x, config, training=False)

        predict = cb.compile(classify, argnums=None)
        guess = predict(params, extra[0], digits.test_x).argmax(axis=1)
        return f"accuracy {100 * float(np.mean(guess == digits.test_y)):.1f} %"

    return Task(
        name="ConvNet",
        start=start,
        loss=loss,
        batches=lambda: data.digit_batches(digits, batch=128, seed=4),
        score=score,
        optimizer=lambda: cb.optim.AdamW(lr=2e-3, weight_decay=0.05),
        steps=steps,
    )


HEADERS = (
    "model", "plan", "planned peak", "measured peak", "saved", "ms/step", "recompute", "result",
    "same bits",
)  # fmt: skip


def row(task: str, result: Result) -> tuple[str, ...]:
    """Returns one line of the table."""
    planned = result.step.planned
    return (
        task,
        result.plan,
        report.human_bytes(planned.arena_bytes),
        report.human_bytes(result.step.stats.peak_bytes),
        report.human_bytes(planned.saved_bytes),
        f"{result.ms:.1f}",
        f"{100 * planned.recompute_share:.1f} %",
        result.score,
        result.same,
    )


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Prints aligned columns on standard output."""
    widths = [max(len(line[i]) for line in [HEADERS, *rows]) for i in range(len(HEADERS))]
    for line in [HEADERS, tuple("-" * width for width in widths), *rows]:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )


def write_report(
    path: Path, rows: list[tuple[str, ...]], results: list[tuple[str, Result]]
) -> None:
    """Writes one page: the table, then every plan with its pictures."""
    body = [report.table(HEADERS, rows, numeric=(2, 3, 4, 5, 6))]
    for task, result in results:
        plan = result.step.plan
        measured: report.Measured = {
            "peak_bytes": result.step.stats.peak_bytes,
            "ms": result.ms,
        }
        if result.timeline is not None:
            measured["timeline"] = result.timeline
        title = f"{task}: {result.plan}"
        body.append(
            report.section(
                title,
                plan,
                measured,
                json.loads(plan.explain(as_json=True, kernels=True)),
            )
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        report.page("Cutback demo: two models, three plans each", "".join(body)), encoding="utf-8"
    )


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for report.html")
    parser.add_argument("--steps-gpt", type=int, default=250)
    parser.add_argument("--steps-conv", type=int, default=330)
    parser.add_argument("--device", help="cuda: on an NVIDIA GPU (docs/cuda.md)")
    args = parser.parse_args()
    begin = time.perf_counter()
    results = []
    tasks = [gpt_task(args.steps_gpt), conv_task(args.steps_conv)]
    if args.device:
        tasks = tasks[:1]
    try:
        for task in tasks:
            results += [(task.name, result) for result in run(task, args.device)]
    except cuda_libraries.LibraryError as error:
        print(f"There is no GPU to run on.\n{error}", file=sys.stderr)
        return 2
    rows = [row(name, result) for name, result in results]
    print_table(rows)
    path = args.out / "report.html"
    write_report(path, rows, results)
    print(f"\n{path} shows each plan; everything took {time.perf_counter() - begin:.0f} s.")
    return 0 if all(result.same == "yes" for _, result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
