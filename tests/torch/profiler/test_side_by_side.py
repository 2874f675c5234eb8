"""Tests the tools of the side-by-side benchmark: steps that run any partition of a joint graph."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import make

import cutback.torch as ct

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "pytorch"))

import joint as bench


def take_step(run: Callable[[], Any], model: Any) -> tuple[int, list[Any]]:
    """Returns the peak in bytes, and the gradients."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(7)
    with ct.MemoryTracker() as memory:
        run()
    return memory.peak_bytes, [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.very_slow
@pytest.mark.parametrize("name", ["encoder", "resnet"])
def test_steps_are_those_of_the_front_door(name: str, same_bits: Callable[..., bool]) -> None:
    model, inputs = make(name)
    joint = bench.capture(model, inputs)
    found: list[Any] = []
    partitioner = ct.Partitioner("min", on_plan=found.append)
    step = bench.Step(joint, joint.partition(partitioner)[0])
    compiled = ct.compile(model, budget="min")
    compiled(*inputs).backward()
    peak, gradients = take_step(lambda: compiled(*inputs).backward(), model)
    own_peak, own_gradients = take_step(step, model)
    assert own_peak == peak == found[0].numbers["live_bytes"]
    assert same_bits(own_gradients, gradients)
    assert found[0].numbers["recomputed"] > 0 and not step.redraws()
    copies = len(step.copies)
    # three statistics for each of five batch norms
    assert copies == (15 if name == "resnet" else 0)


def test_redrawn_dropout_is_seen(same_bits: Callable[..., bool]) -> None:
    model, inputs = make("encoder")
    joint = bench.capture(model, inputs)
    steps = [
        bench.Step(joint, joint.partition(bench.torch_partition(budget))[0])
        for budget in (1.0, 0.0)
    ]
    assert steps[0].redraws() == 0 < steps[1].redraws()
    assert steps[0].saved_bytes() > steps[1].saved_bytes()
    (_, right), (_, wrong) = (take_step(step, model) for step in steps)
    eager = take_step(lambda: model(*inputs).backward(), model)[1]
    assert same_bits(right, eager) and not same_bits(wrong, eager)
