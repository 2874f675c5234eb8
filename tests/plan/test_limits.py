"""Plans of the traced graphs meet their requirements: PyTorch's own points, extra time at shares of
the save-all peak, the smallest peak, and order over budgets. Two small graphs run by default; the
others and the means over all graphs are very_slow. Limits of a single cut are in
tests/python/planner/test_traced.py."""

from __future__ import annotations

from itertools import pairwise

import pytest

import scores

pytestmark = pytest.mark.slow

GRAPHS = [
    name if name in scores.FAST else pytest.param(name, marks=pytest.mark.very_slow)
    for name in scores.NAMES
]


@pytest.mark.parametrize("name", GRAPHS)
def test_points_of_torch(name):
    """At the peak of each PyTorch plan with right gradients, ours is faster."""
    points = [point for point in scores.graph(name).points() if not point.redrawn]
    assert points
    for point in points:
        own = scores.plan(name, point.peak)
        assert own is not None and own.peak <= point.peak, point
        if point.extra < scores.POINT_SMALL:
            assert own.extra <= point.extra + scores.POINT_NEAR, (point, own)
        else:
            assert own.extra <= scores.POINT_WORST * point.extra, (point, own)


@pytest.mark.very_slow
def test_points_of_torch_in_the_mean():
    ratios = [ratio for _, _, ratio in scores.point_ratios(scores.NAMES)]
    assert len(ratios) >= 30
    assert scores.geometric_mean(ratios) <= scores.POINT_MEAN


@pytest.mark.parametrize("name", GRAPHS)
def test_extra_time_at_shares_of_the_peak(name):
    for share, reached in zip(scores.SHARES, scores.REACHED[name], strict=True):
        own = scores.plan_at(name, share)
        if own is not None:
            assert own.peak <= share * scores.graph(name).whole
        if reached is not None:
            assert own is not None and own.extra <= reached / 100 + scores.SLACK, (share, own)


@pytest.mark.very_slow
@pytest.mark.parametrize("share", scores.OVER_BOUND)
def test_extra_time_over_the_bound_in_the_mean(share):
    ratios = scores.over_bound(scores.NAMES, share)
    assert len(ratios) >= 10
    assert scores.geometric_mean(ratios) <= scores.OVER_BOUND[share]


@pytest.mark.parametrize("name", GRAPHS)
def test_smallest_peak(name):
    own = scores.plan(name, "min")
    assert own is not None and own.extra <= scores.MIN_EXTRA
    valid = [row["peak_bytes"] for row in scores.graph(name).sweep if not row["redrawn"]]
    assert own.peak <= min(valid)


@pytest.mark.very_slow
@pytest.mark.parametrize("name", scores.LATE_MIN)
def test_smallest_peak_with_late_ops(name):
    """Budgets that are 0.2 % and 2 % of the memory larger give no slower plans."""
    whole = scores.graph(name).whole
    plans = scores.plans_late(name, [whole // 500, whole // 50])
    assert plans[0].peak <= scores.LATE_MIN[name] * whole
    assert plans[0].extra <= scores.MIN_EXTRA
    assert all(own.time_ps >= other.time_ps for own, other in pairwise(plans))


@pytest.mark.very_slow
def test_smallest_peak_in_the_mean():
    ratios = [scores.min_over_lowest(name) for name in scores.NAMES]
    assert scores.geometric_mean(ratios) <= scores.MIN_MEAN


MONOTONE = [
    (scores.FAST[0], 12),
    *(pytest.param(name, 50, marks=pytest.mark.very_slow) for name in scores.NAMES),
]


@pytest.mark.parametrize(("name", "n_budgets"), MONOTONE)
def test_budgets_are_monotone_over_processes(name, n_budgets, tmp_path):
    """A smaller budget never gives a larger peak, and a larger one never a slower plan, for budgets
    from the save-all peak to slightly below `min`, each in a separate process."""
    plans = scores.plans_alone(name, tmp_path, n_budgets)
    assert sum(own is not None for _, own in plans) >= 0.8 * n_budgets
    for (budget, own), (_, smaller) in pairwise(plans):
        if own is None:
            assert smaller is None, budget
        else:
            assert own.peak <= budget
            if smaller is not None:
                assert smaller.peak <= own.peak and smaller.time_ps >= own.time_ps, budget
