"""Claim: an optimizer made from its formula steps nearly as fast as the built-in one, without
compilation; clipping, moving averages and zeroed gradients take less time in the update's pass than
in separate passes; a step of bf16 weights takes time in proportion to its bytes.

    python benchmarks/optim/bench_passes.py [--only NAME ...] [--rounds 7] [--threads 2]

Contestants of a row have the same gradients and run in turns, a block of steps each, as in
bench_optim.py. Times are milliseconds, the median over rounds of the best of three; ratios are
medians of the ratios of the rounds. `formula`: AdamW by `cutback.optim.foreach`; `compiled in`:
`cutback.optim.AdamW`; `definition to first step` begins with the definition of the formula. `one
pass`: `cutback.optim.AdamW.step(max_norm=, averages=, zero_grads=True)` on arrays, `drop-in` the
same of `cutback.torch.optim`, `fused and passes`: `clip_grad_norm_`,
`torch.optim.AdamW(fused=True)`, `_foreach_lerp_` and `zero_grad( set_to_none=False)`. `master`,
`remainder` and `stochastic`: AdamW on bf16, with states in f32.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import torch
from bench_optim import SETS, Step, ratio, timed, turns
from common import save

import cutback
import cutback.torch.optim

COMMAND = "python benchmarks/optim/bench_passes.py"
CASES = ("1,000 x 1,000", "10,000 x 100", "1 x 16 M", "GPT-2 124M")


def formula() -> type[Any]:
    @cutback.optim.foreach
    def adamw(p, g, m, v, t, *, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        root = np.sqrt(v) * (1 / (1 - beta2**t) ** 0.5)
        return p * (1 - lr * weight_decay) - (lr / (1 - beta1**t)) * m / (root + eps), m, v

    return adamw


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {key: statistics.median(ms) for key, ms in times.items()}


def clocked(step: Callable[[], Any]) -> Step:
    return lambda: timed(step)


def beside_hand_tuned(sizes: str, rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = SETS[sizes]()
    params = [0.1 * rng.standard_normal(shape, np.float32) for shape in shapes]
    grads = [0.1 * rng.standard_normal(shape, np.float32) for shape in shapes]
    begin = time.perf_counter()
    mine = formula()(lr=1e-4)
    mine.step(params, grads)
    first = 1e3 * (time.perf_counter() - begin)
    theirs = cutback.optim.AdamW(lr=1e-4)
    theirs.step(params, grads)
    times = turns({"formula": clocked(lambda: mine.step(params, grads)),
                   "compiled in": clocked(lambda: theirs.step(params, grads))}, rounds)  # fmt: skip
    mine.lr *= 0.5
    return {
        "what": "AdamW", "tensors": sizes, **medians(times),
        "compiled in / formula": ratio(times, "compiled in", "formula"),
        "definition to first step": first, "new lr": timed(lambda: mine.step(params, grads)),
    }  # fmt: skip


def one_pass(sizes: str, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(0.1 * torch.randn(shape)) for shape in SETS[sizes]()]
    for p in params:
        p.grad = 1e-4 * torch.randn(p.shape)
    grads = [p.grad for p in params]
    averages = [p.detach().clone() for p in params]
    arrays = [[x.detach().numpy() for x in row] for row in (params, grads, averages)]
    ours = cutback.optim.AdamW(lr=1e-4)
    drop_in = cutback.torch.optim.AdamW(params, lr=1e-4)
    fused = torch.optim.AdamW(params, lr=1e-4, fused=True)

    def passes() -> None:
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        fused.step()
        with torch.no_grad():
            torch._foreach_lerp_(averages, params, 0.001)
        fused.zero_grad(set_to_none=False)

    times = turns({
        "one pass": clocked(lambda: ours.step(arrays[0], arrays[1], max_norm=1.0,
                                              averages=arrays[2], zero_grads=True)),
        "drop-in": clocked(lambda: drop_in.step(max_norm=1.0, averages=averages,
                                                zero_grads=True)),
        "fused and passes": clocked(passes),
    }, rounds)  # fmt: skip
    return {
        "what": "AdamW, clipping, averages, zeros", "tensors": sizes, **medians(times),
        "passes / one pass": ratio(times, "fused and passes", "one pass"),
        "passes / drop-in": ratio(times, "fused and passes", "drop-in"),
    }  # fmt: skip


def in_halves(sizes: str, rounds: int) -> dict[str, Any]:
    """Measures weights and gradients in bf16, as bits, in each form, compared with f32."""
    rng = np.random.default_rng(0)
    forms = ("f32", "master", "remainder", "stochastic")
    steps: dict[str, Callable[[], Any]] = {}
    for form in forms:
        params = [0.1 * rng.standard_normal(shape, np.float32) for shape in SETS[sizes]()]
        grads = [0.1 * rng.standard_normal(shape, np.float32) for shape in SETS[sizes]()]
        if form == "f32":
            optimizer = cutback.optim.AdamW(lr=1e-4)
        else:
            optimizer = cutback.optim.AdamW(lr=1e-4, half=form)
            params, grads = ([(x.view(np.uint32) >> 16).astype(np.uint16) for x in row]
                             for row in (params, grads))  # fmt: skip
        steps[form] = partial(optimizer.step, params, grads)
        steps[form]()
    times = turns({form: clocked(step) for form, step in steps.items()}, rounds)
    return {
        "what": "AdamW, bf16", "tensors": sizes, **medians(times),
        **{f"{form} / f32": ratio(times, form, "f32") for form in forms[1:]},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="sets of tensors, by a part of their names")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cutback.set_num_threads(arguments.threads)
    rows = []
    for measure in (beside_hand_tuned, one_pass, in_halves):
        for sizes in CASES:
            if arguments.only and not any(part in sizes for part in arguments.only):
                continue
            rows.append(measure(sizes, arguments.rounds))
            print(", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{v}"
                            for k, v in rows[-1].items()), flush=True)  # fmt: skip
    if not arguments.only:
        save("optim_passes", COMMAND, rows, "torch", "numpy")


if __name__ == "__main__":
    main()
