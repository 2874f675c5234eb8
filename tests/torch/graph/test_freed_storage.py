"""Tests tensors whose memory was freed or shrunk, as FSDP frees parameters between uses. Every
function that takes a tensor as an array refuses them, without reading or writing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np

import cutback as cb


def freed(rows: int = 4) -> Any:
    tensor = torch.ones(rows, 3)
    tensor.untyped_storage().resize_(0)
    return tensor


def smaller() -> Any:
    tensor = torch.ones(4, 3)
    tensor.untyped_storage().resize_(44)  # a byte less than the last element needs
    return tensor


def part_of_smaller() -> Any:
    """Returns a view whose own bytes would fit if it did not begin so late."""
    tensor = torch.ones(4, 3)
    view = tensor[2:]
    tensor.untyped_storage().resize_(40)
    return view


def loss(x: Any) -> Any:
    return (x * x).sum()


ENTRIES: dict[str, Callable[[Any], Any]] = {
    "a function": lambda x: cb.compile(lambda x: x * 2.0, argnums=None)(x),
    "a nested argument": lambda x: cb.value_and_grad(lambda p: loss(p["w"]))({"w": x}),
    "gradients": lambda x: cb.value_and_grad(loss)(x),
    "a step": lambda x: cb.compile(loss, optimizer=cb.optim.SGD(lr=0.1))(x),
    "a plan": lambda x: cb.plan(loss, x),
    "a constant": lambda x: cb.value_and_grad(lambda y: (y * x).sum())(np.ones((4, 3), np.float32)),
    "an output": lambda x: cb.value_and_grad(loss)(np.ones(tuple(x.shape), np.float32), out=x),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("make", [freed, smaller, part_of_smaller])
def test_refused(entry: str, make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"the tensor needs \d+ bytes, but its storage has \d+"):
        ENTRIES[entry](make())


def test_freed_between_two_calls() -> None:
    """Facts cached for an argument do not outlive its memory, and it is not refused forever."""
    step = cb.compile(loss, optimizer=cb.optim.SGD(lr=0.25))
    w = torch.ones(4, 3)
    for expected in (12.0, 3.0):
        assert float(step(w)) == expected
    w.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="its storage has 0"):
        step(w)
    w.untyped_storage().resize_(48)
    w.fill_(1.0)
    assert float(step(w)) == 12.0


def test_tensors_without_elements_need_no_memory() -> None:
    tensor = freed(0)
    assert float(cb.compile(lambda x: x.sum(), argnums=None)(tensor)) == 0.0
