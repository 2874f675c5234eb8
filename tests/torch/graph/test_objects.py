"""Tests inputs and values of a graph that are neither tensors nor numbers: objects of registered
types, process groups, device meshes. Compiled code does with them what eager code does, in the
forward, in the backward, and as results, under every budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch._library.opaque_object import register_opaque_type
from torch._opaque_base import OpaqueBase

import cutback.torch as ct


class Gain(OpaqueBase):
    """A factor, and a count of its uses."""

    def __init__(self, factor: float) -> None:
        self.factor, self.uses = factor, 0


register_opaque_type(Gain, typ="reference")


@torch.library.custom_op("cutback_objects::amplify", mutates_args=())
def amplify(x: torch.Tensor, gain: Gain) -> torch.Tensor:
    gain.uses += 1
    return x * gain.factor


@amplify.register_fake
def _(x: torch.Tensor, gain: Gain) -> torch.Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.gain = inputs[1]


def _amplify_back(ctx: Any, g: torch.Tensor) -> Any:
    return amplify(g, ctx.gain), None


amplify.register_autograd(_amplify_back, setup_context=_keep)


@torch.library.custom_op("cutback_objects::doubled", mutates_args=())
def doubled(gain: Gain) -> Gain:
    return Gain(2 * gain.factor)


@doubled.register_fake
def _(gain: Gain) -> Gain:
    from torch._library.fake_class_registry import maybe_to_fake_obj
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = torch._guards.detect_fake_mode() or FakeTensorMode()
    return maybe_to_fake_obj(mode, Gain(0.0))


def _deep(x: Any) -> Any:
    for _ in range(4):
        x = x.sin().exp().cos()
    return x


def _train(call: Callable[..., Any], *objects: Any) -> tuple[Any, ...]:
    torch.manual_seed(0)
    w = torch.randn(32, 8, requires_grad=True)
    for _ in range(2):
        out = call(w, *objects)
        out.sum().backward()
    return out.detach(), w.grad


@pytest.mark.parametrize(
    ("budget", "dynamic"), [(None, False), ("0.8x", True), ("min", False), ("fastest", True)]
)
def test_an_object_that_both_passes_read(
    budget: Any, dynamic: bool, ran: Counter[str], same_bits: Callable[..., bool]
) -> None:
    def f(w: Any, gain: Any) -> Any:
        return _deep(amplify(_deep(w), gain))

    expected, plain = Gain(1.5), Gain(1.5)
    wanted = _train(f, expected)
    assert same_bits(_train(ct.compile(f, budget=budget, dynamic=dynamic), plain), wanted)
    assert plain.uses == expected.uses == 4  # it may have state, so nothing is recomputed
    assert ran == {"forward": 2, "backward": 2}


@pytest.mark.parametrize("budget", [None, "min"])
def test_an_object_that_the_forward_makes(
    budget: Any, ran: Counter[str], same_bits: Callable[..., bool]
) -> None:
    def f(w: Any, gain: Any) -> Any:
        return _deep(amplify(_deep(w), doubled(gain)))

    wanted = _train(f, Gain(1.5))
    assert same_bits(_train(ct.compile(f, budget=budget), Gain(1.5)), wanted)
    assert ran == {"forward": 2, "backward": 2}


@pytest.mark.parametrize("budget", [None, "min"])
def test_another_object_in_the_next_call(
    budget: Any, ran: Counter[str], same_bits: Callable[..., bool]
) -> None:
    """The backward gets the object of its own forward, even if two calls are pending."""

    def f(w: Any, gain: Any) -> Any:
        return _deep(amplify(_deep(w), gain))

    def both(call: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        w = torch.randn(32, 8, requires_grad=True)
        (call(w, Gain(0.5)) - call(w, Gain(3.0))).sum().backward()
        return w.grad

    assert same_bits(both(ct.compile(f, budget=budget)), both(f))
    assert ran["backward"] == 2


def test_ops_that_take_objects_run_once() -> None:
    assert ct.rerun.why_once(amplify) == "its argument gain is an object that may have a state"
    ct.rerun.declare(amplify, rerunnable=True)
    assert ct.rerun.why_once(amplify) is None
    ct.rerun.declare(amplify, rerunnable=None)
    assert ct.rerun.why_once(amplify) is not None


@pytest.mark.parametrize("budget", [pytest.param(None, marks=pytest.mark.very_slow), "min"])
def test_numbers_and_nothing(budget: Any, same_bits: Callable[..., bool]) -> None:
    """Arguments, results, and values in the backward are sizes, floats, booleans and None."""

    def f(w: Any, n: Any, factor: Any, flag: Any, nothing: Any) -> Any:
        x = _deep(w[:n] * factor)
        if flag and nothing is None:
            x = x.repeat(n, 1) / n
        return x, n + 1, factor, not flag, nothing

    def train(call: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        w = torch.randn(32, 8, requires_grad=True)
        rest = []
        for n, factor, flag in ((8, 0.5, True), (9, 0.25, True), (10, 0.125, False)):
            out, *others = call(w, n, factor, flag, None)
            out.sum().backward()
            rest.append(others)
        return w.grad, rest

    assert same_bits(train(ct.compile(f, budget=budget, dynamic=True)), train(f))


@pytest.fixture
def alone() -> Iterator[Any]:
    """Makes a device mesh of two ranks, of which only this process exists. Exchanges with the other
    rank are faked."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    distributed.destroy_process_group()


