"""PREFER_* under a budget: violating it costs four times as much, throughout the search."""

from __future__ import annotations

import pytest

import cutback

MICRO = 10**6  # picoseconds


def problem_of(times, wishes):
    """Returns a problem with values of 100 bytes. Each is made from the input by one op and read in
    the backward by one op; recomputing one of them meets the budget."""
    ops = [{"name": "x", "flags": ["placeholder"], "in": [], "out": [{"storage": 0}]}]
    storages = [{"bytes": 8, "flags": ["static"]}]

    def add(name, reads, size, flags, time, constraint=None):
        storages.append({"bytes": size})
        out = {"storage": len(storages) - 1}
        if constraint:
            out["constraint"] = constraint
        row = {"name": name, "in": reads, "out": [out], "flags": flags, "time_ps": time}
        ops.append(row)
        return len(ops) - 1

    values = [
        add(f"v{i}", [0], 100, ["compute"], t * MICRO, w)
        for i, (t, w) in enumerate(zip(times, wishes, strict=True))
    ]
    total = add("sum", values, 1, [], MICRO)
    # the peak, which reads none of them
    high = add("high", [total], 100, ["random_stateful"], MICRO)
    low = add("low", [high], 1, ["random_stateful"], MICRO)
    gradient, starts = low, len(ops)
    for value in reversed(values):
        gradient = add(f"g{value}", [gradient, value], 1, ["backward"], MICRO)
    return {
        "format": "cutback.problem",
        "version": 1,
        "backward_starts": starts,
        "forward_outputs": [],
        "backward_outputs": [gradient],
        "storages": storages,
        "ops": ops,
    }


def recomputed(times, wishes, **question):
    """Returns the recomputed names, and the extra time in microseconds."""
    problem = problem_of(times, wishes)
    room = 100 * len(times) + 2  # at "low" all values but one fit, with high and low
    plan = cutback.plan(problem, budget=room, measure="live", **question)
    numbers = plan.numbers
    assert numbers["live_bytes"] <= room < numbers["save_all_live_bytes"]
    if any(wish and wish.startswith("prefer") for wish in wishes):
        assert numbers["lower_bound_ps"] == numbers["once_ps"]
    extra = numbers["time_ps"] - numbers["once_ps"]
    return {entry.name for entry in plan.recomputed}, extra / MICRO


@pytest.mark.parametrize(
    ("times", "wishes", "expected"),
    [
        ((10, 30), (None, None), {"v0"}),
        ((10, 30), ("prefer_save", None), {"v1"}),  # 40 against 30
        ((10, 50), ("prefer_save", None), {"v0"}),  # 40 against 50
        ((10, 30), (None, "prefer_recompute"), {"v1"}),  # 10 against 7.5
        ((10, 50), (None, "prefer_recompute"), {"v0"}),  # 10 against 12.5
        ((10, 30), ("prefer_save", "prefer_save"), {"v0"}),
        ((10, 100), ("prefer_save", "prefer_recompute"), {"v1"}),  # 40 against 25
        ((10, 30), (None, "must_recompute"), {"v1"}),
        ((10, 30, 20), ("prefer_save", None, "prefer_save"), {"v1"}),
        ((10, 60, 20, 45), ("prefer_save", None, "prefer_save", None), {"v0"}),
    ],
)
def test_going_against_costs_four_times(times, wishes, expected):
    names, extra = recomputed(times, wishes)
    assert names == expected
    assert extra == pytest.approx(sum(times[int(name[1:])] for name in expected))  # the real time


def test_the_same_beside_a_link():
    """Searches that may offload count preferences the same way. The link is too slow to be
    useful."""
    row = {"name": "linked", "flops_per_s": {"f32": 1e11}, "bytes_per_s": 2e10, "launch_s": 1e-6}
    row["link_bytes_per_s"] = 1.0
    for times, wishes, expected in (
        ((10, 30), (None, None), {"v0"}),
        ((10, 30), ("prefer_save", None), {"v1"}),
        ((10, 30), (None, "prefer_recompute"), {"v1"}),
    ):
        names, _ = recomputed(times, wishes, device=row)
        assert names == expected


def test_the_share_of_min_is_of_the_real_time():
    times, wishes = (10, 300), (None, "prefer_recompute")
    problem = problem_of(times, wishes)
    once = cutback.plan(problem, preset="autograd").numbers["once_ps"]
    for share in (0.05, 0.2, 0.9, 1.1):
        numbers = cutback.plan(problem, budget="min", max_extra=share).numbers
        assert numbers["time_ps"] <= (1 + share) * once + 1


def test_with_room_nothing_is_recomputed():
    problem = problem_of((10, 30), ("prefer_recompute", "prefer_recompute"))
    plan = cutback.plan(problem, budget="1.0x", measure="live")
    assert not plan.recomputed
