"""Claim: updates inside the backward lower a training step's peak of parameters, optimizer states,
gradients and activations by at least the gradients' bytes, and the results are bitwise equal to
those of a separate step. No peak is above the planned one.

    python benchmarks/pytorch/bench_updates.py [--steps N] [--fused] [--width N]

Trains the GPT-2 of `transformers` (12 layers, batches of 2 x 256 tokens) with AdamW on the CPU:
eager, and compiled with the optimizer's step after and inside the backward. Each row is measured in
a separate process. Peaks are measured in the last of N steps (of two in eager mode), from the
forward to `optimizer.step()`; `losses` says whether all N losses are bitwise equal to those of the
separate step under the same budget. `--fused` measures PyTorch's fused kernels in place of its loop
over tensors, and `--width` sets the model's width. No times are measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from common import save

COMMAND = "python benchmarks/pytorch/bench_updates.py"
ROWS = (("eager", "after"), ("smallest", "after"), ("smallest", "inside"))
"""Budgets, and when the optimizer steps parameters."""
EAGER_STEPS = 2
"""The first step makes the optimizer's states; each later step has the same peak."""


def measured(budget: str, updates: str, fused: bool, steps: int, width: int) -> dict[str, Any]:
    """Returns the bytes of one contestant, and its losses as hexadecimal numbers."""
    import torch
    from step_models import Loss
    from transformers import GPT2Config, GPT2LMHeadModel

    import cutback.torch

    torch.manual_seed(0)
    config = GPT2Config(use_cache=False, n_embd=width)
    model = Loss(GPT2LMHeadModel(config), "input_ids", "labels", use_cache=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    options = {"optimizer": optimizer, "measure": "total", "updates": updates}
    step: Any = model
    if budget != "eager":
        step = cutback.torch.compile(model, budget=budget, **options)
    losses = []
    for k in range(steps):
        torch.manual_seed(k)
        tokens = torch.randint(config.vocab_size, (2, 256))
        memory: Any = cutback.torch.MemoryTracker(model, optimizer)
        with memory:
            optimizer.zero_grad()
            loss = step(tokens, tokens)
            loss.backward()
            optimizer.step()
        losses.append(loss.item().hex())
        if budget != "eager":
            (plan,) = step.plans  # the whole step is one graph
            if memory.peak_total_bytes > plan.numbers["total_bytes"]:
                raise AssertionError(f"{memory.peak_total_bytes} bytes, planned {plan.numbers}")
        print(f"{budget}, {updates}: step {k + 1} of {steps}", file=sys.stderr, flush=True)
        del loss
    planned = step.plans[0].numbers["total_bytes"] if budget != "eager" else None
    sizes = sum(p.nbytes for p in model.parameters())
    inside = budget != "eager" and step.updates_inside
    return {
        "bytes": memory.peak_total_bytes,
        "planned": planned,
        "gradients": sizes,
        "inside": inside,
        "losses": losses,
    }


def run(*options: str | int) -> dict[str, Any]:
    """Runs :func:`measured` in a separate process."""
    asked = json.dumps(options)
    done = subprocess.run(
        [sys.executable, __file__, "--one", asked], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(*json.loads(args.one))))
        return
    rows: list[dict[str, Any]] = []
    eager: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for budget, updates in ROWS:
        steps = min(args.steps, EAGER_STEPS) if budget == "eager" else args.steps
        found = run(budget, updates, args.fused, steps, args.width)
        if updates == "after":
            after = found
        eager = eager or found
        row = {
            "model": f"GPT-2, 12 layers of {args.width}, 2 x 256",
            "optimizer": "AdamW, fused" if args.fused else "AdamW",
            "budget": budget,
            "updates": updates,
            "bytes": found["bytes"],
            "planned": found["planned"],
            "gradients": found["gradients"],
            "below eager": eager["bytes"] - found["bytes"],
            "below the separate step": after["bytes"] - found["bytes"],
            "losses": found["losses"] == after["losses"],
            "steps": steps,
        }
        if found["inside"] != (updates == "inside"):
            raise AssertionError(f"{row}: the updates are not where they should be")
        print(row, flush=True)
        rows.append(row)
    save("torch_updates", COMMAND, rows, "torch", "transformers")


if __name__ == "__main__":
    main()
