"""Each thing that orders threads, deleted by itself from a kernel that is right, is missed."""

from __future__ import annotations

import pytest

import cases
import mutations
from cases import CASES
from client import CudaError, Driver

MUTANTS = {
    what: (name, text)
    for name, case in CASES.items()
    for what, text in mutations.deletions(cases.ptx(case.file), case.kernels)
}
SHUFFLES = [what for what in MUTANTS if "shfl" in what]

# What may go, and why.
HARMLESS = {
    "layer_norm bar.sync 6": "nothing is shared after it",
    "cross_entropy bar.sync 5": "nothing is shared after it",
    "total bar.sync 3": "the next barrier, behind the count, does as well",
    "total bar.sync 7": "nothing is shared after it",
    "warp_operations bar.warp.sync 1": "nothing is shared",
}


def found(driver: Driver, name: str, text: str, seed: int) -> str:
    """What is reported of a case with another text; nothing, if it runs as if it were right."""
    with driver.watching(seed):
        try:
            CASES[name].run(driver, text)
            driver.wait()
        except CudaError as error:
            return error.reports
    return ""


def test_there_are_mutants() -> None:
    assert len(MUTANTS) - len(HARMLESS) >= 30
    kinds = {what.split()[1].split(".")[0] for what in MUTANTS}
    assert {"bar", "membar", "cp"} <= kinds


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m not in (*HARMLESS, *SHUFFLES)])
def test_deleted(driver: Driver, mutant: str) -> None:
    """Found in the order of the program, backward, and in a random one."""
    name, text = MUTANTS[mutant]
    for seed in (0, 1, 5):
        report = found(driver, name, text, seed)
        assert "race" in report or "unwritten" in report, (mutant, seed)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(m, marks=[] if mutations.is_among_few(m) else [pytest.mark.very_slow])
        for m in SHUFFLES
    ],
)
def test_shuffles_left_out(driver: Driver, mutant: str) -> None:
    """Each lane keeps its own: the results are others, or the lanes go apart."""
    name, text = MUTANTS[mutant]
    try:
        with driver.watching(0):
            got = CASES[name].run(driver, text)
    except CudaError:
        return
    expected = CASES[name].run(driver, cases.ptx(CASES[name].file))
    assert any(got[key].tobytes() != expected[key].tobytes() for key in expected), mutant


@pytest.mark.parametrize("mutant", HARMLESS)
def test_deleted_without_harm(driver: Driver, mutant: str) -> None:
    """The list above holds nothing that is found after all."""
    name, text = MUTANTS[mutant]
    for seed in (0, 1, 5):
        assert found(driver, name, text, seed) == ""
