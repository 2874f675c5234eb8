"""Plans that move values to the host give the same bits, the planned peak on the device and the
planned bytes on the host, even if copies are slow."""

from __future__ import annotations

import functools
import json
import weakref
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import make
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.utils.checkpoint import CheckpointPolicy

import cutback.torch as ct
from cutback import BudgetError
from cutback import problem as problems
from cutback.schedule import Life, Step
from cutback.torch import transfers
from cutback.torch.compiler.joining import part_of
from cutback.torch.graph import emitter
from cutback.torch.graph.moving import Move, Schedule, schedule_of


def row(link: float) -> str:
    """Returns a device with this link speed in bytes per second. A slow link makes plans wait."""
    return json.dumps(
        {"name": "slow link", "flops_per_s": {"f32": 100e9}, "bytes_per_s": 20e9, "launch_s": 1e-6,
         "link_bytes_per_s": link}
    )  # fmt: skip


def step(model: nn.Module, call: Any, inputs: tuple[Any, ...]) -> tuple[list[Any], Any]:
    """Returns loss, gradients and buffers of a step with seed 7, and its tracker."""
    model.zero_grad()
    torch.manual_seed(7)
    with ct.MemoryTracker(model) as memory:
        loss = call(*inputs)
        loss.backward()
    tensors = [loss.detach(), [p.grad for p in model.parameters()], list(model.buffers())]
    return tensors, memory


@functools.cache
def plain(name: str) -> list[Any]:
    """Runs a step that saves everything."""
    model, inputs = make(name)
    found, _ = step(model, ct.compile(model), inputs)
    torch._dynamo.reset()
    return found


# name, budget, offload, link; None: the CPU's own device row
RUNS = [
    pytest.param("gpt", 0.65, "only", 5e7, marks=pytest.mark.very_slow),
    pytest.param("encoder", 0.95, "only", 3e8, marks=pytest.mark.very_slow),
    pytest.param("resnet", 0.65, "only", 5e7, marks=pytest.mark.very_slow),
    pytest.param("resnet", 0.5, True, 1e9, marks=pytest.mark.very_slow),
    ("unet", 0.65, "only", 3e8),
    ("unet", 0.65, True, None),
]


@pytest.mark.parametrize(("name", "budget", "offload", "link"), RUNS)
def test_same_bits_and_planned_bytes(
    name: str,
    budget: float,
    offload: Any,
    link: float | None,
    ran: Counter[str],
    same_bits: Callable[..., bool],
) -> None:
    expected = plain(name)
    ran.clear()
    model, inputs = make(name)
    device = None if link is None else row(link)
    compiled = ct.compile(model, budget=f"{budget}x", offload=offload, device=device)
    found, memory = step(model, compiled, inputs)
    assert ran == {"forward": 1, "backward": 1}
    assert same_bits(found, expected)
    (plan,) = compiled.plans
    numbers = plan.numbers
    assert numbers["out_bytes"] > 0 and plan.offloaded
    assert memory.peak_bytes == numbers["live_bytes"] <= budget * numbers["save_all_live_bytes"]
    assert memory.peak_host_bytes == numbers["host_bytes"]
    assert memory.host_bytes == 0  # everything was freed
    if link is None:
        assert plan.problem["link_bytes_per_s"] == 10e9
    if offload == "only":  # except views and getitems, nothing is recomputed
        kinds = Counter(s for s in plan.document["steps"] if isinstance(s, int))
        again = [plan.problem["ops"][op] for op, n in kinds.items() if n > 1]
        assert all("view" in op["flags"] for op in again)


