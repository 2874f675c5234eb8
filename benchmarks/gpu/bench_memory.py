"""Counts the driver calls of a steady step for the memory of its results; measures the host time.

python benchmarks/gpu/bench_memory.py [--quick] [--no-write]

value_and_grad of the 148 parameters of GPT-2 124M, all on the device. It runs on the null driver of
the tests, which counts calls and executes nothing: no GPU is needed, and no time on one is
measured. Rows: each step waits; each step runs on a stream; results are also passed to another
library through DLPack and released on its stream.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT / "benchmarks"),
    str(ROOT / "tests" / "gpu_sim"),
    str(Path(__file__).parent),
]

# Entries that a steady step should not call, and those that it may.
TAKES = ("cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemFreeAsync", "cuCtxSynchronize")
ORDERS = ("cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuStreamSynchronize")
STEPS, WARMUP = 20, 4


def stream_of(library: ctypes.CDLL) -> int:
    """Returns a new stream of the primary context."""
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    for code in (
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        library.cuCtxSetCurrent(context),
        library.cuStreamCreate(ctypes.byref(stream), 1),
    ):
        assert code == 0, code
    assert stream.value is not None
    return stream.value


def rows(quick: bool) -> list[dict[str, Any]]:
    """Returns one row for each way to call the step."""
    from null_driver import NullDriver, build

    os.environ["CUTBACK_CUDA_DRIVER"] = str(build())
    os.environ["CUTBACK_CUBLASLT"] = "none"
    import numpy as np
    from gpu_rows import GPT2

    import cutback as cb
    from cutback import cuda

    shapes = GPT2[:20] if quick else GPT2
    driver = NullDriver()
    params = [cuda.to_device(np.zeros(shape, np.float32)) for shape in shapes]

    def loss(params: Any) -> Any:
        total = (params[0] * params[0]).sum()
        for p in params[1:]:
            total = total + (p * p).sum()
        return total

    step = cb.value_and_grad(loss, device="cuda")
    ours, theirs = stream_of(driver.library), stream_of(driver.library)

    def shared() -> None:
        _, grads = step(params, stream=ours)
        held = [grad.__dlpack__(stream=theirs, max_version=(1, 0)) for grad in grads]
        del grads, held

    ways: dict[str, Callable[[], Any]] = {
        "each step waits": lambda: step(params),
        "on a stream": lambda: step(params, stream=ours),
        "handed on by DLPack": shared,
    }
    found = []
    for name, run in ways.items():
        for _ in range(WARMUP):
            run()
        driver.clear()
        times = []
        for _ in range(STEPS):
            begin = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - begin))
        calls = {entry: driver.calls(entry) / STEPS for entry in (*TAKES, *ORDERS)}
        found.append({"what": name, "parameters": len(shapes), "calls": calls})
        found[-1]["host ms"] = statistics.median(times)
    return found


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 parameters")
    parser.add_argument("--no-write", action="store_true", help="print only")
    args = parser.parse_args()
    found = rows(args.quick)
    for row in found:
        calls = ", ".join(f"{key} {n:g}" for key, n in row["calls"].items() if n)
        print(f"{row['what']:20} {row['host ms']:7.2f} ms  {calls}")
    if not (args.quick or args.no_write):
        from common import save

        save("gpu_memory", "python benchmarks/gpu/bench_memory.py", found, "numpy")
    return 0


if __name__ == "__main__":
    sys.exit(main())
