"""Tests steps of several graphs or calls, without options: what the first step shows, and what
holds from the second on."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from hypothesis import given, strategies
from torch import nn
from torch._dynamo.utils import counters

import cutback
import cutback.torch as ct
from cutback.octaves import rounded_up

pytestmark = pytest.mark.torch

WIDTH = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Blocks(nn.Module):
    """Blocks with a graph break after each, as FSDP2's hooks make them."""

    def __init__(self, number: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(number))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
            torch._dynamo.graph_break()
        return x


def once(call: Callable[[Any], Any], x: Any) -> None:
    call(x).square().mean().backward()


def six_times(call: Callable[[Any], Any], x: Any) -> None:
    for _ in range(6):
        x = call(x)
    x.square().mean().backward()


def a_pair(call: Callable[[Any], Any], x: Any) -> None:
    (call(x) * call(x.flip(0))).sum().backward()


def microbatches(call: Callable[[Any], Any], x: Any) -> None:
    """Runs GPipe's schedule of a stage: all forwards, then all backwards."""
    losses = [call(part).square().mean() for part in x.chunk(4)]
    for loss in losses:
        loss.backward()


def one_ahead(call: Callable[[Any], Any], x: Any) -> None:
    """Runs a schedule with one forward ahead (1F1B)."""
    first, *parts = x.chunk(4)
    loss = call(first).square().mean()
    for part in parts:
        ahead = call(part).square().mean()
        loss.backward()
        loss = ahead
    loss.backward()


def layers() -> nn.Module:
    return nn.Sequential(Block(), Block())


CASES = {
    "blocks behind breaks": (Blocks, once),
    "block called six times": (Block, six_times),
    "contrastive pair": (layers, a_pair),
    "GPipe": (layers, microbatches),
    "1F1B": (layers, one_ahead),
}
SHARES = {"1F1B": "0.9x"}  # "0.8x" of two calls is below the smallest plans
EVERY = [
    pytest.param(name, budget, marks=[] if quick else pytest.mark.very_slow)
    for name in CASES
    for budget, quick in (
        (0.5, False),
        (SHARES.get(name, "0.8x"), name == "block called six times"),
        (0.0, False),
    )
]


def measured(step: Callable[..., None], call: Any, x: Any) -> int:
    with ct.MemoryTracker() as memory:
        step(call, x)
    return int(memory.peak_bytes)


@pytest.mark.parametrize(("name", "budget"), EVERY)
def test_steps_run_without_options(name: str, budget: Any) -> None:
    make, step = CASES[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = make(), torch.randn(64, WIDTH)
    whole = ct.compile(model)
    everything = [measured(step, whole, x) for _ in range(2)][-1]
    torch._dynamo.reset()
    model.zero_grad()
    step(model, x)
    wanted = [p.grad for p in model.parameters()]
    run = ct.compile(model, budget=budget)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* calls of the model were pending together")
        model.zero_grad()
        step(run, x)
    traced = counters["stats"]["unique_graphs"]
    for _ in range(2):  # warnings are errors
        model.zero_grad()
        peak = measured(step, run, x)
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), wanted, strict=True))
        shared = run.plans[0].shared
        assert shared is not None and shared.taken <= shared.limit < everything
        beside = 2 * x.nbytes  # memory of eager code
        if step is one_ahead:  # gradients of earlier microbatches
            beside += sum(p.nbytes for p in model.parameters())
        assert peak <= shared.limit + beside
    assert counters["stats"]["unique_graphs"] == traced


def test_a_share_that_no_call_meets_is_an_error_of_the_backward() -> None:
    torch._dynamo.reset()
    x = torch.randn(64, WIDTH)
    run = ct.compile(Block(), budget="0.1x")
    for _ in range(2):
        loss = run(x).sum()
        with pytest.raises(cutback.BudgetError, match="no plan fits 10%"):
            loss.backward()


# ---- sizes that vary ----------------------------------------------------------------------------


@given(strategies.integers(1, 1 << 40))
def test_sizes_are_rounded_up_to_eighths_of_an_octave(size: int) -> None:
    planned = rounded_up(size)
    assert size <= planned < size * 9 / 8 + 1 and rounded_up(planned) == planned
    octave = {rounded_up(n) for n in range(65, 129)}
    assert len(octave) == 8 and max(octave) == 128


def sized(budget: Any, sizes: list[int], **options: Any) -> tuple[Any, list[int], int]:
    """Returns the compiled model, the peaks of its steps, and the number of its plans."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = layers()
    plain = copy.deepcopy(model)
    run = ct.compile(model, budget=budget, dynamic=True, **options)
    peaks, plans = [], []
    for size in sizes:
        x = torch.randn(size, WIDTH)
        plain.zero_grad()
        once(plain, x)
        wanted = [p.grad for p in plain.parameters()]
        model.zero_grad()
        peaks.append(measured(once, run, x))
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), wanted, strict=True))
        if not plans or plans[-1] is not run.plans[-1]:
            plans.append(run.plans[-1])
    return run, peaks, len(plans)


def test_lengths_share_a_plan() -> None:
    before = counters["stats"]["unique_graphs"]
    run, peaks, plans = sized(0.5, [91, 93, 96, 40, 97, 91])
    # the counter may have been reset
    assert plans == 2 and counters["stats"]["unique_graphs"] - before in (0, 1)
    assert max(peaks) <= run.plans[-1].numbers["live_bytes"]


@pytest.mark.very_slow
def test_there_are_at_most_eight_plans_in_an_octave() -> None:
    _, _, plans = sized(0.5, list(range(65, 129)))
    assert plans == 8


@pytest.mark.very_slow
def test_bytes_that_rounded_sizes_cannot_meet_are_planned_as_they_are() -> None:
    at = {}
    for size in (91, 96):
        run, _, _ = sized("smallest", [size])
        at[size] = run.plans[0].numbers["live_bytes"]
    assert at[91] < at[96]
    budget = (at[91] + at[96]) // 2
    _, peaks, _ = sized(budget, [91, 80], on_infeasible="error")
    assert max(peaks) <= budget
    with pytest.raises(cutback.BudgetError):
        sized(budget, [91, 96], on_infeasible="error")
