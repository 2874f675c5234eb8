"""PyTorch models under memory budgets: cutback.torch compared with eager mode,
torch.utils.checkpoint and PyTorch's own activation memory budget.

python benchmarks/gpu/bench_bridge.py --list bridge|models
python benchmarks/gpu/bench_bridge.py [--device cpu] [--small] --item NAME

`bridge`: a small GPT in f32 with deterministic kernels, where the results under every budget must
be bitwise equal to eager mode. `models`: GPT-2 124M, ResNet-50, GPT-2 350M in bf16. `--device cpu
--small` runs the same at small sizes anywhere; so does CUTBACK_GPU_ROWS_SMALL=1 if PyTorch sees no
GPU.

| column | |
|---|---|
| ms, host ms | a step by events of the device, and the host time to submit it; medians |
| peak | most bytes allocated in a step beyond those before it: activations, gradients, scratch |
| reserved | most bytes that PyTorch's allocator has taken from the device |
| plan | live bytes of the plan |
| first s | the first step: tracing, planning, compiling |
| apart | relative distance of all gradients from those of eager mode; 0: every bit is equal |
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "gpu")]

import items

Known = dict[str, dict[str, Any]]
Tell = Callable[[], dict[str, Any]]
Made = tuple[Callable[..., Any], Tell]
"""What is called with the inputs, and what is to be told of it after a step."""

SPARE = 5.0  # seconds per item for imports and shutdown
LOST = ("CUDA error", "illegal memory", "an illegal", "unspecified launch failure")


class LeftOutError(Exception):
    """A row cannot be measured here; the text gives the reason."""


class Settings(NamedTuple):
    """Where and how an item runs."""

    device: str
    small: bool
    rounds: int


# ---- what is compared ----------------------------------------------------------------------------


def nothing_more() -> dict[str, Any]:
    """Returns no extra columns."""
    return {}


def eager(case: Any, known: Known) -> Made:
    """Returns the unchanged model."""
    return case.model, nothing_more


def checkpointed(case: Any, known: Known) -> Made:
    """Returns the model with each block inside PyTorch's checkpoint."""
    from torch.utils.checkpoint import checkpoint

    case.model.around = lambda block, x: checkpoint(block, x, use_reentrant=False)
    return case.model, nothing_more


def our_checkpoint(case: Any, known: Known) -> Made:
    """Returns the model with each block inside our checkpoint."""
    import cutback.torch

    case.model.around = lambda block, x: cutback.torch.checkpoint(block, x)
    return case.model, nothing_more


def of_plan(step: Any) -> dict[str, Any]:
    """Returns the bytes of a compiled step's plans."""
    plans = list(getattr(step, "plans", None) or [])
    if not plans:
        return {}
    found = {
        "plan": max(int(plan.numbers["live_bytes"]) for plan in plans),
        "host": max(int(plan.numbers.get("host_bytes") or 0) for plan in plans),
        "plans": len(plans),
    }
    stats = getattr(step, "allocator_stats", None)
    if stats is not None:
        found["scratch"] = int(stats.scratch_bytes)
    return found


def planned(budget: str, **options: Any) -> Callable[[Any, Known], Made]:
    """Returns cutback.torch.compile under a budget; "as NAME" means the peak of another row."""

    def make(case: Any, known: Known) -> Made:
        import cutback.torch

        asked: Any = budget
        if isinstance(budget, str) and budget.startswith("as "):
            asked = peak_of(known, budget.removeprefix("as "))
        step = cutback.torch.compile(
            case.model, budget=asked, dynamic=False, on_infeasible="min", **options
        )
        return step, lambda: {"budget": asked, **of_plan(step)}

    return make


def peak_of(known: Known, name: str) -> int:
    """Returns the peak of an earlier row."""
    if "peak" not in known.get(name, {}):
        raise LeftOutError(f"needs the peak of {name!r}")
    return int(known[name]["peak"])


def torch_budget(share: float, backend: str) -> Callable[[Any, Known], Made]:
    """Returns torch.compile with PyTorch's activation_memory_budget."""

    def make(case: Any, known: Known) -> Made:
        import torch
        from torch._functorch import config

        if backend == "inductor" and case.on_gpu:
            try:
                import triton  # noqa: F401
            except ImportError as error:
                raise LeftOutError(f"Inductor needs Triton: {error}") from None
        config.activation_memory_budget = share
        return torch.compile(case.model, backend=backend, dynamic=False), nothing_more

    return make


def with_triton(make: Callable[[Any, Known], Made]) -> Callable[[Any, Known], Made]:
    """Returns a row of ours that compiles with Inductor."""

    def checked(case: Any, known: Known) -> Made:
        torch_budget(1.0, "inductor")(case, known)
        return make(case, known)

    return checked


