"""Calls that would end a graph: messages that a library shows once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch._dynamo import config

import cutback.torch as ct

LOGGER = logging.getLogger("cutback.tests")


class Talks(nn.Module):
    """Calls a logger between its layer and its loss, as `transformers` does."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.layer, self.method = nn.Linear(4, 4), method

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x).tanh()
        getattr(LOGGER, self.method)("the loss is the default one")
        return y.square().mean()


@pytest.mark.parametrize(("method", "graphs"), [("warning_once", 1), ("warning", 2)])
def test_messages_shown_once_do_not_end_a_graph(
    method: str, graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def once(self: logging.Logger, *args: Any) -> None:
        self.warning(*args)

    monkeypatch.setattr(logging.Logger, "warning_once", once, raising=False)
    ignored = set(config.ignore_logging_functions)
    step: Any = ct.compile(Talks(method), budget="smallest")
    step(torch.ones(2, 4)).backward()
    assert len(step.plans) == graphs
    assert config.ignore_logging_functions == ignored
