"""The largest batch for a budget: it fits, one more does not, and finding it needs no memory."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import cutback.torch as ct
from cutback import BudgetError
from cutback.torch.profiler import batches


class Small(nn.Module):
    def __init__(self, width: int = 32, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


def made_inside(batch: int) -> Any:
    return Small(), (torch.randn(batch, 16, 32),)


@pytest.mark.very_slow
def test_it_fits_and_one_more_does_not() -> None:
    model = Small()
    budget = 60_000
    told: list[tuple[int, int, bool]] = []
    found = ct.max_batch(
        lambda n: (model, (torch.randn(n, 16, 32),)), budget, progress=lambda *row: told.append(row)
    )
    assert found.plan.numbers["live_bytes"] <= budget < found.next_bytes
    # the result holds when it runs
    compiled = ct.compile(model, budget=budget)
    torch.manual_seed(0)
    x = torch.randn(found.batch, 16, 32)
    with ct.MemoryTracker() as memory:
        compiled(x).backward()
    assert memory.peak_bytes == found.plan.numbers["live_bytes"]
    torch._dynamo.reset()
    with pytest.raises(BudgetError):
        ct.compile(model, budget=budget)(torch.randn(found.batch + 1, 16, 32))
    # all attempts were reported, and each answer is right
    assert {n: size for n, size, _ in told} == found.tried
    assert all(fits == (size <= budget) for _, size, fits in told)
    assert len(told) < 2 * found.batch.bit_length() + batches.BEYOND + 2
    assert max(n for n, _, fits in told if fits) == found.batch
    text = str(found)
    assert f"batch {found.batch}:" in text and "58.59 KiB (live)" in text
    assert f"batch {found.batch + 1} would need" in text
    # a model made under fake tensors gives the same answer
    assert ct.max_batch(made_inside, "60kB", start=found.batch).batch == found.batch


@pytest.mark.very_slow
def test_a_model_larger_than_this_machine() -> None:
    def make_step(batch: int) -> Any:
        return Small(200_000, 2), (torch.randn(batch, 200_000),)  # 160 GB per layer

    found = ct.max_batch(make_step, "301GiB", start=512, device="a100")
    assert found.batch >= 512 and found.next_bytes > 301 * 2**30
    assert found.plan.numbers["live_bytes"] > 320 * 10**9  # the gradients alone


def test_batch_one_does_not_fit() -> None:
    with pytest.raises(BudgetError, match=r"^batch 1: no plan fits ") as told:
        ct.max_batch(made_inside, 5_000)
    assert str(told.value).endswith('Raise the budget or compile this batch with budget="min"')
    assert told.value.batch == 1 and told.value.smallest_bytes > told.value.budget_bytes == 5_000


@pytest.mark.very_slow
def test_total_offload_and_limits() -> None:
    def with_optimizer(batch: int) -> Any:
        model = Small()
        return model, (torch.randn(batch, 16, 32),), torch.optim.Adam(model.parameters())

    total = ct.max_batch(with_optimizer, 100_000, measure="total")
    assert total.plan.problem["static_bytes"] > 3 * 4 * 4 * 32 * 32
    assert total.batch >= 1 and "(total)" in str(total)
    live = ct.max_batch(made_inside, 100_000, start=total.batch, most=total.batch + 1)
    assert live.batch == total.batch + 1  # without static memory, more fits
    assert live.next_bytes is None and "would need" not in str(live)
    moved = ct.max_batch(made_inside, 40_000, offload="only", start=4, most=4)
    assert moved.plan.offloaded
    stopped = ct.max_batch(made_inside, 100_000, progress=lambda batch, size, fits: batch == 2)
    assert stopped.batch == 2 and stopped.next_bytes is None


def test_a_share_is_of_each_batch() -> None:
    """The gradients of parameters are as large as one or two batches, so small batches can save a
    smaller share."""
    with pytest.raises(BudgetError, match="batch 1: no plan fits 80%"):
        ct.max_batch(made_inside, "80%", most=2)
    found = ct.max_batch(made_inside, "0.9x", start=4, most=8)
    step = ct.trace(Small(), torch.randn(found.batch, 16, 32))
    assert found.batch == 8
    assert found.budget_bytes == step.plan("0.9x").numbers["budget_bytes"]


@pytest.mark.very_slow
def test_more_need_not_take_more() -> None:
    """The step is padded if its batch is a multiple of four."""

    def padded(batch: int) -> Any:
        return Small(), (torch.randn(batch + 4 * (batch % 4 == 0), 16, 32),)

    seven = ct.trace(Small(), torch.randn(7, 16, 32)).plan("min", max_extra=100.0)
    found = ct.max_batch(padded, seven.numbers["live_bytes"])
    assert found.batch == 7
    assert found.tried[4] > found.budget_bytes >= found.tried[3]
    assert {8, 9, 10} <= set(found.tried)


def test_wrong_use() -> None:
    for position in (0.5, 0, 1):
        with pytest.raises(ValueError, match=rf"budget={position} is a position between"):
            ct.max_batch(made_inside, position)
    with pytest.raises(ValueError, match="budget='min'"):
        ct.max_batch(made_inside, "min")
    with pytest.raises(ValueError, match="'much' is not a size"):
        ct.max_batch(made_inside, "much")
    with pytest.raises(ValueError, match="measure='arena'"):
        ct.max_batch(made_inside, 1000, measure="arena")
    with pytest.raises(ValueError, match="start=0"):
        ct.max_batch(made_inside, 1000, start=0)
    with pytest.raises(TypeError, match="for a batch size, got Small"):
        ct.max_batch(Small(), 1000)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="it returned Small"):
        ct.max_batch(lambda n: Small(), 1000)
    with pytest.raises(ValueError, match="measure='total': make_step must return an optimizer"):
        ct.max_batch(made_inside, 1000, measure="total")


@pytest.mark.very_slow
def test_slices_count() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.made = nn.Linear(32, 1024)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.made(x), y)

    def make(batch: int) -> Any:
        return Head(), (torch.randn(256 * batch, 32), torch.zeros(256 * batch, dtype=torch.int64))

    budget = 16 << 20
    whole = ct.max_batch(make, budget, most=16)
    cut = ct.max_batch(make, budget, start=8, most=16, slices=True)
    assert cut.batch > 2 * whole.batch
    points = ct.estimate(make, measure="live", batches=[8], slices=True).points
    head, inputs = make(8)
    plan = ct.trace(head, *inputs, slices=True).plan("smallest", measure="live")
    assert points[0].plans["smallest"].bytes <= plan.numbers["live_bytes"]


@pytest.mark.parametrize("answer", [ct.max_batch, ct.estimate])
def test_slices_is_a_flag(answer: Any) -> None:
    with pytest.raises(TypeError, match="slices=1"):
        answer(made_inside, 60_000, slices=1)
