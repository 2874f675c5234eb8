"""What a region holds, measured by following every storage from its first tensor to its end."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from cutback.torch import checkpoint, checkpoint_contexts

pytestmark = pytest.mark.torch
torch.set_num_threads(1)
aten = torch.ops.aten
SAVED = [aten.mm, aten.addmm, aten.bmm, aten._scaled_dot_product_flash_attention_for_cpu]


class Tracker(TorchDispatchMode):
    """Bytes of storages that ops made and that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def _freed(self, n: int) -> None:
        self.live -= n

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                if "_tracked" not in storage.__dict__:
                    storage.__dict__["_tracked"] = True
                    self.live += storage.nbytes()
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(storage, self._freed, storage.nbytes())
        return out


class Block(nn.Module):
    def __init__(self, width: int, p: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.p = p

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 4, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p)
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(b, t, d)), self.p)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.p)


class GPT(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.token = nn.Embedding(50, 32)
        self.blocks = nn.Sequential(*(Block(32, p) for _ in range(4)))

    def forward(self, tokens: Any) -> Any:
        logits = self.blocks(self.token(tokens)) @ self.token.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def peak(model: Any, x: Any, run: Any) -> int:
    model.zero_grad(set_to_none=True)
    gc.collect()
    with Tracker() as tracker:
        run(model, x).backward()
    return tracker.peak


@pytest.mark.parametrize("p", [0.0, 0.1])
def test_peak_is_below_that_of_torch_under_the_same_policy(p: float) -> None:
    torch.manual_seed(0)
    model, x = GPT(p), torch.randint(0, 50, (8, 16))
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
        return (x @ x).sum() + 1  # the product is saved by the policy, and nobody needs it

    with Tracker() as tracker:
        y = checkpoint(f, x, policy_fn=SAVED)
        assert tracker.live == 4
        y.backward()
