"""Claim: if backward ops may run late, unrolled loops fit a budget with less extra time.

python benchmarks/planner/bench_late.py [--min]

Plans steps of recurrent networks for shares of the bytes of saving everything, with forward reruns
only and with `reruns: "all"`. Seconds are processor time, from problem to plan. `planner_late_min`
has the smallest plans of longer steps (``"min"``); `--min` writes only those.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from common import save  # noqa: E402

import cutback  # noqa: E402
from cutback.nn import functional as F  # noqa: E402

COMMAND = "python benchmarks/planner/bench_late.py"
BATCH, WIDTH, CLASSES = 16, 128, 64
SHARES = (0.9, 0.8, 0.75)


def rnn_turn(x: Any, h: Any, c: Any, weight: Any) -> tuple[Any, Any]:
    """Returns one step of a plain recurrence."""
    return cutback.tanh(x + h @ weight), c


def lstm_turn(x: Any, h: Any, c: Any, weight: Any) -> tuple[Any, Any]:
    """Returns one step of an LSTM."""
    i, f, g, o = cutback.split(x + h @ weight, 4, axis=-1)
    c = cutback.sigmoid(f) * c + cutback.sigmoid(i) * cutback.tanh(g)
    return cutback.sigmoid(o) * cutback.tanh(c), c


def problem_of(turn: Callable[..., tuple[Any, Any]], gates: int, turns: int) -> dict[str, Any]:
    """Returns the step of a recurrent classifier, as a problem."""
    random = np.random.default_rng(0)

    def loss(p: dict[str, Any], tokens: Any, labels: Any) -> Any:
        x = F.embedding(tokens, p["embedding"]) @ p["in"]
        h = c = cutback.zeros((BATCH, WIDTH), np.float32)
        hidden = []
        for t in range(turns):
            h, c = turn(x[:, t], h, c, p["weight"])
            hidden.append(h)
        return F.cross_entropy(cutback.stack(hidden, 1) @ p["out"], labels)

    shapes = {
        "embedding": (CLASSES, 32),
        "in": (32, gates * WIDTH),
        "weight": (WIDTH, gates * WIDTH),
        "out": (WIDTH, CLASSES),
    }
    parameters = {name: random.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
    tokens = random.integers(0, CLASSES, (BATCH, turns))
    step = cutback.compile(loss, optimizer=cutback.optim.AdamW())
    step.prepare(parameters, tokens, np.roll(tokens, -1, 1))
    fields = dict(step.plan.problem)
    fields.pop("fingerprint", None)
    return fields


def planned(problem: dict[str, Any], budget: str, reruns: str) -> tuple[dict[str, Any], float]:
    """Returns the numbers of a plan (empty if none fits) and the seconds of planning."""
    text = json.dumps({**problem, "version": 3, "reruns": reruns})
    begin = time.process_time()
    try:
        numbers = dict(cutback.plan(text, budget=budget, device="cpu").numbers)
    except cutback.BudgetError:
        numbers = {}
    return numbers, time.process_time() - begin


def extra(numbers: dict[str, Any], key: str = "time_ps") -> float | None:
    """Returns by how many percent the time exceeds that of running everything once."""
    if not numbers or numbers[key] is None:
        return None
    return float(round(100 * (numbers[key] / numbers["once_ps"] - 1), 2))


def rows_of(name: str, problem: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns one row per share."""
    rows = []
    for share in SHARES:
        forward, seconds = planned(problem, f"{share}x", "forward")
        every, both = planned(problem, f"{share}x", "all")
        rows.append(
            {
                "step": name,
                "ops": len(problem["ops"]),
                "budget": f"{share}x",
                "forward extra %": extra(forward),
                "extra %": extra(every),
                "bound %": extra(every, "lower_bound_ps"),
                "forward s": round(seconds, 2),
                "s": round(both, 2),
            }
        )
    return rows


def smallest_of(name: str, problem: dict[str, Any]) -> dict[str, Any]:
    """Returns the row of ``"min"``: "peak" is relative to saving everything."""
    forward, seconds = planned(problem, "min", "forward")
    every, both = planned(problem, "min", "all")
    everything = forward["save_all_live_bytes"]
    return {
        "step": name,
        "ops": len(problem["ops"]),
        "forward peak": round(forward["live_bytes"] / everything, 4),
        "peak": round(every["live_bytes"] / everything, 4),
        "forward extra %": extra(forward),
        "extra %": extra(every),
        "forward s": round(seconds, 2),
        "s": round(both, 2),
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--min", action="store_true", help='only the smallest plans (`"min"`)')
    options = parser.parse_args()
    small = [
        smallest_of(f"LSTM of {turns} turns", problem_of(lstm_turn, 4, turns))
        for turns in (16, 32, 64)
    ]
    save("planner_late_min", f"{COMMAND} --min", small)
    if options.min:
        return
    rows = rows_of("RNN of 6 turns", problem_of(rnn_turn, 1, 6))
    for turns in (16, 32):
        rows += rows_of(f"LSTM of {turns} turns", problem_of(lstm_turn, 4, turns))
    save("planner_late", COMMAND, rows)


if __name__ == "__main__":
    main()
