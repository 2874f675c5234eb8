"""Trains a small GPT on the source of Python's standard library, with and without a memory budget.

    python examples/torch_budget.py [--share 0.4] [--steps 20] [--doors compile,name]

Prints the loss and the measured peak of live tensors for eager PyTorch, for Cutback without a
budget, and under one budget through each of its entry points. Exits with 1 if a peak exceeds the
budget or a loss differs from eager PyTorch's: by a bit with PyTorch's own kernels, by 0.1 % with
Inductor's. Needs torch 2.13.
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
import torch._inductor.config
import torch.nn.functional as F
from torch import nn

import cutback
import cutback.torch


class Block(nn.Module):
    """Attention and a perceptron, each preceded by a norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def drop(self, x: torch.Tensor) -> torch.Tensor:
        """Applies dropout in training."""
        return F.dropout(x, self.dropout, self.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, time, width] to the same shape."""
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
        """Returns the mean cross entropy of the following bytes, in nats."""
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), following.flatten())


def batches(steps: int, batch: int = 16, context: int = 64) -> list[tuple[Any, Any]]:
    """Returns random positions in a text that every Python installation has."""
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
    """The results of training."""

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


def by_checkpoint(model: nn.Module, budget: int) -> tuple[Callable[..., Any], int]:
    """Returns a step through the eager entry point, under the budget or, if the order of autograd's
    backward needs more, the smallest reachable one."""
    tokens, following = batches(1)[0]
    for asked in (budget, "min"):
        try:
            plan = cutback.torch.checkpoint_plan(model, tokens, following, budget=asked)
            break
        except cutback.BudgetError:
            print(
                f"{'':17}the order of autograd's backward needs more: the smallest it can reach is"
            )
    least: int = max(budget, plan.numbers["live_bytes"])
    return lambda *batch: cutback.torch.checkpoint(model, *batch, plan=plan), least


def open_door(name: str, model: nn.Module, budget: int) -> tuple[Callable[..., Any], int]:
    """Returns a step through one of the entry points, and its limit of live bytes."""
    torch._dynamo.reset()
    torch._inductor.config.custom_partitioner_fn = None
    if name == "compile":
        return cutback.torch.compile(model, budget=budget), budget
    if name == "name":
        return torch.compile(model, backend="cutback", options={"budget": budget}), budget
    if name == "inductor":
        return cutback.torch.compile(model, budget=budget, codegen="inductor"), budget
    if name == "partitioner":
        torch._inductor.config.custom_partitioner_fn = cutback.torch.Partitioner(budget=budget)
        return torch.compile(model), budget
    return by_checkpoint(model, budget)


DOORS = {
    "compile": "compile(budget=)",
    "name": "backend by name",
    "inductor": "codegen=inductor",
    "partitioner": "Partitioner",
    "checkpoint": "checkpoint()",
}


def report(name: str, run: Run, most: int | None, good: bool) -> None:
    """Prints one line."""
    limit = "" if most is None else f"{most / 2**20:.3f}"
    print(
        f"{name:17}{run.losses[0]:11.4f}{run.losses[-1]:11.4f}{run.peak_bytes / 2**20:11.3f}"
        f"{limit:>11}{run.seconds * 1e3:11.1f}{'' if good else '   NOT as promised'}"
    )


def main() -> int:
    """Trains once in each way and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--share", type=float, default=0.4, help="the budget, as a share of saving everything"
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--doors", default=",".join(DOORS), help="of %(default)s")
    options = parser.parse_args()
    doors = [door for door in options.doors.split(",") if door]
    if not set(doors) <= set(DOORS):
        parser.error(f"--doors {options.doors}: the doors are {', '.join(DOORS)}")
    torch.set_num_threads(1)  # so that times are reproducible
    torch._inductor.config.fallback_random = True  # to draw the masks of eager PyTorch
    torch.manual_seed(0)
    start = GPT()
    columns = ("first loss", "last loss", "peak MiB", "at most", "ms/step")
    print(f"{'':17}" + "".join(f"{column:>11}" for column in columns))
    model = copy.deepcopy(start)
    eager = train(model, model, options.steps)
    report("eager", eager, None, True)
    model = copy.deepcopy(start)
    step = cutback.torch.compile(model, budget="fastest")
    run = train(model, step, options.steps)
    whole = step.plans[0].numbers["live_bytes"]
    all_good = run.losses == eager.losses and run.peak_bytes == whole
    report("save everything", run, whole, all_good)
    for door in doors:
        model = copy.deepcopy(start)
        step, most = open_door(door, model, int(options.share * whole))
        run = train(model, step, options.steps)
        slack = 1e-3 if door in ("inductor", "partitioner") else 0.0
        pairs = zip(run.losses, eager.losses, strict=True)
        good = run.peak_bytes <= most and all(abs(a - b) <= slack * b for a, b in pairs)
        report(DOORS[door], run, most, good)
        all_good &= good
    print("peaks within the budget, losses as promised" if all_good else "NOT as promised")
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
