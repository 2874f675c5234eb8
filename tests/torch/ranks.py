"""One of several processes that train together over gloo; test_ranks.py starts it.

python ranks.py MODES RANK RANKS DIRECTORY    MODES: names of functions below, with commas between
"""

from __future__ import annotations

import copy
import faulthandler
import functools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from small_models import GPT, make
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize

import cutback.torch as ct
from cutback.torch.compiler import agreement

RANKS = 2
BUDGET = "0.6x"
KIB = 1 / 1024  # so small that DDP makes several buckets


def step(run: nn.Module, inputs: tuple[Any, ...]) -> tuple[list[Any], int]:
    """Returns gradients of the local shard, and the peak of the step."""
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


def everything(directory: Path) -> bool:
    """True if all variants are tried, instead of one of each kind."""
    return directory.name.endswith("all")


def exchanged(plan: Any) -> int:
    """Returns the bytes of the largest result of a collective, which a gloo thread may hold for a
    moment after the wait."""
    collectives = [op for op in plan.parts.ops if "collective" in op.flags]
    return max((value.bytes for op in collectives for value in op.outputs), default=0)


def collectives(plan: Any) -> list[int]:
    """Returns a plan's collectives in the order in which they run."""
    ops = plan.parts.ops
    steps = [s if isinstance(s, int) else s[1] for s in plan.document["steps"]]
    return [i for i in steps if "collective" in ops[i].flags]


def compare(
    plain: nn.Module,
    ours: nn.Module,
    plans: Callable[[], list[Any]],
    inputs: tuple[Any, ...],
    pause_s: float = 0.0,
) -> dict[str, Any]:
    """Takes three steps each, because DDP rebuilds its buckets in the second. ``pause_s`` is a
    pause before ours."""
    for _ in range(3):
        expected, plain_peak = step(plain, inputs)
    time.sleep(pause_s)
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
        "collectives": [collectives(plan) for plan in plans()],
        "exchanged": max((exchanged(plan) for plan in plans()), default=0),
    }


def ddp(directory: Path) -> dict[str, Any]:
    """Trains with DDP around the compiled module, the compiled module around DDP, and a plan of
    rank 0."""

    def wrap(module: nn.Module) -> nn.Module:
        return DistributedDataParallel(module, bucket_cap_mb=10 * KIB)

    rank = distributed.get_rank()
    model, inputs = make("gpt")
    if not everything(directory):
        model = GPT(layers=1)
    inputs = tuple(t.roll(rank, 0) for t in inputs)  # different data on each rank
    results = {}
    inner = ct.compile(copy.deepcopy(model), budget=BUDGET)
    plain = wrap(copy.deepcopy(model))
    results["inside"] = compare(plain, wrap(inner), lambda: inner.plans, inputs)
    if not everything(directory):
        return results
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
    """Layers that each fill a bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = F.gelu(layer(x)).tanh()
        return x


def by_name(directory: Path) -> dict[str, Any]:
    """Trains by the backend's name, around DDP: with PyTorch's cuts, and without."""
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
    """Returns the number of graphs that ``compile`` makes of a model whose layers each fill a
    bucket."""
    torch._dynamo.reset()
    step = ct.compile(DistributedDataParallel(Wide(), bucket_cap_mb=1), budget=budget)
    step(torch.randn(512, 512)).sum().backward()
    return len(step.plans)


def fsdp(directory: Path) -> dict[str, Any]:
    """Trains each block compiled, then sharded; and a model compiled as a whole, then sharded."""
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
    """Tensor parallelism splits one weight by columns, the next by rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Residuals(nn.Module):
    """The loss of a few residual blocks."""

    def __init__(self, layers: int = 3, width: int = 32) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual(width) for _ in range(layers))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def residuals(parallel: bool, same_rows: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    """Returns a model, the same on all ranks, and its input."""
    torch.manual_seed(0)
    model = Residuals()
    x = torch.randn(128, 32)
    if parallel:
        mesh = init_device_mesh("cpu", (RANKS,))
        for block in model.blocks:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model, (x if same_rows else x.roll(distributed.get_rank(), 0),)


def tp(directory: Path) -> dict[str, Any]:
    """Trains a tensor-parallel model, compiled with budgets, by name, and with a plan of another
    rank."""
    plain, inputs = residuals(True, True)

    def ours(**options: Any) -> tuple[nn.Module, dict[str, Any]]:
        torch._dynamo.reset()
        compiled = ct.compile(residuals(True, True)[0], **options)
        return compiled, compare(plain, compiled, lambda: compiled.plans, inputs)

    half, found = ours(budget="0.5x")
    results = {"0.5x": found}
    if everything(directory):
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


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def containers() -> nn.Module:
    """Blocks without a forward of their own."""
    torch.manual_seed(0)
    model = Residuals(0)
    for _ in range(3):
        model.blocks.append(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)))
    return model


