"""Activation checkpointing in the manner of mu-TWO, stage by stage, on a small BERT and a small
ResNet-50: profile, statistics with swapping, selection, graph rewriting, run.

    python examples/cs265_pipeline.py [--model bert|resnet50] [--saved 0.5x]
                                      [--rule greedy|threshold] [--report FOLDER]

Prints the results of each stage, then measured peak and latency of a step with and without
checkpointing, and exits with 1 if a gradient differs in one bit or a peak is not the planned one.
Needs torch 2.13; BERT comes from transformers if that is installed.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import cutback
import cutback.torch

MiB = 2.0**20

# ---- models ---------------------------------------------------------------------------------


class BertLayer(nn.Module):
    """Attention and a perceptron, each followed by a norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, time, width] to the same shape."""
        batch, time, width = x.shape
        qkv = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, time, width)
        x = self.norm1(x + F.dropout(self.proj(y), self.dropout, self.training))
        y = self.down(F.gelu(self.up(x)))
        return self.norm2(x + F.dropout(y, self.dropout, self.training))


class Bert(nn.Module):
    """A BERT for masked words, defined here: used if transformers is not installed."""

    def __init__(self, layers: int, width: int, heads: int, words: int, places: int) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(places, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(BertLayer(width, heads, 0.1) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the mean cross entropy, in nats."""
        x = self.norm(self.word(tokens) + self.place.weight[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class BertOfTransformers(nn.Module):
    """The same from transformers, with random weights."""

    def __init__(self, layers: int, width: int, heads: int, words: int, places: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertForMaskedLM

        config = BertConfig(
            vocab_size=words, hidden_size=width, num_hidden_layers=layers,
            num_attention_heads=heads, intermediate_size=4 * width, max_position_embeddings=places,
        )  # fmt: skip
        self.bert = BertForMaskedLM(config)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the mean cross entropy, in nats."""
        loss: torch.Tensor = self.bert(input_ids=tokens, labels=labels).loss
        return loss


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut (He et al., CVPR 2016)."""

    def __init__(self, wide: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(wide, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.bn3 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or wide != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, wide, h, w] to [batch, 4 width, h / stride, w / stride]."""
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x), inplace=True)


class ResNet50(nn.Module):
    """ResNet-50's 53 convolutions, with fewer channels."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        blocks, wide = [], width
        for stage, depth in enumerate((3, 4, 6, 3)):
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(Bottleneck(wide, width << stage, stride))
                wide = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(wide, classes)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the mean cross entropy, in nats."""
        x = F.max_pool2d(F.relu(self.bn(self.conv(x)), inplace=True), 3, 2, 1)
        return F.cross_entropy(self.head(self.blocks(x).mean((2, 3))), labels)


def make(name: str) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Returns a model and a batch, from a seed."""
    torch.manual_seed(0)
    if name == "resnet50":
        return ResNet50(), (torch.randn(8, 3, 96, 96), torch.randint(10, (8,)))
    found = importlib.util.find_spec("transformers") is not None
    model = (BertOfTransformers if found else Bert)(4, 128, 4, 1000, 128)
    return model, (torch.randint(1000, (8, 128)), torch.randint(1000, (8, 128)))


# ---- measuring ------------------------------------------------------------------------------


def once(model: nn.Module, step: Callable[..., Any], batch: Any) -> tuple[dict[str, Any], int]:
    """Returns the gradients and the peak of live tensors of a step from seed 1."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    with cutback.torch.MemoryTracker() as memory:
        step(*batch).backward()
        peak = memory.peak_bytes
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, peak


def latencies(pairs: list[tuple[nn.Module, Any]], batch: Any, rounds: int = 7) -> list[float]:
    """Returns the median seconds of a step of each, measured in turns."""
    seconds: list[list[float]] = [[] for _ in pairs]
    for _ in range(rounds):
        for (model, step), row in zip(pairs, seconds, strict=True):
            model.zero_grad(set_to_none=True)
            start = time.perf_counter()
            step(*batch).backward()
            row.append(time.perf_counter() - start)
    return [statistics.median(row) for row in seconds]


def pipeline(name: str, options: argparse.Namespace) -> bool:
    """Runs all stages on one model; returns whether every check passed."""
    model, batch = make(name)
    title = f"{name}, {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters"
    print(f"\n{title}\n{'=' * len(title)}\n\n1. Statistics, with swapping\n")
    optimizer = torch.optim.Adam(model.parameters())
    profile = cutback.torch.profile(model, *batch, optimizer=optimizer, runs=3)
    print(profile)
    kept = profile.activations()
    out = sum(v.swap_out_seconds for v in kept)
    hidden = sum(v.swap_out_seconds + v.swap_in_seconds <= v.inactive_seconds for v in kept)
    print(
        f"\nlink {profile.link_bytes_per_s / 1e9:.1f} GB/s: all activations out take "
        f"{1e3 * out:.1f} ms, and as long back in; {hidden} of {len(kept)} have the time for both "
        "while they lie idle"
    )
    if options.report:
        path = os.path.join(options.report, f"{name}.html")
        profile.report(path, f"Profile of {name}")
        print(f"written: {path}")

    print(f"\n2. Selection, rule {options.rule!r}\n")
    selection = cutback.torch.mutwo.select(profile, options.saved, options.rule)
    print(selection)
    moving = cutback.torch.mutwo.select(profile, options.saved, swap=True)
    swapped = cutback.plan(profile.problem(swap=True), policy=moving).numbers
    print(
        f"if the link is used as well: {len(moving.chosen('swap'))} swapped, "
        f"{len(moving.chosen('recompute'))} recomputed; planned peak "
        f"{swapped['live_bytes'] / MiB:.3f} MiB, {swapped['time_ps'] / 1e9:.1f} ms, of which "
        f"{swapped.get('stall_ps', 0) / 1e9:.1f} ms wait for copies"
    )

    print("\n3. The graph, rewritten\n")
    plan = cutback.plan(profile.problem(), policy=selection, device=profile.device)
    forward, backward = profile.rewrite(plan)
    before = profile.rewrite(cutback.plan(profile.problem(), device=profile.device))
    for phase, old, new in zip(("forward", "backward"), before, (forward, backward), strict=True):
        print(f"{phase}: {len(old.graph.nodes)} nodes, now {len(new.graph.nodes)}")
    print(plan)

    return run(model, batch, profile, [selection, moving], plan)


def run(model: nn.Module, batch: Any, profile: Any, selections: Any, plan: cutback.Plan) -> bool:
    """Measures peak, latency and gradients of a step, unchanged and in the ways that were found."""
    print(f"\n4. Run\n\n{'':34}{'peak MiB':>10}{'planned':>10}{'ms/step':>10}{'gradients':>12}")
    least = plan.numbers["live_bytes"]
    ways: list[tuple[str, dict[str, Any] | None]] = [
        ("eager PyTorch", None),
        ("save everything", {}),
        ("mu-TWO", {"policy": selections[0], "profile": profile}),
        ("mu-TWO, with swapping", {"policy": selections[1], "profile": profile}),
        ("Cutback's planner, the same peak", {"budget": least, "profile": profile}),
    ]
    good, first, rows, pairs = True, {}, [], []
    for label, how in ways:
        twin = copy.deepcopy(model)
        step = twin if how is None else cutback.torch.compile(twin, dynamic=False, **how)
        gradients, peak = once(twin, step, batch)
        planned = None if how is None else step.plans[0].numbers["live_bytes"]
        first = first or gradients
        equal = gradients.keys() == first.keys() and all(
            torch.equal(gradients[n], first[n]) for n in first
        )
        good &= equal and planned in (None, peak)
        shown = "" if planned is None else f"{planned / MiB:.3f}"
        rows.append((f"{label:34}{peak / MiB:10.3f}{shown:>10}", equal))
        pairs.append((twin, step))
    for (text, equal), seconds in zip(rows, latencies(pairs, batch), strict=True):
        print(f"{text}{1e3 * seconds:10.1f}{'same bits' if equal else 'DIFFER':>12}")
    return good


def main() -> int:
    """Runs the pipeline on both models, or on one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("bert", "resnet50"), action="append")
    parser.add_argument("--saved", default="0.5x", help="to be saved: a share, '0.5x', or '20MiB'")
    parser.add_argument("--rule", choices=("greedy", "threshold"), default="greedy")
    parser.add_argument("--report", help="folder for an HTML page with the picture of each profile")
    options = parser.parse_args()
    torch.set_num_threads(1)  # so that times are reproducible
    good = [pipeline(name, options) for name in options.model or ("bert", "resnet50")]
    print("\npeaks as planned, gradients equal bit for bit" if all(good) else "\nNOT as promised")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
