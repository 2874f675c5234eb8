"""Tests groups whose options determine which of the core's optimizers steps them."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import cutback.torch.optim as ours

CASES = [
    ("RMSprop", [{"centered": True}, {}], "groups differ in centered"),
    ("RMSprop", [{}, {"centered": True, "momentum": 0.5}], "groups differ in centered"),
    ("Adam", [{"decoupled_weight_decay": True}, {}], "groups differ in decoupled_weight_decay"),
]


def made(module, name, options, **kwargs):
    params = [nn.Parameter(torch.linspace(-1, 1, 6).view(2, 3) * (i + 1)) for i in range(2)]
    groups = [{"params": [p], **row} for p, row in zip(params, options, strict=True)]
    return params, getattr(module, name)(groups, lr=0.05, weight_decay=0.1, **kwargs)


def go_on(params, optimizer, seeds):
    for seed in seeds:
        for i, p in enumerate(params):
            g = torch.Generator().manual_seed(10 * seed + i)
            p.grad = torch.randn(p.shape, generator=g)
        optimizer.step()


@pytest.mark.parametrize(("name", "options", "why"), CASES)
def test_groups_that_differ_are_stepped_by_pytorch(name, options, why):
    """States of groups that differ can be loaded in either direction."""
    params, optimizer = made(ours, name, options)
    others, other = made(torch.optim, name, options)
    with pytest.warns(RuntimeWarning, match=why):
        go_on(params, optimizer, range(3))
    go_on(others, other, range(3))
    saved = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(other.state_dict())
    optimizer.load_state_dict(saved[1])
    other.load_state_dict(saved[0])
    go_on(params, optimizer, range(3, 5))
    go_on(others, other, range(3, 5))
    assert why in optimizer.why_torch
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)
        assert optimizer.state[p].keys() == other.state[q].keys()


@pytest.mark.parametrize(("name", "options", "why"), CASES)
def test_groups_that_differ_in_half_precision_are_refused(name, options, why):
    params, optimizer = made(ours, name, options, half="stochastic")
    before = [p.detach().clone() for p in params]
    with pytest.raises(RuntimeError, match=why):
        go_on(params, optimizer, [0])
    assert all(map(torch.equal, params, before)) and not optimizer.state


def test_groups_that_become_alike_are_stepped_here():
    params, optimizer = made(ours, "RMSprop", [{"centered": True}, {}])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        go_on(params, optimizer, [0])
    optimizer.param_groups[0]["centered"] = False
    go_on(params, optimizer, [1])
    assert optimizer.why_torch is None
    assert "grad_avg" in optimizer.state[params[0]]


def test_a_name_that_is_there_twice():
    p, q = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(5))
    with pytest.raises(ValueError, match="two parameters are named 'a'"):
        ours.AdamW([("a", p), ("a", q)])
    optimizer = ours.AdamW([("a", p)])
    with pytest.raises(ValueError, match="two parameters are named 'a'"):
        optimizer.add_param_group({"params": [("a", q)]})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [("b", q)]})
    assert optimizer.param_groups[1]["param_names"] == ["b"]
