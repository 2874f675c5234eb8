"""The backward of parts that PyTorch runs in eager mode: there is a warning if it exceeds the
budget."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import cutback.torch as ct

BYTES = 256 * 64 * 4  # size of one activation


class Net(nn.Module):
    """A planned part, and a part that PyTorch does not compile."""

    def __init__(self, layers: int, reentrant: bool) -> None:
        super().__init__()
        first = [m for _ in range(6) for m in (nn.Linear(64, 64), nn.GELU())]
        self.first = nn.Sequential(*first)
        self.rest = nn.Sequential(*(nn.GELU() for _ in range(layers)))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> Any:
        """Maps [256, 64] to the same shape."""
        rest = torch._dynamo.disable(self.rest)
        return checkpoint(rest, self.first(x), use_reentrant=self.reentrant)


def steps(net: nn.Module, budget: Any, count: int = 4) -> tuple[list[str], list[int]]:
    """Returns the warnings and peaks of some steps."""
    step = ct.compile(net, budget=budget)
    x, peaks = torch.randn(256, 64), []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(count):
            with ct.MemoryTracker(net) as memory:
                step(x).sum().backward()
            net.zero_grad(set_to_none=True)
            peaks.append(memory.peak_bytes)
    return [str(w.message) for w in said], peaks


@pytest.mark.parametrize("reentrant", [False, pytest.param(True, marks=pytest.mark.very_slow)])
def test_a_checkpoint_outside_of_what_is_compiled(reentrant: bool) -> None:
    """The recomputation of the checkpoint takes the step over the budget. One warning says so; the
    peak that it states is at most the true one."""
    torch.manual_seed(0)
    budget = 16 * BYTES
    said, peaks = steps(Net(24, reentrant), f"{budget}B")
    (text,) = [w for w in said if "their backward takes the step over" in w]
    (told,) = re.findall(r"at least .*? \((\d+) bytes\)", text)
    assert budget < int(told) <= max(peaks)
    assert int(told) >= max(peaks) - 2 * BYTES
    assert not [w for w in said if "may be over" in w]


@pytest.mark.very_slow
def test_an_eager_part_that_fits_is_not_told_of() -> None:
    """The backward of the eager part is measured and stays within the budget."""
    said, peaks = steps(Net(4, False), f"{20 * BYTES}B")
    assert max(peaks) <= 20 * BYTES
    assert not [w for w in said if "not planned" in w]


@pytest.mark.very_slow
def test_following_changes_no_bit() -> None:
    """The gradients of measured steps equal those of later ones."""
    net = Net(6, False)
    step = ct.compile(net, budget=f"{64 * BYTES}B")
    x, seen = torch.randn(256, 64), []
    for _ in range(5):
        step(x).sum().backward()
        seen.append([p.grad for p in net.parameters()])
        net.zero_grad(set_to_none=True)
    for gradients in seen[1:]:
        for a, b in zip(seen[0], gradients, strict=True):
            assert a is not None and b is not None and torch.equal(a, b)


@pytest.fixture
def group() -> Iterator[None]:
    """Makes a process group of only this process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_gradient_buckets_are_no_part_of_the_model() -> None:
    """DistributedDataParallel makes its buckets again in its second forward."""
    torch.manual_seed(0)
    inner = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return self.inner(x).sum()

    compiled = ct.compile(nn.parallel.DistributedDataParallel(Loss()), budget="1x")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(3):
            compiled(torch.randn(2, 64)).backward()
    assert len(compiled.plans) == 1


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore:.* calls of the model were pending together")
def test_sharded_containers_are_planned() -> None:
    """FSDP2's hooks make a graph of each; Dynamo skips what is in torch.nn."""

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(2)
            )

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return x.square().mean()

    def step(run: Any) -> list[Any]:
        run.zero_grad()
        run(x).backward()
        return [p.grad.full_tensor() for p in run.parameters()]

    torch.manual_seed(0)
    x, model = torch.randn(32, 16), Blocks()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    expected = step(model)
    compiled = ct.compile(model, budget=0.5)
    for _ in range(3):
        assert all(map(torch.equal, step(compiled), expected))
    assert compiled.plans
