"""Scripts as their authors would write them agree with their twins in PyTorch, even if they call
NumPy for every function that NumPy has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from masked_ports import SCRIPTS as MASKED
from more_ports import SCRIPTS as MORE
from nets import Makes
from ports import SCRIPTS, NumPyFirst, Port

import cutback as cb
from cutback import tree

Make = Callable[[Makes], Port]
STEPS = 10


def tensors(values: Any, needs_gradient: bool = False) -> Any:
    """Returns the tree with its arrays copied to tensors."""
    leaves, structure = tree.flatten(values)
    made = [torch.tensor(np.asarray(x), requires_grad=needs_gradient) for x in leaves]
    return tree.unflatten(structure, made)


def drawn(port: Port) -> Callable[[], tuple[Any, ...]]:
    """Returns a function that returns, call by call, what the loss draws in that step."""
    if port.drawn is None:
        return tuple
    step = cb.compile(port.drawn, argnums=None)
    return lambda: tuple(torch.tensor(np.asarray(x)) for x in step(*port.data))


@pytest.mark.parametrize("xp", [cb, NumPyFirst()], ids=["cutback", "numpy"])
@pytest.mark.parametrize("make", SCRIPTS + MORE + MASKED)
def test_losses_are_those_of_pytorch(make: Make, xp: Any) -> None:
    port, copy = make(Makes(np.float32)), make(Makes(np.float32))
    params, data, draw = tensors(copy.params, True), tensors(copy.data), drawn(copy)
    optimizer = torch.optim.AdamW(tree.flatten(params)[0], lr=1e-3)
    step = cb.compile(partial(port.loss, xp), optimizer=cb.optim.AdamW(lr=1e-3))
    for _ in range(STEPS):
        ours = float(step(port.params, *port.data))
        loss = port.twin(params, *data, *draw())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert ours == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("xp", [cb, NumPyFirst()], ids=["cutback", "numpy"])
@pytest.mark.parametrize("make", SCRIPTS + MORE + MASKED)
def test_gradients_are_those_of_pytorch(make: Make, xp: Any) -> None:
    port = make(Makes(np.float64))
    params, data, draw = tensors(port.params, True), tensors(port.data), drawn(port)
    port.twin(params, *data, *draw()).backward()
    wanted = [p.grad.numpy() for p in tree.flatten(params)[0]]
    _, gradients = cb.value_and_grad(partial(port.loss, xp))(port.params, *port.data)
    for ours, theirs in zip(tree.flatten(gradients)[0], wanted, strict=True):
        largest = np.abs(theirs).max()
        assert np.abs(np.asarray(ours) - theirs).max() <= 1e-12 * max(largest, 1e-300)


@pytest.mark.very_slow  # planning the recurrent ones takes up to a minute
@pytest.mark.parametrize("make", MORE + MASKED)
def test_a_budget_does_not_change_a_bit(make: Make) -> None:
    found = []
    for budget in (None, 0.5):
        port = make(Makes(np.float32))
        step = cb.compile(partial(port.loss, cb), optimizer=cb.optim.AdamW(lr=1e-3), budget=budget)
        losses = [float(step(port.params, *port.data)) for _ in range(STEPS)]
        found.append((losses, [w.tobytes() for w in tree.flatten(port.params)[0]]))
        assert step.stats.peak_bytes == step.planned.arena_bytes
    assert found[0] == found[1]
    assert step.planned.arena_bytes <= step.plan.position.limit
