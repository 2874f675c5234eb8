"""With graph breaks and calls that are pending together, or a first step that exceeds the budget,
the budget is met or a warning gives the figure."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import cutback.torch as ct

pytestmark = pytest.mark.torch

WIDTH, ROWS = 48, 192
OWN = 256  # bytes of the losses


def row(layers: int) -> nn.Module:
    return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


class Broken(nn.Module):
    """A model of two graphs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = row(3), row(3)

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        torch._dynamo.graph_break()
        return self.second(h).square().mean()


class Shared(nn.Module):
    """A layer that is used twice, and results that both graphs read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        a = self.first(x)
        b = self.first(a)
        c, d = (b * a) * b, self.second(a)
        torch._dynamo.graph_break()
        return c.square().mean() + d.square().mean() + (c + d).square().mean()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = row(2)

    def forward(self, x: Any) -> Any:
        x = self.layers(x)
        torch._dynamo.graph_break()
        return x * x.sigmoid()


class Loop(nn.Module):
    """A break inside a layer, so its graphs run several times in a step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()


def steps(run: Any, calls: int = 1, n: int = 3) -> tuple[list[int], list[Any], list[str]]:
    """Returns the peaks of steps, the gradients of the last, and the warnings of the first."""
    torch.manual_seed(1)
    inputs, peaks, said = [torch.randn(ROWS, WIDTH) for _ in range(calls)], [], []
    for number in range(n):
        run.zero_grad()
        with warnings.catch_warnings(record=True) as now, ct.MemoryTracker() as memory:
            warnings.simplefilter("always")
            sum(run(x) for x in inputs).backward()
        peaks.append(memory.peak_bytes)
        said += [str(w.message) for w in now if number == 0]
    return peaks, [p.grad.clone() for p in run.parameters()], said


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.very_slow
@pytest.mark.parametrize(("model", "share"), [(Broken, 0.55), (Broken, 0.8), (Shared, 0.9)])
def test_a_first_step_that_is_over_says_what_it_takes(model: Any, share: float) -> None:
    whole = steps(ct.compile(model()))[0][-1]
    torch._dynamo.reset()
    limit = int(share * whole)
    peaks, _, said = steps(ct.compile(model(), budget=limit))
    assert max(peaks[1:]) <= limit
    figures = [re.search(r"together they hold .*\((\d+) bytes\), over", text) for text in said]
    told = [int(f[1]) for f in figures if f]
    assert bool(told) == (peaks[0] > limit), (peaks, limit, said)
    assert all(size == peaks[0] for size in told)


@pytest.mark.very_slow
@pytest.mark.parametrize("model", [Broken, Shared])
@pytest.mark.parametrize(
    "share", [*(pytest.param(share, marks=pytest.mark.very_slow) for share in (1.0, 0.9)), 0.75]
)
def test_shares_of_several_calls(model: Any, share: float, same_bits: Any) -> None:
    """The shares are of the bytes of all calls without a budget."""
    peaks, wanted, _ = steps(ct.compile(model()), calls=2)
    torch._dynamo.reset()
    found, gradients, _ = steps(ct.compile(model(), budget=f"{share}x"), calls=2)
    assert max(found[1:]) <= share * peaks[-1] + OWN
    assert same_bits(gradients, wanted)


@pytest.mark.very_slow
def test_graphs_that_run_several_times_save_little(same_bits: Any) -> None:
    """These graphs are limited not by their peak but by the values that they keep for the
    backward."""
    peaks, wanted, _ = steps(ct.compile(Loop()))
    torch._dynamo.reset()
    found, gradients, said = steps(ct.compile(Loop(), budget=int(0.65 * peaks[-1])))
    assert len(said) == 1 and said[0].startswith("6 calls of the model were pending together")
    assert max(found[1:]) <= 0.65 * peaks[-1]
    assert same_bits(gradients, wanted)


def test_a_call_without_gradients_in_between_ends_no_step() -> None:
    """The joint plan is made when the step is over, not during it."""
    plain = ct.compile(Broken())
    whole = steps(plain)[0][-1]
    torch._dynamo.reset()
    run = ct.compile(Broken(), budget="0.6x")
    x = torch.randn(ROWS, WIDTH)
    for _ in range(3):
        run.zero_grad()
        loss = run(x)
        with torch.no_grad():
            run(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss.backward()
    assert run.plans[0].numbers["live_bytes"] <= 0.6 * whole


@pytest.mark.very_slow
@pytest.mark.parametrize("model", [Broken, Loop])
def test_to_warn_is_to_save_everything(model: Any) -> None:
    peaks, _, _ = steps(ct.compile(model()), calls=2)
    torch._dynamo.reset()
    run = ct.compile(model(), budget=int(0.2 * peaks[-1]), on_infeasible="warn")
    found, _, _ = steps(run, calls=2)
    assert all(plan.numbers["recomputed"] == 0 for plan in run.plans)
    assert 0.8 * peaks[-1] < found[-1] <= peaks[-1]  # under a budget, memory is taken over
