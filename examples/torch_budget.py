"""Trains a small GPT on the source of Python's standard library, with and without a memory budget.

    python examples/torch_budget.py [--budget 0.4] [--steps 20]

Prints the loss and the measured peak of live tensors for eager PyTorch, for Cutback without a
budget and under one; exits with 1 if a peak passes its budget or a loss differs in one bit.
Needs torch 2.13.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import cutback.torch


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def drop(self, x: torch.Tensor) -> torch.Tensor:
        """Dropout in training."""
        return F.dropout(x, self.dropout, self.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, time, width] to the same."""
        batch, time, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(batch, time, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self, layers: int = 6, width: int = 64, heads: int = 4, context: int = 64):
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, 0.1) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of the following bytes, in nats."""
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), following.flatten())


def batches(steps: int, batch: int = 16, context: int = 64) -> list[tuple[Any, Any]]:
    """Random places of a text that every Python has."""
    text = inspect.getsource(argparse).encode()
    data = torch.tensor(list(text))
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(steps):
        at = torch.randint(len(data) - context - 1, (batch,), generator=generator)
        rows = torch.stack([data[i : i + context + 1] for i in at])
        found.append((rows[:, :-1].contiguous(), rows[:, 1:].contiguous()))
    return found


class Run(NamedTuple):
    """What training gave."""

    losses: list[float]
    peak_bytes: int  # largest of any step after the first
    seconds: float  # of a step, median


def train(model: nn.Module, step: Callable[..., Any], steps: int) -> Run:
    """Trains; measures each step's forward and backward."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(2)
    losses, peaks, seconds = [], [], []
    for tokens, following in batches(steps):
        optimizer.zero_grad(set_to_none=True)
        start = time.perf_counter()
        with cutback.torch.MemoryTracker() as memory:
            loss = step(tokens, following)
            loss.backward()
        seconds.append(time.perf_counter() - start)
        peaks.append(memory.peak_bytes)
        optimizer.step()
        losses.append(loss.item())
    return Run(losses, max(peaks[1:]), sorted(seconds)[len(seconds) // 2])


def main() -> int:
    """Trains three times and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=0.4, help="share of saving everything")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)  # so that times repeat
    torch.manual_seed(0)
    start = GPT()
    print(
        f"{'':16}{'first loss':>12}{'last loss':>12}{'peak MiB':>12}{'planned':>12}{'ms/step':>12}"
    )
    runs, good = [], True
    for name, budget in (("eager", None), ("save everything", None), ("budget", options.budget)):
        model = copy.deepcopy(start)
        compiled = None if name == "eager" else cutback.torch.compile(model, budget=budget)
        run = train(model, compiled or model, options.steps)
        runs.append(run)
        planned = ""
        if compiled is not None:
            (plan,) = compiled.plans
            planned = f"{plan.numbers['live_bytes'] / 2**20:.3f}"
            good &= run.peak_bytes == plan.numbers["live_bytes"]
            good &= budget is None or run.peak_bytes <= plan.numbers["budget_bytes"]
        print(
            f"{name:16}{run.losses[0]:12.4f}{run.losses[-1]:12.4f}{run.peak_bytes / 2**20:12.3f}"
            f"{planned:>12}{run.seconds * 1e3:12.1f}"
        )
    good &= runs[0].losses == runs[1].losses == runs[2].losses
    print("peaks as planned, losses equal bit for bit" if good else "NOT as promised")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
