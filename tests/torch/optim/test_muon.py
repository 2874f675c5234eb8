"""Compares ``cutback.torch.optim.Muon`` with ``torch.optim.Muon``, whose products round to bf16."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import cutback.torch.optim as ours

SHAPES = ((16, 16), (8, 40), (40, 8), (8, 40))
OPTIONS = [
    {"lr": 0.02},
    {"lr": 0.02, "nesterov": False, "momentum": 0.8, "adjust_lr_fn": "match_rms_adamw",
     "weight_decay": 0.0, "ns_steps": 6},
]  # fmt: skip


def tensors():
    g = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(s, generator=g)) for s in SHAPES]


def set_gradients(params, others, seed):
    g = torch.Generator().manual_seed(seed)
    for i, (p, q) in enumerate(zip(params, others, strict=True)):
        p.grad = None if i == 1 and seed % 3 == 1 else torch.randn(p.shape, generator=g)
        q.grad = None if p.grad is None else p.grad.clone()


def compare(params, others, optimizer, other, most):
    for p, q in zip(params, others, strict=True):
        assert (p - q).abs().max() <= most
        assert optimizer.state[p].keys() == other.state[q].keys()
        mine, theirs = (o.state[x]["momentum_buffer"] for o, x in ((optimizer, p), (other, q)))
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", OPTIONS)
def test_thirty_steps(options):
    """Elements of an orthogonal matrix are below 1 and bf16 has 8 bits, so a step differs by at
    most a few 256ths of lr times its factor."""
    params, others = tensors(), tensors()
    optimizer, other = ours.Muon(params, **options), torch.optim.Muon(others, **options)
    for seed in range(30):
        set_gradients(params, others, seed)
        optimizer.step()
        other.step()
    assert optimizer.why_torch is None
    compare(params, others, optimizer, other, 30 * 0.02 * 1.3 * 5**0.5 * 3 / 256)


def test_checkpoints_go_on_in_either():
    params, others = tensors(), tensors()
    optimizer, other = ours.Muon(params), torch.optim.Muon(others)
    for seed in range(3):
        set_gradients(params, others, seed)
        optimizer.step()
        other.step()
    mine, theirs = optimizer.state_dict(), other.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    swapped, back = ours.Muon(others, lr=1.0), torch.optim.Muon(params, lr=1.0)
    swapped.load_state_dict(theirs)
    back.load_state_dict(mine)
    for i, state in mine["state"].items():
        assert torch.equal(back.state_dict()["state"][i]["momentum_buffer"],
                           state["momentum_buffer"])  # fmt: skip
    set_gradients(params, others, 5)
    swapped.step()
    back.step()
    compare(others, params, swapped, back, 1e-3 * 4 * 3 * 5**0.5 * 3 / 256)


def test_what_lies_otherwise_is_pytorch_s():
    p = nn.Parameter(torch.ones(4, 3).t())
    p.grad = torch.ones_like(p)
    optimizer = ours.Muon([p])
    with pytest.warns(RuntimeWarning, match="is not a matrix stored row by row"):
        optimizer.step()
    with pytest.raises(ValueError, match="only supports 2D"):
        ours.Muon([nn.Parameter(torch.ones(3))])
