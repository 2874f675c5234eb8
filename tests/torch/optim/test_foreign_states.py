"""States of other optimizers and other parameters: refused with what is wrong, and nothing is
changed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import cutback.torch.optim as ours


def trained(kind, shape=(3, 2), **options):
    p = nn.Parameter(torch.ones(shape))
    optimizer = kind([p], lr=0.1, **options)
    p.grad = torch.ones(shape)
    optimizer.step()
    return p, optimizer


def whole(optimizer):
    return repr(optimizer.state_dict())


@pytest.mark.parametrize(("one", "other", "text"), [
    ("AdamW", "SGD", "AdamW: group 0 of the state has no 'betas'; .* dampening"),
    ("SGD", "AdamW", "SGD: group 0 of the state has no 'momentum'; .* betas"),
    ("RMSprop", "Adagrad", "RMSprop: group 0 of the state has no 'alpha'"),
    ("Rprop", "Adamax", "Rprop: group 0 of the state has no 'etas'"),
])  # fmt: skip
def test_the_state_of_another_optimizer(one, other, text):
    p, optimizer = trained(getattr(ours, one))
    _, given = trained(getattr(ours, other))
    before = whole(optimizer), p.clone()
    with pytest.raises(ValueError, match=text):
        optimizer.load_state_dict(given.state_dict())
    assert whole(optimizer) == before[0] and torch.equal(p, before[1])
    optimizer.step()
    assert not torch.equal(p, before[1])


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adafactor", "AdamW8bit"])
def test_the_state_of_other_shapes(name):
    options = {"momentum": 0.9} if name == "SGD" else {}
    _, optimizer = trained(getattr(ours, name), **options)
    _, given = trained(getattr(ours, name), (5, 400), **options)
    before = whole(optimizer)
    with pytest.raises(ValueError, match=rf"{name}: .* of parameter 0 of group 0 is .*\(3, 2\)"):
        optimizer.load_state_dict(given.state_dict())
    assert whole(optimizer) == before
    optimizer.step()


def test_states_that_lack_something():
    _, optimizer = trained(ours.NAdam)
    state = copy.deepcopy(optimizer.state_dict())
    del state["state"][0]["mu_product"]
    with pytest.raises(ValueError, match="state of parameter 0 of group 0 has no mu_product"):
        optimizer.load_state_dict(state)
    state["state"][0] = {"momentum_buffer": torch.ones(3, 2)}
    with pytest.raises(ValueError, match="has momentum_buffer and none of"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize("name", ["AdamW", "RMSprop"])
def test_pytorch_s_code_does_not_begin_on_a_state_of_another_shape(name):
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = getattr(ours, name)([p, q], lr=0.1)
    for _ in range(2):
        p.grad, q.grad = torch.ones(3), torch.ones(3)
        optimizer.step()
    key = optimizer._keys[0]
    optimizer.state[q][key] = torch.ones(4)
    before = p.clone(), whole(optimizer)
    with pytest.raises(ValueError, match=rf"{name}: {key} of parameter 1 of group 0 is \(4,\)"):
        optimizer.step()
    assert torch.equal(p, before[0]) and whole(optimizer) == before[1]
