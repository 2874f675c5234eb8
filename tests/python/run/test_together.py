"""Runs random programs with updates inside, slices and packed values: they have the bits of a
separate step, their measured peaks are the planned ones, and the evaluators agree on their
plans."""

from __future__ import annotations

import os
from typing import Any

import evaluate
import numpy as np
import pytest

import cutback
from cutback import tree
from cutback.nn import functional as F

pytestmark = pytest.mark.skipif(
    "CUTBACK_TEST_BACKEND" in os.environ, reason="about a CPU, which updates inside"
)
ROWS, WIDTH, WORDS = 520, 8, 20
BUDGETS = (None, 0.7, 0.3, "min", "smallest")


def parameters(random: np.random.Generator) -> dict[str, Any]:
    shapes = {
        "a": (WIDTH, WIDTH),
        "b": (WIDTH, WIDTH),
        "up": (WIDTH, WORDS),
        "down": (WORDS, WIDTH),
    }
    made = {k: random.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    return {**made, "gain": np.ones(WIDTH, np.float32), "head": made["up"] * np.float32(0.5)}


def program(seed: int) -> Any:
    """Draws layers by rows in a random order, some with a mask or a wide inner layer, then a
    loss."""
    random = np.random.default_rng(seed)
    kinds = random.integers(0, 5, random.integers(1, 4))

    def loss(p: Any, x: Any, labels: Any) -> Any:
        for kind in kinds:
            if kind == 0:
                x = cutback.where(x > 0.3, x @ p["a"], x)
            elif kind == 1:
                x = x + F.gelu(x @ p["up"]) @ p["down"]
            elif kind == 2:
                x = F.layer_norm(x @ p["b"].T, p["gain"])
            elif kind == 3:
                x = cutback.tanh(x * p["gain"]) @ p["a"] + p["b"].mean(0)
            else:
                x = cutback.where(x < 0, 0.1, F.relu(x @ p["b"]))
        wide = F.cross_entropy(x @ p["head"], labels)
        return wide * wide if seed % 3 == 0 else wide

    return loss


def bits(values: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in tree.flatten(values)[0]]


def check_program(seed: int) -> None:
    random, loss = np.random.default_rng(seed), program(seed)
    made = parameters(random)
    x = random.standard_normal((ROWS, WIDTH)).astype(np.float32)
    labels, budget = random.integers(0, WORDS, ROWS), BUDGETS[seed % len(BUDGETS)]
    whole, _ = run(loss, made, (x, labels))
    for packed in (False, True):
        found, step = run(loss, made, (x, labels), updates="inside", budget=budget, packed=packed)
        assert found == whole
        assert step.updates_inside
        assert "cross_entropy: 520 rows in 2 pieces" in "\n".join(map(str, step.slices))
        assert step.stats.peak_bytes == step.planned.arena_bytes
        evaluate.check_plan(step.plan.problem, step.plan.document)
        if not packed:
            check_packed(cutback.with_packed(step.plan.parts), budget)


def run(loss: Any, made: Any, args: Any, **options: Any) -> Any:
    """Returns the bits of the loss and of the parameters after a step, and the step."""
    params = {name: array.copy() for name, array in made.items()}
    step = cutback.compile(loss, optimizer=cutback.optim.AdamW(), slices=True, **options)
    return [bits(step(params, *args)), bits(params)], step


def check_packed(packed: Any, budget: Any) -> None:
    plan = cutback.plan(packed, budget=budget)
    document, numbers = plan.document, plan.numbers
    judged = evaluate.evaluate(packed.document(), document["steps"], document["backward_starts"])
    own = packed.check().evaluate(plan.schedule, plan.core.device)
    assert judged.peak_bytes == own["peak_bytes"] == numbers["live_bytes"]
    assert own["time_ps"] == numbers["time_ps"]


@pytest.mark.parametrize("seed", [0, 5])
def test_random_programs(seed: int) -> None:
    check_program(seed)


@pytest.mark.very_slow
@pytest.mark.parametrize("start", range(0, 1000, 50))
def test_many_random_programs(start: int) -> None:
    for seed in range(start, start + 50):
        check_program(seed)
