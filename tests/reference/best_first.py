"""Finds the fastest schedule of a small step within a budget of bytes if any op may run late or
again, by best-first search (``best_first.c``, compiled when first needed).

    found = best(problem, budget, below_ps, "cpu", most_states=2_000_000)

The schedules are those of ``deep_optimum`` and some more: between two ops of the given order,
earlier ops may run in any order and several times. Storages smaller than a share ``SMALL`` of the
budget count as 0 bytes here. So ``bound_ps`` holds for all schedules, but the schedule that takes
``ps`` may exceed the budget.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import costs
from deep_optimum import Step

SMALL = 0.01  # share of the budget
SOURCE = Path(__file__).with_name("best_first.c")
Problem = dict[str, Any]


@dataclass
class Best:
    """The result: no schedule takes less than ``bound_ps``. ``ps`` is the time of the fastest
    schedule, or None if all take ``below_ps`` or more, or if the search ended early (``ended``)."""

    bound_ps: int
    ps: int | None
    ended: bool


def compiler() -> str | None:
    """Returns a C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@functools.cache
def _program() -> str:
    found = compiler()
    if found is None:
        raise RuntimeError("best_first needs a C compiler")
    folder = tempfile.mkdtemp(prefix="best-first-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    out = Path(folder) / "best_first"
    subprocess.run([found, "-O2", "-std=gnu17", "-o", str(out), str(SOURCE)], check=True)
    return str(out)


def _text(step: Step, budget: int) -> str:
    """Returns the step as the program reads it."""
    place = {i: t for t, i in enumerate(step.work)}
    storages = [s for s in step.maker if step.maker[s] in place]
    number = {s: k for k, s in enumerate(storages)}
    lines = [f"{len(step.work)} {len(storages)} {place.get(step.split, len(step.work))}"]
    for s in storages:
        size = step.bytes[s] if step.bytes[s] >= SMALL * budget else 0
        lines.append(f"{size} {s in step.returned:d} {s in step.ends:d} {s in step.held:d}")
    for i in step.work:
        again = i in step.movable
        late = again and not any(s in step.returned for s in step.made[i])
        words = [step.ps[i], int(again), int(late), step.ops[i].get("workspace", 0)]
        for part in (step.reads[i], step.made[i]):
            known = sorted(number[s] for s in part if s in number)
            words += [len(known), *known]
        lines.append(" ".join(map(str, words)))
    return "\n".join(lines) + "\n"


def best(
    problem: Problem, budget: int, below_ps: int, device: costs.Device, most_states: int
) -> Best:
    """Finds the fastest schedule that takes less than ``below_ps``, or proves that there is
    none."""
    command = [_program(), str(budget), str(below_ps), str(most_states)]
    text = _text(Step(problem, device), budget)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    kind, *numbers = done.stdout.split()
    if kind == "none":
        return Best(below_ps, None, False)
    ps = int(numbers[0])
    return Best(ps, None if kind == "open" else ps, kind == "open")
