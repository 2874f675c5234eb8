"""Claim: with `pool=True` a step under a budget reserves little more GPU memory than its plan says,
while PyTorch's own allocator reserves up to 1.8 times as much.

    python benchmarks/pytorch/bench_segment.py

Nothing runs, and no GPU is needed: steps are traced with fake tensors and planned for an H100. A
simulation of PyTorch's caching allocator with default settings allocates the values of their plans
for two steps in a row, as they are and placed by `cutback.torch.graph.segment`. Ops are assumed to
allocate only their results. There are no times, so results are the same on every machine. The
allocator keeps blocks of up to 1 MiB in separate segments of 2 MiB. "least_bytes" is the least that
a step can reserve, however its blocks are placed in both kinds of segment: the largest sum of small
blocks, in whole segments, plus the largest sum of the others.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent.parent))

from common import save
from step_models import BatchNormAct, ResNet50

import cutback
import cutback.torch
from cutback.torch.graph.segment import SMALL, Life, place, reserved_without, rounded

BUDGETS = ("fastest", "0.6x", "0.4x", "min")
OUTSIDE = ("tangent", "accumulate_grad", "copy_back")
"""Kinds of ops that run outside of the step's own code."""


class Block(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, time, width] to the same shape."""
        q, k, v = (
            t.unflatten(-1, (12, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + F.dropout(self.out(y), 0.1)
        return x + F.dropout(self.narrow(F.gelu(self.widen(self.norm2(x)))), 0.1)


class Language(nn.Module):
    """The smallest published GPT-2."""

    def __init__(self, layers: int = 12, width: int = 768, words: int = 50257) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the cross entropy."""
        return F.cross_entropy(
            self.head(self.norm(self.blocks(self.embed(x)))).flatten(0, 1), x.flatten()
        )


SMALL_SEGMENT = 2 << 20  # bytes that PyTorch's allocator reserves at a time for small blocks


def most(lives: list[Life]) -> int:
    """Returns the largest sum of blocks that are live at the same time."""
    change: dict[int, int] = {}
    for life in lives:
        change[life.made] = change.get(life.made, 0) + rounded(life.bytes)
        change[life.last + 1] = change.get(life.last + 1, 0) - rounded(life.bytes)
    return max(accumulate(change[t] for t in sorted(change)), default=0)


def least_reserved(lives: list[Life]) -> int:
    """Returns the least that the allocator reserves for these blocks, in bytes."""
    small = [life for life in lives if rounded(life.bytes) <= SMALL]
    others = [life for life in lives if rounded(life.bytes) > SMALL]
    return -(-most(small) // SMALL_SEGMENT) * SMALL_SEGMENT + most(others)


Make = Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]
MODELS: dict[str, Make] = {
    "ResNet-50, 32 x 224 x 224": lambda: (
        ResNet50(BatchNormAct, width=64, classes=1000),
        (torch.randn(32, 3, 224, 224), torch.randint(0, 1000, (32,))),
    ),
    "GPT-2, 8 x 512": lambda: (Language(), (torch.randint(0, 50257, (8, 512)),)),
}


def measure(name: str, make: Make) -> list[dict[str, Any]]:
    """Returns a row for each budget that can be met."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, inputs = make()
    traced, rows = cutback.torch.trace(model.train(), *inputs), []
    for budget in BUDGETS:
        try:
            plan = traced.plan(budget, device="h100")
        except cutback.BudgetError as error:
            print(name, budget, error)
            continue
        ops, steps = plan.parts.ops, plan.core.steps
        lives = [Life(life.made, life.last, life.bytes) for life in plan.lives if life.bytes]
        traces: dict[int, list[int]] = {
            t: [] for t, step in enumerate(steps) if ops[step.op].kind not in OUTSIDE
        }
        for life in lives:
            if life.made in traces:
                traces[life.made].append(life.bytes)
        began = time.process_time()
        placed = place(lives, traces)
        planned = int(plan.numbers["live_bytes"])
        print(name, budget, f"placed in {time.process_time() - began:.2f} s")
        rows.append(
            {
                "model": name, "budget": budget, "planned_bytes": planned,
                "reserved_bytes": reserved_without(lives), "placed_bytes": placed.reserved,
                "least_bytes": least_reserved(lives),
                "reserved": round(reserved_without(lives) / planned, 3),
                "placed": round(placed.reserved / planned, 3),
                "least": round(least_reserved(lives) / planned, 3),
                "plugs": sum(map(len, placed.plugs.values())),
            }
        )  # fmt: skip
    return rows


def main() -> None:
    """Runs the command line."""
    logging.disable(logging.WARNING)
    rows = [row for name, make in MODELS.items() for row in measure(name, make)]
    for row in rows:
        print(row)
    save("torch_segment", "python benchmarks/pytorch/bench_segment.py", rows, "torch")


if __name__ == "__main__":
    main()