AOT = "aot_eager_decomp_partition"  # PyTorch's partitioner with its budget, and eager kernels
Rows = dict[str, Callable[[Any, Known], Made]]
BITS: Rows = {
    "eager": eager,
    "ours fastest": planned("fastest"),
    "ours 0.5": planned("0.5x"),
    "ours min": planned("min"),
    "checkpoint": checkpointed,
    "our checkpoint": our_checkpoint,
    "ours offload only 0.6": planned("0.6x", offload="only"),
    "torch budget 0.5": torch_budget(0.5, AOT),
}
BUDGETS: Rows = {
    "eager": eager,
    "checkpoint": checkpointed,
    "ours as checkpoint": planned("as checkpoint"),
    "ours 0.5": planned("0.5x"),
    "ours offload 0.5": planned("0.5x", offload=True),
    "torch budget 0.5": torch_budget(0.5, AOT),
}
MORE: Rows = {
    "eager": eager,
    "ours 0.7": planned("0.7x"),
    "ours min": planned("min"),
    "our checkpoint": our_checkpoint,
    "ours offload only 0.7": planned("0.7x", offload="only"),
}
COMPILED: Rows = {
    "eager": eager,
    "Inductor": torch_budget(1.0, "inductor"),
    "Inductor budget 0.5": torch_budget(0.5, "inductor"),
    "ours by Inductor": with_triton(planned("as Inductor budget 0.5", codegen="inductor")),
}
ITEMS: dict[str, tuple[str, str, Rows, float]] = {  # stage, model, rows, seconds
    "small GPT": ("bridge", "small GPT", BITS, 40),
    "GPT-2 124M": ("models", "GPT-2 124M", BUDGETS, 65),
    "ResNet-50": ("models", "ResNet-50", BUDGETS, 70),
    "GPT-2 350M": ("models", "GPT-2 350M", BUDGETS, 50),
    "GPT-2 124M by Inductor": ("models", "GPT-2 124M", COMPILED, 120),
    "GPT-2 124M, more": ("models", "GPT-2 124M", MORE, 60),
    "ResNet-50, more": ("models", "ResNet-50", MORE, 60),
    "GPT-2 350M, more": ("models", "GPT-2 350M", MORE, 60),
}


# ---- one row -------------------------------------------------------------------------------------


class Reference:
    """Gradients of the first row, on the host."""

    def __init__(self) -> None:
        self.gradients: list[Any] | None = None

    def distance(self, case: Any) -> float | None:
        """Returns the distance of the gradients from these, or None when it has just recorded
        them."""
        import torch

        if self.gradients is None:
            self.gradients = [p.grad.detach().cpu() for p in case.model.parameters()]
            return None
        apart = whole = 0.0
        for p, there in zip(case.model.parameters(), self.gradients, strict=True):
            expected = there.to(case.device)
            whole += float(expected.double().square().sum())
            if not torch.equal(p.grad, expected):
                apart += float((p.grad.double() - expected.double()).square().sum())
        return float((apart / max(whole, 1e-300)) ** 0.5)


def _peaks(case: Any, call: Callable[..., Any]) -> dict[str, int]:
    """Returns the bytes of a step after libraries have allocated their workspaces."""
    import torch

    if not case.on_gpu:
        import cutback.torch

        case.drop_gradients()
        with cutback.torch.MemoryTracker() as memory:
            case.step(call)
        return {"peak": memory.peak_bytes, "host": memory.peak_host_bytes}
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    case.step(call)
    case.drop_gradients()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    case.step(call)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return {"peak": peak, "before": before, "reserved": torch.cuda.max_memory_reserved()}


def _times(case: Any, call: Callable[..., Any], rounds: int) -> dict[str, float]:
    import torch

    device, host = [], []
    for _ in range(rounds):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if case.on_gpu else []
        begin = time.perf_counter()
        if events:
            events[0].record()
        case.step(call)
        if events:
            events[1].record()
        host.append(1e3 * (time.perf_counter() - begin))
        if events:
            events[1].synchronize()
        device.append(events[0].elapsed_time(events[1]) if events else host[-1])
    return {"ms": statistics.median(device), "least ms": min(device),
            "host ms": statistics.median(host)}  # fmt: skip


def measure(
    case: Any, call: Callable[..., Any], tell: Tell, reference: Reference, rounds: int
) -> Iterator[dict[str, Any]]:
    """Yields the columns of a row, added as they become known."""
    row: dict[str, Any] = {}
    for key in ("first s", "second s"):
        begin = time.perf_counter()
        loss = case.step(call)
        case.wait()
        row[key] = round(time.perf_counter() - begin, 3)
    row["loss"] = float(loss)
    del loss
    if (apart := reference.distance(case)) is not None:
        row["apart"] = apart
    row |= tell()
    yield row
    row |= {**_peaks(case, call), **{k: v for k, v in tell().items() if k != "host"}}
    if row.get("plan"):
        row["peak / plan"] = row["peak"] / row["plan"]
    yield row
    row |= _times(case, call, rounds)
    yield row


# ---- one item ------------------------------------------------------------------------------------


