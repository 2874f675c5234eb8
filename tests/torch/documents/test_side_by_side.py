"""The comparison of partitioners in `benchmarks/pytorch` runs on a small model."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports bench_side_by_side.py, with its neighbours hidden from other tests."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "pytorch"))
    yield import_module("bench_side_by_side")
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(BENCHMARKS):
            del sys.modules[name]


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean()


def small() -> tuple[nn.Module, tuple[Any, ...]]:
    layers = [nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(12)]
    return nn.Sequential(*layers, Mean()), (torch.randn(512, 16),)


def test_both_partitioners_are_timed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.step_models.LARGE, "small", small)
    rows = bench.bridge("small", 1)
    assert [row["PyTorch's budget"] for row in rows] == [1.0, 0.5]
    for row in rows:
        assert row["PyTorch s"] > 0
        assert row["cutback s"] > row["of it planning"] > 0


def test_our_plans_keep_to_their_budgets(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = small()
    joint = bench.capture(model, inputs)
    case = bench.step_models.Case(model, inputs, [])
    monkeypatch.setitem(bench.step_models.MODELS, "small", lambda: case)
    plans = bench.Plans("small")
    peaks = {}
    for budget in (None, 300_000, "min, 40% time"):
        subject, row = plans.add_ours(budget, joint)
        peaks[budget] = row["predicted peak"]
        assert bench.peak(subject) <= row["predicted peak"]
    assert peaks["min, 40% time"] <= peaks[300_000] <= 300_000 < peaks[None]
