"""The models of `bench_native.py`: each function returns a module whose forward returns a scalar,
and its inputs. Blocks have the sizes of the networks they are named after, one block each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import step_models
import torch
import torch.nn.functional as F
from torch import nn

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Attention(nn.Module):
    """Attention of several heads; `bias` is added to the scores if it is given."""

    def __init__(self, width: int, heads: int, causal: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(
        self,
        x: torch.Tensor,
        turn: Callable[[torch.Tensor], torch.Tensor] | None = None,
        scores: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Maps [batch, time, width] to the same shape. `turn` is applied to queries and keys."""
        b, t, w = x.shape
        parts = self.qkv(x).split(w, dim=2)
        q, k, v = (p.view(b, t, self.heads, w // self.heads).transpose(1, 2) for p in parts)
        if turn is not None:
            q, k = turn(q), turn(k)
        y = F.scaled_dot_product_attention(q, k, v, scores, is_causal=self.causal)
        out: torch.Tensor = self.out(y.transpose(1, 2).reshape(b, t, w))
        return out


class Block(nn.Module):
    """A block of a GPT or a ViT: attention, and an MLP with GELU."""

    def __init__(
        self, width: int, heads: int, causal: bool = True, approximate: str = "tanh"
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, time, width] to the same shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.approximate))


