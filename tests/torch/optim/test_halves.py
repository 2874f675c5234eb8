"""Compares half-precision parameters that keep their lost bits with ``torch.optim`` on f32."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import cutback.torch.optim as ours

OPTIONS = {
    "Adam": {"weight_decay": 0.1, "amsgrad": True},
    "AdamW": {},
    "SGD": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1},
    "RAdam": {},
    "NAdam": {},
    "ASGD": {},
    "Rprop": {},
    "Adamax": {},
    "Adagrad": {"lr": 0.1, "initial_accumulator_value": 0.5},
    "Adadelta": {"lr": 0.5},
    "RMSprop": {"momentum": 0.5, "centered": True, "eps": 0.1},
}


def tensors(dtype, seed=0):
    """Returns tensors without axes, empty, odd, and channels last."""
    g = torch.Generator().manual_seed(seed)
    made = [torch.randn(s, generator=g) for s in ((), (0, 3), (5,), (300, 7), (2, 3, 4, 5))]
    made[-1] = made[-1].to(memory_format=torch.channels_last)
    return [nn.Parameter(x.to(dtype)) for x in made]


def set_gradients(params, seed, wholes=()):
    g = torch.Generator().manual_seed(1000 + seed)
    for i, p in enumerate(params):
        p.grad = torch.randn(p.shape, generator=g).to(p.dtype)
        if i == 3 and seed % 4 == 2:
            p.grad = None
        if wholes:
            wholes[i].grad = None if p.grad is None else p.grad.float()


def bits(x):
    return x.detach().contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32)


def units(x, y):
    if x.numel() == 0:
        return 0.0
    largest = y.abs().max()
    unit = torch.nextafter(largest, largest.new_tensor(float("inf"))) - largest
    return float((x - y).abs().max() / unit)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "options"), OPTIONS.items())
def test_a_master_copy_is_stepped_as_pytorch_steps_f32(name, options, dtype):
    params, wholes, twins = (tensors(dtype) for _ in range(3))
    wholes, twins = ([nn.Parameter(p.detach().float()) for p in row] for row in (wholes, twins))
    optimizer = getattr(ours, name)(params, half="master", **options)
    torchs = getattr(torch.optim, name)(wholes, **options)
    same = getattr(ours, name)(twins, **options)
    for seed in range(50):
        set_gradients(params, seed, wholes)
        for whole, twin in zip(wholes, twins, strict=True):
            twin.grad = whole.grad
        for o in (optimizer, torchs, same):
            o.step()
    assert optimizer.why_torch is None
    for p, whole, twin in zip(params, wholes, twins, strict=True):
        state, wanted = optimizer.state[p], same.state[twin]
        assert state["master"].dtype == torch.float32
        assert torch.equal(bits(state["master"]), bits(twin))
        assert torch.equal(bits(p), bits(twin.to(dtype)))
        for key in wanted:
            assert state[key].dtype == torch.float32
            assert torch.equal(bits(state[key]), bits(wanted[key]))
        assert units(state["master"], whole.detach()) <= 64


@pytest.mark.parametrize("name", OPTIONS)
def test_a_remainder_has_the_other_bits(name):
    params, others = tensors(torch.bfloat16), tensors(torch.bfloat16)
    remainder = getattr(ours, name)(params, half="remainder", **OPTIONS[name])
    master = getattr(ours, name)(others, half="master", **OPTIONS[name])
    for seed in range(20):
        set_gradients(params, seed)
        for p, q in zip(params, others, strict=True):
            q.grad = p.grad
        remainder.step()
        master.step()
    for p, q in zip(params, others, strict=True):
        rest = remainder.state[p]["remainder"]
        assert rest.dtype == torch.int16
        assert rest.stride() == p.stride()
        whole = (bits(p).int() << 16) + bits(rest).int()
        assert torch.equal(whole, bits(master.state[q]["master"]))


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_noise_is_another_one_for_each_step(momentum):
    """Takes a hundred steps of a hundredth of a bf16 unit, which rounding to nearest would lose."""
    p = nn.Parameter(torch.ones(4000, dtype=torch.bfloat16))
    optimizer = ours.SGD([p], lr=2**-7 * (1 - momentum) / 100, momentum=momentum,
                         half="stochastic", seed=3)  # fmt: skip
    for _ in range(100):
        p.grad = -torch.ones_like(p)
        optimizer.step()
    # momentum adds one step that does not move
    assert optimizer.state[p]["step"] == 101 - (momentum > 0)
    moved = (p.detach().double() - 1) / 2**-7
    wanted = 1.0 if momentum == 0 else 1 - momentum / (1 - momentum) / 100
    assert abs(moved.mean() - wanted) < 5 / 4000**0.5
    assert abs(moved.var() - 1) < 0.2


@pytest.mark.parametrize("half", ["master", "remainder", "stochastic"])
@pytest.mark.parametrize("name", ["AdamW", "SGD", "NAdam"])
def test_checkpoints_copies_and_pickles_keep_all_bits(name, half):
    options = OPTIONS[name] | {"half": half}
    straight, params = tensors(torch.bfloat16), tensors(torch.bfloat16)
    whole, begins = (getattr(ours, name)(row, **options) for row in (straight, params))
    for seed in range(10):
        for optimizer, row in ((whole, straight), (begins, params)):
            set_gradients(row, seed)
            optimizer.step()
        if seed == 3:  # a checkpoint is loaded by another optimizer
            file = io.BytesIO()
            torch.save(begins.state_dict(), file)
            file.seek(0)
            begins = getattr(ours, name)(params, **options)
            begins.load_state_dict(torch.load(file))
        elif seed in (5, 7):
            begins = pickle.loads(pickle.dumps(begins)) if seed == 5 else copy.deepcopy(begins)
            params = begins.param_groups[0]["params"]
            assert begins.half == half
    for p, q in zip(straight, params, strict=True):
        assert torch.equal(bits(p), bits(q))
        for key, value in whole.state[p].items():
            assert value.dtype == begins.state[q][key].dtype
            assert value.dtype == torch.int16 or torch.equal(value, begins.state[q][key])


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_checkpoints_of_pytorch_go_on_and_back(name):
    params, others = tensors(torch.bfloat16), tensors(torch.bfloat16)
    theirs = getattr(torch.optim, name)(params, **OPTIONS[name])
    set_gradients(params, 0)
    theirs.step()
    for half in ("master", "stochastic"):
        optimizer = getattr(ours, name)(others, half=half, **OPTIONS[name])
        optimizer.load_state_dict(theirs.state_dict())
        for p, q in zip(params, others, strict=True):
            q.data.copy_(p.detach())
        set_gradients(others, 1)
        optimizer.step()
        assert optimizer.why_torch is None
        for p, q in zip(params, others, strict=True):
            for key, value in theirs.state[p].items():
                assert optimizer.state[q][key].dtype == torch.float32
                if name == "SGD":  # it continued from theirs
                    new = 0.9 * value.float() + q.grad.float() + 0.1 * p.detach().float()
                    torch.testing.assert_close(optimizer.state[q][key], new)
        back = getattr(torch.optim, name)(others, **OPTIONS[name])
        back.load_state_dict(optimizer.state_dict())
        set_gradients(others, 2)
        back.step()


def test_extras_and_layouts():
    params = tensors(torch.bfloat16)
    averages = [torch.zeros_like(p, dtype=torch.float32) for p in params]
    optimizer = ours.AdamW(params, half="remainder")
    set_gradients(params, 0)
    params[-1].grad = params[-1].grad.contiguous()  # another layout than its parameter
    versions = [p._version for p in params]
    optimizer.step(max_norm=1.0, averages=averages, average_decay=0.0, zero_grads=True)
    for p, average, version in zip(params, averages, versions, strict=True):
        assert p._version > version
        assert not p.grad.any()
        assert (average - p.detach().float()).abs().max() <= 2**-7 if p.numel() else True
    norm = optimizer.outcome.grad_norm
    set_gradients(params, 0)
    expected = torch.stack([p.grad.double().norm() for p in params]).norm()
    assert norm == pytest.approx(float(expected), rel=1e-6)


def test_mixed_parameters_in_groups():
    dtypes = torch.bfloat16, torch.float32, torch.float64
    half, single, double = (nn.Parameter(torch.ones(5, dtype=dtype)) for dtype in dtypes)
    groups = [{"params": [half, single]}, {"params": [double], "lr": 0.1}]
    optimizer = ours.AdamW(groups, half="remainder")
    for p in (half, single, double):
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert optimizer.why_torch is None
    assert "remainder" in optimizer.state[half]
    assert "remainder" not in optimizer.state[single]
    assert optimizer.state[double]["exp_avg"].dtype == torch.float64


def test_what_cannot_be_is_said():
    with pytest.raises(ValueError, match="half='f32' is not one of"):
        ours.AdamW([nn.Parameter(torch.ones(3))], half="f32")
    with pytest.raises(ValueError, match="seed"):
        ours.AdamW([nn.Parameter(torch.ones(3))], half="stochastic", seed=2**64)
    p = nn.Parameter(torch.ones(3, dtype=torch.float16))
    p.grad = torch.ones_like(p)
    with pytest.raises(
        RuntimeError, match=r"is float16, for which half is .*does not support half='rem"
    ):
        ours.AdamW([p], half="remainder").step()
    assert (p == 1).all()
    q = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    q.grad = torch.ones_like(q)
    optimizer = ours.AdamW([q])
    with pytest.warns(RuntimeWarning, match="neither single nor double"):
        optimizer.step()
