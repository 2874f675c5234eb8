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
    """bench_side_by_side.py, without leaving its neighbours where other tests find them."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "pytorch"))
    yield import_module("bench_side_by_side")
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(BENCHMARKS):
            del sys.modules[name]


def small() -> tuple[nn.Module, tuple[Any, ...]]:
    layers = [nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(12)]
    return nn.Sequential(*layers), (torch.randn(512, 16),)


def test_both_partitioners_are_timed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.step_models.LARGE, "small", small)
    rows = bench.bridge("small", 1)
    assert [row["PyTorch's budget"] for row in rows] == [1.0, 0.5]
    for row in rows:
        assert row["PyTorch s"] > 0
        assert row["cutback s"] > row["of it planning"] > 0
