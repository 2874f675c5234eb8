"""Claim: updates inside the backward lower a training step's peak of parameters, optimizer states,
gradients and activations by at least the gradients' bytes, with the bits of the separate step.

    python benchmarks/pytorch/bench_updates.py [--steps N]

The GPT-2 of `transformers` (12 layers, batches of 2 x 256 tokens) with AdamW on the CPU: eager, and
compiled with the step after and inside the backward, with PyTorch's loop over tensors and its fused
kernels. Each row is a separate process. Peaks are measured in the last of N steps, forward to
`optimizer.step()`; `losses` says whether all N losses have the bits of the separate step under the
same budget. No times are measured.
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
ROWS = [
    (budget, fused, updates)
    for fused in (False, True)
    for budget, all_updates in (
        ("eager", ("after",)),
        (None, ("after", "inside")),
        ("smallest", ("after", "inside")),
    )
    for updates in all_updates
]


def measured(budget: str | None, fused: bool, updates: str, steps: int) -> dict[str, Any]:
    """The bytes of one contestant, and its losses as hexadecimal numbers."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import cutback.torch

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(use_cache=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    options = {"optimizer": optimizer, "measure": "total", "updates": updates}
    step: Any = model
    if budget != "eager":
        step = cutback.torch.compile(model, budget=budget, **options)
    losses = []
    for k in range(steps):
        torch.manual_seed(k)
        tokens = torch.randint(model.config.vocab_size, (2, 256))
        memory: Any = cutback.torch.MemoryTracker(model, optimizer)
        with memory:
            optimizer.zero_grad()
            loss = step(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
        losses.append(loss.item().hex())
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


def run(budget: str | None, fused: bool, updates: str, steps: int) -> dict[str, Any]:
    """:func:`measured` in a process of its own."""
    asked = json.dumps([budget, fused, updates, steps])
    done = subprocess.run(
        [sys.executable, __file__, "--one", asked], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(*json.loads(args.one))))
        return
    rows, after = [], {}
    for budget, fused, updates in ROWS:
        found = run(budget, fused, updates, args.steps)
        if updates == "after":
            after[budget, fused] = found
        plain, same = after["eager", fused], after[budget, fused]
        row = {
            "model": "GPT-2, 12 layers, 2 x 256",
            "optimizer": "AdamW, fused" if fused else "AdamW",
            "budget": str(budget),
            "updates": updates,
            "MB": round(found["bytes"] / 1e6, 1),
            "planned MB": found["planned"] and round(found["planned"] / 1e6, 1),
            "gradients, MB": round(found["gradients"] / 1e6, 1),
            "below eager, MB": round((plain["bytes"] - found["bytes"]) / 1e6, 1),
            "below the separate step, MB": round((same["bytes"] - found["bytes"]) / 1e6, 1),
            "losses": found["losses"] == same["losses"],
            "steps": args.steps,
        }
        if found["inside"] != (updates == "inside"):
            raise AssertionError(f"{row}: the updates are not where they should be")
        print(row, flush=True)
        rows.append(row)
    save("torch_updates", COMMAND, rows, "torch", "transformers")


if __name__ == "__main__":
    main()
