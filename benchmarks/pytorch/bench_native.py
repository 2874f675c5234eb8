"""Claim: with `codegen="native"` a training step of a PyTorch model on a CPU takes no longer than
with PyTorch's kernels, and much less if matrix products are a small part of it.

python benchmarks/pytorch/bench_native.py [--models GPT,MLP] [--rounds 9] [--quick]

Times forward and backward of four models: with PyTorch eager, with `torch.compile` (Inductor), and
with `cutback.torch.compile`, with our own kernels and with PyTorch's (`codegen=`). Each model is
measured in separate processes, under both waiting policies of OpenMP's threads and with both
settings of glibc for large blocks: by default it returns them to the system, and each new one costs
page faults. `--quick` uses only the default settings. Times are wall times on all cores. Each round
pauses, then times each candidate in a block of several steps, whose median counts. The row has the
median of the blocks, and the median over rounds of the ratio of eager's block to the candidate's.
`first s` is the time of the first step, compilation included.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import step_models
from common import save

import cutback.torch
from cutback.torch.compiler.backends import CODEGENS

REST_S = 0.5  # before each round
BLOCK_S = 0.25  # seconds of steps per block, at least one step
WAITS = {"default": {}, "passive": {"OMP_WAIT_POLICY": "passive"}}
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**34)}
MALLOCS = {"default": {}, "kept": KEPT}

Row = dict[str, Any]
Step = Callable[[], Any]


class Block(nn.Module):
    """A block of a GPT: causal attention and an MLP with GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, time, width] to the same shape."""
        b, t, w = x.shape
        parts = self.qkv(self.norm1(x)).split(w, dim=2)
        q, k, v = (p.view(b, t, self.heads, w // self.heads).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


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


class MLP(nn.Module):
    """Four layers of 64, each with a LayerNorm, so that calls take most of the time."""

    def __init__(self) -> None:
        super().__init__()
        layers = [(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(4)]
        self.layers = nn.Sequential(*(m for layer in layers for m in layer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a scalar."""
        return self.layers(x).square().mean()


class Scalar(nn.Module):
    """Sums the results of a module, weighted by constants."""

    def __init__(self, inner: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("weights", torch.randn(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a scalar."""
        return (self.inner(x) * self.weights).sum()


def gpt() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Returns the GPT and 8 sequences of 128 words."""
    return GPT(), (torch.randint(512, (8, 128)), torch.randint(512, (8, 128)))


def encoder() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Returns an encoder of six layers, 512 wide, with dropout 0.1, and its input."""
    return step_models.Encoder(6, 512, 8), (torch.randn(8, 256, 512),)


def evonorm() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Returns EvoNorm-S0 and an input that needs a gradient."""
    shape = (16, 32, 128, 128)
    return Scalar(step_models.EvoNorm(32), shape), (torch.randn(shape, requires_grad=True),)


def mlp() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Returns the MLP and a batch of 32."""
    return MLP(), (torch.randn(32, 64),)


MODELS = {"GPT": gpt, "encoder": encoder, "EvoNorm-S0": evonorm, "MLP": mlp}
BUDGETS = {"GPT": (0.4,)}  # budgets under which native is measured as well


# ---- one process: one model under one setting ---------------------------------------------------


def ways(name: str) -> dict[str, Callable[[nn.Module], Any]]:
    """Returns the candidates of a model, as functions that make them."""
    ours = cutback.torch.compile
    made: dict[str, Callable[[nn.Module], Any]] = {
        "eager": lambda model: model,
        "torch.compile": torch.compile,
        'codegen="eager"': functools.partial(ours, codegen="eager"),
    }
    if "native" in CODEGENS:
        made['codegen="native"'] = functools.partial(ours, codegen="native")
        for budget in BUDGETS.get(name, ()):
            made[f'codegen="native", budget={budget}'] = functools.partial(
                ours, codegen="native", budget=budget
            )
    return made


def step_of(model: Any, inputs: tuple[torch.Tensor, ...]) -> Step:
    """Returns a function that runs forward and backward."""
    leaves = [*model.parameters(), *(x for x in inputs if x.requires_grad)]

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        model(*inputs).backward()

    return step


def block_ms(step: Step, steps: int) -> float:
    """Returns the median milliseconds of the steps of a block."""
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def measure(name: str, rounds: int) -> list[Row]:
    """Returns a row for each candidate of a model."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    steps: dict[str, Step] = {}
    first: dict[str, float] = {}
    for what, make in ways(name).items():
        steps[what] = step_of(make(copy.deepcopy(model)), inputs)
        begin = time.perf_counter()
        steps[what]()
        first[what] = time.perf_counter() - begin
        for _ in range(4):  # ours measures scratch in its first steps
            steps[what]()
    counts = {w: max(1, round(1e3 * BLOCK_S / block_ms(s, 3))) for w, s in steps.items()}
    blocks: dict[str, list[float]] = {what: [] for what in steps}
    for turn in range(rounds):
        time.sleep(REST_S)
        for what in reversed(steps) if turn % 2 else steps:
            blocks[what].append(block_ms(steps[what], counts[what]))
    return [
        {
            "model": name,
            "what": what,
            "unit": "ms",
            "median": round(statistics.median(ms), 3),
            "eager / this": round(
                statistics.median(e / t for e, t in zip(blocks["eager"], ms, strict=True)), 3
            ),
            "first s": round(first[what], 2),
        }
        for what, ms in blocks.items()
    ]


# ---- all of them --------------------------------------------------------------------------------


def in_process(name: str, rounds: int, setting: dict[str, str]) -> list[Row]:
    """Returns the rows of a model, measured in another process."""
    command = [sys.executable, __file__, "--one", name, "--rounds", str(rounds)]
    done = subprocess.run(
        command, env={**os.environ, **setting}, stdout=subprocess.PIPE, text=True, check=True
    )
    rows: list[Row] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    """Measures, prints and writes the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.rounds)))
        return
    rows: list[Row] = []
    for name in options.models.split(","):
        for wait, waiting in WAITS.items():
            for malloc, kept in MALLOCS.items():
                if options.quick and (waiting or kept):
                    continue
                for row in in_process(name, options.rounds, {**waiting, **kept}):
                    row = {**row, "waiting": wait, "malloc": malloc}
                    print(
                        f"{name:11} {row['what']:32} waiting {wait:8} malloc {malloc:8} "
                        f"{row['median']:9.2f} ms  eager / this {row['eager / this']:5.2f}  "
                        f"first {row['first s']:6.2f} s",
                        flush=True,
                    )
                    rows.append(row)
    if not options.quick and options.models == ",".join(MODELS):
        save("torch_native", "python benchmarks/pytorch/bench_native.py", rows, "torch")


if __name__ == "__main__":
    main()
