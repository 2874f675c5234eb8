"""Tests when gathers in a graph are repeated, in one process with a group of one; ``test_ranks.py``
has several processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as funcol
from torch import distributed, nn

import cutback.torch as ct
from cutback.torch.compiler import compiled
from cutback.torch.graph import gathers

pytestmark = [
    pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed"),
    pytest.mark.filterwarnings("ignore:.*all_gather_tensor_autograd:FutureWarning"),
]


@pytest.fixture(scope="module")
def group(tmp_path_factory: Any) -> Iterator[Any]:
    store = f"file://{tmp_path_factory.mktemp('group') / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


class Layers(nn.Module):
    """Has weights that each layer gathers before using them."""

    def __init__(self, group: Any, layers: int = 3, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(width, width) / 8, False) for _ in range(layers)]
        self.weights = nn.ParameterList(weights)  # frozen, since their gradients would be as large
        self.scale = nn.Parameter(torch.ones(width))
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        for weight in self.weights:
            whole = funcol.all_gather_tensor_autograd(weight, 0, self.group)
            x = torch.tanh(x @ whole)
        return x.square().mean()


def again(plan: Any) -> int:
    ops, steps = plan.parts.ops, plan.document["steps"]
    runs = [i for i in steps if ops[i].kind.startswith("_c10d_functional.all_gather")]
    return len(runs) - len(set(runs))


def gradients(run: Callable[..., Any], model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    run(x).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


OTHERS = (0, "0.6x", "smallest")


@pytest.mark.very_slow
@pytest.mark.parametrize(
    "budget", [0.5, "min", *(pytest.param(b, marks=pytest.mark.very_slow) for b in OTHERS)]
)
def test_small_budgets_gather_again(group: Any, budget: Any) -> None:
    model, x = Layers(group), torch.randn(16, 64)
    expected = gradients(model, model, x)
    torch._dynamo.reset()
    step = ct.compile(model, budget=budget)
    for _ in range(2):
        found = gradients(step, model, x)
    assert all(map(torch.equal, expected, found)) and len(found) == 1
    (plan,) = step.plans
    assert again(plan) > 0
    with ct.MemoryTracker() as memory:
        gradients(step, model, x)
    assert memory.peak_bytes <= plan.numbers["live_bytes"] + model.scale.nbytes  # a clone of it


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 0.2, "collective_again": False},
        {"budget": None},
        pytest.param({"budget": 1}, marks=pytest.mark.very_slow),
        pytest.param({"budget": "fastest"}, marks=pytest.mark.very_slow),
        {"budget": 0.2, "dynamic": True},
        pytest.param({"budget": 0.2, "codegen": "inductor"}, marks=pytest.mark.very_slow),
    ],
    ids=str,
)
def test_gathers_that_run_once(group: Any, options: dict[str, Any]) -> None:
    model, x = Layers(group), torch.randn(16, 64)
    expected = gradients(model, model, x)
    torch._dynamo.reset()
    step = ct.compile(model, **options)
    found = gradients(step, model, x)
    close = "codegen" in options
    assert all(torch.allclose(a, b, atol=1e-6) if close else torch.equal(a, b)
               for a, b in zip(expected, found, strict=True))  # fmt: skip
    assert [again(plan) for plan in step.plans] == [0]


def test_by_name_and_from_a_file(group: Any, tmp_path: Path) -> None:
    model, x = Layers(group), torch.randn(16, 64)
    expected = gradients(model, model, x)
    torch._dynamo.reset()
    plans: list[Any] = []
    options = {"budget": 0.2, "on_plan": plans.append, "network_bytes_per_s": 1e12}
    named = torch.compile(model, backend="cutback", options=options)
    assert all(map(torch.equal, expected, gradients(named, model, x)))
    assert again(plans[-1]) > 0
    torch._dynamo.reset()
    step = ct.compile(model, budget=0.2)
    gradients(step, model, x)
    step.save_plans(tmp_path / "plans.json")
    torch._dynamo.reset()
    given = ct.compile(model, plans=tmp_path / "plans.json")
    assert all(map(torch.equal, expected, gradients(given, model, x)))
    assert [again(p) for p in given.plans] == [again(p) for p in step.plans] != [0]


def test_larger_batches_are_planned_without(group: Any) -> None:
    """The second size makes the graph dynamic."""
    model, plain = Layers(group), Layers(group)
    torch._dynamo.reset()
    step = ct.compile(model, budget=0.2)
    for rows in (16, 24, 40):
        x = torch.randn(rows, 64)
        expected = gradients(plain, plain, x)
        assert all(map(torch.equal, expected, gradients(step, model, x)))
    assert again(step.plans[-1]) == 0


def test_the_time_of_a_gather_follows_from_its_bytes(group: Any) -> None:
    model, x = Layers(group, layers=1), torch.randn(16, 64)
    times = {}
    for rate in (None, 1e6, 1e9):
        torch._dynamo.reset()
        step = ct.compile(model, budget="smallest", network_bytes_per_s=rate)
        gradients(step, model, x)
        times[rate] = step.plans[0].numbers["once_ps"]
        assert step.plans[0].parts.network_bytes_per_s == (rate or 1e9)
    assert times[None] == times[1e9] <= times[1e6]


def test_what_a_thread_of_a_collective_still_holds_is_not_counted(group: Any) -> None:
    """The thread of a collective may release a result a moment after the op that waits for it."""
    with ct.MemoryTracker() as memory:
        held = [torch.ones(64)]
        thread = threading.Timer(0.02, held.clear)
        thread.start()
        assert compiled._settled(memory, 256) == 256
        assert compiled._settled(memory, 0) == 0
        thread.join()


def test_bytes_that_collectives_send() -> None:
    gather, reduce = "all_gather_into_tensor", "reduce_scatter_tensor"
    assert gathers.sent_bytes(f"_c10d_functional.{gather}.default", 100, 400) == 300
    assert gathers.sent_bytes(f"_c10d_functional.{reduce}.default", 400, 100) == 300
    assert gathers.sent_bytes("_c10d_functional.all_reduce.default", 400, 400) == 800
    assert gathers.sent_bytes("_c10d_functional.broadcast.default", 400, 400) == 400
    assert gathers.rate_of("h100+fused") == gathers.rate_of("h100") == 450e9
    assert gathers.rate_of({"name": "mine"}) == gathers.rate_of("mine") == 0


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf"), "fast", True])
def test_rates_are_checked(rate: Any) -> None:
    kind = ValueError if isinstance(rate, (int, float)) and rate is not True else TypeError
    with pytest.raises(kind, match="network_bytes_per_s"):
        ct.compile(nn.Linear(2, 2), budget=0.5, network_bytes_per_s=rate)
    with pytest.raises(TypeError, match="collective_again='no'"):
        ct.compile(nn.Linear(2, 2), budget=0.5, collective_again="no")  # type: ignore[arg-type]
