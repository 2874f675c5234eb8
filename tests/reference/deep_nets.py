"""Small networks traced by PyTorch whose steps constraint programming can plan.

problem = traced("unet")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import cutback.torch as ct

GROWTH = 4096  # sizes are those of larger batches: launches then cost little
BATCH, CHANNELS, SIDE, WIDTH = 2, 3, 16, 16


def _conv(inputs: int, outputs: int, norm: bool = False) -> nn.Sequential:
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1)]
    return nn.Sequential(*layers, *([nn.BatchNorm2d(outputs)] if norm else []), nn.SiLU())


class Residual(nn.Module):
    """Adds convolutions along a stream."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(CHANNELS, 8, 3, padding=1)
        self.layers = nn.ModuleList(_conv(8, 8) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return x


class UNet(nn.Module):
    """Two levels, joined by concatenation."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.down = nn.ModuleList(_conv(i, o, norm) for i, o in ((CHANNELS, 4), (4, 8), (8, 8)))
        self.up = nn.ModuleList(_conv(i, o, norm) for i, o in ((16, 4), (8, 4)))
        self.last = nn.Conv2d(4, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for k, layer in enumerate(self.down):
            x = layer(F.avg_pool2d(x, 2) if k else x)
            kept.append(x)
        for layer, other in zip(self.up, kept[-2::-1], strict=True):
            x = layer(torch.cat([F.interpolate(x, scale_factor=2), other], 1))
        return self.last(x)


class Block(nn.Module):
    """One block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        q, k, v = (part(h) for part in self.parts[:3])
        x = x + self.parts[3](torch.softmax(q @ k.transpose(-1, -2) * WIDTH**-0.5, -1) @ v)
        return x + self.down(F.gelu(self.up(x)))


class Recurrence(nn.Module):
    """A plain recurrence; each row of the input is a step."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.carry = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros_like(x[0])
        for row in x:
            h = torch.tanh(self.read(row) + self.carry(h))
        return h


class Dense(nn.Module):
    """Each layer reads all layers before it."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(CHANNELS + 4 * k, 4, 3, padding=1) for k in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, F.relu(layer(x))], 1)
        return x


class Loss(nn.Module):
    """The mean square of a network's result."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).square().mean()


def _chain(layers: Iterable[Iterable[nn.Module]]) -> nn.Sequential:
    return nn.Sequential(*(part for layer in layers for part in layer))


def _dense_chain(layers: int, kind: Callable[[], nn.Module]) -> nn.Sequential:
    return _chain((nn.Linear(2 * WIDTH, 2 * WIDTH), kind()) for _ in range(layers))


def _norms(layers: int) -> nn.Sequential:
    widths = [CHANNELS] + [8] * layers
    return _chain(
        (nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU()) for i, o in pairwise(widths)
    )


IMAGE = (BATCH, CHANNELS, SIDE, SIDE)
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (lambda: Residual(3), IMAGE),
    "unet": (UNet, IMAGE),
    "attention": (Block, (BATCH, 2 * SIDE, WIDTH)),
    "recurrence": (Recurrence, (6, 8, WIDTH)),
    "dense": (lambda: Dense(4), IMAGE),
    "gelu_chain": (lambda: _dense_chain(6, nn.GELU), (64, 2 * WIDTH)),
    "tanh_chain": (lambda: _dense_chain(8, nn.Tanh), (64, 2 * WIDTH)),
    "norms": (lambda: _norms(4), IMAGE),
}


def traced(name: str) -> dict[str, Any]:
    """Returns the step of one of ``NETS`` as a problem without memory reuse."""
    make, shape = NETS[name]
    torch.manual_seed(0)
    problem = dict(ct.trace(Loss(make()), torch.randn(shape), dynamic=False).plan().problem)
    problem.pop("fingerprint", None)
    problem["reruns"], problem["version"] = "all", 3
    for op in problem["ops"]:
        op.pop("time_ps", None)
        op["over"] = []
        for x in (op, *op["out"]):
            x |= {key: GROWTH * x[key] for key in ("flops", "bytes", "workspace") if key in x}
    for storage in problem["storages"]:
        storage["bytes"] *= GROWTH
    return problem