def fsdp2(directory: Path) -> dict[str, Any]:
    """Trains with FSDP2 both ways: blocks compiled and then sharded, and a sharded model compiled
    as a whole."""
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
    shares = (0.7, 0.85) if everything(directory) else (0.7,)
    for share in shares:
        torch._dynamo.reset()
        limit = int(share * results["blocks"]["plain_peak"])
        whole = ct.compile(
            sharded(residuals(False, False)[0]), budget=limit, on_infeasible="smallest"
        )
        results[f"whole {share}"] = compare(plain, whole, lambda whole=whole: whole.plans, inputs)
        results[f"whole {share}"]["limit"] = limit
        results[f"whole {share}"]["block_bytes"] = block_bytes
    if everything(directory):
        variants = {
            "containers": lambda: sharded(containers()),
            "not resharded": lambda: sharded(
                residuals(False, False)[0], reshard_after_forward=False
            ),
        }
        for name, make_variant in variants.items():
            torch._dynamo.reset()
            ours = ct.compile(make_variant(), budget=0.0)
            results[name] = compare(make_variant(), ours, lambda ours=ours: ours.plans, inputs)
    return results


def fsdp2_figures(directory: Path) -> dict[str, Any]:
    """Measures the setting of the FSDP2 figures in docs/torch.md: four blocks of width 64, 256 rows
    per rank, position 0."""
    rows = torch.randn(256, 64).roll(distributed.get_rank(), 0)

    def blocks() -> Residuals:
        torch.manual_seed(0)
        return Residuals(4, 64)

    plain = sharded(blocks())
    inner = blocks()
    for k, block in enumerate(inner.blocks):
        inner.blocks[k] = ct.compile(block, budget=0.0)
    sharded(inner)
    whole = ct.compile(sharded(blocks()), budget=0.0)
    results = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* calls of the model were pending together")
        results["blocks"] = compare(plain, inner, list, (rows,))
        torch._dynamo.reset()
        results["whole"] = compare(plain, whole, lambda: whole.plans, (rows,))
    return results


# ---- gathers that are in the graph ------------------------------------------------------------


class Gathered(nn.Module):
    """A parameter that is stored in shards, as the model reads it."""

    def forward(self, shard: Any) -> Any:
        whole = shard.redistribute(placements=[Replicate()])
        return whole.to_local(grad_placements=[Partial("avg")])


def gathered(layers: int = 2, width: int = 32) -> nn.Module:
    """Returns a model whose parameters are shards, gathered in its forward (simple FSDP)."""
    torch.manual_seed(0)
    model = Residuals(layers, width)
    mesh = init_device_mesh("cpu", (RANKS,))
    for module in list(model.modules()):
        for name, p in list(module.named_parameters(recurse=False)):
            shard = nn.Parameter(distribute_tensor(p.data, mesh, [Shard(0)]))
            module.register_parameter(name, shard)
            parametrize.register_parametrization(module, name, Gathered(), unsafe=True)
    return model


def gathers_again(plan: Any) -> int:
    """Returns the number of a plan's collectives that are repeated."""
    ops, steps = plan.parts.ops, plan.document["steps"]
    runs = [i for i in steps if "collective" in ops[i].flags and "view" not in ops[i].flags]
    return len(runs) - len(set(runs))


def open_groups() -> None:
    """Forgets the comparisons of earlier plans, on all ranks."""
    distributed.barrier()
    for state in agreement._groups.values():
        state.closed = state.repeats = False


def gathers(directory: Path) -> dict[str, Any]:
    """Trains with plans that gather again: of all ranks, of one rank alone, and of late ranks."""
    rank = distributed.get_rank()
    x = torch.randn(32, 32, generator=torch.Generator().manual_seed(rank))
    plain = gathered()
    results: dict[str, Any] = {}

    def ours(name: str, pause_s: float = 0.0, **options: Any) -> nn.Module:
        torch._dynamo.reset()
        open_groups()
        compiled = ct.compile(gathered(), **options)
        results[name] = compare(plain, compiled, lambda: compiled.plans, (x,), pause_s)
        results[name]["again"] = [gathers_again(plan) for plan in compiled.plans]
        return compiled

    kept = ours("agreed", budget=0.2)
    ours("different", budget=0.2 if rank == 0 else 0.4)
    if not everything(directory):
        return results
    ours("fast network", budget=0.5, network_bytes_per_s=1e15)
    ours("off", budget=0.2, collective_again=False)
    path = directory / "gathers.json"
    if rank == 0:
        kept.save_plans(path)
    distributed.barrier()
    ours("given", plans=path)
    agreement.WAIT_S = 0.5
    ours("late", pause_s=4.0 * rank, budget=0.2)
    results["alone"] = compiles_alone(x)
    agreement.WAIT_S = 300.0
    return results


def compiles_alone(x: Any) -> str:
    """Returns the error on rank 0 if it alone compiles another graph while a plan that gathers
    again is in force."""
    torch._dynamo.reset()
    open_groups()
    agreement.WAIT_S = 60.0
    compiled = ct.compile(gathered(), budget=0.2)
    step(compiled, (x,))
    assert any(gathers_again(plan) for plan in compiled.plans)
    agreement.WAIT_S = 1.0
    agreement.NOTICE_S = {False: 60.0, True: 0.25}
    said = ""
    if distributed.get_rank() == 0:
        with warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always")
            try:
                compiled(x[:16])
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
        said += "".join(f"; noticed: {w.message}" for w in noticed)
    distributed.barrier()
    return said


