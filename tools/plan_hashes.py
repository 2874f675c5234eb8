#!/usr/bin/env python3
"""Hashes what the planner answers, so that a change of the house can show that no plan changed.

    tools/plan_hashes.py OUT.json          three graphs, nets, 200 random problems (minutes)
    tools/plan_hashes.py --full OUT.json   all graphs and budgets, 2,000 random problems (hours)
    tools/plan_hashes.py --compare A.json B.json   list the plans that differ; exit 1 if any does

An answer is the steps, the decisions, the places in memory and the numbers of a plan, or the name
of the error. ``facts_of`` alone knows how the documents spell them: when a field is renamed, it is
mended there, and the hashes stay. No plan here has a time limit, which would make it depend on the
machine.
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

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
FAST = ("evonorm_s0", "transformer_encoder", "unet")
SHARES = (None, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, "min")
MEASURES = ("live", "arena", "saved", "total")


class Question(NamedTuple):
    """One plan asked for; ``subject`` names a graph, a net, or the seed of a random problem."""

    subject: str
    budget: float | str | None
    measure: str
    offload: bool

    @property
    def name(self) -> str:
        return f"{self.subject} {self.budget} {self.measure}{' offload' * self.offload}"


@cache
def problem_of(subject: str) -> Any:
    """The problem of a subject, ``graphs/NAME``, ``nets/NAME`` or ``random/SEED``."""
    from cutback import _native, files

    kind, name = subject.split("/")
    if kind == "random":
        sys.path.insert(0, str(ROOT / "tests" / "python" / "planner"))
        from test_random_aliases import Dice

        return Dice(int(name)).problem(wishes=int(name) % 2 == 1)
    return json.loads(_native.problem_json(files.read_text(DATA / kind / f"{name}.json.gz")))


def facts_of(document: dict[str, Any]) -> list[Any]:
    """What a plan says, in an order of its own."""
    keys = ("backward_starts", "steps", "decisions", "lives")
    return [document[k] for k in keys] + [sorted(document["numbers"].items())]


def answer(question: Question) -> str:
    """A hash of the plan, or the name of the error."""
    import cutback

    try:
        plan = cutback.plan(
            problem_of(question.subject),
            budget=question.budget,
            measure=question.measure,
            offload=question.offload,
            device="a100",
        )
    except (cutback.BudgetError, NotImplementedError, ValueError) as error:
        return type(error).__name__
    text = json.dumps(facts_of(plan.document), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def questions(full: bool) -> Iterator[Question]:
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


def compare(before: Path, after: Path) -> int:
    """Prints what differs between two files of hashes; how many plans that are."""
    a, b = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    for name in names:
        print(f"{name}: {a.get(name, 'not asked')} -> {b.get(name, 'not asked')}")
    print(f"{len(names)} of {len({**a, **b})} answers differ")
    return len(names)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--full", action="store_true", help="ask everything")
    parser.add_argument("--compare", action="store_true", help="compare two files")
    options = parser.parse_args()
    if len(options.files) != 1 + options.compare:
        parser.error("one file to write, or two to compare")
    if options.compare:
        return int(compare(*options.files) > 0)
    asked = list(questions(options.full))
    with ProcessPoolExecutor() as pool:
        found = pool.map(answer, asked, chunksize=4)
        hashes = dict(zip((q.name for q in asked), found, strict=True))
    options.files[0].write_text(json.dumps(hashes, indent=0) + "\n", encoding="utf-8")
    whole = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:16]
    print(f"{len(hashes)} answers, {whole}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
