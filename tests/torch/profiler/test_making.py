"""Models that read values of tensors while they are made, in ``make_step``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cutback.torch.profiler.making import made_step


def test_weights_that_are_drawn_again() -> None:
    layer = made_step(lambda n: (nn.Linear(8, 8), (torch.randn(n, 8),)), 4).step

    def drawn(batch: int) -> Any:
        nn.init.trunc_normal_(layer.weight, std=0.02)
        nn.init.orthogonal_(layer.weight)
        return layer, (torch.randn(batch, 8),)

    assert made_step(drawn, 4).step is layer


def test_values_of_series() -> None:
    seen: dict[str, Any] = {}

    def reads(batch: int) -> Any:
        rates = torch.linspace(0, 0.5, 3, device="cpu")
        seen["rates"] = [rate.item() for rate in rates]
        seen["parts"] = [part.tolist() for part in rates.split([1, 2])]
        seen["sum"] = int((torch.arange(1, 4) * 2).sum())
        rates.add_(torch.arange(3))
        seen["added"] = rates.tolist()
        return nn.Linear(3, 3), (rates.expand(batch, 3),)

    state = torch.get_rng_state()
    made_step(reads, 2)
    assert torch.equal(torch.get_rng_state(), state)
    assert seen["rates"] == [0.0, 0.25, 0.5] and seen["parts"] == [[0.0], [0.25, 0.5]]
    assert seen["sum"] == 12 and seen["added"] == [0.0, 1.25, 2.5]


@pytest.mark.parametrize("how", ["drawn", "written", "long"])
def test_values_that_are_not_known(how: str) -> None:
    def reads(batch: int) -> Any:
        x = torch.arange(5000.0 if how == "long" else 3.0)
        if how == "drawn":
            x.uniform_()
        elif how == "written":
            x.copy_(torch.randn(3))
        return nn.Linear(3, 3), (x.max().item() * torch.randn(batch, 3),)

    with pytest.raises(ValueError, match=r"make_step\(7\) reads the value of a tensor .*outside"):
        made_step(reads, 7)
