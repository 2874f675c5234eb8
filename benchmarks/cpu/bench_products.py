"""Claim: on a CPU, f32 matrix products take at most 1/0.95 of the best time of OpenBLAS (through
NumPy) and PyTorch, and those with a side of 16 or less at most 1/1.5 of it.

    python benchmarks/cpu/bench_products.py [--only 3,4] [--rounds 3] [--threads 1,2] [--json FILE]
                                            [--quick]

Each contestant is a separate process and runs alone, after a pause in which the other thread pools
go to sleep. On one thread a number is processor time, the median of the calls of a turn; on several
threads it is elapsed time, the 2nd percentile of short bursts, which other load hardly affects. In
both cases the best turn counts. Ours runs the products inside one compiled step. Exits with 1 if
the error of one of our products, relative to f64, is more than 16 times the largest of the others.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import common
import numpy as np
from contest import KEPT

COMMAND = "python benchmarks/cpu/bench_products.py"
REST = 0.1  # seconds until the workers of other pools sleep
BURSTS, CALLS, PAUSE = 25, 4, 0.03
TURN = 0.15  # seconds per turn on one thread
LEAST_FLOPS = 4e8  # per call: smaller products are repeated within a call
MOST_BYTES = 1 << 26  # of the operands of a call


class Product(NamedTuple):
    """x[m, k] @ y[k, n]; a T in `layout` says that x or y is stored transposed."""

    m: int
    k: int
    n: int
    layout: str = "NN"

    @property
    def repeats(self) -> int:
        if self.flops == 0:
            return 1
        least = 64 if self.is_square else MOST_BYTES // (4 * self.k * (self.m + self.n))
        return max(1, min(64, least, round(LEAST_FLOPS / self.flops)))

    @property
    def is_square(self) -> bool:
        """True if products can be chained: each is the left side of the next."""
        return self.m == self.k == self.n

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.k * self.n

    @property
    def is_narrow(self) -> bool:
        return 1 < min(self.m, self.n) <= 16

    def __str__(self) -> str:
        return f"({self.m},{self.k},{self.n}) {self.layout}"


PRODUCTS = [
    Product(64, 64, 64),
    Product(128, 128, 128),
    Product(256, 256, 256),
    Product(512, 512, 512),
    Product(1024, 1024, 1024),
    Product(64, 64, 64, "TN"),
    Product(256, 256, 256, "NT"),
    Product(512, 512, 512, "TN"),
    Product(1024, 1024, 1024, "NT"),
    Product(4096, 768, 3072),
    Product(4096, 3072, 768, "NT"),
    Product(768, 4096, 3072, "TN"),
    Product(128, 4096, 128),
    Product(8192, 64, 256),
    Product(201, 300, 77),
    Product(1, 1024, 4096),
    Product(8160, 784, 10),
    Product(784, 8160, 10, "TN"),
    Product(2040, 256, 16),
    Product(16, 768, 768),
]


# ---- a contestant, in its own process ------------------------------------------------------------


def arrays_of(product: Product) -> list[tuple[Any, Any]]:
    """Returns operands in NumPy's layout: one pair for each repeat, or one for a chain."""
    rng = np.random.default_rng(product.m + product.n)
    pairs = []
    for _ in range(1 if product.is_square else product.repeats):
        m, k, n, layout = product
        x = rng.standard_normal((k, m) if layout[0] == "T" else (m, k), np.float32)
        y = rng.standard_normal((n, k) if layout[1] == "T" else (k, n), np.float32) / np.sqrt(
            np.float32(k)
        )
        pairs.append((x.T if layout[0] == "T" else x, y.T if layout[1] == "T" else y))
    return pairs


def products(pairs: Any, length: int, flip: bool) -> Any:
    """Computes `length` products of each pair in a row, in any of the libraries; returns the first
    and the last of each."""
    found = []
    for x, y in pairs:
        first = x @ y
        last = first
        for _ in range(length - 1):
            last = (last.T if flip else last) @ y
        found += [first, last] if length > 1 else [first]
    return found


def ours(threads: int, pairs: list[tuple[Any, Any]], length: int) -> Callable[[], list[Any]]:
    """Returns one program of all products, including transposes, because programs take row-major
    arrays."""
    import cutback as cb

    cb.set_num_threads(threads)
    flips = [not array.flags.c_contiguous for array in pairs[0]]
    stored = [
        tuple(a.T if flip else a for a, flip in zip(pair, flips, strict=True)) for pair in pairs
    ]

    def program(pairs: Any) -> Any:
        laid = [[a.T if flip else a for a, flip in zip(pair, flips, strict=True)] for pair in pairs]
        return products(laid, length, flips[0])

    step = cb.compile(program, argnums=None)
    return lambda: step(stored)


def in_torch(threads: int, pairs: list[tuple[Any, Any]], length: int) -> Callable[[], list[Any]]:
    import torch

    torch.set_num_threads(threads)
    tensors = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in pairs]
    return lambda: products(tensors, length, not pairs[0][0].flags.c_contiguous)


def in_numpy(threads: int, pairs: list[tuple[Any, Any]], length: int) -> Callable[[], list[Any]]:
    """Returns the products in NumPy; OpenBLAS reads its number of threads from the environment."""
    return lambda: products(pairs, length, not pairs[0][0].flags.c_contiguous)


def peak(path: str, threads: int) -> Callable[[], float]:
    """Runs the loop of `peak.c` on each thread; returns the total number of operations. ctypes
    releases the GIL."""
    from concurrent.futures import ThreadPoolExecutor

    library = ctypes.CDLL(path)
    library.run_peak.restype = ctypes.c_double
    library.run_peak.argtypes = [ctypes.c_int64]
    if threads == 1:
        return lambda: float(library.run_peak(100_000))
    pool = ThreadPoolExecutor(threads)
    return lambda: sum(pool.map(library.run_peak, [1_000_000] * threads))


