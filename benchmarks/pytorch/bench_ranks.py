"""Claim: on several processes, steps under a budget take little more time than eager ones.

python benchmarks/pytorch/bench_ranks.py

`torch_ranks`: a transformer-like net of four blocks on two and on four processes over gloo, on
CPUs, each with one thread: DDP around the compiled model, FSDP2 with the model compiled as a whole,
and tensor parallelism. "eager ms" and "ms" are processor milliseconds of the slowest rank per step,
without `compile` and at position 0.5, as medians over turns. Waiting costs no processor time, so
the figures say little about networks. "time" and "peak" are the ratios of the planned step to the
eager one, for times and for the largest peak of live bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from common import save

COMMAND = "python benchmarks/pytorch/bench_ranks.py"
WAYS = ("FSDP2", "DDP", "tensor parallel")
BUDGETS = (None, 0.5)
BLOCKS, WIDTH, ROWS, ROUNDS, WARM = 4, 128, 512, 7, 4


def build(way: str, ranks: int, budget: float | None) -> tuple[Callable[[], None], Any]:
    """Returns a step on this rank, and the model."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    import cutback.torch

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> Any:
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    torch.manual_seed(0)
    model = Net()
    mesh = init_device_mesh("cpu", (ranks,))
    if way == "tensor parallel":
        split = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        for block in model.blocks:
            parallelize_module(block, mesh, split)
    if way == "FSDP2":
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    run: Any = model if budget is None else cutback.torch.compile(model, budget=budget)
    if way == "DDP":
        run = nn.parallel.DistributedDataParallel(run)
    x = torch.randn(ROWS, WIDTH)

    def step() -> None:
        run(x).square().mean().backward()
        for parameter in model.parameters():
            parameter.grad = None

    return step, model


def rank(way: str, number: int, ranks: int, folder: str) -> None:
    """Runs as one process and measures milliseconds and peaks for each budget, in turns."""
    import torch
    from torch import distributed

    import cutback.torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=number, world_size=ranks
    )
    steps, peaks = [], []
    for budget in BUDGETS:
        step, model = build(way, ranks, budget)
        for _ in range(WARM):
            step()
        with cutback.torch.MemoryTracker(model) as memory:
            step()
        steps.append(step)
        peaks.append(memory.peak_bytes)
    times: list[list[float]] = [[] for _ in BUDGETS]
    for turn in range(ROUNDS):
        for i in range(len(steps))[:: 1 if turn % 2 else -1]:
            begin = time.process_time()
            steps[i]()
            times[i].append(1e3 * (time.process_time() - begin))
    found = {"ms": [statistics.median(t) for t in times], "peaks": peaks}
    Path(folder, f"rank{number}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def row_of(way: str, ranks: int) -> dict[str, Any]:
    """Returns one row."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen([sys.executable, __file__, "--rank", way, str(k), str(ranks), folder])
            for k in range(ranks)
        ]
        if any([process.wait() for process in processes]):
            raise SystemExit(f"{way} on {ranks} processes failed")
        found = [json.loads(Path(folder, f"rank{k}.json").read_text()) for k in range(ranks)]
    eager, half = (max(f["ms"][i] for f in found) for i in range(len(BUDGETS)))
    peak = max(f["peaks"][1] / f["peaks"][0] for f in found)
    return {
        "parallel": way,
        "ranks": ranks,
        "eager ms": eager,
        "ms": half,
        "time": round(half / eager, 3),
        "peak": round(peak, 3),
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        way, number, ranks, folder = options.rank
        rank(way, int(number), int(ranks), folder)
        return
    rows = []
    for way in WAYS:
        for ranks in (2, 4):
            rows.append(row_of(way, ranks))
            print(rows[-1], flush=True)
    save("torch_ranks", COMMAND, rows, "torch")


if __name__ == "__main__":
    main()
