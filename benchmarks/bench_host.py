"""Measures the processor time that a call costs the host: for steps of many arrays on a CPU and on
a CUDA driver that runs nothing (tests/gpu_sim/null), and for a training step of GPT-2 124M on that
driver.

python benchmarks/bench_host.py [--only PREFIX] [--rounds N]

Everything runs on one thread. `call ms` is the processor time of a whole call, a median; `core ms`
is the least `stats.seconds`, the time in which the core computes or issues launches to the null
driver. `outside ms` is the difference; `stats.seconds` is wall time, so the machine must not be
busy. `t(2n)/t(n)` compares `call ms` with that of twice as many arrays.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import save

import cutback as cb

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "tests" / "gpu_sim"), str(ROOT / "examples" / "demo")]

CPU = (1000, 4000, 16000)
DEVICE = (16, 148, 1000)
MOST_SECONDS = 2.0  # processor time for the calls of one row
KINDS: dict[str, Callable[[Callable[..., Any], dict[str, Any]], Any]] = {
    "forward": lambda loss, on: cb.compile(loss, argnums=None, **on),
    "value_and_grad": lambda loss, on: cb.value_and_grad(loss, **on),
    "SGD": lambda loss, on: cb.compile(loss, optimizer=cb.optim.SGD(lr=1e-3), **on),
    "AdamW": lambda loss, on: cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-3), **on),
}

ON_DEVICE = ("value_and_grad", "AdamW", "captured AdamW")


def sum_of_squares(params: list[Any]) -> Any:
    total = 0.0
    for p in params:
        total = total + (p * p).sum()
    return total


def measured(
    step: Callable[[], Any], seconds: Callable[[], float], rounds: int
) -> dict[str, float]:
    """Returns the milliseconds of a call, and of the core during it. Slow calls are repeated less
    often."""
    for _ in range(2):
        step()
    whole: list[float] = []
    core: list[float] = []
    while len(whole) < 3 or (len(whole) < rounds and sum(whole) < MOST_SECONDS):
        begin = time.process_time()
        step()
        whole.append(time.process_time() - begin)
        core.append(seconds())
    middle, inside = 1e3 * statistics.median(whole), 1e3 * min(core)
    return {"call ms": middle, "core ms": inside, "outside ms": middle - inside}


def many(kind: str, n: int, on_device: bool, rounds: int) -> dict[str, float]:
    """Measures a step of n small arrays."""
    params: Any = [np.full((3, 4), i % 7, np.float32) for i in range(n)]
    if kind == "captured AdamW":
        return captured(params, rounds)
    if on_device:
        from cutback import cuda

        params = cuda.to_device(params)
    step = KINDS[kind](sum_of_squares, {"device": "cuda"} if on_device else {})
    return measured(lambda: step(params), lambda: step.stats.seconds, rounds)


def captured(arrays: list[Any], rounds: int) -> dict[str, float]:
    """Measures replays of a captured step of small parameters, with one more argument, which is
    copied. Replays are short, so there are ten times as many."""
    from cutback import cuda

    params, x = cuda.to_device(arrays), cuda.to_device(np.ones(4, np.float32))
    step = cb.compile(
        lambda p, x: sum_of_squares(p) + x.sum(), optimizer=cb.optim.AdamW(lr=1e-3), device="cuda"
    )
    replay = step.capture(params)
    return measured(lambda: replay(x), lambda: step.stats.seconds, 10 * rounds)


def array_rows(rounds: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yields the names of rows and the functions that measure them."""
    for where, sizes, kinds in (("cpu", CPU, KINDS), ("null driver", DEVICE, ON_DEVICE)):
        for kind in kinds:
            for n in sizes:

                def measure(kind: str = kind, n: int = n, where: str = where) -> dict[str, Any]:
                    on_device = where != "cpu"
                    row = many(kind, n, on_device, rounds)
                    twice = many(kind, 2 * n, on_device, rounds)
                    return {**row, "t(2n)/t(n)": twice["call ms"] / row["call ms"]}

                yield f"{where}, {kind}, {n}", measure


def gpt2(rounds: int) -> dict[str, Any]:
    """Measures GPT-2 124M with AdamW on batches of 8 x 1,024 tokens."""
    import gpt

    from cutback import cuda
    from null_driver import NullDriver

    config = gpt.GPTConfig(vocab=50257, context=1024, layers=12, heads=12, width=768)
    params = cuda.to_device(gpt.init(config, np.random.default_rng(0)))
    tokens, labels = (cuda.to_device(np.zeros((8, 1024), np.int64)) for _ in range(2))
    step = cb.compile(
        lambda p, a, b: gpt.loss(p, a, b, config), optimizer=cb.optim.AdamW(lr=1e-4),
        preset="autograd", device="cuda",
    )  # fmt: skip
    run = lambda: step(params, tokens, labels)  # noqa: E731
    row: dict[str, Any] = measured(run, lambda: step.stats.seconds, rounds)
    driver = NullDriver()
    driver.clear()
    run()
    return {
        **row,
        "launches": driver.calls("cuLaunchKernel"),
        "driver calls": sum(driver.counts().values()),
        "allocations": driver.calls("cuMemAlloc") + driver.calls("cuMemAllocAsync"),
    }


def use_null_driver() -> None:
    """Makes every later search for a driver find the null driver."""
    import null_driver

    os.environ["CUTBACK_CUDA_DRIVER"] = str(null_driver.build())
    os.environ["CUTBACK_CUBLASLT"] = "none"
    null_driver.NullDriver().set(log=0)


def main() -> None:
    """Measures the requested rows; a full run is written to results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose names begin like this")
    parser.add_argument("--rounds", type=int, default=50, help="calls that are measured")
    args = parser.parse_args()
    use_null_driver()
    cb.set_num_threads(1)
    rows = []
    every = [*array_rows(args.rounds), ("GPT-2 124M", lambda: gpt2(args.rounds))]
    for name, measure in every:
        if name.startswith(args.only):
            rows.append({"what": name, **measure()})
            print(rows[-1], flush=True)
    if len(rows) == len(every):
        save("host", "python benchmarks/bench_host.py", rows)


if __name__ == "__main__":
    main()
