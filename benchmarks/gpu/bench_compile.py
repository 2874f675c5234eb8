"""Measures the time of a first step on a GPU before its first kernel runs: tracing, planning,
kernels as text, NVRTC or the cache of compiled kernels, and loading.

python benchmarks/gpu/bench_compile.py      no GPU is needed

A training step of a GPT-2 block (forward and backward) is prepared, with machine code for sm_90, in
a new process each time; then the kernels of its optimizer, up to the first launch. The stand-in for
the driver (tests/gpu_sim) accepts the machine code without running it; a real driver's load time is
not included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(ROOT / "tests" / "gpu_sim"), str(HERE.parent / "cpu")]

from common import save, summary

ROUNDS = 7


BLOCK = 11  # in benchmarks/cpu/rows.py: a block of GPT-2 small, about thirty kernels


def training_step(backend: str) -> tuple[Any, tuple[Any, ...]]:
    """Returns the step and its arguments."""
    import ours
    import rows as of_cpu

    import cutback as cb

    row = of_cpu.ROWS[BLOCK]
    params, data = of_cpu.inputs(BLOCK, False)

    def loss(params: Any, *data: Any) -> Any:
        return ours.LOSSES[BLOCK](params, *data, **row.options)

    return cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-3), backend=backend), (params, *data)


def child(what: str) -> None:
    """Prints one measurement as JSON: wall seconds and processor seconds."""
    from client import Driver

    Driver().set(machine_code=1)
    step, arguments = training_step("cpu" if what == "plan" else "cuda")
    from cutback import cuda

    cuda.prepare()  # finds the libraries; opening NVRTC counts as compiling
    wall, processor = time.perf_counter(), time.process_time()
    step.prepare(*arguments)
    row = {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}
    if what == "whole":
        wall = time.perf_counter()
        try:
            step(*arguments)
            raise AssertionError("machine code has run on the stand-in")
        except RuntimeError as error:
            assert "cuLaunchKernel" in str(error), error
        row["first call"] = time.perf_counter() - wall
    print(json.dumps(row), flush=True)
    os._exit(0)


def measure(what: str, cores: int, cache: str, **more: str) -> dict[str, float]:
    """Measures in a separate process, on this many processors."""
    import nvrtc
    from client import build

    environment = os.environ | more
    environment |= {
        "CUTBACK_CUDA_DRIVER": str(build()),
        "CUTBACK_NVRTC": str(nvrtc.library()),
        "CUTBACK_CUBLASLT": "none",
        "CUTBACK_CACHE_DIR": cache,
    }
    environment.pop("CUTBACK_CUDA_CODE", None)
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    done = subprocess.run(
        [sys.executable, __file__, "--child", what],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, chosen),
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def kernels() -> tuple[int, int]:
    """Returns the number of the step's kernels, and the bytes of their CUDA C."""
    with tempfile.TemporaryDirectory() as cache:
        measure("whole", 1, cache, CUTBACK_CUDA_KEEP_SOURCES="1")
        sources = [path.read_text() for path in Path(cache).glob("sources/*.cu")]
    return sum(text.count("__global__") for text in sources), sum(map(len, sources))


def rows() -> list[dict[str, Any]]:
    """Measures in turns: cold, from the cache, and without a device."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    cores = [1, *([2] if len(os.sched_getaffinity(0)) > 1 else [])]
    for _ in range(ROUNDS):
        for n in cores:
            with tempfile.TemporaryDirectory() as cache:
                found.setdefault(("empty cache", n), []).append(measure("whole", n, cache))
                found.setdefault(("from the cache", n), []).append(measure("whole", n, cache))
                found.setdefault(("tracing and planning alone", n), []).append(
                    measure("plan", n, cache)
                )
    number, size = kernels()
    return [
        {
            "what": what,
            "cores": n,
            "kernels": number,
            "bytes of CUDA C": size,
            "unit": "ms",
            **summary([1e3 * row["wall"] for row in measured]),
            "processor ms": min(1e3 * row["processor"] for row in measured),
            "then to the first launch ms": min(1e3 * row.get("first call", 0) for row in measured)
            or None,
        }
        for (what, n), measured in found.items()
    ]


def main() -> None:
    """Runs the command line."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
        return
    import nvrtc

    if nvrtc.library() is None:
        print("skipped: NVRTC is not installed (pip install nvidia-cuda-nvrtc)")
        return
    save(
        "gpu_compile",
        "python benchmarks/gpu/bench_compile.py",
        rows(),
        "nvidia-cuda-nvrtc",
    )


if __name__ == "__main__":
    main()
