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


@pytest.fixture
def warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds the method that `transformers` adds to loggers."""

    def once(self: logging.Logger, *args: Any) -> None:
        self.warning(*args)

    monkeypatch.setattr(logging.Logger, "warning_once", once, raising=False)


@pytest.mark.parametrize(("method", "graphs"), [("warning_once", 1), ("warning", 2)])
@pytest.mark.usefixtures("warns_once")
def test_messages_shown_once_do_not_end_a_graph(method: str, graphs: int) -> None:
    ignored = set(config.ignore_logging_functions)
    step: Any = ct.compile(Talks(method), budget="smallest")
    step(torch.ones(2, 4)).backward()
    assert len(step.plans) == graphs
    assert config.ignore_logging_functions == ignored


@pytest.mark.usefixtures("warns_once")
def test_messages_shown_once_do_not_end_a_trace() -> None:
    talks, x = Talks("warning_once"), torch.ones(2, 4)
    kinds = [op.kind for op in ct.trace(talks, x).problem.ops]
    assert {"aten.mean.default", "aten.tanh_backward.default"} <= set(kinds)
    assert ct.estimate(lambda n: (talks, (torch.ones(n, 4),)), batches=[4]).point(4)
    assert [op.kind for op in ct.profile(talks, x).step.problem.ops] == kinds
