"""Compares tables of ten thousand tensors of all kinds at once with PyTorch's loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import cutback.torch.optim as ours


def parameters(n):
    """Returns parts of one buffer per type, with 0 to 6 elements, at any multiple of an element."""
    g = torch.Generator().manual_seed(0)
    types = (torch.float32, torch.float64, torch.complex64)
    buffers = [torch.randn(4 * n, generator=g, dtype=dtype) for dtype in types]
    made, at = [], [0] * len(types)
    for i in range(n):
        kind, size = i % len(types), i % 7
        made.append(nn.Parameter(buffers[kind][at[kind] : at[kind] + size]))
        at[kind] += size + i % 2
    return made


@pytest.mark.very_slow
@pytest.mark.parametrize("name", ["AdamW", "SGD", "NAdam", "ASGD"])
def test_ten_thousand_tensors_of_all_types(name):
    params, others = parameters(10_000), parameters(10_000)
    options = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(ours, name)(params, lr=0.05, **options)
    other = getattr(torch.optim, name)(others, lr=0.05, foreach=False, **options)
    for step in range(3):
        g = torch.Generator().manual_seed(step)
        for i, (p, q) in enumerate(zip(params, others, strict=True)):
            grad = torch.randn(p.shape, generator=g, dtype=p.dtype)
            p.grad, q.grad = (None, None) if i % 11 == step else (grad, grad.clone())
        optimizer.step()
        other.step()
    assert optimizer.why_torch is None
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-5, atol=1e-6)
        assert optimizer.state[p].keys() == other.state[q].keys()


def test_a_parameter_that_is_given_twice():
    """PyTorch warns and steps it twice; here nothing is updated."""
    p, q = (nn.Parameter(torch.ones(3)) for _ in range(2))
    p.grad = q.grad = torch.ones(3)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = ours.AdamW([p, q, p], lr=0.1)
    with pytest.raises(ValueError, match=r"row 0 and .* of row 2 share memory"):
        optimizer.step()
    assert torch.equal(p, torch.ones(3)) and torch.equal(q, torch.ones(3))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,), (2, 0, 3), (2, 3, 0)])
@pytest.mark.parametrize("name", ["Adafactor", "AdamW8bit", "SOAP", "AdamW", "Lion"])
def test_parameters_without_elements_are_no_obstacle(name, shape):
    """The strides that PyTorch reports for empty parameters do not matter."""
    empty, full = nn.Parameter(torch.zeros(shape)), nn.Parameter(torch.ones(4, 5))
    empty.grad, full.grad = torch.zeros(shape), torch.ones(4, 5)
    optimizer = getattr(ours, name)([full, empty])
    before = full.detach().clone()
    for _ in range(2):  # SOAP's first step computes the bases
        optimizer.step()
    assert not torch.equal(before, full)
