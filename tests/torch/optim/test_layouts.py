"""Parameters and gradients in unusual layouts are stepped correctly, and no memory around them is
written."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import cutback.torch.optim as ours

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def with_gaps(layout):
    """Returns a parameter with gaps, and all the memory around it."""
    base = torch.zeros(6, 8, 5)
    views = {"column": base[:, 0, 0], "every other": base[0, ::2, 0], "block": base[1:4, 2:5, 1:3],
             "transposed block": base[1:4, 2:5, 0].t(), "last row": base[5, :, 4]}  # fmt: skip
    return base, nn.Parameter(views[layout])


GAPS = ("column", "every other", "block", "transposed block", "last row")


@pytest.mark.parametrize("layout", GAPS)
@pytest.mark.parametrize("name", FUSED)
def test_a_fused_step_leaves_the_memory_between_elements_alone(name, layout):
    """PyTorch's fused CPU kernel treats each tensor as contiguous."""
    results = []
    for module, fused in ((ours, True), (torch.optim, False)):
        base, p = with_gaps(layout)
        optimizer = getattr(module, name)([p], lr=0.5, fused=fused)
        for seed in range(2):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                optimizer.step()
        inside = torch.zeros(base.shape, dtype=torch.bool)
        inside.as_strided(p.shape, p.stride(), p.storage_offset()).fill_(True)
        assert p.all() and not base[~inside].any()
        results.append(p.detach().clone())
        assert optimizer.param_groups[0]["fused"] is fused
    assert torch.equal(*results)


def test_a_fused_step_of_a_transposed_half_by_a_gradient_in_rows():
    """Tensors not stepped here go to code that respects strides, even if they have no gaps."""
    p = nn.Parameter(torch.zeros(3, 2, dtype=torch.bfloat16).t())
    p.grad = torch.arange(6.0).to(torch.bfloat16).view(2, 3)
    with pytest.warns(RuntimeWarning):
        ours.SGD([p], lr=1.0, fused=True).step()
    assert torch.equal(-p.detach(), p.grad)


def negated(n, dtype=torch.float32):
    """Returns ones, stored as a lazy negation of -1."""
    return torch._neg_view(torch.full((n,), -1, dtype=dtype))


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("where", ["parameter", "data", "gradient", "later", "state", "count"])
def test_negations_that_are_only_noted(n, where):
    results = []
    for module in (ours, torch.optim):
        p = nn.Parameter(negated(n) if where == "parameter" else torch.ones(n))
        optimizer = module.AdamW([p], lr=0.5)
        for t in range(3):
            late = where == "gradient" or (where == "later" and t == 1)
            p.grad = None
            p.grad = negated(n) if late else torch.ones(n)
            if where == "data" and t == 1:
                p.data = negated(n)
            if where == "state" and t:
                optimizer.state[p]["exp_avg"] = negated(n)
            if where == "count" and t:
                optimizer.state[p]["step"] = torch._neg_view(torch.tensor(-7.0))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                optimizer.step()
        results.append(p.detach().resolve_neg().clone())
    torch.testing.assert_close(*results)


def test_an_imaginary_part_of_one_element():
    p = nn.Parameter(torch.ones(1))
    optimizer = ours.SGD([p], lr=0.5, momentum=0.5)
    p.grad = torch.ones(1)
    optimizer.step()
    optimizer.state[p]["momentum_buffer"] = torch.tensor([1j]).conj().imag
    optimizer.step()
    assert p.item() == 0.5 - 0.5 * (1 - 0.5)


FREED = [(where, size, dtype) for where in ("parameter", "gradient", "exp_avg") for size in (0, 16)
         for dtype in (torch.float32, torch.bfloat16, torch.complex64)]  # fmt: skip
FREED += [(where, size, torch.float32) for where in ("average", "copy") for size in (0, 16)]
FREED += [("step", 0, dtype) for dtype in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize(("where", "size", "dtype"), FREED)
def test_a_tensor_without_memory_is_refused(where, size, dtype):
    """FSDP frees a parameter's storage between uses. PyTorch steps bfloat16."""
    p, q = (nn.Parameter(torch.ones(1000, dtype=dtype)) for _ in range(2))
    optimizer = ours.AdamW([p, q], lr=0.5)
    p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    average, copy = torch.ones(1000), torch.ones(1000, dtype=torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        optimizer.step()
    state = optimizer.state[q]
    freed = {"parameter": q, "gradient": q.grad, "average": average, "copy": copy}.get(where)
    freed = state[where] if freed is None else freed
    before, count = p.detach().clone(), optimizer.state[p]["step"].clone()
    freed.untyped_storage().resize_(size)
    beside = {"averages": [None, average]} if where == "average" else {}
    beside |= {"copies": [None, copy]} if where == "copy" else {}
    for _ in range(2):
        with pytest.raises(ValueError, match="less memory than it has elements"):
            optimizer.step(**beside)
    assert torch.equal(p, before) and torch.equal(optimizer.state[p]["step"], count)


@pytest.mark.parametrize("name", ["SGD", "AdamW8bit", "SOAP", "Muon", "Lion", "Adafactor"])
def test_no_optimizer_reads_memory_that_is_not_there(name):
    p = nn.Parameter(torch.ones(40, 30))
    optimizer = getattr(ours, name)([p], lr=0.1)
    for freed in (p, torch.ones(40, 30)):
        p.grad = torch.ones(40, 30) if freed is p else freed
        if freed is p:
            optimizer.step()
            bits = p.detach().clone()
        freed.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match="less memory"):
            optimizer.step()
        p.data = bits.clone()


def test_a_parameter_without_memory_or_gradient_is_left_alone():
    p, q = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    optimizer = ours.SGD([p, q], lr=1.0)
    p.grad = torch.ones(5)
    q.untyped_storage().resize_(0)
    optimizer.step()
    assert p.tolist() == [0.0] * 5 and optimizer.why_torch is None
