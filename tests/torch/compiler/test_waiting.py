"""Tests how long a process waits for the plans of others; the store is in this process."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import distributed

from cutback.torch.compiler import agreement

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not distributed.is_available(), reason="needs torch.distributed"),
]


def half_answered(monkeypatch: pytest.MonkeyPatch, wait_s: float) -> distributed.Store:
    """Returns a store with an answer from rank 0 but not from rank 1."""
    monkeypatch.setattr(agreement, "WAIT_S", wait_s)
    store = distributed.HashStore()
    store.set("plan/0", "same")
    return store


def test_a_wait_that_is_shorter_than_the_time_to_the_notice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait lasts as long as requested, without a notice."""
    store = half_answered(monkeypatch, 30.0)
    threading.Timer(0.2, store.set, ("plan/1", "same")).start()
    assert agreement._compare(store, "plan", 2, 60.0) == "same"


def test_it_says_which_rank_it_waits_for_and_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    store = half_answered(monkeypatch, 30.0)
    warn = warnings.warn

    def answer(*args: Any, **options: Any) -> None:
        warn(*args, **options)
        store.set("plan/1", "same")

    monkeypatch.setattr(agreement.warnings, "warn", answer)
    expected = r"After 0\.1 s there is no answer from rank 1 of 2; it waits 29\.9 s longer"
    with pytest.warns(UserWarning, match=expected):
        assert agreement._compare(store, "plan", 2, 0.1) == "same"


def test_a_process_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = half_answered(monkeypatch, 0.1)
    assert agreement._compare(store, "plan", 2, 60.0) == "late"
