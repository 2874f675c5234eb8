"""Claim: PyTorch compiles a model with graph breaks only once; a plan for its whole step adds only
planning time.

python benchmarks/pytorch/bench_compile.py

Runs GPT-2 of `transformers` in its default configuration, which breaks the graph before the loss.
Times are processor times, which other load hardly affects.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import save

import cutback.torch

STEPS = 4
BUDGET = 0.5


def model() -> Any:
    """Returns twelve narrow layers, so that Python takes most of the time and arithmetic little."""
    from transformers import GPT2Config, GPT2LMHeadModel

    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=512,
            n_embd=64,
            n_layer=12,
            n_head=4,
            n_positions=128,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def steps(
    name: str, run: Callable[..., Any], plans: Callable[[], list[Any]]
) -> list[dict[str, Any]]:
    """Returns one row per step."""
    x = torch.randint(512, (4, 64))
    rows = []
    for number in range(1, STEPS + 1):
        before = counters["stats"]["unique_graphs"]
        begin = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            run(input_ids=x, labels=x).loss.backward()
        seconds = time.process_time() - begin
        made = plans()
        row = {
            "what": f"{name}, step {number}",
            "unit": "s",
            "value": round(seconds, 3),
            "graphs compiled": counters["stats"]["unique_graphs"] - before,
            "plans in force": len(made),
        }
        rows.append(row)
        print(f"{row['what']:24} {seconds:6.2f} s, {row['graphs compiled']} graphs compiled")
    return rows


def main() -> None:
    """Compiles both ways, each from scratch."""
    torch.set_num_threads(1)
    rows = []
    torch._dynamo.reset()
    rows += steps("aot_eager", torch.compile(model(), backend="aot_eager"), list)
    torch._dynamo.reset()
    run = cutback.torch.compile(model(), budget=BUDGET)
    rows += steps(f"cutback, budget {BUDGET}", run, lambda: run.plans)
    save("pytorch_compile", "python benchmarks/pytorch/bench_compile.py", rows, "torch",
         "transformers")  # fmt: skip


if __name__ == "__main__":
    main()
