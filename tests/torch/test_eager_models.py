"""Models trained in a region have the bits of models trained without."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy

from cutback.torch import checkpoint
from cutback.torch.eager_log import Node, Value

pytestmark = pytest.mark.torch

torch.set_num_threads(1)
aten = torch.ops.aten
PRODUCTS = [aten.mm, aten.addmm, aten.bmm, aten.convolution]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, p: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.p = heads, p

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p)
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(b, t, d)), self.p)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.p)


class GPT(nn.Module):
    """Tied embedding and head."""

    def __init__(self, layers: int = 3, p: float = 0.0) -> None:
        super().__init__()
        self.token = nn.Embedding(50, 32)
        self.position = nn.Parameter(torch.randn(16, 32))
        self.blocks = nn.ModuleList(Block(32, 4, p) for _ in range(layers))
        self.norm = nn.LayerNorm(32)

    def forward(self, tokens: Any) -> Any:
        x = self.token(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.token.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class ResNet(nn.Module):
    """Batch norm, an activation in place, a sum in place."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(c, c, 3, padding=1),
                nn.BatchNorm2d(c),
                nn.ReLU(inplace=True),
                nn.Conv2d(c, c, 3, padding=1),
                nn.BatchNorm2d(c, momentum=None),
            )
            for _ in range(2)
        )

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for layer in self.layers:
            y = layer(x)
            y += x
            x = F.relu(y)
        return x.mean((2, 3)).square().mean()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Any) -> Any:
        return self.encoder(x).square().mean()


class Autocast(nn.Module):
    """Casts inside the region only, so the backward runs without."""

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
    """Loss, gradients, buffers, and the state of the generator after two steps."""
    torch.manual_seed(3)
    model.zero_grad(set_to_none=True)
    losses = []
    for _ in range(2):
        loss = run(model, x)
        loss.backward()
        losses.append(loss.detach())
    gradients = [p.grad for p in model.parameters()]
    return [*losses, *gradients, *model.buffers(), torch.get_rng_state()]


def assert_same(a: list[Any], b: list[Any]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert (x is None and y is None) or torch.equal(x, y)


def left() -> list[Any]:
    """Logs that are still there."""
    return [v for v in gc.get_objects() if type(v) in (Value, Node)]


@pytest.fixture(autouse=True, scope="module")
def imports_of_a_first_use() -> None:
    """What torch imports lazily keeps the frames of its first caller."""
    x = torch.ones(2, requires_grad=True)
    checkpoint(lambda x: (x + torch.ones(2)).exp(), x).sum().backward()
    left()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, policy: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    twin = copy.deepcopy(model)
    plain = step(model, x, lambda m, x: m(x))
    gc.collect()
    gc.disable()  # reference counts free everything
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
