"""One process of several that train together over gloo; test_ranks.py starts it.

python ranks.py MODE RANK DIRECTORY
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from small_models import GPT, make
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import cutback.torch as ct

RANKS = 2
BUDGET = "0.6x"
KIB = 1 / 1024  # so small that DDP has several buckets


def step(run: nn.Module, inputs: tuple[Any, ...]) -> tuple[list[Any], int]:
    """Gradients of the local shard, and the peak of what the step made."""
    run.zero_grad(set_to_none=True)
    torch.manual_seed(11 + distributed.get_rank())
    with ct.MemoryTracker() as memory:
        loss = run(*inputs)
        loss.backward()
        peak = memory.peak_bytes
    found: list[Any] = [loss.detach()]
    for p in run.parameters():
        assert p.grad is not None
        local = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
        found.append(local.clone())
    return found, peak


def exchanged(plan: Any) -> int:
    """Bytes of the largest result of a collective. A thread of gloo's may hold it for a moment
    after it was waited for."""
    collectives = [op for op in plan.parts.ops if "collective" in op.flags]
    return max((value.bytes for op in collectives for value in op.outputs), default=0)


def compare(
    plain: nn.Module, ours: nn.Module, plans: Callable[[], list[Any]], inputs: tuple[Any, ...]
) -> dict[str, Any]:
    """Three steps each: DDP makes its buckets anew in the second."""
    for _ in range(3):
        expected, plain_peak = step(plain, inputs)
    for _ in range(3):
        found, peak = step(ours, inputs)
    pairs = list(zip(expected, found, strict=True))
    return {
        "same": all(torch.equal(a, b) for a, b in pairs),
        "close": all(torch.allclose(a, b, atol=1e-6) for a, b in pairs),
        "peak": peak,
        "plain_peak": plain_peak,
        "live": [plan.numbers["live_bytes"] for plan in plans()],
        "budget": [plan.numbers["budget_bytes"] for plan in plans()],
        "steps": [plan.document["steps"] for plan in plans()],
        "exchanged": max((exchanged(plan) for plan in plans()), default=0),
    }


def ddp(directory: Path) -> dict[str, Any]:
    """DDP around the compiled module, the compiled module around DDP, and a plan of rank 0."""

    def wrap(module: nn.Module) -> nn.Module:
        return DistributedDataParallel(module, bucket_cap_mb=10 * KIB)

    rank = distributed.get_rank()
    model, inputs = make("gpt")
    inputs = tuple(t.roll(rank, 0) for t in inputs)  # other data on each rank
    results = {}
    inner = ct.compile(copy.deepcopy(model), budget=BUDGET)
    plain = wrap(copy.deepcopy(model))
    results["inside"] = compare(plain, wrap(inner), lambda: inner.plans, inputs)
    outer = ct.compile(wrap(copy.deepcopy(model)), budget=BUDGET)
    results["around"] = compare(plain, outer, lambda: outer.plans, inputs)
    path = directory / "plans.json"
    if rank == 0:
        inner.save_plans(path)
    distributed.barrier()
    torch._dynamo.reset()
    given = ct.compile(copy.deepcopy(model), plans=path)
    results["given"] = compare(plain, wrap(given), lambda: given.plans, inputs)
    return results


class Wide(nn.Module):
    """Layers that fill a bucket each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = F.gelu(layer(x)).tanh()
        return x


def by_name(directory: Path) -> dict[str, Any]:
    """The backend's name, around DDP: with PyTorch's cuts, and without."""
    plans: list[Any] = []

    def named(module: nn.Module) -> Any:
        options = {"budget": BUDGET, "on_plan": plans.append}
        return torch.compile(module, backend="cutback", options=options)

    wide = DistributedDataParallel(Wide(), bucket_cap_mb=1)
    said = ""
    try:
        named(wide)(torch.randn(8, 512)).sum().backward()
    except Exception as error:
        said = str(error)
    graphs = {str(budget): graphs_of(budget) for budget in ("min", "0.75x")}
    torch._dynamo.reset()
    model, inputs = make("gpt")
    inputs = tuple(t.roll(distributed.get_rank(), 0) for t in inputs)
    plain = DistributedDataParallel(copy.deepcopy(model))
    with torch._dynamo.config.patch(optimize_ddp=False):
        ours = named(DistributedDataParallel(copy.deepcopy(model)))
        whole = compare(plain, ours, lambda: plans[-1:], inputs)
    return {"cut": said, "whole": whole, "graphs": graphs}


def graphs_of(budget: Any) -> int:
    """How many graphs ``compile`` makes of a model that fills a bucket with each layer."""
    torch._dynamo.reset()
    step = ct.compile(DistributedDataParallel(Wide(), bucket_cap_mb=1), budget=budget)
    step(torch.randn(512, 512)).sum().backward()
    return len(step.plans)


