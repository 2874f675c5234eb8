"""Claim: an optimizer's step makes one pass over memory for any number of tensors: it is several
times faster than PyTorch's fused optimizer on a thousand small ones, and never slower on large
ones.

    python benchmarks/optim/bench_optim.py [--only NAME ...] [--rounds 9] [--threads 2]

Contestants of a row share parameters and gradients in the same memory, and have separate states;
they run in turns, a block of steps each, in alternating order, after a pause in which the previous
contestant's threads go to sleep. Gradients are new tensors at each step, as after
`zero_grad(set_to_none=True)`. `arrays` is `cutback.optim`, `8-bit` its AdamW8bit, `drop-in` is
`cutback.torch.optim`, and the others are `torch.optim` with its options, which has neither a fused
Adafactor nor SOAP. Times are milliseconds of a step, the median over rounds of the best of three;
ratios are medians of the ratios of the rounds. `95 % arrays` and `95 % drop-in` are where the
medians of `fused / arrays` and `fused / drop-in` lie (ranks of the ratios, whatever their
distribution): a row is slower than fused if its interval is below 1, and these rows are listed at
the end; by chance, one interval in forty is wrong on this side. `first` is the first step, `new lr`
the one after a changed learning rate. `8-bit state` is the bytes of the 8-bit state divided by
those of f32. `GB/s` counts parameters, gradients and states once for each time they are read or
written; `plain GB/s` is what `p.add_(g, alpha=a)` and one `mul_` for each state reach in the same
rounds, with as many streams; `of plain` is the share of it. The speed of a step of a large tensor
varies by about 4 % with the placement of its pages, for as long as the tensor exists. So large
tensors are allocated several times, each of which gives one ratio for the interval, and need many
rounds: `--only "1 x 16 M" --placements 8 --rounds 9 --replace` measures those rows again and
replaces the written ones.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from common import median_interval, save, written

import cutback
import cutback.torch.optim

COMMAND = "python benchmarks/optim/bench_optim.py"
PAUSE = 0.05  # seconds: longer than OpenMP's threads spin
Step = Callable[[], float]
Times = dict[str, list[float]]  # milliseconds of each contestant, round by round


def gpt2() -> list[tuple[int, ...]]:
    """Returns the shapes of GPT-2 124M, with head and embedding tied."""
    shapes: list[tuple[int, ...]] = [(50257, 768), (1024, 768)]
    for _ in range(12):
        shapes += [(768,), (768,), (2304, 768), (2304,), (768, 768), (768,), (768,), (768,)]
        shapes += [(3072, 768), (3072,), (768, 3072), (768,)]
    return [*shapes, (768,), (768,)]


def resnet50() -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    width_in = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            out = 4 * width
            for shape in ((width, width_in, 1, 1), (width, width, 3, 3), (out, width, 1, 1)):
                shapes += [shape, (shape[0],), (shape[0],)]
            if block == 0:
                shapes += [(out, width_in, 1, 1), (out,), (out,)]
            width_in = out
    return [*shapes, (1000, 2048), (1000,)]


SETS: dict[str, Callable[[], list[tuple[int, ...]]]] = {
    "1,000 x 1,000": lambda: [(1000,)] * 1000,
    "10,000 x 100": lambda: [(100,)] * 10_000,
    "1 x 16 M": lambda: [(1 << 24,)],
    "ResNet-50": resnet50,
    "embedding and 2,000 biases": lambda: [(50_000, 512), *[(512,)] * 2000],
    "GPT-2 124M": gpt2,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "AdamW": {"lr": 1e-4},
    "Adam": {"lr": 1e-4},
    "SGD": {"lr": 1e-4, "momentum": 0.9},
    "Adafactor": {"lr": 1e-4},
}
OURS = ("arrays", "drop-in")
STREAMS = {"AdamW": 7, "Adam": 7, "SGD": 5}  # multiples of the parameters' size


def timed(step: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - begin)


def contestants(
    name: str, params: list[torch.nn.Parameter], grads: list[torch.Tensor], tensors: int
) -> dict[str, tuple[Any, Step]]:
    """Returns (optimizer, a timed step) by name."""
    options = OPTIONS[name]
    arrays = [p.detach().numpy() for p in params], [g.numpy() for g in grads]
    ours = getattr(cutback.optim, name)(**options)
    made: dict[str, tuple[Any, Step]] = {
        "arrays": (ours, lambda: timed(lambda: ours.step(*arrays)))
    }
    if name == "AdamW":
        eight = cutback.optim.AdamW8bit(**options)
        made["8-bit"] = eight, lambda: timed(lambda: eight.step(*arrays))

    def torch_step(optimizer: torch.optim.Optimizer) -> Step:
        def step() -> float:
            for p, g in zip(params, grads, strict=True):
                p.grad = g.detach()
            return timed(optimizer.step)

        return step

    kinds: dict[str, Any] = {"drop-in": getattr(cutback.torch.optim, name)(params, **options)}
    if name in STREAMS:
        kinds["fused"] = getattr(torch.optim, name)(params, fused=True, **options)
    if tensors > 1 or name not in STREAMS:
        kinds["foreach"] = getattr(torch.optim, name)(params, foreach=True, **options)
        kinds["for-loop"] = getattr(torch.optim, name)(params, foreach=False, **options)
    made |= {key: (optimizer, torch_step(optimizer)) for key, optimizer in kinds.items()}
    return made


def plain(params: list[torch.nn.Parameter], grads: list[torch.Tensor], n_state: int) -> Step:
    """Returns a step that updates the same number of streams in place with hardly any
    computation."""
    p, g = (torch.cat([x.detach().flatten() for x in row]) for row in (params, grads))
    states = [torch.ones_like(p) for _ in range(n_state)]

    def run() -> None:
        p.add_(g, alpha=1e-9)
        for state in states:
            state.mul_(0.999999)

    return lambda: timed(run)


def turns(steps: dict[str, Callable[[], float]], rounds: int) -> Times:
    """Returns the milliseconds of each step, round by round."""
    times: Times = {key: [] for key in steps}
    for turn in range(rounds):
        for key in reversed(steps) if turn % 2 else steps:
            time.sleep(PAUSE)
            steps[key]()
            times[key].append(min(steps[key]() for _ in range(3)))
    return times


def ratios(times: Times, above: str, below: str) -> list[float]:
    """Returns the ratio of each round."""
    return [x / y for x, y in zip(times[above], times[below], strict=True)]


def ratio(times: Times, above: str, below: str) -> float:
    """Returns the median of the rounds' ratios."""
    return statistics.median(ratios(times, above, below))


