"""Measures what a region holds by following every storage from its first tensor to its end."""

from __future__ import annotations

import functools
import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eager_tools import GPT, Tracker
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from cutback.torch import checkpoint, checkpoint_contexts

pytestmark = pytest.mark.torch
torch.set_num_threads(1)
aten = torch.ops.aten
SAVED = [aten.mm, aten.addmm, aten.bmm, aten._scaled_dot_product_flash_attention_for_cpu]


def peak(model: Any, x: Any, run: Any) -> int:
    model.zero_grad(set_to_none=True)
    gc.collect()
    with Tracker() as tracker:
        run(model, x).backward()
    return tracker.peak


@pytest.mark.parametrize("p", [0.1, pytest.param(0.0, marks=pytest.mark.very_slow)])
def test_peak_is_below_that_of_torch_under_the_same_policy(p: float) -> None:
    torch.manual_seed(0)
    model, x = GPT(4, p), torch.randint(0, 50, (8, 16))
    plain = peak(model, x, lambda m, x: m(x))
    theirs = functools.partial(torch_checkpoint, use_reentrant=False)
    selective = functools.partial(theirs, context_fn=functools.partial(checkpoint_contexts, SAVED))
    ours = functools.partial(checkpoint, policy_fn=SAVED)
    assert peak(model, x, ours) < 0.8 * peak(model, x, selective) < plain
    assert peak(model, x, checkpoint) < 0.7 * peak(model, x, theirs)


def test_between_forward_and_backward_only_what_is_needed_is_held() -> None:
    x = torch.randn(1024, requires_grad=True)
    with Tracker() as tracker:
        y = x.sin()
        y = checkpoint(lambda x: x.sin().exp().tanh().sigmoid(), y)
        loss = y.sum()
        del y
        assert tracker.live == 4096 + 4  # the region's input and the loss
        loss.backward()


def test_an_unused_saved_result_is_freed() -> None:
    x = torch.randn(32, 32, requires_grad=True)

    def f(x: Any) -> Any:
        return (x @ x).sum() + 1  # the policy saves the product, which nobody needs

    with Tracker() as tracker:
        y = checkpoint(f, x, policy_fn=SAVED)
        assert tracker.live == 4
        y.backward()


def test_what_is_overwritten_dies_with_its_last_reader() -> None:
    """Neither the log nor the storage itself keeps the overwritten value alive."""
    x = torch.randn(1024, requires_grad=True)

    def f(x: Any) -> Any:
        for _ in range(8):
            y = x * 2
            y += 1
            x = y.tanh()  # saves its result
        return x

    with Tracker() as tracker:
        out = checkpoint(f, x, policy_fn=[aten.tanh])
        assert tracker.live == 8 * 4096
        assert tracker.peak <= 10 * 4096
        out.sum().backward()
