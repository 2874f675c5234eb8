"""Memory that the losses of a pipeline hold is found without running anything; memory that they
take while they run is measured."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import distributed, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import cutback.torch as ct
from cutback.torch.compiler import pipelines

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")
KINDS = ("ScheduleGPipe", "Schedule1F1B")


@pytest.fixture
def one_process() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def schedule_of(part: Any, kind: str, loss: Any) -> Any:
    """Returns a pipeline of one stage, with four microbatches."""
    from torch.distributed import pipelining

    stage = pipelining.PipelineStage(part, 0, 1, torch.device("cpu"))
    return getattr(pipelining, kind)(stage, n_microbatches=4, loss_fn=loss)


def held(loss: torch.Tensor) -> int:
    """Returns the bytes that the nodes of a loss hold."""
    found: pipelines.Sizes = {}
    for tensor in pipelines._saved(loss):
        pipelines.add(found, tensor)
    return sum(found.values())


def test_what_losses_save_is_counted_once() -> None:
    result, target = torch.randn(4, 8, requires_grad=True).neg(), torch.randn(4, 8)
    assert held(F.mse_loss(result, target)) == result.nbytes + target.nbytes
    assert held(result.exp().sum()) == result.nbytes
    loss = F.mse_loss(result, target)
    loss.backward()
    assert held(loss) == 0


def test_a_checkpoint_in_a_loss_does_not_run_again() -> None:
    """The checkpoint's results do not count either; only its argument is held."""
    n_runs = 0

    def f(x: torch.Tensor) -> torch.Tensor:
        nonlocal n_runs
        n_runs += 1
        return (x.sin() * x).exp()

    result = torch.randn(4, 8, requires_grad=True).neg()
    loss = checkpoint(f, result, use_reentrant=False).sum()
    assert held(loss) == 0 and n_runs == 1
    loss.backward()
    assert n_runs == 2


def test_what_hooks_pack_is_counted() -> None:
    result = torch.randn(4, 8, requires_grad=True).neg()
    unpacked = []

    def unpack(packed: torch.Tensor) -> torch.Tensor:
        unpacked.append(packed)
        return packed.float()

    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.half, unpack):
        loss = result.exp().sum()
    assert held(loss) == result.nbytes // 2 and not unpacked


@pytest.mark.very_slow
def test_a_compiled_loss_counts_and_a_planned_stage_does_not() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() * x).sum()

    result = torch.randn(4, 8, requires_grad=True).neg()
    loss = torch.compile(f, backend="aot_eager")(result)
    assert held(loss) >= result.nbytes
    assert loss.grad_fn is not None
    pipelines.mark(loss.grad_fn)
    assert held(loss * loss) == loss.nbytes


@pytest.mark.usefixtures("one_process")
def test_what_a_loss_takes_while_it_runs_is_measured() -> None:
    """Cross entropy keeps an array as large as its argument. Its backward makes two more."""
    schedule = schedule_of(nn.Linear(8, 512), KINDS[0], F.cross_entropy)
    x, target = torch.randn(64, 8), torch.zeros(64, dtype=torch.int64)
    meter = pipelines.meter_of(schedule)
    size = 64 * 512 * 4
    for before in (1, 3):
        with torch.no_grad():  # not measured
            schedule._compute_loss(torch.randn(64, 512), target)
        loss = schedule._compute_loss(nn.Linear(8, 512)(x), target)
        assert meter.bytes // size == before
        loss.backward()
        assert meter.bytes // size == 3
    assert "_compute_loss" not in vars(schedule)


@pytest.mark.usefixtures("one_process")
def test_models_of_a_stage_share_what_measures_losses() -> None:
    """A method that the program has set on its schedule computes the losses, and stays."""
    schedule = schedule_of(nn.Linear(8, 4), KINDS[0], F.cross_entropy)
    outputs = []

    def own(output: torch.Tensor, target: object, loss_kwargs: object = None) -> torch.Tensor:
        outputs.append(output)
        return output.exp().sum()

    schedule._compute_loss = own
    meter = pipelines.meter_of(schedule)
    assert pipelines.meter_of(schedule) is meter
    for n in range(1, pipelines.MOST_LOSSES + 2):
        result = torch.randn(4, 8, requires_grad=True).neg()
        schedule._compute_loss(result, None).backward()
        assert outputs[-1] is result and len(outputs) == n
    assert schedule._compute_loss is own and meter.bytes >= result.nbytes
    assert pipelines.meter_of(schedule) is meter


class Broken(nn.Module):
    """Layers with a graph break between them."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


@pytest.mark.very_slow
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("breaks", [False, True])
def test_what_a_loss_takes_is_within_the_budget(kind: str, compiled: bool, breaks: bool) -> None:
    torch.manual_seed(0)
    x, target, wide = torch.randn(256, 32), torch.randint(0, 512, (256,)), torch.randn(32, 512)

    def loss(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(found @ wide, wanted)

    if compiled:
        loss = torch.compile(loss, backend="aot_eager")

    def peaks(budget: int | None) -> list[int]:
        blocks = [nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in "1234"]
        part: nn.Module = nn.Sequential(*blocks)
        if breaks:
            part = Broken(nn.Sequential(*blocks[:2]), nn.Sequential(*blocks[2:]))
        stage = part if budget is None else ct.compile(part, budget=budget)
        schedule, found = schedule_of(stage, kind, loss), []
        for _ in range(3):
            part.zero_grad(set_to_none=True)
            with ct.MemoryTracker() as memory:
                schedule.step(x, target=target, losses=[])
                found.append(memory.peak_bytes)
        return found

    limit = int(0.8 * peaks(None)[-1])
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "besides the pending calls")
        warnings.filterwarnings("ignore", "the model was split into 2 graphs")
        assert max(peaks(limit)[1:]) <= limit