def state_bytes(optimizer: cutback.optim.base.Optimizer) -> int:
    return sum(x.nbytes for row in optimizer.states.values() for x in row if x is not None)


def measure_once(sizes: str, name: str, rounds: int) -> tuple[dict[str, Any], Times]:
    """Returns the measurements outside the rounds, and the rounds."""
    torch.manual_seed(0)
    shapes = SETS[sizes]()
    params = [torch.nn.Parameter(0.1 * torch.randn(shape)) for shape in shapes]
    grads = [0.1 * torch.randn(shape) for shape in shapes]
    count = sum(p.numel() for p in params)
    made = contestants(name, params, grads, len(params))
    first = {key: step() for key, (_, step) in made.items()}
    steps = {key: step for key, (_, step) in made.items()}
    if count > 1 << 20 and name in STREAMS:
        steps["plain"] = plain(params, grads, (STREAMS[name] - 3) // 2)
    times = turns(steps, rounds)
    row: dict[str, Any] = {"parameters": count}
    if "8-bit" in made:
        row["8-bit state"] = state_bytes(made["8-bit"][0]) / state_bytes(made["arrays"][0])
    row |= {f"first {key}": first[key] for key in ("arrays", "drop-in", "fused") if key in made}
    for key in OURS:
        optimizer, step = made[key]
        if key == "arrays":
            optimizer.lr *= 0.5
        else:
            optimizer.param_groups[0]["lr"] *= 0.5
        time.sleep(PAUSE)
        row[f"new lr {key}"] = step()
    return row, times


def measure(sizes: str, name: str, rounds: int, placements: int) -> dict[str, Any]:
    once, first = measure_once(sizes, name, rounds)
    count = once.pop("parameters")
    parts = [first, *(measure_once(sizes, name, rounds)[1] for _ in range(placements - 1))]
    times = {key: [x for part in parts for x in part[key]] for key in parts[0]}
    row: dict[str, Any] = {"optimizer": name, "tensors": sizes, "parameters": count}
    row |= {"rounds": rounds, "placements": placements}
    row |= {key: statistics.median(times[key]) for key in times if key != "plain"}
    for theirs in ("fused", "foreach"):
        if theirs in times:
            row |= {f"{theirs} / {key}": ratio(times, theirs, key) for key in OURS}
    for key in OURS if "fused" in times else ():
        apart = [ratio(part, "fused", key) for part in parts]
        all_of_one = ratios(times, "fused", key)
        row[f"95 % {key}"] = median_interval(apart if placements > 1 else all_of_one)
    if "8-bit" in times:
        row["8-bit / arrays"] = ratio(times, "8-bit", "arrays")
    row |= once
    if name in STREAMS:
        row["arrays GB/s"] = 4e-6 * STREAMS[name] * count / row["arrays"]
    if "plain" in times:
        row["plain GB/s"] = 4e-6 * STREAMS[name] * count / statistics.median(times["plain"])
        row["of plain"] = ratio(times, "plain", "arrays")
    return row


def shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " .. ".join(map(shown, value))
    return f"{value:.3g}" if isinstance(value, float) else f"{value}"


def slower(rows: list[dict[str, Any]]) -> list[str]:
    """Returns rows that are slower than fused, and not by chance."""
    return [
        f"{row['optimizer']}, {row['tensors']}, fused / {key}: {shown(interval)}"
        for row in rows for key in OURS
        if (interval := row.get(f"95 % {key}")) and interval[1] < 1
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="sets of tensors, by a part of their names")
    parser.add_argument("--optimizers", nargs="*", default=list(OPTIONS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--placements", type=int, default=1, help="times new memory is taken")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--replace", action="store_true", help="writes the rows of --only, too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cutback.set_num_threads(arguments.threads)
    rows = []
    for sizes in SETS:
        if arguments.only and not any(part in sizes for part in arguments.only):
            continue
        for name in arguments.optimizers:
            row = measure(sizes, name, arguments.rounds, arguments.placements)
            print(", ".join(f"{k} {shown(v)}" for k, v in row.items()), flush=True)
            rows.append(row)
    print("slower:", *(slower(rows) or ["none"]), sep="\n  ")
    if arguments.replace:
        known = {(row["optimizer"], row["tensors"]): row for row in written("optim")}
        rows = list((known | {(row["optimizer"], row["tensors"]): row for row in rows}).values())
    if arguments.replace or not arguments.only:
        save("optim", COMMAND, rows, "torch")


if __name__ == "__main__":
    main()
