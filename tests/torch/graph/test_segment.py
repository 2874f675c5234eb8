"""One allocator segment for a step. The oracle is a second implementation of the allocator's rules
(tests/reference/caching_allocator.py)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from caching_allocator import MIB, Allocator
from torch import nn
from torch.profiler import ProfilerActivity

import cutback.torch as ct
from cutback.torch.graph import segment
from cutback.torch.graph.segment import Life, Placed, continued, place, reserved_without

pytestmark = pytest.mark.filterwarnings("ignore:kernels take scratch")

Traces = Mapping[int, Sequence[int]]


def replay(lives: Sequence[Life], placed: Placed | None, traces: Traces, steps: int) -> Allocator:
    """Simulates steps with these lives in the reference."""
    allocator = Allocator()
    if placed is not None and placed.segment:
        allocator.free(allocator.malloc(placed.segment))
    for _ in range(steps):
        there: dict[int, tuple[int, int]] = {}
        for t in range(max(max(life) for life in [(x.made, x.last) for x in lives]) + 1):
            plug = None
            if placed is not None and t in placed.plugs:
                plug = allocator.malloc(placed.plugs[t])
            made: list[tuple[int, tuple[int, int]]] = []
            for size in traces.get(t, []):
                if size > 0:
                    made.append((size, allocator.malloc(size)))
                else:
                    at = next(i for i, (found, _) in enumerate(made) if found == -size)
                    allocator.free(made.pop(at)[1])
            if plug is not None:
                allocator.free(plug)
            for k, life in enumerate(lives):
                if life.made != t:
                    continue
                same = [i for i, (size, _) in enumerate(made) if size == life.bytes]
                there[k] = made.pop(same[-1])[1] if same else allocator.malloc(life.bytes)
            for k in [k for k in there if lives[k].last == t]:
                allocator.free(there.pop(k))
        assert not there
    return allocator


def a_step(seed: int) -> tuple[list[Life], dict[int, list[int]], int]:
    """Lives like those of a training step: some from the forward to their use in the backward, many
    short ones, and gradients to the end; and ops with scratch."""
    rng = random.Random(seed)
    layers = rng.randint(3, 12)
    end = 4 * layers
    lives, traces = [], {}

    def add(made: int, last: int, size: int, scratch: int) -> None:
        lives.append(Life(made, last, size))
        first = [scratch, size] if rng.random() < 0.5 else [size, scratch]
        traces[made] = [*first, -scratch] if scratch else [size]

    for k in range(layers):
        saved = rng.randint(2 * MIB, 60 * MIB)
        add(2 * k, end - 2 * k - 1, saved, rng.choice([0, rng.randint(MIB + 1, 9 * MIB)]))
        add(2 * k + 1, 2 * k + 2, rng.randint(MIB + 1, 40 * MIB), 0)
        lives.append(Life(2 * k + 1, end, rng.randint(1, MIB)))  # from the pool of small blocks
        add(end - 2 * k - 1, end - 2 * k, rng.randint(2 * MIB, 60 * MIB), 0)
        lives.append(Life(end - 2 * k, end, rng.randint(MIB + 1, 12 * MIB)))
    return lives, traces, 2 * layers


@pytest.mark.parametrize("seed", range(12))
def test_the_simulation_is_the_references(seed: int) -> None:
    lives, traces, border = a_step(seed)
    placed = place(lives, border, traces)
    large = [life for life in lives if life.bytes > MIB]
    small = [life for life in lives if life.bytes <= MIB]
    apart = replay(small, None, {}, 2).reserved
    assert placed.reserved == replay(large, placed, traces, 2).reserved + apart
    # and it does not grow in later steps
    assert replay(large, placed, traces, 5).reserved + apart == placed.reserved
    without = replay(large, None, {}, 2).reserved + apart
    assert reserved_without(large) + reserved_without(small) == without
    assert (
        placed.live
        <= placed.reserved
        <= max(without, replay(large, None, traces, 2).reserved + apart)
    )
    rounded = [(life, -(-life.bytes // 512) * 512) for life in lives]
    alive = [
        sum(size for life, size in rounded if life.made <= t <= life.last)
        for t in range(2 * border + 1)
    ]
    assert placed.live == max(alive)


def test_a_segment_reserves_less() -> None:
    saves = []
    for seed in range(8):
        lives, traces, border = a_step(seed)
        saves.append(
            place(lives, border, traces).reserved / replay(lives, None, traces, 2).reserved
        )
    assert sum(saves) / len(saves) < 0.9


def test_the_search_finds_smaller_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller than by the rules alone, and close to the live bytes."""
    steps = [a_step(seed) for seed in range(8)]
    found = [place(lives, border, traces) for lives, traces, border in steps]
    monkeypatch.setattr(segment, "_SEEDS", 0)
    ruled = [place(lives, border, traces) for lives, traces, border in steps]
    assert all(a.reserved <= b.reserved for a, b in zip(found, ruled, strict=True))
    mean = [sum(p.reserved / p.live for p in placed) / len(placed) for placed in (found, ruled)]
    assert mean[0] < 1.02 < 1.03 < mean[1]


