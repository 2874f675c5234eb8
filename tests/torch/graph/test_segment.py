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
from cutback.torch.graph.segment import Life, Placed, continued, place, reserved_without
from cutback.torch.graph.steering import Guide, Hole, choose

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
            sizes = placed.plugs.get(t, ()) if placed is not None else ()
            plugs = [allocator.malloc(size) for size in sizes]
            made: list[tuple[int, tuple[int, int]]] = []
            for size in traces.get(t, []):
                if size > 0:
                    made.append((size, allocator.malloc(size)))
                else:
                    at = next(i for i, (found, _) in enumerate(made) if found == -size)
                    allocator.free(made.pop(at)[1])
            for plug in plugs:
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
    """Returns lives like those of a training step: some from the forward to their use in the
    backward, many short ones, and gradients to the end; and ops with scratch."""
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
    placed = place(lives, traces)
    large = [life for life in lives if life.bytes > MIB]
    small = [life for life in lives if life.bytes <= MIB]
    apart = replay(small, None, {}, 2).reserved
    assert placed.reserved == replay(large, placed, traces, 2).reserved + apart
    # and it does not grow in later steps
    assert replay(large, placed, traces, 5).reserved + apart == placed.reserved
    without = replay(large, None, {}, 2).reserved + apart
    assert reserved_without(large) + reserved_without(small) == without
    rounded = [(life, -(-life.bytes // 512) * 512) for life in lives]
    alive = [
        sum(size for life, size in rounded if life.made <= t <= life.last)
        for t in range(2 * border + 1)
    ]
    assert max(alive) <= placed.reserved <= without


def test_a_segment_reserves_less() -> None:
    saves = []
    for seed in range(8):
        lives, traces, _ = a_step(seed)
        saves.append(place(lives, traces).reserved / replay(lives, None, traces, 2).reserved)
    assert sum(saves) / len(saves) < 0.9


def most(lives: Sequence[Life], traces: Traces) -> int:
    """Returns the largest sum of large blocks, with those that ops free themselves."""
    allocator = replay([life for life in lives if life.bytes > MIB], None, traces, 1)
    return allocator.peak_live


def test_a_segment_is_little_larger_than_what_it_holds() -> None:
    shares = []
    for seed in range(12):
        lives, traces, _ = a_step(seed)
        shares.append(place(lives, traces).segment / most(lives, traces))
    assert max(shares) < 1.05
    assert sum(shares) / len(shares) < 1.01


def test_a_plug_leads_a_block_to_another_place() -> None:
    # the block that stays would be in the middle of the segment, as 40 MiB are below it when it is
    # made: then 80 MiB do not fit
    lives = [Life(0, 1, 40 * MIB), Life(1, 4, 20 * MIB), Life(3, 3, 80 * MIB)]
    traces = {life.made: [life.bytes] for life in lives}
    placed = place(lives, traces)
    assert (placed.segment, placed.reserved) == (100 * MIB, 100 * MIB)
    assert replay(lives, placed, traces, 3).reserved == 100 * MIB
    assert replay(lives, placed._replace(plugs={}), traces, 3).reserved > 100 * MIB
    assert sum(map(len, placed.plugs.values())) == 1


def test_plugs_fill_low_ends_and_smaller_holes() -> None:
    # blocks 0 (10 MiB, allocated now) and 1 (30 MiB, later); holes of 12 MiB at 0 and 50 MiB at 40
    holes = [Hole(12 * MIB, 0), Hole(50 * MIB, 40 * MIB)]

    def chosen(wanted: int, later: int) -> tuple[int, ...] | None:
        sizes = [10 * MIB, 30 * MIB]
        return choose(holes, [0], Guide([(1, 5), (2, 3)], sizes, [0, 1], [wanted, later]))

    assert chosen(0, 40 * MIB) == ()  # where the allocator puts it
    assert chosen(2 * MIB, 40 * MIB) == ()  # not where it was intended, but in nobody's way
    # the smaller hole is needed later; a small plug would go there
    assert chosen(70 * MIB, 0) == (30 * MIB, 12 * MIB)
    assert chosen(50 * MIB, 0) == (12 * MIB, 10 * MIB)
    assert chosen(40 * MIB, 0) == (12 * MIB,)
    assert choose(holes, [1], Guide([(1, 5), (2, 3)], [10 * MIB, 60 * MIB], [0, 0], [0, 0])) is None


def test_steps_that_need_no_segment() -> None:
    assert place([], {}) == Placed(0, {}, 0)
    small = [Life(0, 1, 100), Life(1, 2, MIB)]
    assert place(small, {0: [100], 1: [MIB]}) == Placed(0, {}, 2 * MIB)
    one = [Life(0, 1, 30 * MIB)]
    assert place(one, {0: [30 * MIB]}).reserved == 30 * MIB


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
    """Returns the allocations of a step (address, bytes) and its frees (negative bytes), in
    order."""
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