class Later:
    """Replaces transfers. Copies are made as late as their waits allow, and hold NaN until then, so
    a read, free or wait in the wrong place is detected."""

    def __init__(self) -> None:
        # by address of a copy: the tensor that it will be copied from
        self.sources: dict[int, Any] = {}
        self.calls: Counter[str] = Counter()

    def _begin(self, copy: Any, source: Any) -> Any:
        self.calls["copies"] += 1
        self.sources[copy.data_ptr()] = source
        return copy

    def _end(self, copy: Any) -> None:
        source = self.sources.pop(copy.data_ptr(), None)
        if isinstance(source, weakref.ref):
            source = source()
            assert source is not None, "memory was freed while it was copied"
        if source is not None:
            copy.copy_(source)

    @staticmethod
    def _empty(t: Any) -> Any:
        copy = torch.empty_strided(t.size(), t.stride(), dtype=t.dtype)
        return copy.fill_(float("nan") if t.dtype.is_floating_point else 1)

    def leave(self, t: Any) -> Any:
        return self._begin(self._empty(t), weakref.ref(t))

    def arrive(self, host: Any, device: Any) -> Any:
        self._end(host)
        return self._begin(self._empty(host), host.clone())

    def wait(self, host: Any, device: Any) -> None:
        self._end(host)

    def gone(self, t: Any, host: Any) -> None:
        self.calls["gone"] += 1
        self._end(host)

    def ready(self, t: Any) -> Any:
        self.calls["ready"] += 1
        self._end(t)
        return t


