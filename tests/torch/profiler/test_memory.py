"""The tracker counts every byte returned by an operation until it is freed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import make
from torch import nn

import cutback.torch as ct


def test_what_appears_and_what_goes() -> None:
    x = torch.ones(256)  # 1 KiB, made before tracking
    with ct.MemoryTracker() as memory:
        a = x * 2
        b = a.view(16, 16)[:4]  # views need no memory
        c = (x + 1).exp()  # the sum is freed at once
        del a, b
        x.mul_(2)
        d = c.to(torch.float64)
    assert [e.bytes for e in memory.events] == [1024, 1024, 1024, -1024, -1024, 2048]
    assert memory.peak_bytes == 3072 and memory.live_bytes == 3072
    assert memory.timeline == [1024, 2048, 3072, 2048, 1024, 3072]
    assert memory.by_op() == {"aten.mul.Tensor": 1024, "aten.add.Tensor": 1024,
                              "aten.exp.default": 1024}  # fmt: skip
    del c, d  # nothing is counted after the end
    assert memory.live_bytes == 3072
    with pytest.raises(RuntimeError, match="used once"), memory:
        pass


def test_eager_and_compiled_code_stay_what_they_are(ran: Counter[str]) -> None:
    model, inputs = make("unet")
    compiled = ct.compile(model)
    with ct.MemoryTracker():
        compiled(*inputs).backward()
    with ct.MemoryTracker():
        model(*inputs).backward()
    assert ran == {"forward": 1, "backward": 1}


def test_categories() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    size = sum(p.nbytes for p in model.parameters())
    x = torch.randn(8, 16)
    with ct.MemoryTracker(model, optimizer) as memory:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    by_category: Counter[str] = Counter()
    for event in memory.events:
        by_category[memory.category(event)] += event.bytes
    assert by_category["gradient"] == size
    assert by_category["optimizer"] >= 2 * size  # two moments, and step counts
    assert by_category["optimizer"] < 2 * size + 64
    forward = 8 * (32 + 32 + 16 + 16)
    assert forward * 4 <= memory.peak_activation_bytes < memory.peak_bytes
    assert memory.by_category()["gradient"] > 0


@pytest.mark.parametrize("compiled", [False, True])
def test_modules(compiled: bool, ran: Counter[str]) -> None:
    model, inputs = make("gpt")
    step: Callable[..., Any] = ct.compile(model) if compiled else model
    with ct.MemoryTracker(model) as memory:
        loss = step(*inputs)
    found = memory.by_module()
    assert {"blocks.0.norm1", "blocks.1.up", "blocks.2.up"} <= set(found)
    assert sum(found.values()) == memory.peak_bytes
    assert ran["forward"] == compiled and loss.requires_grad


def test_sparse_resized_and_frozen() -> None:
    """A sparse gradient consists of indices and values; a storage may be resized."""
    model = nn.Sequential(nn.Embedding(64, 16, sparse=True), nn.Linear(16, 4))
    model[1].requires_grad_(False)
    i = torch.arange(9)
    with ct.MemoryTracker(model) as memory:
        model(i).tanh().sum().backward()
    assert model[0].weight.grad.is_sparse
    gradient = 9 * 16 * 4 + 9 * 8  # values and indices
    assert sum(e.bytes for e in memory.events if memory.category(e) == "gradient") == gradient
    assert memory.live_bytes == gradient
    with ct.MemoryTracker(model) as memory:
        assert memory.peak_total_bytes == (64 * 16 + 16 * 4 + 4) * 4 + gradient
        a = torch.zeros(4)
        a.resize_(256)
    assert memory.timeline == [16, 1024]


def test_its_text_says_what_it_measured() -> None:
    with ct.MemoryTracker() as memory:
        kept = torch.ones(1024)
        del kept
        rest = torch.ones(256)
    assert repr(memory) == (
        f"<cutback.torch.MemoryTracker: peak 4.00 KiB, now 1.00 KiB; {len(memory.events)} events>"
    )
    del rest
