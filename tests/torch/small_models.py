"""Small models for tests of plans: (model, inputs) from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Case = tuple[nn.Module, tuple[Any, ...]]


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout

    def drop(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.dropout, self.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time, 3, 4, width // 4)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(batch, time, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """Tied weights, dropout, and a loss inside."""

    def __init__(self, layers: int = 3, width: int = 32, words: int = 50, dropout: float = 0.1):
        super().__init__()
        self.token, self.place = nn.Embedding(words, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class ResNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.convs = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(4)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(5))
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norms[0](self.first(x)), inplace=True)
        for a, b in ((0, 1), (2, 3)):
            y = F.relu(self.norms[a + 1](self.convs[a](x)), inplace=True)
            x = F.relu(x + self.norms[b + 1](self.convs[b](y)), inplace=True)
        return F.cross_entropy(self.head(F.max_pool2d(x, 2).mean((2, 3))), labels)


class UNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3)
        self.bottom = nn.Conv2d(width, 2 * width, 3, padding=2)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.norm = nn.GroupNorm(2, width)
        self.out = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.silu(self.norm(self.down1(x)))
        b = F.silu(self.down2(F.avg_pool2d(a, 2)))
        c = self.up(F.silu(self.bottom(b)))
        return (self.out(torch.cat([a, F.dropout2d(c, 0.2)], 1)) - x).square().mean()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def _tokens() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(50, (4, 32)), torch.randint(50, (4, 32))


CASES: dict[str, Callable[[], Case]] = {
    "gpt": lambda: (GPT(), _tokens()),
    "encoder": lambda: (Encoder(), (torch.randn(4, 16, 32),)),
    "resnet": lambda: (ResNet(), (torch.randn(4, 3, 16, 16), torch.randint(5, (4,)))),
    "unet": lambda: (UNet(), (torch.randn(2, 3, 16, 16),)),
}


class Part(nn.Module):
    """Layers. PyTorch compiles the ``forward`` of each class separately."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        row = ((nn.Linear(width, width), nn.Tanh()) for _ in range(layers))
        self.layers = nn.Sequential(*(module for pair in row for module in pair))


class First(Part):
    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Second(Part):
    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Third(Part):
    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Fourth(Part):
    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Routed(nn.Module):
    """Parts that a step selects: each is a graph, with eager code in between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList(
            [First(width, 4), Second(width, 2), Third(width, 3), Fourth(width, 5)]
        )
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Any, chosen: str) -> Any:
        x = x * self.scale  # otherwise the first graph would have no gradient of its input
        for k in chosen:
            x = self.parts[int(k)](x)
            torch._dynamo.graph_break()
        return x.square().mean()


def make(name: str) -> Case:
    """Returns the model and its inputs, the same each time."""
    torch.manual_seed(0)
    return CASES[name]()
