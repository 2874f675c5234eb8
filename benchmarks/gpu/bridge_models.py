"""The models of bench_bridge.py: GPT-2 and ResNet-50 by their sizes, written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Around = Callable[[nn.Module, Tensor], Tensor]
"""What a block is called through, such as a checkpoint."""


class Block(nn.Module):
    """Attention and MLP, each after a norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x[batch, time, width] to the same shape."""
        batch, time, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.proj(y.transpose(1, 2).reshape(batch, time, width))
        x = x + F.dropout(y, self.dropout, self.training)
        y = self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x + F.dropout(y, self.dropout, self.training)


class GPTSizes(NamedTuple):
    """Sizes of a GPT and of its batch."""

    layers: int
    width: int
    heads: int
    context: int
    words: int
    batch: int
    dropout: float = 0.0


class GPT(nn.Module):
    """GPT-2: learned positions, tied embeddings."""

    def __init__(self, s: GPTSizes) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(s.words, s.width), nn.Embedding(s.context, s.width)
        self.blocks = nn.ModuleList(Block(s.width, s.heads, s.dropout) for _ in range(s.layers))
        self.norm, self.head = nn.LayerNorm(s.width), nn.Linear(s.width, s.words, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)
        self.around: Around | None = None

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss."""
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x) if self.around is None else self.around(block, x)
        logits = self.head(self.norm(x)).flatten(0, 1).float()
        return F.cross_entropy(logits, labels.flatten())


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut."""

    def __init__(self, inner: int, outer: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, outer, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.bn3 = nn.BatchNorm2d(outer)
        self.short: nn.Module | None = None
        if stride != 1 or inner != outer:
            conv = nn.Conv2d(inner, outer, 1, stride, bias=False)
            self.short = nn.Sequential(conv, nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        """Maps x[batch, channels, height, width] to the block's output."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + (x if self.short is None else self.short(x)))


class ResNetSizes(NamedTuple):
    """Sizes of a ResNet and of its batch."""

    depths: tuple[int, ...]
    width: int
    classes: int
    image: int
    batch: int


class ResNet(nn.Module):
    """ResNet-50 with depths (3, 4, 6, 3) and width 64."""

    def __init__(self, s: ResNetSizes) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, s.width, 7, 2, 3, bias=False), nn.BatchNorm2d(s.width)
        blocks: list[nn.Module] = []
        inner = s.width
        for stage, depth in enumerate(s.depths):
            for k in range(depth):
                width = s.width << stage
                blocks.append(Bottleneck(inner, 4 * width, width, 2 if stage and k == 0 else 1))
                inner = 4 * width
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(inner, s.classes)
        self.around: Around | None = None

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss."""
        x = F.max_pool2d(F.relu(self.bn(self.conv(images))), 3, 2, 1)
        for block in self.blocks:
            x = block(x) if self.around is None else self.around(block, x)
        return F.cross_entropy(self.head(x.mean((2, 3))).float(), labels)


SIZES: dict[str, GPTSizes | ResNetSizes] = {
    "small GPT": GPTSizes(4, 256, 4, 128, 1000, 4, 0.1),
    "GPT-2 124M": GPTSizes(12, 768, 12, 1024, 50257, 16),
    "GPT-2 350M": GPTSizes(24, 1024, 16, 1024, 50257, 8),
    "ResNet-50": ResNetSizes((3, 4, 6, 3), 64, 1000, 224, 256),
}
SMALL_GPT, SMALL_RESNET = GPTSizes(3, 64, 2, 32, 101, 4), ResNetSizes((1, 1), 8, 10, 32, 4)


class Case:
    """A model and a batch on a device. On a GPU, large models run under autocast to bf16, and
    convolutions have channels last."""

    def __init__(self, name: str, device: str, small: bool) -> None:
        torch.manual_seed(0)
        self.name, self.device = name, torch.device(device)
        self.on_gpu = self.device.type == "cuda"
        self.autocast = self.on_gpu and name != "small GPT"
        sizes = SIZES[name]
        if isinstance(sizes, GPTSizes):
            if small:
                sizes = SMALL_GPT._replace(dropout=sizes.dropout)
            shape = (sizes.batch, sizes.context)
            self.model: Any = GPT(sizes).to(self.device)
            inputs = [torch.randint(sizes.words, shape) for _ in range(2)]
        else:
            if small:
                sizes = SMALL_RESNET
            self.model = ResNet(sizes).to(self.device)
            images = torch.randn(sizes.batch, 3, sizes.image, sizes.image)
            inputs = [images, torch.randint(sizes.classes, (sizes.batch,))]
        self.inputs = [x.to(self.device) for x in inputs]
        if self.on_gpu and isinstance(sizes, ResNetSizes):
            self.model = self.model.to(memory_format=torch.channels_last)
            self.inputs[0] = self.inputs[0].contiguous(memory_format=torch.channels_last)

    def drop_gradients(self) -> None:
        """Drops the gradients, as before the first step."""
        for p in self.model.parameters():
            p.grad = None

    def step(self, call: Callable[..., Tensor]) -> Tensor:
        """Runs forward and backward with new gradients and the same random numbers each time."""
        torch.manual_seed(7)
        self.drop_gradients()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            loss = call(*self.inputs)
        loss.backward()
        return loss.detach()

    def wait(self) -> None:
        """Waits until the device is done."""
        if self.on_gpu:
            torch.cuda.synchronize()