class _Loss(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.square().sum()


def _parallel(mesh: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    pairs = ((nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh()) for _ in range(3))
    model = nn.Sequential(*(layer for pair in pairs for layer in pair), _Loss())
    styles = {str(4 * k): ColwiseParallel() for k in range(3)}
    styles |= {str(4 * k + 2): RowwiseParallel() for k in range(3)}
    return parallelize_module(model, mesh, styles)


def _local(model: nn.Module) -> list[Any]:
    grads = [p.grad for p in model.parameters()]
    return [g.to_local() if hasattr(g, "to_local") else g for g in grads]


@pytest.mark.parametrize(
    "budget", [*(pytest.param(b, marks=pytest.mark.very_slow) for b in (None, "0.8x")), "min"]
)
def test_a_device_mesh(budget: Any, alone: Any, same_bits: Callable[..., bool]) -> None:
    """The bits are eager mode's; the measured peak of local shards is the planned one; collectives
    run once, in the graph's order."""
    x = torch.randn(64, 16)
    plain, model = _parallel(alone), _parallel(alone)
    compiled = ct.compile(model, budget=budget)
    for m in (plain, compiled):
        for _ in range(2):
            m.zero_grad()
            with ct.MemoryTracker() as memory:
                m(x).backward()
    assert same_bits(_local(model), _local(plain))
    (plan,) = compiled.plans
    assert memory.peak_bytes == plan.numbers["live_bytes"]
    ops = plan.parts.ops
    ran = [s for s in plan.document["steps"] if isinstance(s, int) and "collective" in ops[s].flags]
    assert ran and ran == sorted(set(ran))


def test_results_and_tangents_that_are_dtensors(alone: Any, same_bits: Callable[..., bool]) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    def f(w: Any, x: Any) -> Any:
        return _deep(_deep(w * x).redistribute(placements=[Replicate()]))

    def train(call: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        w = distribute_tensor(torch.randn(8, 8), alone, [Shard(0)]).requires_grad_()
        x = distribute_tensor(torch.randn(8, 8), alone, [Shard(0)])
        out = call(w, x)
        assert isinstance(out, DTensor)
        out.backward(torch.ones_like(out))
        return out.to_local().detach(), w.grad.to_local()

    for budget in (None, "min"):
        torch._dynamo.reset()
        assert same_bits(train(ct.compile(f, budget=budget)), train(f)), budget


@pytest.mark.very_slow
def test_questions_about_a_parallel_model(alone: Any) -> None:
    """Local shards are traced, profiled and counted."""
    model, x = _parallel(alone), torch.randn(64, 16)
    loss = lambda x: model(x)  # noqa: E731
    optimizer = torch.optim.AdamW(model.parameters())
    traced = ct.trace(loss, x, optimizer=optimizer)
    local = sum(part.nbytes for p in model.parameters() for part in ct.memory.parts_of(p))
    plan = traced.plan(measure="total")
    compiled = ct.compile(loss, budget=plan.numbers["live_bytes"])
    for _ in range(2):  # the first step allocates the states
        optimizer.zero_grad()
        with ct.MemoryTracker(model, optimizer) as memory:
            compiled(x).backward()
            optimizer.step()
    total = plan.numbers["total_bytes"]
    assert 3 * local < total  # including the states
    assert 0.9 * total <= memory.peak_total_bytes <= total
    profile = ct.profile(loss, x)
    assert profile.seconds and ct.compile(loss, budget="min", profile=profile)(x).backward() is None


@pytest.mark.parametrize("budget", [None, "min"])
def test_hooks_of_values_under_compiled_autograd(
    budget: Any, ran: Counter[str], same_bits: Callable[..., bool]
) -> None:
    """PyTorch passes hooks of values in a special object, which only the backward receives."""
    from torch._dynamo import compiled_autograd

    def f(w: Any) -> Any:
        y = _deep(w)
        y.register_hook(lambda g: g * 2)
        return _deep(y)

    wanted = _train(f)
    with (
        torch._dynamo.config.patch(compiled_autograd=True),
        compiled_autograd._enable(torch.compile(backend="eager")),
    ):
        assert same_bits(_train(ct.compile(f, budget=budget)), wanted)
    assert ran["forward"] == 2