def fsdp(directory: Path) -> dict[str, Any]:
    """Each block compiled, then sharded; and a model compiled whole, then sharded."""
    model, inputs = make("gpt")
    inputs = tuple(t.roll(distributed.get_rank(), 0) for t in inputs)

    def sharded(model: GPT) -> GPT:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        return model

    plain = sharded(copy.deepcopy(model))
    ours = copy.deepcopy(model)
    for k, block in enumerate(ours.blocks):
        ours.blocks[k] = ct.compile(block, budget=BUDGET)
    sharded(ours)
    results = {}
    results["blocks"] = compare(
        plain, ours, lambda: [p for block in ours.blocks for p in block.plans], inputs
    )
    whole = ct.compile(copy.deepcopy(model), budget=BUDGET)
    fully_shard(whole)
    simple = fully_shard(copy.deepcopy(model))
    results["whole"] = compare(simple, whole, lambda: whole.plans, inputs)
    return results


class Residual(nn.Module):
    """What tensor parallelism splits by columns, then by rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Residuals(nn.Module):
    """A loss of a few of them."""

    def __init__(self, layers: int = 3, width: int = 32) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual(width) for _ in range(layers))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def residuals(parallel: bool, same_rows: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    """A model, the same on all ranks, and its input."""
    torch.manual_seed(0)
    model = Residuals()
    x = torch.randn(128, 32)
    if parallel:
        mesh = init_device_mesh("cpu", (RANKS,))
        for block in model.blocks:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model, (x if same_rows else x.roll(distributed.get_rank(), 0),)


def tp(directory: Path) -> dict[str, Any]:
    """A tensor-parallel model, compiled by budgets, by name, and from the plan of another rank."""
    plain, inputs = residuals(True, True)

    def ours(**options: Any) -> tuple[nn.Module, dict[str, Any]]:
        torch._dynamo.reset()
        compiled = ct.compile(residuals(True, True)[0], **options)
        return compiled, compare(plain, compiled, lambda: compiled.plans, inputs)

    half, found = ours(budget="0.5x")
    results = {"0.5x": found}
    if directory.name.endswith("all"):
        for budget in (None, "min", "0.7x", found["live"][0] + 5000):
            results[str(budget)] = ours(budget=budget)[1]
        results["inductor"] = ours(budget="0.7x", codegen="inductor")[1]
        path = directory / "plans.json"
        if distributed.get_rank() == 0:
            half.save_plans(path)
        distributed.barrier()
        results["given"] = ours(plans=path)[1]
        torch._dynamo.reset()
        plans: list[Any] = []
        options = {"budget": "0.5x", "on_plan": plans.append}
        named = torch.compile(residuals(True, True)[0], backend="cutback", options=options)
        results["by_name"] = compare(plain, named, lambda: plans[-1:], inputs)
        torch._dynamo.reset()
        named = torch.compile(residuals(True, True)[0], backend="cutback")
        results["plain_name"] = compare(plain, named, list, inputs)
    return results


def sharded(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def fsdp2(directory: Path) -> dict[str, Any]:
    """FSDP2 both ways: blocks that are compiled and then sharded, and a sharded model that is
    compiled as a whole."""
    plain, inputs = residuals(False, False)
    block_bytes = sum(p.nbytes for p in plain.blocks[0].parameters())
    sharded(plain)
    inner = residuals(False, False)[0]
    for k, block in enumerate(inner.blocks):
        inner.blocks[k] = ct.compile(block, budget="min")
    sharded(inner)
    results = {}
    results["blocks"] = compare(
        plain, inner, lambda: [p for block in inner.blocks for p in block.plans], inputs
    )
    shares = (0.7, 0.85) if directory.name.endswith("all") else (0.7,)
    for share in shares:
        torch._dynamo.reset()
        limit = int(share * results["blocks"]["plain_peak"])
        whole = ct.compile(sharded(residuals(False, False)[0]), budget=limit, on_infeasible="min")
        results[f"whole {share}"] = compare(plain, whole, lambda whole=whole: whole.plans, inputs)
        results[f"whole {share}"]["limit"] = limit
        results[f"whole {share}"]["block_bytes"] = block_bytes
    return results


def main() -> None:
    mode, rank, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{directory / 'store'}", rank=rank, world_size=RANKS
    )
    results = {"ddp": ddp, "by_name": by_name, "fsdp": fsdp, "fsdp2": fsdp2, "tp": tp}[mode](
        directory
    )
    (directory / f"rank{rank}.json").write_text(json.dumps(results))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
