"""Correct kernels give correct results in every order, without reports."""

from __future__ import annotations

import numpy as np
import pytest

import cases
from cases import CASES
from client import Driver


@pytest.mark.parametrize("name", CASES)
def test_results(driver: Driver, name: str) -> None:
    """Results agree with NumPy in double precision, and have the same bits in four other orders of
    threads and blocks, with race detection."""
    case = CASES[name]
    text = cases.ptx(case.file)
    first = case.run(driver, text)
    for key, expected in case.expected().items():
        error = np.abs(first[key].astype(np.float64) - expected) / np.maximum(1, np.abs(expected))
        assert error.max() <= case.tolerance, (key, error.max())
    for seed in (0, 1, 2, 3, 4):
        with driver.watching(seed):
            again = case.run(driver, text)
            for key, array in first.items():
                assert array.tobytes() == again[key].tobytes(), (key, seed)
            assert driver.reports() == ""