@pytest.mark.very_slow
@pytest.mark.parametrize(("name", "link"), [("encoder", 1e9), ("resnet", 5e7), ("resnet", 1e9)])
def test_late_copies_are_waited_for(
    name: str, link: float, same_bits: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain(name)
    later = Later()
    for function in ("leave", "arrive", "wait", "gone", "ready"):
        monkeypatch.setattr(transfers, function, getattr(later, function))
    model, inputs = make(name)
    compiled = ct.compile(model, budget="0.5x", offload="only", device=row(link))
    found, _ = step(model, compiled, inputs)
    assert same_bits(found, expected)
    moved = later.calls["copies"] // 2
    assert moved > 3 and later.calls["gone"] == moved and later.calls["ready"] == moved
    assert later.sources == {}


def test_copies_keep_the_layout() -> None:
    base = torch.arange(240.0)
    cases = [base.view(4, 60), base.view(4, 60).t(), base[7:100:3], base[:1].expand(5, 5),
             base.to(torch.bfloat16).view(2, 3, 40).permute(2, 0, 1), torch.ones(3) > 0,
             torch.empty(0, 4)]  # fmt: skip
    for t in cases:
        with ct.MemoryTracker() as memory:
            host = transfers.leave(t)
            back = transfers.ready(transfers.arrive(host, t.device))
            transfers.gone(t, host)
            size = t.untyped_storage().nbytes()
            assert memory.peak_bytes == memory.peak_host_bytes == size
            del host
            assert memory.host_bytes == 0
        assert torch.equal(back, t) and back.untyped_storage().nbytes() == size
        assert (back.stride(), back.storage_offset()) == (t.stride(), t.storage_offset())


def test_a_policy_that_says_offload(same_bits: Callable[..., bool]) -> None:
    aten = torch.ops.aten

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        return CheckpointPolicy.MUST_CPU_OFFLOAD if op == aten.gelu.default else None

    expected = plain("gpt")
    model, inputs = make("gpt")
    compiled = ct.compile(model, policy=policy)
    found, memory = step(model, compiled, inputs)
    assert same_bits(found, expected)
    (plan,) = compiled.plans
    moved = [e for e in plan.offloaded if e.kind == "aten.gelu.default"]
    assert len(moved) == 3
    assert memory.peak_host_bytes == sum(e.bytes for e in moved)
    assert memory.peak_bytes == plan.numbers["live_bytes"]


@pytest.mark.very_slow
def test_pinned_bounds_the_host() -> None:
    model, inputs = Layers(), (torch.randn(512, 32),)
    compiled = ct.compile(model, budget="0.8x", offload="only", pinned="400kB", device=row(1e9))
    _, memory = step(model, compiled, inputs)
    (plan,) = compiled.plans
    assert 0 < memory.peak_host_bytes == plan.numbers["host_bytes"] <= 400_000
    torch._dynamo.reset()
    with pytest.raises(BudgetError):
        ct.compile(model, budget="0.5x", offload="only", pinned=100)(*inputs).sum().backward()


def test_by_name(same_bits: Callable[..., bool]) -> None:
    expected = plain("resnet")
    model, inputs = make("resnet")
    plans: list[Any] = []
    options = {"budget": "0.6x", "offload": True, "pinned": "1GiB", "on_plan": plans.append}
    found, memory = step(model, torch.compile(model, backend="cutback", options=options), inputs)
    assert same_bits(found, expected)
    assert memory.peak_host_bytes == plans[0].numbers["host_bytes"] > 0


def test_in_a_compiler_of_ones_own(same_bits: Callable[..., bool]) -> None:
    expected = plain("resnet")
    model, inputs = make("resnet")
    partitioner = ct.Partitioner(budget="0.6x", offload="only")

    def compiler(gm: Any, example_inputs: Any) -> Any:
        return make_boxed_func(gm.forward)

    backend = aot_autograd(fw_compiler=compiler, partition_fn=partitioner)
    found, _ = step(model, torch.compile(model, backend=backend), inputs)
    assert same_bits(found, expected) and partitioner.plans[0].offloaded


def test_doors_that_cannot_move_say_so() -> None:
    model, inputs = make("resnet")
    with pytest.raises(ValueError, match="codegen='eager'"):
        ct.compile(model, budget="0.5x", offload=True, codegen="inductor")
    policy = CheckpointPolicy.MUST_CPU_OFFLOAD
    with pytest.raises(NotImplementedError, match="Inductor cannot compile plans"):
        ct.compile(model, policy=policy, codegen="inductor")(*inputs)
    torch._dynamo.reset()
    partitioner = ct.Partitioner(budget="0.5x", offload=True)
    with (
        torch._inductor.config.patch(custom_partitioner_fn=partitioner, fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
        pytest.raises(Exception, match="Inductor cannot compile plans"),
    ):
        torch.compile(model)(*inputs)
    for options, error in (
        ({"offload": True}, "needs a budget"),
        ({"budget": "0.5x", "offload": "yes"}, "offload='yes'"),
        ({"budget": "0.5x", "offload": True, "pinned": 0}, "pinned=0"),
        ({"budget": "0.5x", "pinned": "1GiB"}, "pinned='1GiB' needs offload"),
        ({"pinned": 4096}, "pinned=4096 needs offload"),
        ({"policy": [torch.ops.aten.mm], "pinned": 4096}, "pinned=4096 needs offload"),
        ({"policy": CheckpointPolicy.MUST_SAVE, "pinned": 4096}, "or a policy that offloads"),
    ):
        with pytest.raises(ValueError, match=error):
            ct.compile(model, **options)


class Layers(nn.Module):
    """One graph, or two."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(8)]
        self.first, self.second = nn.Sequential(*layers[:4]), nn.Sequential(*layers[4:])
        self.broken = broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.broken:
            torch._dynamo.graph_break()
        return self.second(x).square().mean()


def test_two_backwards_and_hooks_on_saved_tensors(same_bits: Callable[..., bool]) -> None:
    model, inputs = Layers(), (torch.randn(512, 32),)
    compiled = ct.compile(model, budget="0.6x", offload="only", device=row(1e9))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        loss = compiled(*inputs)
    loss.backward(retain_graph=True)
    model.zero_grad()
    loss.backward()
    found = [loss.detach(), [p.grad for p in model.parameters()]]
    once, _ = step(model, model, inputs)
    assert same_bits(found, once[:2])


def test_other_batch_sizes(ran: Counter[str], same_bits: Callable[..., bool]) -> None:
    model, eager = Layers(), Layers()
    eager.load_state_dict(model.state_dict())
    compiled = ct.compile(model, budget="0.5x", offload="only", dynamic=True, device=row(1e9))
    for n in (512, 300):
        x = torch.randn(n, 32)
        found, memory = step(model, compiled, (x,))
        expected, _ = step(eager, eager, (x,))
        assert same_bits(found, expected)
        assert memory.peak_host_bytes > 0 == memory.host_bytes
    assert len(compiled.plans) == 1 and ran == {"forward": 2, "backward": 2}


@pytest.mark.parametrize("link", [2e8, 1e10])
def test_graph_breaks(link: float, ran: Counter[str], same_bits: Callable[..., bool]) -> None:
    torch.manual_seed(0)
    model, x = Layers(broken=True), torch.randn(512, 32)
    expected, _ = step(model, model, (x,))
    expected = [t if not isinstance(t, list) else [g.clone() for g in t] for t in expected]
    compiled = ct.compile(model, budget=500_000, offload="only", device=row(link))
    for _ in range(3):
        found, memory = step(model, compiled, (x,))
        assert same_bits(found, expected)
    (plan,) = compiled.plans  # one plan for both graphs
    assert ran == {"forward": 6, "backward": 6}
    assert memory.peak_bytes <= plan.numbers["live_bytes"] and plan.offloaded
    assert memory.host_bytes == 0 < memory.peak_host_bytes <= plan.numbers["host_bytes"]


def test_moves_between_other_graphs_are_drawn_to_their_own() -> None:
    # graphs 0 and 1: forward ops 0 and 1, backward ops 2 (of 1) and 3 (of 0)
    order = [(0, 0), (1, 0), (1, 1), (0, 1)]
    out, end, back = Move("out", 0, 1), Move("end", 0, 1), Move("in", 0, 5)
    joint = Schedule([0, out, 1, end, back, 2, 3], 5)
    assert part_of(joint, order, 0) == Schedule([0, out, end, back, 1], 3)
    assert part_of(joint, order, 1) == Schedule([0, 1], 1)
    joint = Schedule([0, out, 1, 2, end, back, 3], 3)
    assert part_of(joint, order, 0) == Schedule([0, out, end, back, 1], 3)


def test_ends_of_what_leaves() -> None:
    ops = [problems.Op("a", "f", outputs=[problems.Value(0)]),
           problems.Op("b", "f", outputs=[problems.Value(1)]), problems.Op("c", "f")]  # fmt: skip
    steps = [Step(0), Step(0, "out"), Step(1), Step(0, "in"), Step(2)]
    lives = [Life(0, 0, 2, 64, 0), Life(1, 2, 2, 64, 64), Life(0, 3, 4, 64, 0)]
    problem = problems.Problem(ops, [problems.Storage(64), problems.Storage(64)], [], [], 3)
    plan = SimpleNamespace(
        steps=steps, backward_starts=3, lives=lives, problem=SimpleNamespace(parts=lambda: problem)
    )
    found = schedule_of(plan)
    assert found == ([0, Move("out", 0, 1), 1, Move("end", 0, 1), Move("in", 0, 3), 2], 4)


def test_what_left_crosses_as_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    crossing: list[Any] = []
    find = emitter._Emitter._find_saved

    def look(self: Any) -> None:
        find(self)
        crossing.extend(self.tensors)

    monkeypatch.setattr(emitter._Emitter, "_find_saved", look)
    model, inputs = make("unet")
    compiled = ct.compile(model, budget="0.8x", offload="only", device=row(3e8))
    step(model, compiled, inputs)
    moved = Counter(v.what for v in crossing if not isinstance(v, torch.fx.Node))
    (plan,) = compiled.plans
    assert moved["host"] == len(plan.offloaded)
    assert moved["left"] > 0  # still being copied when the forward returns


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_cuda(same_bits: Callable[..., bool]) -> None:
    model, inputs = make("gpt")
    model, inputs = model.cuda(), tuple(t.cuda() for t in inputs)
    expected, _ = step(model, ct.compile(model), inputs)
    torch._dynamo.reset()
    compiled = ct.compile(model, budget="0.6x", offload="only")
    for _ in range(3):
        found, memory = step(model, compiled, inputs)
        assert same_bits(found, expected)
    assert memory.peak_bytes == compiled.plans[0].numbers["live_bytes"]
    assert memory.peak_host_bytes > 0