# ---- pipelines --------------------------------------------------------------------------------


def buffer_bytes(stage: Any) -> int:
    """Returns the bytes that a schedule keeps for what a stage receives."""
    tables = (stage.args_recv_info, stage.grad_recv_info)
    infos = [info for table in tables for infos in table.values() for info in infos]
    buffers = [getattr(info, "buffer", None) for info in infos]
    return sum(buffer.nbytes for buffer in buffers if buffer is not None)


WIDE = torch.randn(32, 512, generator=torch.Generator().manual_seed(1))


def wide_loss(x: Any, target: Any) -> Any:
    """Takes more memory while it runs than a stage's backward."""
    return F.cross_entropy(x @ WIDE, target.long().sum(1))


def pipeline(directory: Path) -> dict[str, Any]:
    """Trains stages with one budget each, for all microbatches that are pending."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    x = torch.randn(256, 32, generator=torch.Generator().manual_seed(0))
    ways = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
    results = {}

    def run(name: str, wrap: Callable[[nn.Module], Any], steps: int) -> tuple[Any, list[int]]:
        kind, _, wide = name.partition(", ")
        torch.manual_seed(0)
        blocks = [Residual(32) for _ in range(2 * ranks)]
        part = nn.Sequential(*blocks[2 * rank : 2 * rank + 2])
        stage = PipelineStage(wrap(part), rank, ranks, torch.device("cpu"))
        loss_fn = wide_loss if wide else F.mse_loss
        schedule = ways[kind](stage, n_microbatches=4, loss_fn=loss_fn)
        target = torch.zeros_like(x)
        peaks = []
        for k in range(steps):
            part.zero_grad(set_to_none=True)
            with ct.MemoryTracker() as memory:
                if rank == 0:
                    schedule.step(x)
                elif rank == ranks - 1:
                    schedule.step(target=target, losses=[])
                else:
                    schedule.step()
                before = buffer_bytes(stage) if k else 0  # made in the first step
                peaks.append(memory.peak_bytes + before)
        return [p.grad.clone() for p in part.parameters()], peaks

    names = [*ways, *(f"{kind}, wide" for kind in ways)] if everything(directory) else ["1f1b"]
    for name in names:
        expected, plain = run(name, lambda part: part, 2)
        limit = int(0.9 * plain[-1])
        torch._dynamo.reset()
        wrap = functools.partial(ct.compile, budget=limit, on_infeasible="smallest")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found, peaks = run(name, wrap, 4)
        results[name] = {
            "same": all(torch.equal(a, b) for a, b in zip(expected, found, strict=True)),
            "peaks": peaks, "plain_peaks": plain, "limit": limit,
            "said": [str(w.message) for w in said if issubclass(w.category, UserWarning)],
        }  # fmt: skip
    return results


# ---- two dimensions ---------------------------------------------------------------------------


def grid(directory: Path) -> dict[str, Any]:
    """Trains with FSDP2 over tensor parallelism, on 2 x 2 processes, or on 1 x 2."""
    shape = (distributed.get_world_size() // 2, 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "model"))
    x = torch.randn(128, 32).roll(mesh["data"].get_local_rank(), 0)
    split = {"up": ColwiseParallel(), "down": RowwiseParallel()}

    def model(wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
        torch.manual_seed(0)
        found = Residuals()
        for k, block in enumerate(found.blocks):
            parallelize_module(block, mesh["model"], split)
            found.blocks[k] = wrap(block)
            fully_shard(found.blocks[k], mesh=mesh["data"])
        return fully_shard(found, mesh=mesh["data"])

    plain, results = model(lambda block: block), {}
    blocks = model(lambda block: ct.compile(block, budget="min"))
    results["blocks"] = compare(
        plain, blocks, lambda: [p for block in blocks.blocks for p in block.plans], (x,)
    )
    if everything(directory):
        torch._dynamo.reset()
        limit = int(0.8 * results["blocks"]["plain_peak"])
        whole = ct.compile(model(lambda block: block), budget=limit, on_infeasible="smallest")
        results["whole"] = compare(plain, whole, lambda: whole.plans, (x,))
        results["whole"]["limit"] = limit
    return results


MODES = {
    "ddp": ddp, "by_name": by_name, "fsdp": fsdp, "fsdp2": fsdp2,
    "fsdp2_figures": fsdp2_figures, "tp": tp, "gathers": gathers,
    "pipeline": pipeline, "grid": grid,
}  # fmt: skip


def main() -> None:
    modes, rank, ranks = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3])
    directory = Path(sys.argv[4])
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(float(os.environ.get("RANKS_LIMIT_S", "270")), exit=True)
    distributed.init_process_group(
        "gloo", init_method=f"file://{directory / 'store'}", rank=rank, world_size=ranks
    )
    results = {}
    for mode in modes:
        torch._dynamo.reset()
        began = time.process_time()
        results[mode] = MODES[mode](directory)
        results[mode]["processor_s"] = time.process_time() - began
        distributed.barrier()
    (directory / f"rank{rank}.json").write_text(json.dumps(results))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
