"""Tests problems whose wide rows exist in pieces."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import evaluate
import numpy as np
import pytest

import cutback
from cutback.nn import functional as F
from cutback.planner.sliced import begins
from cutback.problem import Problem

ROWS, WIDTH, WORDS = 1024, 16, 600


def zeros(*shape: int) -> Any:
    return np.broadcast_to(np.float32(0), shape)


def problem_of(loss: Any, *args: Any, argnums: Any = 0, **options: Any) -> Problem:
    """Returns the problem of a step, which does not run."""
    step = cutback.value_and_grad(loss, argnums, **options)
    step.prepare(*args)
    return Problem.read(step.executable.text("problem"))


def head(w: Any, h: Any, labels: Any) -> Any:
    return F.cross_entropy(h @ w.T, labels)


def perceptron(p: Any, x: Any) -> Any:
    return (x + F.gelu(x @ p[0]) @ p[1]).sum()


HEAD = head, zeros(WORDS, WIDTH), zeros(ROWS, WIDTH), np.zeros(ROWS, np.int64)
PERCEPTRON = perceptron, (zeros(WIDTH, 64), zeros(64, WIDTH)), zeros(2, ROWS // 2, WIDTH)


def whole_flops(problem: Problem) -> float:
    return sum(op.flops for op in problem.ops)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(HEAD, id="head"),
        pytest.param(PERCEPTRON, id="perceptron", marks=pytest.mark.very_slow),
    ],
)
def test_it_takes_what_a_sliced_step_takes(case: Any) -> None:
    whole, cut = problem_of(*case), problem_of(*case, slices=True)
    text = whole.to_json()
    sliced = cutback.with_slices(whole)
    assert whole.to_json() == text
    plans = [cutback.plan(p, budget="min") for p in (whole, sliced, cut)]
    sizes = [plan.numbers["live_bytes"] for plan in plans]
    assert sizes[1] < 0.6 * sizes[0] and 0.9 * sizes[2] < sizes[1] < 1.5 * sizes[2]
    assert whole_flops(sliced) == pytest.approx(whole_flops(whole))
    document, steps = json.loads(sliced.to_json()), plans[1].document
    judged = evaluate.evaluate(document, steps["steps"], steps["backward_starts"])
    assert judged.peak_bytes == sizes[1]
    assert cutback.with_slices(sliced).to_json() == sliced.to_json()


def returned(w: Any, h: Any, labels: Any) -> Any:
    logits = h @ w.T
    return F.cross_entropy(logits, labels), logits


def mixed(p: Any, x: Any) -> Any:
    h = x @ p[0]
    return ((h - h.mean(0)) @ p[1]).sum()


@pytest.mark.parametrize(
    "case",
    [
        (head, zeros(WORDS, WIDTH), zeros(500, WIDTH), np.zeros(500, np.int64)),
        (head, zeros(31, WIDTH), *HEAD[2:]),
        (mixed, PERCEPTRON[1], zeros(ROWS, WIDTH)),
    ],
    ids=["few rows", "narrow", "rows that read a sum over rows"],
)
def test_chains_that_stay_whole(case: Any) -> None:
    problem = problem_of(*case)
    assert cutback.with_slices(problem).to_json() == problem.to_json()


def test_logits_that_are_returned_stay_whole() -> None:
    problem = problem_of(returned, *HEAD[1:], has_aux=True)
    assert len(cutback.with_slices(problem).ops) == len(problem.ops)


def test_values_without_types_stay_whole() -> None:
    problem = problem_of(*HEAD)
    for op in problem.ops:
        op.outputs = [replace(value, type="") for value in op.outputs]
    assert cutback.with_slices(problem).to_json() == problem.to_json()


def test_gradients_with_an_update_keep_it() -> None:
    whole = problem_of(*HEAD)
    last = whole.ops[-1].outputs[0].storage
    parameter = whole.ops[0].outputs[0].storage
    whole.storages[last] = replace(whole.storages[last], flags=frozenset(), updates=parameter)
    whole.backward_outputs = []
    sliced = cutback.with_slices(whole)
    updated = [storage.updates for storage in sliced.storages if storage.updates is not None]
    assert updated == [sliced.ops[0].outputs[0].storage]
    sliced.check()


@pytest.mark.parametrize("rows", [512, 600, 767, 768, 2048, 2049, 5000, 100_000])
def test_pieces_begin_at_blocks(rows: int) -> None:
    found = [end - begin for begin, end in pairwise(begins(rows))]
    assert sum(found) == rows and len(found) <= 8 and min(found) >= 256
    assert all(n % 256 == 0 for n in found[:-1])