def about(device: str) -> dict[str, Any]:
    """Returns the card (or a note that this is a dry run), and the versions."""
    import torch

    import cutback

    gpu = torch.cuda.get_device_name() if device == "cuda" else "CPU (dry run)"
    return {"gpu": gpu, "cutback": cutback.__version__, "torch": torch.__version__}


def _reset(case: Any) -> None:
    """Resets the state to that before the first row."""
    import torch

    torch._dynamo.reset()
    case.model.around = None
    with contextlib.suppress(ImportError, AttributeError):
        from torch._functorch import config

        config.activation_memory_budget = 1.0
    case.drop_gradients()
    gc.collect()
    if case.on_gpu:
        torch.cuda.empty_cache()


def line(rows: Known) -> str:
    """Returns one line for the report."""
    parts = []
    for name, row in rows.items():
        if "failed" in row:
            parts.append(f"{name} FAILED")
        elif "ms" in row:
            bits = ", bits equal" if row.get("apart") == 0 else ""
            plan = f", peak/plan {row['peak / plan']:.3f}" if "peak / plan" in row else ""
            parts.append(f"{name} {row['ms']:.4g} ms {row['peak'] / 2**20:.0f} MiB{plan}{bits}")
    return "; ".join(parts)


def _deterministic() -> None:
    import torch

    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False


def run(model: str, rows: Rows, settings: Settings, seconds: float) -> dict[str, Any]:
    """Returns all rows of an item for which there is time. A row that fails has the error, and the
    next one runs unless the device's context is lost."""
    import bridge_models

    begin, longest = time.monotonic(), 0.0

    if rows is BITS:
        _deterministic()
    if settings.device == "cpu":
        import torch

        torch.set_num_threads(1)  # tiny: threads would only wait for each other
    case, reference = bridge_models.Case(model, settings.device, settings.small), Reference()
    known: Known = {}
    found: dict[str, Any] = {"what": model, **about(settings.device), "rows": []}
    found["parameters"] = sum(p.numel() for p in case.model.parameters())
    for name, make in rows.items():
        known[name] = {"row": name}
        lost, began = False, time.monotonic()
        if not settings.small and began - begin + longest > seconds - SPARE:
            known[name]["left out"] = f"the {seconds:.0f} s of this item were over"
            continue
        try:
            call, tell = make(case, known)
            for columns in measure(case, call, tell, reference, settings.rounds):
                known[name] = {"row": name, **columns}
                items.show({**found, "rows": list(known.values()), "line": line(known)})
        except LeftOutError as reason:
            known[name]["left out"] = str(reason)
        except Exception as error:
            text = str(error).strip() or "no text"
            known[name] |= {"failed": f"{type(error).__name__}: {text.splitlines()[0][:300]}"}
            known[name]["text"] = text[-1500:]
            lost = any(words in text for words in LOST)
        found |= {"rows": list(known.values()), "line": line(known)}
        items.show(found)
        longest = max(longest, time.monotonic() - began)
        call = tell = None  # type: ignore[assignment]
        if lost:
            sys.stdout.flush()
            os._exit(3)  # all later rows would fail
        _reset(case)
    return found | {"rows": list(known.values()), "line": line(known)}


def item(name: str, settings: Settings | None) -> dict[str, Any]:
    """Runs an item if possible."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is opened
    try:
        import torch
    except Exception as error:
        return {"left out": items.no_torch(error)}
    if settings is None:
        has_gpu, small = torch.cuda.is_available(), bool(os.environ.get("CUTBACK_GPU_ROWS_SMALL"))
        if not has_gpu and not small:
            return {"left out": f"PyTorch {torch.__version__} sees no GPU"}
        settings = Settings("cuda" if has_gpu else "cpu", small, 3 if small else 10)
    import cutback.torch.hooks

    cutback.torch.hooks.check()
    _, model, rows, seconds = ITEMS[name]
    return run(model, rows, settings, seconds)


def _settings() -> Settings | None:
    """Removes --device and --small from the command line; returns None if neither was given."""
    small = "--small" in sys.argv
    device = None
    if "--device" in sys.argv:
        at = sys.argv.index("--device")
        device = (sys.argv[at + 1 : at + 2] or [""])[0]
        if device not in ("cuda", "cpu"):
            raise SystemExit("--device: cuda or cpu")
        del sys.argv[at : at + 2]
    sys.argv[:] = [word for word in sys.argv if word != "--small"]
    if device is None and not small:
        return None
    return Settings(device or "cuda", small, 3 if small else 10)


def main() -> int:
    """Runs the command line."""
    settings = _settings()
    if len(sys.argv) == 1:
        print("skipped: `make gpu` runs this; --list and --item run parts of it")
        return 0
    stages: dict[str, Callable[[], dict[str, items.Item]]] = {
        stage: lambda stage=stage: {  # type: ignore[misc]
            name: (seconds, lambda name=name: item(name, settings))
            for name, (of, _, _, seconds) in ITEMS.items()
            if of == stage
        }
        for stage in ("bridge", "models")
    }
    return items.main(stages)


if __name__ == "__main__":
    sys.exit(main())
