#!/usr/bin/env python3
"""Hashes plans and compiled steps, to show that a refactoring changed none of them.

    tools/plan_hashes.py OUT.json          three graphs, nets, 200 random problems, steps (minutes)
    tools/plan_hashes.py --full OUT.json   all graphs and budgets, 2,000 random problems (hours)
    tools/plan_hashes.py --only steps/ OUT.json    only those whose names start with this
    tools/plan_hashes.py --compare A.json B.json   list the differences; exit 1 if there are any
    tools/plan_hashes.py --best A.json B.json      steps: the default of B against A's best way

An answer is the steps, the decisions, the places in memory and the numbers of a plan, or the name
of the error. Only ``facts_of`` knows the names in the documents: if a field is renamed, only this
function changes, and the hashes stay. No plan here has a time limit, which would make it depend on
the machine. Compiled steps are in `compiled_steps.py`; their answers also have bytes, modelled time
and kernels, which `--compare` prints before and after.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import compiled_steps
from compiled_steps import StepQuestion

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
FAST = ("evonorm_s0", "transformer_encoder", "unet")
SHARES = (None, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, "min")
MEASURES = ("live", "arena", "saved", "total")


class Question(NamedTuple):
    """One requested plan; ``subject`` names a graph, a net, or the seed of a random problem. A
    budget that is a number is a share of saving everything."""

    subject: str
    budget: float | str | None
    measure: str
    offload: bool

    @property
    def name(self) -> str:
        return f"{self.subject} {self.budget} {self.measure}{' offload' * self.offload}"


@cache
def problem_of(subject: str) -> Any:
    """Returns the problem of a subject, ``graphs/NAME``, ``nets/NAME`` or ``random/SEED``."""
    from cutback import _native, files

    kind, name = subject.split("/")
    if kind == "random":
        sys.path.insert(0, str(ROOT / "tests" / "python" / "planner"))
        from test_random_aliases import Dice

        return Dice(int(name)).problem(wishes=int(name) % 2 == 1)
    return json.loads(
        _native.Problem.read(files.read_text(DATA / kind / f"{name}.json.gz")).to_json()
    )


def facts_of(document: dict[str, Any]) -> list[Any]:
    """Returns the facts of a plan, in a fixed order."""
    keys = ("backward_starts", "steps", "decisions", "lives")
    return [document[k] for k in keys] + [sorted(document["numbers"].items())]


def answer(question: Question | StepQuestion) -> str | dict[str, Any]:
    """Returns a hash of the plan, or the name of the error."""
    import cutback

    if isinstance(question, StepQuestion):
        return compiled_steps.answer_step(question)
    budget = question.budget
    try:
        plan = cutback.plan(
            problem_of(question.subject),
            budget=f"{budget}x" if isinstance(budget, float) else budget,
            measure=question.measure,
            offload=question.offload,
            device="a100",
        )
    except (cutback.BudgetError, NotImplementedError, ValueError) as error:
        return type(error).__name__
    text = json.dumps(facts_of(plan.document), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def questions(full: bool) -> Iterator[Question | StepQuestion]:
    yield from compiled_steps.step_questions(full)
    graphs = sorted(p.name.removesuffix(".json.gz") for p in (DATA / "graphs").glob("*.json.gz"))
    nets = sorted(p.name.removesuffix(".json.gz") for p in (DATA / "nets").glob("*.json.gz"))
    for name in graphs if full else FAST:
        for budget in SHARES if full else (None, 0.5, 0.3, "min"):
            for measure in MEASURES:
                yield Question(f"graphs/{name}", budget, measure, False)
                if budget is not None and measure != "saved" and (full or name == FAST[1]):
                    yield Question(f"graphs/{name}", budget, measure, True)
    for name in nets:
        for budget in (0.7, 0.5, 0.4, 0.3, "min") if full else (0.5, "min"):
            yield Question(f"nets/{name}", budget, "live", False)
    for seed in range(2000 if full else 200):
        for budget in (0.7, 0.4, "min"):
            measure = MEASURES[seed % len(MEASURES)]
            yield Question(f"random/{seed}", budget, measure, seed % 3 == 0 and measure != "saved")


def without_times(answers: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts that two runs must have in common."""
    return {
        name: {k: v for k, v in found.items() if k != "seconds"}
        if isinstance(found, dict)
        else found
        for name, found in answers.items()
    }


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return without_times(found)


def compare(before: Path, after: Path) -> int:
    """Prints the differences between two files of hashes; returns their number. Questions that only
    the longer of two runs asked are left out."""
    a, b = read(before), read(after)
    both = [name for name in a if name in b]
    names = [name for name in both if a[name] != b[name]]
    for name in names:
        print(f"{name}: {compiled_steps.changes(a[name], b[name])}")
    print(f"{len(names)} of {len(both)} answers differ", end="")
    print(f"; {len(a) + len(b) - 2 * len(both)} are only in one of the files")
    return len(names)


def best(before: Path, after: Path) -> int:
    """Prints where the default way is now worse than the best way before; returns the number of
    steps."""
    lines = list(compiled_steps.worse_than_best(read(before), read(after)))
    print(*lines, sep="\n")
    print(f"{len(lines)} steps are worse in something")
    return len(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--full", action="store_true", help="ask everything")
    parser.add_argument("--only", default="", metavar="PREFIX", help="ask only these")
    parser.add_argument("--jobs", type=int, help="processes; as many as there are cores")
    parser.add_argument("--compare", action="store_true", help="compare two files")
    parser.add_argument("--best", action="store_true", help="compare with the best way of a step")
    options = parser.parse_args()
    if len(options.files) != 1 + (options.compare or options.best):
        parser.error("one file to write, or two to compare")
    if options.compare or options.best:
        return int((compare if options.compare else best)(*options.files) > 0)
    asked = [q for q in questions(options.full) if q.name.startswith(options.only)]
    hashes: dict[str, Any] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for question, found in zip(asked, pool.map(answer, asked, chunksize=6), strict=True):
            hashes[question.name] = found
            if len(hashes) % 300 == 0 or len(hashes) == len(asked):  # a stopped run keeps these
                options.files[0].write_text(json.dumps(hashes, indent=0) + "\n", encoding="utf-8")
    text = json.dumps(without_times(hashes), sort_keys=True)
    print(f"{len(hashes)} answers, {hashlib.sha256(text.encode()).hexdigest()[:16]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