def seconds(call: Callable[[], Any], threads: int, quick: bool) -> float:
    """Returns the seconds of one call, in one turn."""
    call()
    if quick:
        return timed(call, time.perf_counter)
    if threads == 1:
        times: list[float] = []
        end = time.perf_counter() + TURN
        while time.perf_counter() < end or len(times) < 3:
            times.append(timed(call, time.thread_time))
        return statistics.median(times)
    bursts: list[float] = []
    for _ in range(BURSTS):
        time.sleep(PAUSE)
        call()
        bursts += [timed(call, time.perf_counter) for _ in range(CALLS)]
    return sorted(bursts)[len(bursts) // 50]


def timed(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    begin = clock()
    results = call()
    end = clock()
    del results
    return end - begin


def work(name: str, threads: int, quick: bool, number: int, path: str) -> dict[str, float]:
    """Returns a contestant's result for a product, or the machine's peak in flops per second."""
    if name == "peak":
        spin = peak(path, threads)
        return {"peak": spin() / min(seconds(spin, threads, quick) for _ in range(3))}
    product = PRODUCTS[number]
    if quick:
        product = product._replace(m=min(product.m, 40), k=min(product.k, 40))
    pairs = arrays_of(product)
    call = {"ours": ours, "torch": in_torch, "numpy": in_numpy}[name](
        threads, pairs, product.repeats if product.is_square else 1
    )
    x, y = (array.astype(np.float64) for array in pairs[0])
    size = np.abs(x) @ np.abs(y)
    apart = float(np.max(np.abs(np.asarray(call()[0]) - x @ y) / size))
    found = seconds(call, threads, quick) / product.repeats
    return {"seconds": found, "error": apart}


# ---- the contest ---------------------------------------------------------------------------------


def ask(name: str, threads: int, quick: bool, number: int = 0, path: str = "") -> dict[str, float]:
    """Runs a contestant alone, after a pause."""
    time.sleep(0 if quick else REST)
    environment = {
        **os.environ,
        **KEPT,
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)),
    }
    task = json.dumps([name, threads, quick, number, path])
    out = subprocess.check_output(
        [sys.executable, __file__, "--work", task], env=environment, text=True
    )
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def measured_peak(threads: int, quick: bool) -> float | None:
    """Returns operations per second, or None without a compiler."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/peak.so"
        command = ["cc", "-O2", "-march=native", "-shared", "-fPIC", str(HERE / "peak.c")]
        try:
            subprocess.run([*command, "-o", path], check=True)
        except (OSError, subprocess.CalledProcessError):
            print("There is no C compiler: products are not set beside the peak.")
            return None
        return max(ask("peak", threads, quick, path=path)["peak"] for _ in range(1 if quick else 3))


def measure(number: int, threads: int, rounds: int, quick: bool, top: float | None) -> Any:
    """Returns the row of a product."""
    from importlib.util import find_spec

    product = PRODUCTS[number]
    names = ["ours", "numpy"] + (["torch"] if find_spec("torch") else [])
    found = [{name: ask(name, threads, quick, number) for name in names} for _ in range(rounds)]
    best = {name: min(turn[name]["seconds"] for turn in found) for name in names}
    limit = 1.5 if product.is_narrow else 0.95
    ratio = min(best[name] for name in names if name != "ours") / best["ours"]
    row = {"row": f"{product}, threads {threads}", "unit": "us", "median": 1e6 * best["ours"]}
    row |= {name: 1e6 * best[name] for name in names[1:]}
    row |= {"best / ours": ratio, "limit": limit, "met": ratio >= limit}
    if not quick:
        row["GF/s"] = 1e-9 * product.flops / best["ours"]
        if top is not None:
            row["of the peak"] = product.flops / best["ours"] / top
    errors = {name: max(turn[name]["error"] for turn in found) for name in names}
    row["error"] = errors.pop("ours")
    row["their error"] = max(errors.values())
    return row


def parsed() -> argparse.Namespace:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--only", help='products by number, from 0, as "3,4"')
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="1,2" if cores > 1 else "1")
    parser.add_argument("--json", type=Path, help="file for the rows, not results/cpu_products")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: a smoke test")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Measures the rows one after another."""
    options = parsed()
    if options.work is not None:
        print(json.dumps(work(*json.loads(options.work))))
        return 0
    numbers = list(range(len(PRODUCTS)))
    if options.only is not None:
        numbers = [int(number) for number in options.only.split(",")]
    results = []
    for threads in [int(count) for count in options.threads.split(",")]:
        top = measured_peak(threads, options.quick)
        if top is not None:
            print(f"threads {threads}: peak {1e-9 * top:.0f} GF/s")
        for number in numbers:
            rounds = 1 if options.quick else options.rounds
            row = measure(number, threads, rounds, options.quick, top)
            results.append(row)
            print(", ".join(f"{k} {v:.3g}" if isinstance(v, float) else str(v)
                            for k, v in row.items() if k != "unit"), flush=True)  # fmt: skip
    if options.json is not None:
        common.RESULTS = options.json.parent
    if options.json is not None or (options.only is None and not options.quick):
        name = "cpu_products" if options.json is None else options.json.stem
        common.save(name, f"{COMMAND} --rounds {options.rounds}", results, "torch")
    apart = [row["row"] for row in results if not row["error"] <= 16 * row["their error"] + 1e-7]
    for name in apart:
        print(f"{name}: the product is wrong", file=sys.stderr)
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
