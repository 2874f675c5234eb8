"""The smallest model with a loss, for tests of what happens around a step."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """One linear layer, and the mean square of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).square().mean()
