"""Parameters and gradients in unusual layouts: stepped right, with nothing around them written."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import cutback.torch.optim as ours

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def with_gaps(layout):
    """A parameter with gaps, and all of the memory around it."""
    base = torch.zeros(6, 8, 5)
    views = {"column": base[:, 0, 0], "every other": base[0, ::2, 0], "block": base[1:4, 2:5, 1:3],
             "transposed block": base[1:4, 2:5, 0].t(), "last row": base[5, :, 4]}  # fmt: skip
    return base, nn.Parameter(views[layout])


GAPS = ("column", "every other", "block", "transposed block", "last row")


@pytest.mark.parametrize("layout", GAPS)
@pytest.mark.parametrize("name", FUSED)
def test_a_fused_step_leaves_the_memory_between_elements_alone(name, layout):
    """PyTorch's fused kernel of a CPU takes each tensor for a contiguous one."""
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
    """What is not stepped here goes to the code that minds strides, also without any gaps."""
    p = nn.Parameter(torch.zeros(3, 2, dtype=torch.bfloat16).t())
    p.grad = torch.arange(6.0).to(torch.bfloat16).view(2, 3)
    with pytest.warns(RuntimeWarning):
        ours.SGD([p], lr=1.0, fused=True).step()
    assert torch.equal(-p.detach(), p.grad)
