"""Tests steps that the core refuses and PyTorch takes: numbers out of range, and parameters that
share memory."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import cutback.torch.optim as ours

NAMES = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam",
         "ASGD", "Rprop", "Adafactor")  # fmt: skip
RATES = (-0.1, float("inf"), -1e300, 1e34, 1e300)


def made(where, name, tied=None):
    params = [nn.Parameter(torch.arange(6.0).reshape(2, 3) + k) for k in range(2)]
    if tied is not None:
        params[1].data = params[0].data[tied]
    return getattr(where, name)(params, lr=0.1), params


def step(optimizer, params, k):
    g = torch.Generator().manual_seed(k)
    for p in params:
        p.grad = torch.randn(p.shape, generator=g)
    optimizer.step()


def same(a, b):
    """True if the bits are PyTorch's; steps that the core has taken may differ."""
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.filterwarnings("ignore:cutback.torch.optim", "ignore:Casting complex values")
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", NAMES)
def test_a_rate_that_a_scheduler_moves_out_of_range(name, rate):
    """The step has PyTorch's values, then later steps are our own again. If PyTorch refuses,
    nothing is updated."""
    (one, params), (two, others) = made(ours, name), made(torch.optim, name)
    rates = [0.1, rate, 0.1]
    schedulers = [torch.optim.lr_scheduler.LambdaLR(o, lambda k: rates[k] / 0.1)
                  for o in (one, two)]  # fmt: skip
    step(one, params, 0)
    step(two, others, 0)
    for scheduler in schedulers:
        scheduler.step()
    before = copy.deepcopy([p.detach() for p in params]), copy.deepcopy(one.state_dict())
    try:
        step(two, others, 1)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=str(error)):
            step(one, params, 1)
        assert all(torch.equal(p, q) for p, q in zip(params, before[0], strict=True))
        for i, state in before[1]["state"].items():
            assert all(torch.equal(x, one.state_dict()["state"][i][key])
                       for key, x in state.items())  # fmt: skip
        return
    step(one, params, 1)
    assert "out of range" in one.why_torch
    same(params, others)
    for scheduler in schedulers:
        scheduler.step()
    step(one, params, 2)
    step(two, others, 2)
    assert one.why_torch is None
    same(params, others)


def test_a_first_step_that_pytorch_refuses_leaves_no_state():
    optimizer, params = made(ours, "AdamW")
    optimizer.param_groups[0]["lr"] = 1e300
    with pytest.warns(RuntimeWarning, match="out of range"), pytest.raises(RuntimeError):
        step(optimizer, params, 0)
    assert not optimizer.state
    assert torch.equal(params[0], torch.arange(6.0).reshape(2, 3))


@pytest.mark.filterwarnings("ignore:cutback.torch.optim")
@pytest.mark.parametrize("part", [slice(0, 2), slice(1, 2), slice(0, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_parameters_tied_by_data(name, part):
    """The parameters are fully or partly tied; the step has PyTorch's bits."""
    (one, params), (two, others) = made(ours, name, part), made(torch.optim, name, part)
    for k in range(3):
        step(one, params, k)
        step(two, others, k)
        assert one.why_torch == "parameter 0 of group 0 and parameter 1 of group 0 share memory"
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)
        assert all(torch.equal(x, two.state[q][key]) for key, x in one.state[p].items())


def test_what_pytorch_would_do_without_an_argument_stays_an_error():
    optimizer, params = made(ours, "AdamW", slice(0, 2))
    for p in params:
        p.grad = torch.ones(2, 3)
    with pytest.raises(ValueError, match="share memory"):
        optimizer.step(max_norm=1.0)
    lion, (p, _) = made(ours, "Lion")
    lion.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match="lr=-1"):
        step(lion, [p], 0)
    assert torch.equal(p, torch.arange(6.0).reshape(2, 3))


@pytest.mark.filterwarnings("ignore:cutback.torch.optim")
@pytest.mark.parametrize(("key", "value"), [
    ("lr", float("nan")), ("weight_decay", -1.0), ("weight_decay", float("inf")), ("eps", -1e-3),
    ("eps", float("nan")), ("momentum", -0.5), ("betas", (1.0, 0.9)), ("betas", (1.5, 0.9)),
    ("betas", (0.9, -0.5))])  # fmt: skip
@pytest.mark.parametrize("name", ["AdamW", "SGD", "RMSprop", "Adagrad"])
def test_numbers_of_a_group_that_are_set_out_of_range(name, key, value):
    """PyTorch checks these numbers only in its constructor. If its code fails, nothing is
    updated."""
    (one, params), (two, others) = made(ours, name), made(torch.optim, name)
    if key not in one.param_groups[0]:
        assert key not in two.param_groups[0]
        return
    step(one, params, 0)
    step(two, others, 0)
    for optimizer in (one, two):
        optimizer.param_groups[0][key] = value
    before = copy.deepcopy([p.detach() for p in params]), copy.deepcopy(one.state_dict())
    try:
        step(two, others, 1)
    except ArithmeticError as error:
        with pytest.raises(type(error)):
            step(one, params, 1)
        assert all(torch.equal(p, q) for p, q in zip(params, before[0], strict=True))
        assert str(one.state_dict()) == str(before[1])
        return
    step(one, params, 1)
    assert one.why_torch is not None
    same(params, others)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
@pytest.mark.parametrize("value", [None, 1 + 0j, "0.1", b"0.1"])
def test_a_rate_that_is_not_a_number(name, value):
    optimizer, params = made(ours, name)
    optimizer.param_groups[0]["lr"] = value
    before, text = [p.detach().clone() for p in params], r"group 0 has lr=.* is not a number"
    with pytest.raises(TypeError, match=text):
        step(optimizer, params, 0)
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
    assert not optimizer.state


@pytest.mark.parametrize("zero_grads", [False, True])
def test_a_gradient_of_zeros_without_memory(zero_grads):
    """Autograd represents some zeros without memory."""
    ends = []
    for kind, zeros in ((ours, True), (ours, False), (torch.optim, True)):
        p = nn.Parameter(torch.linspace(-1, 1, 6))
        optimizer = kind.AdamW([p], lr=0.1)
        p.grad = torch.ones(6)
        optimizer.step()
        p.grad = torch._efficientzerotensor(6) if zeros else torch.zeros(6)
        optimizer.step(**({"zero_grads": zero_grads} if kind is ours else {}))
        assert getattr(optimizer, "why_torch", None) is None
        ends.append(p.detach())
    assert torch.equal(ends[0], ends[1])
    same(ends[0], ends[2])
