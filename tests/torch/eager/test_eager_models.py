"""Models trained in a region have the same bits as models trained without one."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from eager_tools import GPT, PRODUCTS, ResNet, assert_same, left
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy

from cutback.torch import checkpoint

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("imports_of_a_first_use")]

torch.set_num_threads(1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Any) -> Any:
        return self.encoder(x).square().mean()


class Autocast(nn.Module):
    """Casts only inside the region, so the backward runs without autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.b(F.gelu(self.a(x)))
            with torch.autocast("cpu", enabled=False):
                y = y.float() @ y.float().transpose(1, 2)
        return y.float().softmax(-1).square().mean()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 16, 2, batch_first=True, dropout=0.2)

    def forward(self, x: Any) -> Any:
        y, (h, c) = self.lstm(x)
        return y.square().mean() + h.sin().mean() + c.cos().mean()


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "gpt": lambda: (GPT(), torch.randint(0, 50, (4, 16))),
    "gpt_dropout": lambda: (GPT(p=0.1), torch.randint(0, 50, (4, 16))),
    "encoder": lambda: (Encoder(), torch.randn(4, 16, 32)),
    "resnet": lambda: (ResNet(), torch.randn(2, 3, 12, 12)),
    "autocast": lambda: (Autocast(), torch.randn(4, 16, 32)),
    "lstm": lambda: (Recurrent(), torch.randn(2, 5, 32)),
}


def save_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    save, again = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
    return save if op in PRODUCTS else again


def save_all(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    return CheckpointPolicy.PREFER_SAVE


POLICIES = {"none": None, "list": PRODUCTS, "function": save_products, "all": save_all}


def step(model: Any, x: Any, run: Callable[..., Any]) -> list[Any]:
    """Returns loss, gradients, buffers, and the generator's state after two steps."""
    torch.manual_seed(3)
    model.zero_grad(set_to_none=True)
    losses = []
    for _ in range(2):
        loss = run(model, x)
        loss.backward()
        losses.append(loss.detach())
    gradients = [p.grad for p in model.parameters()]
    return [*losses, *gradients, *model.buffers(), torch.get_rng_state()]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, policy: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    twin = copy.deepcopy(model)
    plain = step(model, x, lambda m, x: m(x))
    gc.collect()
    gc.disable()  # reference counting must free everything
    try:
        ours = step(twin, x, lambda m, x: checkpoint(m, x, policy_fn=POLICIES[policy]))
        assert not left()
    finally:
        gc.enable()
    assert_same(plain, ours)


def test_threads() -> None:
    results: list[Any] = [None] * 4
    model = GPT(2)
    tokens = torch.randint(0, 50, (4, 16))

    def train(k: int) -> None:
        for _ in range(3):
            twin = copy.deepcopy(model)
            loss = checkpoint(twin, tokens, policy_fn=PRODUCTS if k % 2 else None)
            loss.backward()
            results[k] = [loss.detach(), *(p.grad for p in twin.parameters())]

    threads = [threading.Thread(target=train, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    loss = model(tokens)
    loss.backward()
    plain = [loss.detach(), *(p.grad for p in model.parameters())]
    for result in results:
        assert_same(plain, result)
