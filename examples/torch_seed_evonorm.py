"""The EvoNorm example of the post on min-cut recomputation, in Cutback's names.

    python examples/torch_seed_evonorm.py [--batch 2]

The post traced a normalisation layer of many pointwise ops with AOTAutograd, cut its joint graph,
and compared eager, "recompute everything" and the min-cut, at (128, 32, 128, 128) and (128, 2048,
8, 8). Here our planner takes the place of that cut, at the same shapes with a smaller batch: as
``cutback.torch.compile``, under budgets for the peak and for the bytes saved between forward and
backward, as in the post; then as ``partition_fn`` of ``aot_autograd``. Source: "Min-cut optimal(*)
recomputation (i.e. activation checkpointing) with AOTAutograd", PyTorch Dev Discussions, 2022.
EvoNorm: Liu et al., "Evolving Normalization-Activation Layers", 2020. Exits with 1 if a gradient
differs from eager's, or a peak from the planned one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

import cutback.torch


class EvoNorm2dB0(nn.Module):
    """EvoNorm-B0: batch and instance statistics under one maximum, no activation after it."""

    def __init__(self, channels: int, momentum: float = 0.1, eps: float = 1e-3) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.v = nn.Parameter(torch.ones(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, channels, height, width] to the same shape."""
        shape = (1, -1, 1, 1)
        if self.training:
            var = x.var(dim=(0, 2, 3), unbiased=False)
            n = x.numel() / x.shape[1]
            unbiased = var.detach() * (n / (n - 1))
            self.running_var.copy_(
                unbiased * self.momentum + self.running_var * (1 - self.momentum)
            )
        else:
            var = self.running_var
        left = (var.view(shape) + self.eps).sqrt()
        instance = x.var(dim=(2, 3), unbiased=False, keepdim=True)
        right = x * self.v.view(shape) + (instance + self.eps).sqrt()
        return x / left.max(right) * self.weight.view(shape) + self.bias.view(shape)


def step(
    module: EvoNorm2dB0, run: Callable[..., Any], x: torch.Tensor
) -> tuple[list[torch.Tensor], int, float]:
    """Returns the gradients and statistics, measured peak in bytes, seconds."""
    module.zero_grad(set_to_none=True)
    module.running_var.fill_(1)
    leaf = x.clone().requires_grad_()
    start = time.perf_counter()
    with cutback.torch.MemoryTracker() as memory:
        loss = run(leaf)
        loss.backward()
        peak = memory.peak_bytes
    seconds = time.perf_counter() - start
    assert leaf.grad is not None
    gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    return [leaf.grad, *gradients, module.running_var.clone()], peak, seconds


def compare(shape: tuple[int, ...]) -> bool:
    """Compares one size."""
    torch.manual_seed(0)
    module, x = EvoNorm2dB0(shape[1]), torch.randn(shape)

    def f(x: torch.Tensor) -> torch.Tensor:
        return module(x).sin().sum()

    graphs: list[int] = []

    def compiler(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        graphs.append(len(gm.graph.nodes))
        return make_boxed_func(gm.forward)

    print(f"\n{shape!s:30}{'peak MiB':>12}{'planned':>10}{'saved':>10}{'ms':>10}   gradients")
    expected, eager_peak, seconds = step(module, f, x)
    print(f"{'eager':30}{eager_peak / 2**20:12.2f}{'':20}{seconds * 1e3:10.1f}")
    good = True
    ways = (("fastest", "live"), ("0.85x", "live"), ("0.5x", "saved"), ("min", "saved"))
    for budget, measure in ways:
        torch._dynamo.reset()
        compiled = cutback.torch.compile(f, budget=budget, measure=measure)
        step(module, compiled, x)
        found, peak, seconds = step(module, compiled, x)
        (plan,) = compiled.plans
        numbers = plan.numbers
        equal = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        good &= equal and peak == numbers["live_bytes"]
        bounded = numbers[f"{measure}_bytes"]
        good &= not budget.endswith("x") or bounded <= numbers["budget_bytes"]
        name = "save everything" if budget == "fastest" else f"{measure} bytes, {budget}"
        print(
            f"{name:30}{peak / 2**20:12.2f}{numbers['live_bytes'] / 2**20:10.2f}"
            f"{numbers['saved_bytes'] / 2**20:10.2f}{seconds * 1e3:10.1f}   "
            f"{'equal' if equal else 'DIFFERENT'}"
        )
    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=compiler, partition_fn=cutback.torch.Partitioner("min", "saved")
    )
    found, _, _ = step(module, torch.compile(f, backend=backend), x)
    equal = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    print(f"aot_autograd(partition_fn=): {graphs[0]} nodes forward, {graphs[1]} backward; ", end="")
    print("gradients equal" if equal else "gradients DIFFERENT")
    return good and equal


def main() -> int:
    """Returns both sizes of the post."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=2, help="128 in the post")
    options = parser.parse_args()
    torch.set_num_threads(1)
    good = compare((options.batch, 32, 128, 128))
    good &= compare((options.batch, 2048, 8, 8))
    print("\ngradients equal eager's, peaks as planned" if good else "\nNOT as promised")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
