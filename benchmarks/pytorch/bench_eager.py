"""Claim: per op, `cutback.torch.checkpoint` costs at most 0.6x of the host time of PyTorch's
selective checkpoint under the same policy.

python benchmarks/pytorch/bench_eager.py

Runs a chain of 300 ops on 4 x 4 tensors, so that Python takes most of the time and arithmetic
little. Times are processor times, which other load hardly affects.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import save, summary

import cutback.torch

OPS = 300
ROUNDS = 41
aten = torch.ops.aten
SAVED = [aten.mm.default]


def cached_policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Saves matrix products; costs one comparison per op."""
    if op is aten.mm.default:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Runs six different ops in a loop, one of which is a matrix product."""
    for _ in range(OPS // 6):
        x = torch.tanh(x @ w).mul(0.9).sin().exp() - 1.0
    return x


def residual(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Runs the same with a residual stream, whose last value can only be recomputed with all
    others."""
    for _ in range(OPS // 6):
        x = (torch.tanh(x @ w) * x).sin().exp() - 1.0
    return x


def ways(chain: Callable[..., torch.Tensor]) -> dict[str, Callable[..., torch.Tensor]]:
    """Returns the candidates, by name."""
    return {
        "plain": chain,
        "torch checkpoint": functools.partial(checkpoint, chain, use_reentrant=False),
        "torch selective, list": functools.partial(
            checkpoint,
            chain,
            use_reentrant=False,
            context_fn=functools.partial(create_selective_checkpoint_contexts, SAVED),
        ),
        "torch selective, function": functools.partial(
            checkpoint,
            chain,
            use_reentrant=False,
            context_fn=functools.partial(create_selective_checkpoint_contexts, cached_policy),
        ),
        "cutback": functools.partial(cutback.torch.checkpoint, chain),
        "cutback, budget 0.7": functools.partial(cutback.torch.checkpoint, chain, budget="0.7x"),
        "cutback, list": functools.partial(cutback.torch.checkpoint, chain, policy_fn=SAVED),
        "cutback, function": functools.partial(
            cutback.torch.checkpoint, chain, policy_fn=cached_policy
        ),
    }


def once(run: Callable[..., torch.Tensor], x: Any, w: Any) -> tuple[float, float]:
    """Returns the microseconds per op of the forward and of the backward."""
    x.grad = w.grad = None
    begin = time.process_time()
    loss = run(x, w).sum()
    middle = time.process_time()
    loss.backward()
    end = time.process_time()
    return 1e6 * (middle - begin) / OPS, 1e6 * (end - middle) / OPS


def main() -> None:
    """Measures in turns, so that other load affects all equally."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = (0.1 * torch.randn(4, 4)).requires_grad_()
    w = (0.1 * torch.randn(4, 4)).requires_grad_()
    rows: list[dict[str, Any]] = []
    for program in (chain, residual):
        rows += measure(program, x, w)
    save("torch_eager", "python benchmarks/pytorch/bench_eager.py", rows, "torch")


def measure(program: Callable[..., torch.Tensor], x: Any, w: Any) -> list[dict[str, Any]]:
    """Returns one row per candidate, and the two ratios."""
    candidates = ways(program)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for run in candidates.values():
        once(run, x, w)
    for _ in range(ROUNDS):
        for name, run in candidates.items():
            times[name].append(once(run, x, w))
    rows = []
    print(f"{program.__name__}: {OPS} ops on 4 x 4 tensors")
    for name, row in times.items():
        total = [a + b for a, b in row]
        forward = statistics.median(a for a, _ in row)
        backward = statistics.median(b for _, b in row)
        figures = {"unit": "us/op", "forward": forward, "backward": backward} | summary(total)
        rows.append({"what": f"{program.__name__}: {name}"} | figures)
        print(f"{name:28} {forward:6.1f} + {backward:6.1f} = {figures['median']:6.1f} us per op")
    for form in ("list", "function"):
        pairs = zip(times[f"cutback, {form}"], times[f"torch selective, {form}"], strict=True)
        ratios = [sum(ours) / sum(theirs) for ours, theirs in pairs]
        print(f"cutback / torch selective, {form}: {statistics.median(ratios):.2f}")
        what = f"{program.__name__}: cutback / torch selective, {form}"
        rows.append({"what": what, "unit": "ratio", **summary(ratios)})
    return rows


if __name__ == "__main__":
    main()
