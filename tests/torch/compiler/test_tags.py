"""If PyTorch lacks what our graphs are written with, plans go to its own partitioner as tags."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from shutil import which
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from small_models import make
from torch import nn

import cutback.torch as ct
from cutback import BudgetError
from cutback.torch import hooks


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Provides without(), which makes PyTorch look as if it lacked something that our graphs
    need."""

    def go() -> None:
        def never(*args: Any) -> Any:
            raise AssertionError("graphs of our own are written")

        gone = (("torch.fx", "no_such_part", "graphs"),)
        monkeypatch.setattr(hooks, "EMITTING", gone)
        monkeypatch.setattr("cutback.torch.compiler.partition.emit", never)

    return go


def held(compiled: Any, inputs: tuple[Any, ...]) -> tuple[Any, list[Any], int]:
    """Returns loss, gradients, and the bytes live between forward and backward."""
    torch.manual_seed(7)
    with ct.MemoryTracker() as memory:
        loss = compiled(*inputs)
        between = memory.live_bytes
        loss.backward()
    return loss.detach(), [p.grad for p in compiled.parameters()], between


@pytest.mark.very_slow
@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_what_is_saved_is_the_plans(
    name: str, ran: Counter[str], same_bits: Callable[..., bool], without: Any
) -> None:
    model, inputs = make(name)
    if name == "gpt":
        del model.blocks[1:]
    *expected, everything = held(ct.compile(copy.deepcopy(model)), inputs)
    torch._dynamo.reset()
    without()
    with pytest.warns(UserWarning, match=r"torch.fx.no_such_part \(graphs\): .* as tags"):
        tagged = ct.compile(copy.deepcopy(model), budget="0.8x")
    *found, between = held(tagged, inputs)
    assert same_bits(found, expected)
    assert tagged.plans[0].numbers["recomputed"] > 0
    # the new batch counts are stored when the forward returns; in a plan, a moment later
    counts = sum(b.nbytes for b in model.buffers() if b.dtype == torch.int64)
    assert between == tagged.plans[0].numbers["saved_bytes"] - counts < everything
    assert ran == {"forward": 2, "backward": 2}


@pytest.mark.very_slow
def test_errors_come_out(without: Any) -> None:
    without()
    model, inputs = make("gpt")
    with pytest.warns(UserWarning, match="as tags"):
        compiled = ct.compile(model, budget=1000)
    with pytest.raises(BudgetError, match="the smallest found takes"):
        compiled(*inputs)


def test_which_part_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hooks.why_tags("eager") is None is hooks.why_tags("inductor")
    monkeypatch.delattr("torch._inductor.custom_graph_pass.CustomPartitionerFn")
    assert hooks.why_tags("eager") is None
    why = hooks.why_tags("inductor")
    assert why is not None and "custom_graph_pass.CustomPartitionerFn (a partitioner" in why
    hooks.check()


@pytest.mark.slow
@pytest.mark.skipif(which("g++") is None, reason="Inductor compiles with g++ on the CPU")
def test_with_inductor(without: Any) -> None:
    without()

    class Drops(nn.Module):
        def forward(self, x: Any) -> Any:
            return F.dropout(torch.sin(torch.sin(x)) ** 2, 0.5)

    with pytest.warns(UserWarning, match="as tags"):
        compiled = ct.compile(Drops(), budget="0.9x", codegen="inductor")
    x = torch.randn(1 << 12, requires_grad=True)
    y = compiled(x)
    y.sum().backward()
    assert torch.equal(y == 0, x.grad == 0) and 0.4 < (y == 0).float().mean() < 0.6
    assert len(compiled.plans) == 1
