"""Compares ``cutback.torch.optim.Adafactor`` with ``torch.optim.Adafactor``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import cutback.torch.optim as ours

SHAPES = (
    (16, 16),
    (8, 40),
    (),
    (7,),
    (5, 3, 4),
    (64, 32, 3, 3),
    (1, 9),
    (9, 1),
    (33, 5, 1, 1),
    (7, 3, 5, 5),
)
OPTIONS = [
    {},
    {"lr": 0.05, "beta2_decay": -0.5, "eps": (1e-4, 0.1), "d": 1.5, "weight_decay": 0.1},
    {"lr": torch.tensor(0.02, dtype=torch.float64), "maximize": True, "foreach": True},
]


def tensors(dtype):
    g = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(s, generator=g, dtype=dtype)) for s in SHAPES]


def set_gradients(params, others, seed):
    g = torch.Generator().manual_seed(seed)
    for i, (p, q) in enumerate(zip(params, others, strict=True)):
        p.grad = None
        if i != 1 or seed % 3 != 1:
            p.grad = torch.randn(p.shape, generator=g, dtype=torch.float64).to(p.dtype)
        q.grad = None if p.grad is None else p.grad.to(q.dtype, copy=True)


def compare(params, others, optimizer, other):
    for p, q in zip(params, others, strict=True):
        units = 64 * torch.finfo(p.dtype).eps
        assert (p - q).abs().max() <= units * max(1, q.abs().max())
        mine, theirs = optimizer.state[p], other.state[q]
        assert list(mine) == list(theirs)
        for key, x in theirs.items():
            assert (mine[key].shape, mine[key].dtype) == (x.shape, x.dtype)
            torch.testing.assert_close(mine[key], x, rtol=units, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_hundred_steps(options, dtype):
    params, others = tensors(dtype), tensors(dtype)
    optimizer = ours.Adafactor(params, **options)
    other = torch.optim.Adafactor(others, **options)
    for seed in range(100):
        set_gradients(params, others, seed)
        optimizer.step()
        other.step()
    assert optimizer.why_torch is None
    compare(params, others, optimizer, other)


def test_checkpoints_go_on_in_either():
    params, others = tensors(torch.float32), tensors(torch.float32)
    optimizer, other = ours.Adafactor(params), torch.optim.Adafactor(others)
    for seed in range(3):
        set_gradients(params, others, seed)
        optimizer.step()
        other.step()
    mine, theirs = optimizer.state_dict(), other.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    swapped, back = ours.Adafactor(others, lr=1.0), torch.optim.Adafactor(params, lr=1.0)
    swapped.load_state_dict(theirs)
    back.load_state_dict(mine)
    for i, state in mine["state"].items():
        for key, x in state.items():
            assert torch.equal(back.state_dict()["state"][i][key], x)
    set_gradients(params, others, 5)
    swapped.step()
    back.step()
    assert swapped.why_torch is None
    compare(others, params, swapped, back)


@pytest.mark.parametrize("half", ["master", "remainder"])
def test_bf16_is_stepped_as_f32(half):
    params = [nn.Parameter(p.detach().bfloat16()) for p in tensors(torch.float32)]
    others = [nn.Parameter(p.detach().float()) for p in params]
    optimizer = ours.Adafactor(params, half=half, eps=(1e-6, 1e-3))
    other = ours.Adafactor(others, eps=(1e-6, 1e-3))
    for seed in range(5):
        set_gradients(params, others, seed)
        optimizer.step()
        other.step()
        again = ours.Adafactor(params, half=half)
        again.load_state_dict(optimizer.state_dict())
        optimizer = again
    for p, q in zip(params, others, strict=True):
        state = optimizer.state[p]
        assert state.get("row_var", state.get("variance")).dtype == torch.float32
        if half == "master":
            assert torch.equal(state["master"], q)
        assert (p.float() - q).abs().max() <= 2**-8 * q.abs().max()


def test_what_is_pytorch_s_own():
    p = nn.Parameter(torch.ones(4, 3).t())
    p.grad = torch.ones_like(p)
    optimizer = ours.Adafactor([p])
    with pytest.warns(RuntimeWarning, match="is not stored row by row"):
        optimizer.step()
    q = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    q.grad = torch.ones_like(q)
    with (
        pytest.warns(RuntimeWarning, match="is complex"),
        pytest.raises(RuntimeError, match="comp"),
    ):
        ours.Adafactor([q]).step()
    with pytest.raises(ValueError, match="threshold d should be >= 1"):
        ours.Adafactor([p], d=0.5)
