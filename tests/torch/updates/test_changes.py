"""Updates inside the backward when something changes after ``compile``."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.optim import SGD

from cutback.torch.updates import formulas


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).square().mean()


def test_schedules_do_not_compare_formulas_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[Any, bool] = {}
    monkeypatch.setattr(formulas, "_noted", lambda: known)
    trains = SGD(Net().parameters(), 0.5, momentum=0.9)
    group = trains.param_groups[0]
    for lr in (0.4, 0.3, 0.2):
        group["lr"] = lr
        assert formulas.agrees(trains, group)
    assert len(known) == 1
    group["momentum"] = 0.0
    assert formulas.agrees(trains, group)
    assert len(known) == 2
