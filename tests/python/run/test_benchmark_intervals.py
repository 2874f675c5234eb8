"""Checks the confidence intervals of medians in the benchmarks against all orders of a few values,
SciPy's binomial distribution, and draws with a known median."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path

import numpy as np
import pytest

SPEC = spec_from_file_location("common", Path(__file__).parents[3] / "benchmarks" / "common.py")
assert SPEC and SPEC.loader
common = module_from_spec(SPEC)
SPEC.loader.exec_module(common)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("n", range(1, 14))
def test_of_all_ways_to_fall_around_the_median_it_holds_the_share(n: int, share: float) -> None:
    """Each value is above or below the median 0, so n values have 2^n equally likely cases."""
    held = held_by_less = 0
    for signs in product((-1, 1), repeat=n):
        values = [sign * k for k, sign in enumerate(signs, 1)]
        interval = common.median_interval(values, share)
        held += interval is None or interval[0] < 0 < interval[1]
        if interval is not None:  # the next shorter interval, between the values inside
            inside = [x for x in values if interval[0] < x < interval[1]]
            held_by_less += bool(inside) and min(inside) < 0 < max(inside)
    assert held >= share * 2**n
    assert held_by_less < share * 2**n, "a shorter one holds it as well"


@pytest.mark.parametrize("n", [6, 7, 15, 51, 101, 400])
def test_its_ends_are_the_quantiles_of_the_binomial_distribution(n: int) -> None:
    binom = pytest.importorskip("scipy.stats").binom  # its import is slow
    k = int(binom.ppf(0.025, n, 0.5))  # at most 2.5 % have fewer than k values below the median
    assert common.median_interval([*range(n, 0, -1)]) == (k, n + 1 - k)


def test_too_few_values_have_none() -> None:
    assert [common.median_interval([1.0] * n) is None for n in (0, 1, 5, 6)] == [True] * 3 + [False]


def test_draws_of_a_skewed_distribution_have_their_median_inside() -> None:
    draws = np.random.default_rng(0).lognormal(size=(4000, 51))
    ends = np.array([common.median_interval(row.tolist()) for row in draws])
    share = ((ends[:, 0] < 1) & (ends[:, 1] > 1)).mean()
    # SciPy's probability for ranks 19 and 33
    assert abs(share - 0.9511) < 3 * (0.95 * 0.05 / 4000) ** 0.5
