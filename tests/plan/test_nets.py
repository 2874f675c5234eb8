"""Budgets of typical first networks: each share with a known plan is met within its time, "no plan"
is reported only near the floor, and `min` reaches the required size.

The problems are made by ``cutback.torch.compile`` (``tests/data/nets/README.md``)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import evaluate
import pytest

import cutback

NETS = Path(__file__).parents[1] / "data" / "nets"
SLACK = 0.5  # percentage points of extra time
# Extra time in % at 0.5, 0.4 and 0.3 of the save-everything peak (None: no plan is required), and
# the smallest peak at any price, in % of it.
KNOWN: dict[str, tuple[float | None, float | None, float | None, float]] = {
    "cnn8_bn": (5.6, 15.1, 32.8, 20.5),
    "cnn16_bn": (4.8, 10.0, 20.4, 10.75),
    "cnn32_bn": (4.6, 7.4, 15.5, 5.75),
    "cnn8_bn_drop": (10.2, 22.4, 52.6, 25.4),
    "seqcnn12_bn_relu": (7.0, 15.0, 24.4, 12.3),
    "mlp16_bn": (8.1, 15.5, None, 34.0),
    "unet3_bn": (5.4, 10.2, None, 31.5),
    "demo_convnet": (5.1, 11.7, 35.0, 27.1),
}
FAST = ("seqcnn12_bn_relu", "mlp16_bn", "demo_convnet")
# Least extra time in % at shares of the memory, by constraint programming (bench_optimum.py), over
# schedules that rerun nothing in the forward.
OPTIMUM = {
    "demo_convnet": {
        0.95: 0.210, 0.86: 0.809, 0.82: 1.108, 0.78: 1.604, 0.66: 3.101, 0.58: 3.989, 0.5: 5.094,
        0.46: 5.600, 0.42: 10.344, 0.38: 14.163, 0.34: 21.323, 0.3: 34.957,
    }
}  # fmt: skip
SOME = [n if n in FAST else pytest.param(n, marks=pytest.mark.very_slow) for n in KNOWN]


@cache
def problem(name: str) -> dict[str, Any]:
    return evaluate.load(NETS / f"{name}.json.gz")


@cache
def whole(name: str) -> int:
    """Returns the bytes of saving everything."""
    return int(cutback.plan(problem(name), budget="1x", measure="live").numbers["live_bytes"])


def checked(name: str, **question: Any) -> dict[str, Any]:
    """Returns the numbers of a plan that the referee has walked."""
    plan = cutback.plan(problem(name), measure="live", device="cpu", **question)
    evaluate.check_plan(problem(name), plan.document)
    return dict(plan.numbers)


@pytest.mark.parametrize("name", SOME)
def test_shares_of_the_memory(name: str) -> None:
    for share, known in zip((0.5, 0.4, 0.3), KNOWN[name], strict=False):
        if known is None:
            continue
        numbers = checked(name, budget=int(share * whole(name)))
        extra = 100 * (numbers["time_ps"] / numbers["once_ps"] - 1)
        assert extra <= known + SLACK, (name, share, extra)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.very_slow)])
@pytest.mark.parametrize("name", OPTIMUM)
def test_plans_take_the_least_time_there_is(name: str, every: int) -> None:
    for share, least in list(OPTIMUM[name].items())[::every]:
        numbers = checked(name, budget=int(share * whole(name)))
        extra = 100 * (numbers["time_ps"] / numbers["once_ps"] - 1)
        assert extra <= least + 0.001, (share, extra)
        assert 100 * (numbers["lower_bound_ps"] / numbers["once_ps"] - 1) <= least + 0.001


@pytest.mark.very_slow
@pytest.mark.parametrize("name", SOME)
def test_offsets_take_no_more_than_what_lives_at_once(name: str) -> None:
    for share in (1, 0.7, 0.5, 0.4):
        plan = cutback.plan(problem(name), budget=int(share * whole(name)), measure="live")
        evaluate.check_plan(problem(name), plan.document)  # checks that lives do not overlap
        assert plan.numbers["arena_bytes"] <= 1.01 * plan.numbers["live_bytes"], share


@pytest.mark.very_slow
@pytest.mark.parametrize("name", SOME)
def test_smallest_peak_at_any_price(name: str) -> None:
    numbers = checked(name, budget="min", max_extra=100)
    assert 100 * numbers["live_bytes"] / whole(name) <= KNOWN[name][3] + 0.05


@pytest.mark.very_slow
@pytest.mark.parametrize("name", ["mlp16_bn", "unet3_bn"])
def test_a_refusal_names_the_smallest_and_is_near_the_floor(name: str) -> None:
    """The smallest plan in the error equals that of `min` at any price, and a budget of its bytes
    is met."""
    with pytest.raises(cutback.BudgetError) as error:
        cutback.plan(problem(name), budget=int(0.2 * whole(name)), measure="live")
    found, floor, held = error.value.smallest_bytes, error.value.floor_bytes, error.value.held_bytes
    assert found and floor and held and error.value.save_all_bytes == whole(name)
    assert held <= floor <= found <= 1.25 * floor
    assert checked(name, budget=found)["live_bytes"] <= found
    assert checked(name, budget="min", max_extra=100)["live_bytes"] <= found


def test_a_budget_between_rungs_of_uneven_times() -> None:
    """Plans somewhat above the floor cost more than 40 %, plans near it less. A budget in between
    gets one of the latter, because no plan fits in between."""
    net = evaluate.load(NETS / "gpt1_uneven.json.gz")
    plan = cutback.plan(net, budget=322_257, measure="live")
    evaluate.check_plan(net, plan.document)
    assert plan.numbers["live_bytes"] <= 322_257
    assert plan.numbers["time_ps"] < 1.3 * plan.numbers["once_ps"]
