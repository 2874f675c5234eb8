"""A small Lightning module, its data, and its training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn


class TanhRows(lightning.LightningModule):
    """Linear layers, each with two activations, which a plan may recompute.

    Args:
        logs: True if ``training_step`` calls ``self.log``.
    """

    def __init__(self, logs: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        row = (nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Tanh()) for _ in range(4))
        self.net: Any = nn.Sequential(*row)
        self.logs = logs

    def training_step(self, batch: Any, index: int) -> Any:
        loss = self.net(batch[0]).square().mean()
        if self.logs:
            self.log("loss", loss)
        return loss

    def train_dataloader(self) -> Any:
        generator = torch.Generator().manual_seed(1)
        data = torch.utils.data.TensorDataset(torch.randn(2048, 16, generator=generator))
        return torch.utils.data.DataLoader(data, batch_size=512)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def quiet(folder: Path) -> dict[str, Any]:
    """Returns options of a trainer that runs one epoch on the CPU and writes no files."""
    return {
        "max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder,
    }  # fmt: skip


def fit(module: Any, folder: Path, callbacks: list[Any] | None = None, **options: Any) -> None:
    """Trains for one epoch."""
    lightning.Trainer(**quiet(folder), callbacks=callbacks, **options).fit(module)
