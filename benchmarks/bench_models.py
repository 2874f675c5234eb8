"""Claim: a step of the demo models is no slower than PyTorch eager's, and its peak is lower.

    python benchmarks/bench_models.py [--rounds N]

Both run forward, backward and AdamW (PyTorch's with fused=True) on the same parameters, the same
batch and the same number of threads, in turns. PyTorch's peak is the largest sum of live
allocations that its profiler sees in a step, beyond those from before the step; cutback's is the
measured arena.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_models

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "demo"))

import convnet
import data
import gpt
from common import interleave, save

import cutback as cb


def torch_peak(step: Callable[[], Any]) -> int:
    """Returns the most live bytes in one step, from the profiler's allocation records."""
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    live = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def torch_step(loss: Callable[[], torch.Tensor], params: list[torch.Tensor]) -> Callable[[], float]:
    """Returns a timed step: forward, backward and AdamW."""
    optimizer = torch.optim.AdamW(params, lr=1e-3, fused=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
        optimizer.step()
        return float(value.detach())

    return step


def cutback_step(
    loss: Any, args: tuple[Any, ...], **options: Any
) -> tuple[Callable[[], float], Any, float]:
    """Returns (step, compiled, seconds of tracing, planning and the first step)."""
    step = cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-3), seed=0, **options)
    begin = time.perf_counter()
    step(*args)
    first = time.perf_counter() - begin
    return lambda: float(step(*args)), step, first


def gpt_case() -> tuple[Any, tuple[Any, ...], Callable[[], float]]:
    """Returns the GPT of the demo: (loss, arguments, PyTorch step)."""
    text = data.stdlib_text()
    config = gpt.GPTConfig(vocab=len(text.alphabet))
    params = gpt.init(config, np.random.default_rng(1))
    x, y = next(data.text_batches(text, 16, config.context, seed=2))
    twin = torch_models.to_torch(params)
    tx, ty = torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y.astype(np.int64))
    peer = torch_step(
        lambda: torch_models.gpt_loss(twin, tx, ty, config), torch_models.leaves(twin)
    )
    return (lambda p, a, b: gpt.loss(p, a, b, config)), (params, x, y), peer


def conv_case() -> tuple[Any, tuple[Any, ...], Callable[[], float]]:
    """Returns the convolutional net of the demo."""
    config = convnet.ConvConfig()
    params, states = convnet.init(config, np.random.default_rng(3))
    x, y = next(data.digit_batches(data.digits(), 128, seed=4))
    twin, twin_states = (
        torch_models.to_torch(params),
        torch_models.to_torch(states, requires_grad=False),
    )
    tx, ty = torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))
    peer = torch_step(
        lambda: torch_models.conv_loss(twin, twin_states, tx, ty, config), torch_models.leaves(twin)
    )
    return (lambda p, s, a, b: convnet.loss(p, s, a, b, config)), (params, states, x, y), peer


def measure(name: str, case: Callable[[], Any], rounds: int) -> list[dict[str, Any]]:
    """Returns the rows of one model: PyTorch eager, and cutback under three plans."""
    loss, args, peer = case()
    everything, first_step, first_seconds = cutback_step(loss, args, preset="autograd")
    half = first_step.planned.arena_bytes // 2
    least, least_step, _ = cutback_step(loss, args, preset="aggressive")
    halved, half_step, half_seconds = cutback_step(loss, args, budget=half)
    plans = {"save everything": first_step, "min-cut": least_step, "half the memory": half_step}
    times = interleave(
        {
            "PyTorch eager": peer,
            "save everything": everything,
            "min-cut": least,
            "half the memory": halved,
        },
        rounds,
    )
    eager = times["PyTorch eager"]["median"]
    rows = [
        {
            "model": name,
            "what": "PyTorch eager",
            "peak_bytes": torch_peak(peer),
            "ratio": 1.0,
            **times["PyTorch eager"],
        }
    ]
    for plan, step in plans.items():
        peak = step.stats.peak_bytes
        rows.append(
            {
                "model": name,
                "what": plan,
                "peak_bytes": peak,
                "ratio": times[plan]["median"] / eager,
                **times[plan],
            }
        )
    rows.append(
        {
            "model": name,
            "what": "trace, plan, first step (save everything)",
            "median": 1e3 * first_seconds,
        }
    )
    rows.append(
        {
            "model": name,
            "what": "trace, plan, first step (half the memory)",
            "median": 1e3 * half_seconds,
        }
    )
    return rows


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    cb.set_num_threads(threads)
    rows = measure("GPT", gpt_case, rounds) + measure("ConvNet", conv_case, rounds)
    for row in rows:
        row["unit"], row["threads"] = "ms", threads
        print(
            {
                key: round(value, 2) if isinstance(value, float) else value
                for key, value in row.items()
            }
        )
    save("models", "python benchmarks/bench_models.py", rows, "torch")


if __name__ == "__main__":
    main()
