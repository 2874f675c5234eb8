"""Bytes and modelled times of the examples in ARCHITECTURE.md. No times are measured: the rows are
the same on every machine.

python benchmarks/planner/bench_examples.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from common import save

import cutback
from cutback.nn import functional as F


def zeros(*shape: int) -> Any:
    """Returns an array of zeros that takes no memory."""
    return np.broadcast_to(np.float32(0), shape)


def the_way_of_a_budget() -> dict[str, Any]:
    """Plans eight layers with GELU under half of the bytes of saving everything."""

    def loss(params: Any, x: Any, target: Any) -> Any:
        for w in params:
            x = F.gelu(x @ w)
        return ((x - target) ** 2).mean()

    args = [zeros(256, 256) for _ in range(8)], zeros(512, 256), zeros(512, 256)
    everything = cutback.value_and_grad(loss, preset="autograd").prepare(*args)
    step = cutback.value_and_grad(loss, budget="0.5x").prepare(*args)
    planned = step.planned
    return {
        "example": "the way of a budget",
        "save_all_bytes": planned.save_all_arena_bytes,
        "budget_bytes": planned.budget_bytes,
        "save_all_program_bytes": everything.planned.arena_bytes,
        "program_bytes": planned.arena_bytes,
        "recomputed": planned.n_recomputed,
        "once_ms": 1e-9 * planned.once_ps,
        "modelled_ms": 1e-9 * planned.time_ps,
    }


def the_way_of_a_value() -> dict[str, Any]:
    """Returns the two places in the arena of a GELU's output, which is recomputed."""

    def loss(params: Any, x: Any, target: Any) -> Any:
        h = F.gelu(x @ params["w1"] + params["b1"])
        y = h @ params["w2"]
        return ((y - target) ** 2).mean()

    params = {"w1": zeros(32, 256), "b1": zeros(256), "w2": zeros(256, 1)}
    step = cutback.value_and_grad(loss, preset="conservative").prepare(
        params, zeros(64, 32), zeros(64, 1)
    )
    text = step.executable.text("program")
    made = re.findall(r"(b\d+):\S+ = gelu\(", text)  # in the forward, and again in the backward
    at = [re.findall(rf"buffer {b[1:]} bytes=\d+ at=(\d+)", text)[0] for b in made]
    return {
        "example": "the way of a value",
        "arena_bytes": step.planned.arena_bytes,
        "value_bytes": 64 * 256 * 4,
        "first_at": int(at[0]),
        "second_at": int(at[1]),
    }


if __name__ == "__main__":
    rows = [the_way_of_a_budget(), the_way_of_a_value()]
    for row in rows:
        print(row)
    save("examples", "python benchmarks/planner/bench_examples.py", rows)
