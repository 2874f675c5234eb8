"""Steps gradients and parameters that are NaN, infinite, zeros of either sign, denormal or huge:
each element ends as in PyTorch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

import cutback.torch.optim as ours

CASES = [
    ("Adam", {}), ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {}), ("AdamW", {"amsgrad": True, "maximize": True}),
    ("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    ("RAdam", {}), ("RAdam", {"betas": (0.8, 0.9), "weight_decay": 0.1}),
    ("RAdam", {"betas": (0.8, 0.9), "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("NAdam", {}), ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("ASGD", {}), ("ASGD", {"t0": 2, "weight_decay": 0.1}),
    ("Rprop", {}), ("Rprop", {"etas": (0.3, 1.5), "step_sizes": (1e-3, 0.1), "maximize": True}),
    ("Adamax", {}), ("Adamax", {"weight_decay": 0.1, "maximize": True}),
    ("Adagrad", {}), ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1}),
    ("Adadelta", {}), ("Adadelta", {"weight_decay": 0.1, "maximize": True}),
    ("RMSprop", {}), ("RMSprop", {"momentum": 0.5, "weight_decay": 0.1}),
    ("RMSprop", {"centered": True}), ("RMSprop", {"centered": True, "momentum": 0.5}),
    ("Adafactor", {}), ("Adafactor", {"weight_decay": 0.1, "maximize": True}),
]  # fmt: skip
STEPS = 8


def specials(dtype, name=""):
    """Returns special values. If huge numbers cancel, PyTorch rounds once where the processor can;
    the kinds of the results do not matter then."""
    least, huge = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max / 8
    huge = math.sqrt(huge) / 8 if name in ("RMSprop", "Adafactor") else huge
    huge = huge**0.25 / 8 if name == "Adafactor's matrices" else huge  # multiplies two means
    return [math.nan, math.inf, -math.inf, 0.0, -0.0, least / 8, -least / 1024, huge, -huge,
            math.sqrt(least), 1.0]  # fmt: skip


def gradients(dtype, name):
    """Returns gradients for each step: element i has its own sequence of special and ordinary
    numbers."""
    values = specials(dtype, name)
    rows = []
    for at, value in itertools.product((0, 1, 3, 6), values):
        rows.append([value if t == at else 0.5 - 0.1 * t for t in range(STEPS)])
    for first, second in itertools.product(values, values):
        rows.append([first if t % 3 == 0 else second if t % 3 == 1 else -0.25
                     for t in range(STEPS)])  # fmt: skip
    rows += [[value] * STEPS for value in values]
    return torch.tensor(rows, dtype=dtype).t().contiguous()


def assert_alike(x, y, most, what):
    """Checks that NaN and infinities are in the same places, and that other numbers are close,
    relative to the element's largest value so far."""
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        bad = (kind(x) != kind(y)).nonzero().flatten()
        assert not len(bad), (what, kind.__name__, bad[:5].tolist(), x[bad[:5]], y[bad[:5]])
    fine = x.isfinite()
    torch.maximum(most, torch.where(fine, y.abs(), most), out=most)
    assert ((x - y)[fine].abs() <= 1e-4 * most[fine] + 1e-30).all(), what


def compare(name, options, params, others, grads):
    one = getattr(ours, name)(params, **options)
    two = getattr(torch.optim, name)(others, foreach=False, **options)
    largest = {}
    for t in range(len(grads)):
        for p, q, g in zip(params, others, grads[t], strict=True):
            p.grad, q.grad = g.clone(), g.clone()
        one.step()
        two.step()
        assert one.why_torch is None
        for i, (p, q) in enumerate(zip(params, others, strict=True)):
            pairs = {"": (p.detach(), q.detach())}
            pairs |= {key: (x, two.state[q][key]) for key, x in one.state[p].items()}
            for key, (x, y) in pairs.items():
                most = largest.setdefault((i, key), torch.zeros_like(y).flatten())
                assert_alike(x.flatten(), y.flatten(), most, f"step {t} {key}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_gradients(name, options, dtype):
    grads = gradients(dtype, name)
    n = grads.shape[1]
    if name == "Adafactor":  # one element affects its whole tensor
        for shape, what in (((1,), name), ((1, 1, 1), f"{name}'s matrices")):
            grads = gradients(dtype, what)
            params = [nn.Parameter(torch.ones(shape, dtype=dtype)) for _ in range(n)]
            others = [nn.Parameter(torch.ones(shape, dtype=dtype)) for _ in range(n)]
            rows = [[x.reshape(shape) for x in row.split(1)] for row in grads]
            compare(name, options, params, others, rows)
        return
    params, others = ([nn.Parameter(torch.linspace(-1, 1, n, dtype=dtype))] for _ in range(2))
    compare(name, options, params, others, [[row] for row in grads])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_parameters(name, options, dtype):
    values = torch.tensor(specials(dtype, name), dtype=dtype)
    if name == "Adafactor":
        params, others = ([nn.Parameter(x.clone()) for x in values.split(1)] for _ in range(2))
        grads = [[torch.full((1,), 0.5, dtype=dtype) for _ in values] for _ in range(4)]
    else:
        params, others = ([nn.Parameter(values.clone())] for _ in range(2))
        grads = [[torch.full_like(values, 0.5)] for _ in range(4)]
    compare(name, options, params, others, grads)
