"""Kernels on a GPU, compared with PyTorch eager, torch.compile, its fused optimizers, and with the
card's limits.

python benchmarks/gpu/bench_gpu.py [OPTIONS of tests/gpu/run.py]
python benchmarks/gpu/bench_gpu.py --list card|warm|rows|compile|kernels
python benchmarks/gpu/bench_gpu.py --item NAME

The first form is `make gpu` for these stages only: each item is a process with a time limit, its
output is kept, and an interrupted run continues. `results.py` makes the tables. `--stand-in` runs
everything at small sizes without a GPU; its times mean nothing.

| stage | items |
|---|---|
| card | rates of memory, products, launches and of the link to the host (card.py) |
| warm | has torch.compile compile the rows, to fill its cache on disk |
| rows | ours and eager, f32 and bf16, and AdamW alone (gpu_rows.py) |
| compile | the same with torch.compile |
| kernels | each kernel by ncu, else by torch.profiler, else groups by events (kernels.py) |
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "benchmarks"), str(ROOT / "tests" / "gpu")]

import card
import gpu_rows
import items

import kernels

# seconds allowed per item
SECONDS = {"card": 30, "warm": 110, "rows": 45, "compile": 60, "kernels": 45}
PROFILED = (
    ("row 4", "f32"), ("row 9", "f32"), ("row 8", "f32"), ("adamw", "f32"), ("row 1", "f32"),
    ("row 7", "f32"), ("row 5", "f32"), ("row 6", "f32"), ("row 11", "f32"), ("row 4", "bf16"),
    ("row 11", "bf16"),
)  # fmt: skip


def _card() -> dict[str, items.Item]:
    return {"card": (SECONDS["card"], card.card)}


def _warm() -> dict[str, items.Item]:
    return {
        f"warm:{number}": (SECONDS["warm"], lambda number=number: gpu_rows.warm(number))
        for number in gpu_rows.SIZES
    }


def _rows() -> dict[str, items.Item]:
    first, *rest = gpu_rows.TENSORS
    adamw = {
        f"adamw {name}": (SECONDS["rows"], lambda name=name: gpu_rows.adamw(name))
        for name in (first, *rest)
    }
    rows = {
        f"row {number}": (SECONDS["rows"], lambda number=number: gpu_rows.measured(number, False))
        for number in gpu_rows.SIZES
    }
    begin, *end = adamw.items()
    return dict([begin, *rows.items(), *end])


def _compile() -> dict[str, items.Item]:
    return {
        f"compiled row {number}": (
            SECONDS["compile"],
            lambda number=number: gpu_rows.compiled(number),
        )
        for number in gpu_rows.SIZES
    }


def _kernels() -> dict[str, items.Item]:
    return {
        f"kernels of {name} in {dtype}": (
            SECONDS["kernels"],
            lambda name=name, dtype=dtype: kernels.measured(name, dtype),
        )
        for name, dtype in PROFILED
    }


STAGES = {
    "card": _card,
    "warm": _warm,
    "rows": _rows,
    "compile": _compile,
    "kernels": _kernels,
}


def main() -> int:
    """Runs the command line."""
    if sys.argv[1:2] in (["--list"], ["--item"]):
        return items.main(STAGES)
    import resumed

    options = sys.argv[1:]
    if not options and resumed.gpus() == 0:
        print("skipped: there is no GPU here that a driver sees")
        return 0
    stages = ["--only", "card,rows,compile,kernels"] if "--only" not in options else []
    command = [sys.executable, str(ROOT / "tests" / "gpu" / "run.py"), *stages, *options]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
