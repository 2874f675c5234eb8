"""Claim: updates inside the plan lower the smallest peak of a training step.

python benchmarks/planner/bench_updates.py

The demo's GPT and ConvNet with AdamW. A peak is what a run of the step measures: activations,
gradients and scratch, without parameters and optimizer states. No times are measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parent.parent / "examples" / "demo"))

import convnet  # noqa: E402
import gpt  # noqa: E402
from common import save  # noqa: E402

import cutback as cb  # noqa: E402

COMMAND = "python benchmarks/planner/bench_updates.py"


def gpt_case() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The loss of the demo's GPT, and its arguments."""
    config = gpt.GPTConfig(vocab=100)
    random = np.random.default_rng(1)
    tokens = random.integers(0, config.vocab, (16, config.context))
    arguments = (gpt.init(config, random), tokens, np.roll(tokens, -1, 1))
    return (lambda p, x, y: gpt.loss(p, x, y, config)), arguments


def conv_case() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The loss of the demo's ConvNet, and its arguments."""
    config = convnet.ConvConfig()
    random = np.random.default_rng(3)
    params, states = convnet.init(config, random)
    images = random.standard_normal((128, 1, 8, 8)).astype(np.float32)
    labels = random.integers(0, config.classes, 128)
    return (lambda p, s, x, y: convnet.loss(p, s, x, y, config)), (params, states, images, labels)


def peak(loss: Callable[..., Any], args: tuple[Any, ...], budget: str, **options: Any) -> int:
    """Bytes that a step measures under a budget."""
    step = cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-3), budget=budget, **options)
    step(*args)
    return int(step.stats.peak_bytes)


def main() -> None:
    """Command line."""
    rows = []
    for name, case in (("GPT", gpt_case), ("ConvNet", conv_case)):
        loss, args = case()
        for budget in ("min", "smallest"):
            separate = peak(loss, args, budget)
            inside = peak(loss, args, budget, updates="inside")
            rows.append(
                {
                    "model": name,
                    "budget": budget,
                    "separate step, bytes": separate,
                    "inside, bytes": inside,
                    "inside / separate": round(inside / separate, 3),
                }
            )
    save("planner_updates", COMMAND, rows)


if __name__ == "__main__":
    main()