class GPT(nn.Module):
    """Six layers, 192 wide; the loss is the cross entropy of the next word."""

    def __init__(self, words: int = 512, width: int = 192, time: int = 128) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(time, width))
        self.blocks = nn.Sequential(*(Block(width, 6) for _ in range(6)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Maps [batch, time] words to a scalar."""
        h = self.norm(self.blocks(self.words(x) + self.places))
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


class RMSNorm(nn.Module):
    """The norm of Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns ``x``, normalised over its last axis."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Llama(nn.Module):
    """A block of Llama: rotary positions, RMS norms and a gated MLP."""

    def __init__(self, width: int = 512, heads: int = 8, time: int = 256) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.attention = Attention(width, heads, causal=True, bias=False)
        inner = 1408
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        half = width // heads // 2
        rates = 10000.0 ** (-torch.arange(half) / half)
        angles = torch.outer(torch.arange(time).float(), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        """Rotates pairs of elements by angles that grow with the position."""
        a, b = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-b, a), dim=-1) * self.sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, time, width] to the same shape."""
        x = x + self.attention(self.norm1(x), self.turn)
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Swin(nn.Module):
    """A block of Swin-T: attention within shifted windows of 7 x 7, with a bias of positions."""

    def __init__(self, width: int = 96, heads: int = 3, window: int = 7) -> None:
        super().__init__()
        self.window = window
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.bias = nn.Parameter(torch.zeros(heads, window**2, window**2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, height, width, channels] to the same shape."""
        b, h, w, c = x.shape
        n = self.window
        y = torch.roll(self.norm1(x), (-(n // 2), -(n // 2)), (1, 2))
        y = y.view(b, h // n, n, w // n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, n * n, c)
        y = self.attention(y, scores=self.bias)
        y = y.view(b, h // n, w // n, n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = x + torch.roll(y, (n // 2, n // 2), (1, 2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ConvNeXt(nn.Module):
    """A block of ConvNeXt-T: a depthwise convolution, a norm of channels and an MLP."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, channels, height, width] to the same shape."""
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class Inverted(nn.Module):
    """An inverted residual of MobileNetV2."""

    def __init__(self, inner: int, out: int, stride: int) -> None:
        super().__init__()
        wide = 6 * inner
        self.layers = nn.Sequential(
            nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.ReLU6(), nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.adds = stride == 1 and inner == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inner, h, w] to [batch, out, h / stride, w / stride]."""
        y: torch.Tensor = self.layers(x)
        return x + y if self.adds else y


class MobileNetV2(nn.Module):
    """MobileNetV2 without its first block and its last convolution, at half the width."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)]
        inner = 8
        for out, depth, stride in ((12, 2, 2), (16, 3, 2), (32, 4, 2), (48, 3, 1), (80, 3, 2)):
            for i in range(depth):
                layers.append(Inverted(inner, out, stride if i == 0 else 1))
                inner = out
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(inner, 10)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the cross entropy."""
        return F.cross_entropy(self.head(self.layers(x).mean((2, 3))), labels)


class MLP(nn.Module):
    """Four layers of 64, each with a LayerNorm, so that calls take most of the time."""

    def __init__(self) -> None:
        super().__init__()
        layers = [(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(4)]
        self.layers = nn.Sequential(*(m for layer in layers for m in layer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a scalar."""
        return self.layers(x).square().mean()


class LSTM(nn.Module):
    """A loop of 32 steps of an LSTM cell, written with products and gates."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, xs: torch.Tensor) -> torch.Tensor:
        """Maps [time, batch, width] to a scalar."""
        h = c = torch.zeros_like(xs[0])
        for x in xs:
            i, f, g, o = (self.x(x) + self.h(h)).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h.square().mean()


class Scalar(nn.Module):
    """Sums the results of a module, weighted by constants."""

    def __init__(self, inner: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("weights", torch.randn(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a scalar."""
        return (self.inner(x) * self.weights).sum()


class Autocast(nn.Module):
    """Runs a module under autocast to bf16."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Returns the module's result."""
        with torch.autocast("cpu", torch.bfloat16):
            loss: torch.Tensor = self.inner(*inputs)
        return loss


def gpt() -> Made:
    """Returns the GPT and 8 sequences of 128 words."""
    return GPT(), (torch.randint(512, (8, 128)), torch.randint(512, (8, 128)))


def encoder() -> Made:
    """Returns an encoder of six layers, 512 wide, with dropout 0.1, and its input."""
    return step_models.Encoder(6, 512, 8), (torch.randn(8, 256, 512),)


def evonorm(*shape: int) -> Made:
    """Returns EvoNorm-S0 and an input that needs a gradient."""
    model = Scalar(step_models.EvoNorm(shape[1]), shape)
    return model, (torch.randn(shape, requires_grad=True),)


def block(make: Callable[[], nn.Module], *shape: int) -> Made:
    """Returns a block and an input that needs a gradient."""
    return Scalar(make(), shape), (torch.randn(shape, requires_grad=True),)


def mobilenet() -> Made:
    """Returns the MobileNetV2 and 16 images."""
    return MobileNetV2(), (torch.randn(16, 3, 96, 96), torch.randint(10, (16,)))


def net(name: str) -> Made:
    """Returns a network of `step_models.py`."""
    case = step_models.MODELS[name]()
    return case.model, case.inputs


def autocast(make: Callable[[], Made]) -> Made:
    """Returns a model that runs under autocast to bf16."""
    model, inputs = make()
    return Autocast(model), inputs


_of = functools.partial
MODELS: dict[str, Callable[[], Made]] = {
    "GPT": gpt,
    "encoder": encoder,
    "EvoNorm-S0": _of(evonorm, 16, 32, 128, 128),
    "EvoNorm-S0, 2048 channels": _of(evonorm, 16, 2048, 8, 8),
    "GPT-2-small block": _of(block, lambda: Block(768, 12), 4, 128, 768),
    "Llama block": _of(block, Llama, 4, 256, 512),
    "ViT-S block": _of(block, lambda: Block(384, 6, False, "none"), 8, 196, 384),
    "Swin-T block": _of(block, Swin, 4, 56, 56, 96),
    "ConvNeXt-T block": _of(block, ConvNeXt, 4, 96, 56, 56),
    "ResNet-50": _of(net, "ResNet-50"),
    "MobileNetV2": mobilenet,
    "U-Net": _of(net, "U-Net"),
    "MLP": lambda: (MLP(), (torch.randn(32, 64),)),
    "LSTM": lambda: (LSTM(), (torch.randn(32, 16, 64),)),
    "GPT, bf16": _of(autocast, gpt),
    "encoder, bf16": _of(autocast, encoder),
}
"""All models by name."""

WAYS: dict[str, tuple[dict[str, Any], ...]] = {
    "GPT": ({"budget": "40%"},),
    "encoder": (
        {"random": "counter"},
        {"random": "counter", "budget": "0.55x", "measure": "saved"},
    ),
}
"""Further options with which native kernels are measured, by model."""
