"""Runs models of timm, diffusers and torch_geometric with random weights at position 0.5. The
position is never refused, measured peaks are within the planned bytes, and gradients equal eager
mode's."""

from __future__ import annotations

import copy
import importlib.util
import os
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import cutback.torch as ct

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import library_models

pytestmark = [pytest.mark.torch, pytest.mark.very_slow, pytest.mark.filterwarnings("default")]


def trained(step: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, Any]:
    """Runs a training step with seed 3. Returns its peak, loss and gradients."""
    step.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    with ct.MemoryTracker() as memory:
        loss = step(*inputs, **options)
        loss.backward()
        peak = memory.peak_bytes
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in step.parameters()]
    return peak, [loss.detach(), *gradients]


@pytest.mark.parametrize("name", library_models.CASES)
def test_in_the_middle(name: str) -> None:
    library = library_models.CASES[name][0]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    step, inputs, options = library_models.make(name)
    eager = copy.deepcopy(step)
    compiled = ct.compile(step, budget=0.5)
    captures = name in library_models.SIZES_FROM_VALUES
    settings = {
        "capture_scalar_outputs": captures, "capture_dynamic_output_shape_ops": captures,
    }  # fmt: skip
    with torch._dynamo.config.patch(settings), warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(smallest plan|no plan|keeps to no budget)")
        # relative to small tensors, scratch is large
        warnings.filterwarnings("ignore", "kernels take scratch")
        for _ in range(3):
            _, wanted = trained(eager, inputs, options)
            peak, found = trained(compiled, inputs, options)
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
    first = compiled.plans[0]
    limit = first.numbers["budget_bytes"] if first.shared is None else first.shared.limit
    position = first.position if first.shared is None else first.shared.position
    assert peak <= limit
    if position is not None:
        assert position.position == 0.5
        assert position.smallest <= position.limit <= position.everything
        assert limit >= position.limit  # above it by measured scratch, which no plan can lower
