"""Claim: under `budget="0.4x"` a training step of a PyTorch model takes at most 40 % of the memory,
for somewhat more time.

    python benchmarks/pytorch/bench_step_memory.py [--rounds N]

Measures, for each model, one eager step and one step of `cutback.torch.compile(model,
budget="0.4x")`: the peak and the timeline of live tensors (`MemoryTracker`), the seconds that the
first step takes, and the processor time of a later step on one thread, measured in turns. Writes
`step_memory.json`, with the rows of the README, and `step_memory.svg`, the README's picture of the
first model. `--draw` only draws the picture again.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from common import RESULTS, save, summary, written
from step_models import make

import cutback.torch
from cutback.report.svg import document, human_bytes, nice_ticks, tag, text

MODELS = ("GPT-2", "Llama", "ViT")
BUDGET = "0.4x"
WHAT = ("eager", "budget 0.4x")  # names of recorded rows
POINTS = 240  # of a timeline: columns of the picture


class Measured(NamedTuple):
    """One step's memory."""

    peak_bytes: int
    timeline: list[int]  # the largest live bytes in each of POINTS equal parts of the step
    backward_at: float  # share of the step's events before the backward


def columns(live: list[int]) -> list[int]:
    """Returns the largest value in each of POINTS equal parts."""
    n = len(live)
    edges = [n * i // POINTS for i in range(POINTS + 1)]
    return [max(live[low : max(high, low + 1)]) for low, high in itertools.pairwise(edges)]


def memory_of(step: Callable[..., Any], inputs: tuple[Any, ...]) -> Measured:
    """Returns the memory of live tensors during one step."""
    with cutback.torch.MemoryTracker() as memory:
        loss = step(*inputs)
        at = len(memory.events)
        loss.backward()
    return Measured(memory.peak_bytes, columns(memory.timeline), at / len(memory.timeline))


def milliseconds(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, dict[str, float]]:
    """Returns the processor time of each step, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds):
        for name in reversed(steps) if turn % 2 else steps:
            begin = time.process_time()
            steps[name]()
            times[name].append(1e3 * (time.process_time() - begin))
    return {name: summary(row) for name, row in times.items()}


def measure(name: str, rounds: int) -> list[dict[str, Any]]:
    """Returns the rows of one model."""
    case = make(name)
    runs: dict[str, Callable[..., Any]] = {
        WHAT[0]: case.model,
        WHAT[1]: cutback.torch.compile(case.model, budget=BUDGET),
    }

    def clear() -> None:
        case.model.zero_grad(set_to_none=True)

    def stepped(run: Callable[..., Any]) -> Callable[[], None]:
        def step() -> None:
            clear()
            run(*case.inputs).backward()

        return step

    rows = []
    steps = {what: stepped(run) for what, run in runs.items()}
    first = {}
    for what, step in steps.items():
        begin = time.perf_counter()
        step()
        first[what] = time.perf_counter() - begin
        step()
    ms = milliseconds(steps, rounds)
    for what, run in runs.items():
        clear()
        measured = memory_of(run, case.inputs)
        rows.append(
            {
                "model": name,
                "what": what,
                "peak_bytes": measured.peak_bytes,
                "first_s": first[what],
                "unit": "ms",
                **ms[what],
                "backward_at": measured.backward_at,
                "timeline": measured.timeline,
            }
        )
    planned = runs[WHAT[1]].plans[0].numbers  # type: ignore[attr-defined]
    rows[1]["planned_bytes"] = planned["live_bytes"]
    rows[1]["budget_bytes"] = planned["budget_bytes"]
    return rows


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760.0, 300.0, 76.0, 16.0, 40.0, 44.0


def _stairs(values: list[int], top: float) -> list[tuple[float, float]]:
    """Returns the corners of a staircase with one value per column."""
    wide = (WIDTH - LEFT - RIGHT) / len(values)
    corners = []
    for i, value in enumerate(values):
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top
        corners += [(LEFT + i * wide, y), (LEFT + (i + 1) * wide, y)]
    return corners


def _curve(row: dict[str, Any], css: str, top: float, label: str) -> list[str]:
    """Returns the area under one timeline, its peak, and where its backward begins."""
    corners = _stairs(row["timeline"], top)
    base = HEIGHT - BOTTOM
    outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    closed = f"{LEFT:.1f},{base:.1f} {outline} {WIDTH - RIGHT:.1f},{base:.1f}"
    peak = max(range(len(row["timeline"])), key=row["timeline"].__getitem__)
    x, y = corners[2 * peak]
    at = LEFT + (WIDTH - LEFT - RIGHT) * row["backward_at"]
    area = tag(
        "polygon", f"{label}: peak {human_bytes(row['peak_bytes'])}", css="area", points=closed
    )
    words = f"{label}: peak {human_bytes(row['peak_bytes'])}"
    return [
        f'<g class="{css}">{area}</g>',
        text(x + 8, y - 12 if css == "temporary" else y - 22, words),
        tag("line", css="axis", x1=at, x2=at, y1=base, y2=base + 6) if css == "temporary" else "",
    ]


def draw(rows: list[dict[str, Any]]) -> str:
    """Returns the picture of the first model's two steps, as SVG."""
    eager, ours = (r for r in rows if r["model"] == MODELS[0])
    top = 1.15 * eager["peak_bytes"]
    base = HEIGHT - BOTTOM
    body = [text(LEFT, 20, f"memory of one training step of {MODELS[0]}: live tensors")]
    for tick in nice_ticks(top):
        y = base - (HEIGHT - TOP - BOTTOM) * tick / top
        body.append(tag("line", css="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
        body.append(text(LEFT - 8, y + 4, human_bytes(tick), "end", "note"))
    body += _curve(eager, "temporary", top, "everything saved")
    body += _curve(ours, "saved", top, WHAT[1])
    line = base - (HEIGHT - TOP - BOTTOM) * ours["budget_bytes"] / top
    body.append(tag("line", "budget", css="budget", x1=LEFT, x2=WIDTH - RIGHT, y1=line, y2=line))
    body.append(text(WIDTH - RIGHT, line - 5, f"budget {human_bytes(ours['budget_bytes'])}", "end"))
    middle = LEFT + (WIDTH - LEFT - RIGHT) * eager["backward_at"]
    body.append(text(middle - 8, base + 20, "forward", "end", "note"))
    body.append(text(middle + 8, base + 20, "backward", "start", "note"))
    return document(WIDTH, HEIGHT, body, "memory of a training step with and without a budget")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    if not options.draw:
        torch.set_num_threads(1)
        rows = [row for name in MODELS for row in measure(name, options.rounds)]
        for row in rows:
            shown = {key: value for key, value in row.items() if key != "timeline"}
            print(shown)
        save(
            "step_memory",
            "python benchmarks/pytorch/bench_step_memory.py",
            rows,
            "torch",
            "transformers",
        )
    (RESULTS / "step_memory.svg").write_text(draw(written("step_memory")) + "\n")


if __name__ == "__main__":
    main()
