"""Tests ``packed=True``: masks and ReLUs as bits, indices as bytes, results under every budget, and
peaks."""

from __future__ import annotations

import os
from typing import Any

import evaluate
import numpy as np
import pytest

import cutback as cb
from cutback import tree
from cutback.nn import functional as F

pytestmark = pytest.mark.skipif(
    "CUTBACK_TEST_BACKEND" in os.environ, reason="compares bits of CPU backends"
)
ROWS, WIDTH = 96, 48  # a mask has 4,608 bytes
BUDGETS = (None, 0.5, "0.95x", "min", "smallest")


def gates(p: Any, x: Any) -> Any:
    """Gates by masks of values that the backward does not read."""
    for w in p["w"] * 4:
        x = cb.where((x @ w) + x > 0.3, x + p["bias"], x)
    return (x * x).mean()


def dropped(p: Any, x: Any) -> Any:
    """Drops elements of a ReLU, so that the backward reads only the ReLU's sign."""
    for w in p["w"]:
        x = x + F.dropout(F.relu(x @ w), 0.2) @ w.T
    return (x * x).mean()


def added(p: Any, x: Any) -> Any:
    """Adds ReLUs, whose sums may be NaN although no gradient is."""
    for _ in range(4):
        x = x + F.dropout(F.relu(x + p["bias"]), 0.2)
    return x.sum()


def by_rows(p: Any, x: Any) -> Any:
    """Masks elements by the mean of their row, in groups that have rows."""
    for _ in range(4):
        x = cb.where(x > x.mean(1, keepdims=True), x + p["bias"], 0.5 * x)
        x = x + 0.1 * x.mean(1, keepdims=True)
    return x.sum()


def pooled(p: Any, x: Any) -> Any:
    y = F.relu(F.conv2d(x.reshape(2, 1, 48, 48), p["kernel"], padding=1))
    return (F.max_pool2d(y, 2) ** 2).mean()


def overlapping(p: Any, x: Any) -> Any:
    """Takes the largest of overlapping windows, with padding."""
    y = F.conv2d(x.reshape(2, 1, 48, 48), p["kernel"], padding=1)
    y = F.max_pool2d(cb.tanh(F.max_pool2d(y, (3, 2), stride=(1, 2), padding=1)), 17, 3, 8)
    return (y * y).mean()


def chosen(p: Any, x: Any) -> Any:
    """Adds the larger of each two elements, by indices of eight bytes."""
    for w in p["w"] * 2:
        pairs = (x @ w).reshape(-1, 2)
        largest = cb.take_along_axis(pairs, cb.argmax(pairs, 1, keepdims=True), 1)
        x = x + cb.broadcast_to(largest, pairs.shape).reshape(x.shape)
    return (x * x).mean()


def viewed(p: Any, x: Any) -> Any:
    """Reads one mask, and views of it, in the forward and in the backward."""
    mask = x @ p["w"][0] > 0
    y = cb.where(mask.reshape(WIDTH, ROWS), x.reshape(WIDTH, ROWS), 0.0)
    z = cb.where(mask, x @ p["w"][1], 1.0) * cb.where(mask.T, y, 0.5).T
    return (z * z).mean()


def arguments(dtype: Any = np.float32) -> Any:
    random = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return (0.3 * random.standard_normal(shape)).astype(dtype)

    weights = [draw(WIDTH, WIDTH) for _ in range(3)]
    params = {"w": weights, "kernel": draw(4, 1, 3, 3), "bias": draw(WIDTH)}
    return params, draw(ROWS, WIDTH)


def run(loss: Any, args: Any, **options: Any) -> Any:
    step = cb.value_and_grad(loss, **options)
    value, grads = step(*args)
    return step, [np.asarray(leaf).tobytes() for leaf in (value, *tree.flatten(grads)[0])]


def packs(step: Any) -> int:
    return sum(op.kind.startswith("pack_") for op in step.plan.parts.ops)


def check_bits(loss: Any, budgets: Any) -> None:
    args = arguments()
    _, plain = run(loss, args)
    for budget in budgets:
        step, bits = run(loss, args, packed=True, budget=budget)
        assert bits == plain
        assert step.stats.peak_bytes == step.planned.arena_bytes
        evaluate.check_plan(step.plan.problem, step.plan.document)