# ---- steps that run -----------------------------------------------------------------------------


def net() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x)) * x.sin()
            return x.square().mean()

    return Loss(), torch.randn(1024, 512)  # 2 MiB


def events_of(step: Any) -> list[tuple[int, int]]:
    """The allocations of a step (address, bytes) and its frees (negative bytes), in order."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
        step()
    found = []

    def walk(nodes: Any) -> None:
        for event in nodes:
            kind, fields = event.typed
            if str(kind).endswith("Allocation"):
                found.append((event.start_time_ns, fields.ptr, fields.alloc_size))
            walk(event.children)

    walk(p.profiler.kineto_results.experimental_event_tree())
    return [row[1:] for row in sorted(found, key=lambda row: row[0])]


def test_a_step_runs_in_its_segment() -> None:
    """Replays the real sequence of allocations in the reference."""
    model, x = net()
    compiled = ct.compile(model, budget=0.5, pool=True)

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = compiled(x)
        loss.backward()
        return loss.detach()

    losses = [step(), step()]
    first = [p.grad.clone() for p in model.parameters()]
    partitioner = compiled.dynamo_ctx.runners[0].partitioner
    assert partitioner.in_force.placed is None  # these steps are measured
    model.zero_grad(set_to_none=True)
    allocator, there = Allocator(), {}
    for address, size in events_of(lambda: [losses.append(step()) for _ in range(2)]):
        if size > 0:
            there[address] = allocator.malloc(size)
        elif address in there:
            allocator.free(there.pop(address))
    placed, (plan,) = partitioner.in_force.placed, compiled.plans
    assert placed.segment > 0.9 * plan.numbers["live_bytes"]
    assert allocator.segments[0][1] >= placed.segment  # the first segment
    assert len(placed.plugs) > 3
    assert allocator.reserved <= placed.reserved + 4 * MIB  # the loss and other small blocks
    assert all(torch.equal(losses[0], loss) for loss in losses)
    assert all(torch.equal(p.grad, q) for p, q in zip(model.parameters(), first, strict=True))
    with ct.MemoryTracker() as memory:  # plugs are not tensors
        step()
    assert memory.peak_bytes <= plan.numbers["live_bytes"]


def test_it_is_a_flag() -> None:
    with pytest.raises(TypeError, match="pool='yes' is neither True nor False"):
        ct.compile(net()[0], budget=0.5, pool="yes")


def test_memory_that_results_take_over_is_one_block() -> None:
    rows = [(Life(0, 2, 64), 0), (Life(1, 3, 64), 64), (Life(2, 4, 64), 0), (Life(4, 5, 64), 0)]
    assert continued(rows) == ([Life(0, 5, 64), Life(1, 3, 64)], [2, 4])
    # a result of a moment of its own, which another one follows at once in the same place
    rows = [(Life(0, 0, 64), 0), (Life(1, 1, 64), 0)]
    assert continued(rows) == ([Life(0, 0, 64), Life(1, 1, 64)], [])
