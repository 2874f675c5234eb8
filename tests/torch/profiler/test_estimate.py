"""``cutback.torch.estimate`` agrees with ``max_batch`` and with plans of traced steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import cutback as cb
import cutback.torch as ct
from cutback import cli


def model() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)))


def make_step(batch: int) -> Any:
    return model(), (torch.randn(batch, 16, 32),)


def with_optimizer(batch: int) -> Any:
    made = model()
    return made, (torch.randn(batch, 16, 32),), torch.optim.AdamW(made.parameters())


@pytest.mark.very_slow
def test_largest_batch() -> None:
    budget = 300_000
    found = ct.estimate(make_step, budget, measure="live", batches=[8], device="a100")
    assert found.is_linear and found.batch is not None
    for batch, fits in ((found.batch, True), (found.batch + 1, False)):
        smallest = ct.trace(*made(batch)).plan("smallest", device="a100")
        assert (smallest.numbers["live_bytes"] <= budget) == fits
    traced = ct.trace(*made(8)).plan(measure="live", device="a100")
    assert found.point(8).without_plan.bytes == traced.numbers["live_bytes"]


def made(batch: int) -> Any:
    step, inputs = make_step(batch)
    return (step, *inputs)


@pytest.mark.very_slow
def test_totals() -> None:
    live = ct.estimate(make_step, measure="live", batches=[16]).points[0].without_plan.bytes
    alone = ct.estimate(make_step, batches=[16]).points[0].without_plan.bytes
    whole = ct.estimate(with_optimizer, batches=[16]).points[0].without_plan.bytes
    params = sum(p.nbytes for p in model().parameters())
    assert alone == live + params and whole >= alone + 2 * params


def test_command(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "steps_of_torch.py").write_text(
        "import torch\ndef make(n):\n    return torch.nn.Linear(8, 8), (torch.randn(n, 8),)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["estimate", "steps_of_torch:make", "--batches", "8"]) == 0
    assert "(total)" in capsys.readouterr().out
    assert isinstance(ct.estimate(make_step, batches=[8]), cb.Estimate)


@pytest.mark.very_slow
def test_steps_that_change_with_the_batch_are_traced() -> None:
    told: list[int] = []

    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.tanh() if x.shape[0] > 32 else x)

    def make(batch: int) -> Any:
        told.append(batch)
        return Changes(), (torch.randn(batch, 4),)

    alone = ct.estimate(make, batches=[16])
    assert alone.is_linear is None and told == [16]
    found = ct.estimate(make, batches=[24, 48])
    assert found.is_linear is False and {20, 48} <= set(told)


def test_inputs_by_name() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
            return (self.layer(x) * scale).tanh().sum()

    def by_name(batch: int) -> Any:
        return Scaled(), {"scale": torch.ones(4), "x": torch.randn(batch, 4)}

    found = ct.estimate(by_name, batches=[8], measure="live", device="a100")
    traced = ct.trace(Scaled(), torch.randn(8, 4), scale=torch.ones(4))
    plan = traced.plan(measure="live", device="a100")
    assert found.point(8).without_plan.bytes == plan.numbers["live_bytes"]
    assert ct.max_batch(by_name, 4096, most=1).batch == 1


def test_an_axis_as_long_as_a_batch() -> None:
    """At this batch, positions and rows are the same constant."""

    class Places(nn.Module):
        def __init__(self, length: int) -> None:
            super().__init__()
            self.layer, self.length = nn.Linear(4, 4), length

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows, places = torch.arange(x.shape[0]), torch.arange(self.length)
            return (self.layer(x) * rows.view(-1, 1, 1) + places.view(1, -1, 1)).sum()

    def make(batch: int) -> Any:
        return Places(24), (torch.randn(batch, 24, 4),)

    assert ct.estimate(make, batches=[2, 24], measure="live", device="a100").is_linear