def test_bits_are_the_same_and_peaks_are_planned() -> None:
    check_bits(pooled, (None, "min"))


@pytest.mark.very_slow
@pytest.mark.parametrize("loss", [gates, dropped, pooled, chosen, viewed])
def test_bits_are_the_same_under_every_budget(loss: Any) -> None:
    check_bits(loss, BUDGETS)


@pytest.mark.very_slow
def test_bits_are_the_same_with_overlapping_windows() -> None:
    check_bits(overlapping, (None, 0.5, "min"))


@pytest.mark.very_slow
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_bits_are_the_same_in_other_types(dtype: Any) -> None:
    for loss in (gates, dropped, added):
        args = arguments(dtype)
        step, bits = run(loss, args, packed=True, budget="min")
        assert packs(step) > 0
        assert bits == run(loss, args)[1]


def test_gradients_of_nan_are_the_same() -> None:
    params, x = arguments()
    x[3, 5] = np.nan
    step, bits = run(added, (params, x), packed=True, budget="min")
    assert packs(step) > 0
    assert bits == run(added, (params, x))[1]


SHAPES = [(96, 48), (419, 11), (64, 72), (8, 4104), (2, 40000), (3, 70001), (1024, 8)]
"""Rows of whole bytes and others, short and long ones."""


@pytest.mark.parametrize(
    "shape",
    [SHAPES[0], *(pytest.param(shape, marks=pytest.mark.very_slow) for shape in SHAPES[1:])],
)
def test_bits_are_packed_in_the_groups_around_them(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for loss in (by_rows, added):
        args = ({"bias": x[0] * np.float32(0.1)}, x)
        step, bits = run(loss, args, packed=True, budget="min")
        assert packs(step) > 0
        assert bits == run(loss, args)[1]
        groups = step.executable.text("program").split("\ngroup ")
        fused = {kind: 0 for kind in ("pack_bits", "unpack_bits")}
        for kind in fused:
            fused[kind] = sum(f" = {kind}(" in group and group.count(" = ") > 1 for group in groups)
        assert fused["unpack_bits"] > 0
        assert fused["pack_bits"] > 0 or (loss is by_rows and shape[1] % 8 != 0)


def sizes(loss: Any) -> list[int]:
    steps = [run(loss, arguments(), packed=on, budget="min")[0] for on in (False, True)]
    assert packs(steps[1]) > 0 == packs(steps[0])
    return [step.planned.arena_bytes for step in steps]


@pytest.mark.parametrize(
    "loss",
    [
        pooled,
        *(
            pytest.param(loss, marks=pytest.mark.very_slow)
            for loss in (gates, dropped, chosen, added)
        ),
    ],
)
def test_the_smallest_step_is_smaller(loss: Any) -> None:
    whole, packed = sizes(loss)
    assert packed < whole


def test_a_step_that_fits_packs_nothing() -> None:
    step, _ = run(pooled, arguments(), packed=True)
    assert packs(step) == 0


def test_the_plan_can_be_used_again() -> None:
    args = arguments()
    step, bits = run(pooled, args, packed=True, budget="min")
    again, same = run(pooled, args, packed=True, plan=step.plan)
    assert same == bits
    assert again.plan.numbers == step.plan.numbers
    with pytest.raises(ValueError, match="plan"):
        run(pooled, args, plan=step.plan)


@pytest.mark.very_slow
def test_shares_refer_to_the_step_without_packing() -> None:
    args = arguments()
    whole = run(gates, args)[0].planned
    step, _ = run(gates, args, packed=True, budget="0.6x")
    assert packs(step) > 0
    assert step.planned.arena_bytes <= 0.6 * whole.save_all_arena_bytes


def test_a_refusal_names_the_smaller_plan() -> None:
    args = arguments()
    least = run(pooled, args, packed=True, budget="smallest")[0].planned.arena_bytes
    with pytest.raises(cb.BudgetError) as caught:
        run(pooled, args, packed=True, budget=1000)
    assert caught.value.smallest_bytes == least


def test_packed_is_a_bool() -> None:
    with pytest.raises(TypeError, match="packed"):
        cb.value_and_grad(gates, packed="yes")
