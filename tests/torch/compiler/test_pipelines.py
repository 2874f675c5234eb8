"""What the losses of a pipeline hold is found without running anything."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cutback.torch.compiler import pipelines


def held(loss: torch.Tensor) -> int:
    """Bytes that the nodes of a loss hold."""
    found: pipelines.Sizes = {}
    for tensor in pipelines._saved(loss):
        pipelines.add(found, tensor)
    return sum(found.values())


def test_what_losses_save_is_counted_once() -> None:
    result, target = torch.randn(4, 8, requires_grad=True).neg(), torch.randn(4, 8)
    assert held(F.mse_loss(result, target)) == result.nbytes + target.nbytes
    assert held(result.exp().sum()) == result.nbytes
    loss = F.mse_loss(result, target)
    loss.backward()
    assert held(loss) == 0


def test_a_checkpoint_in_a_loss_does_not_run_again() -> None:
    """Nor does what it would compute count: only its argument is held."""
    n_runs = 0

    def f(x: torch.Tensor) -> torch.Tensor:
        nonlocal n_runs
        n_runs += 1
        return (x.sin() * x).exp()

    result = torch.randn(4, 8, requires_grad=True).neg()
    loss = checkpoint(f, result, use_reentrant=False).sum()
    assert held(loss) == 0 and n_runs == 1
    loss.backward()
    assert n_runs == 2


def test_what_hooks_pack_is_counted() -> None:
    result = torch.randn(4, 8, requires_grad=True).neg()
    unpacked = []

    def unpack(packed: torch.Tensor) -> torch.Tensor:
        unpacked.append(packed)
        return packed.float()

    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.half, unpack):
        loss = result.exp().sum()
    assert held(loss) == result.nbytes // 2 and not unpacked
