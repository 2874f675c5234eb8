"""If anything that orders threads is deleted from a correct kernel, the stand-in notices."""

from __future__ import annotations

from typing import Any

import pytest

import cases
import mutations
from cases import CASES
from client import CudaError, Driver

MUTANTS = {
    deletion.what: (name, deletion)
    for name, case in CASES.items()
    for deletion in mutations.deletions(cases.ptx(case.file), case.kernels)
}
SHUFFLES = [what for what in MUTANTS if "shfl" in what]

# Harmless deletions, with the reason.
HARMLESS = {
    "layer_norm bar.sync 6": "nothing is shared after it",
    "cross_entropy bar.sync 5": "nothing is shared after it",
    "total bar.sync 3": "the next barrier, behind the count, does as well",
    "total bar.sync 7": "nothing is shared after it",
    "warp_operations bar.warp.sync 1": "nothing is shared",
}


def run(driver: Driver, mutant: str, seed: int) -> tuple[Any, str]:
    """Returns the result of a case without one instruction, and the reports, which are empty if the
    case still runs correctly."""
    name, deletion = MUTANTS[mutant]
    got, reports = None, ""
    with driver.watching(seed):
        driver.leave_out(deletion.kernel, deletion.line)
        try:
            got = CASES[name].run(driver, cases.ptx(CASES[name].file))
            driver.wait()
        except CudaError as error:
            reports = error.reports
        finally:
            driver.recover()
            assert driver.leave_out() > 0, "nobody came there"
    return got, reports


def test_there_are_mutants() -> None:
    assert len(MUTANTS) - len(HARMLESS) >= 30
    kinds = {what.split()[1].split(".")[0] for what in MUTANTS}
    assert {"bar", "membar", "cp"} <= kinds


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m not in (*HARMLESS, *SHUFFLES)])
def test_deleted(driver: Driver, mutant: str) -> None:
    """Each deletion is found in program order, backward, or in a random order."""
    for seed in (0, 1, 5):
        _, report = run(driver, mutant, seed)
        assert "race" in report or "unwritten" in report, (mutant, seed)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(m, marks=[] if mutations.is_among_few(m) else [pytest.mark.very_slow])
        for m in SHUFFLES
    ],
)
def test_shuffles_left_out(driver: Driver, mutant: str) -> None:
    """Each lane keeps its own value: the results differ, or the lanes diverge."""
    got, report = run(driver, mutant, 0)
    if report:
        return
    case = CASES[MUTANTS[mutant][0]]
    expected = case.run(driver, cases.ptx(case.file))
    assert any(got[key].tobytes() != expected[key].tobytes() for key in expected), mutant


@pytest.mark.parametrize("mutant", HARMLESS)
def test_deleted_without_harm(driver: Driver, mutant: str) -> None:
    """The list above contains no deletion that is detected."""
    for seed in (0, 1, 5):
        assert run(driver, mutant, seed)[1] == ""
