"""The rows: forward and backward of benchmarks/cpu/rows.py at sizes for a GPU, and AdamW alone.
Cutback and PyTorch read the same arrays and run in turns on the same stream."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "benchmarks" / "cpu"), str(ROOT / "tests" / "gpu")]

import items
import launches
import numpy as np
from device_clock import (
    Candidate,
    DeviceClock,
    Times,
    about,
    is_small,
    tensor,
    torch_device,
    torch_with_gpu,
)

SIZES = {  # by importance
    4: (32768, 1024),
    9: (16384, 4096),
    6: (16384, 8192),
    1: (128, 32, 128, 128),
    7: (1 << 27,),
    11: (16, 1024, 768),
    8: (128, 64, 56, 56),
    5: (256, 512, 512),
    3: (1 << 25,),
    2: (128, 2048, 8, 8),
}
DTYPES = ("f32", "bf16")
GPT2 = [(50257, 768), (1024, 768)] + 12 * [
    (768,), (768,), (768, 2304), (2304,), (768, 768), (768,),
    (768,), (768,), (768, 3072), (3072,), (3072, 768), (768,),
] + [(768,), (768,)]  # fmt: skip
TENSORS = {"GPT-2 124M": GPT2, "1,000 tiny tensors": [(16,)] * 1000}
BLOCK = 1 << 20  # number of random values that large arrays repeat
# bytes per element: parameter and two states read and written, gradient read, all f32
ADAMW_BYTES = 28


class Repeated:
    """A generator for large arrays: a block of random numbers, repeated, which is faster than
    drawing each. Small arrays are drawn in full."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def standard_normal(self, size: Any, dtype: Any = np.float64) -> np.ndarray[Any, Any]:
        n = int(np.prod(size))
        block = self._rng.standard_normal(min(n, BLOCK), dtype)
        array = np.empty(n, dtype)
        whole = n // block.size * block.size
        array[:whole].reshape(-1, block.size)[:] = block
        array[whole:] = block[: n - whole]
        return array.reshape(size)

    def integers(self, *arguments: Any, **named: Any) -> Any:
        return self._rng.integers(*arguments, **named)


def cast(array: np.ndarray[Any, Any], dtype: str) -> Any:
    """Converts f32 to `dtype`; bf16 is truncated, which is fast. Other arrays stay as they are."""
    from cutback.run.arrays import RawArray

    if dtype == "f32" or array.dtype != np.float32:
        return array
    upper = np.ascontiguousarray(array).reshape(-1).view(np.uint16)[1::2]
    return RawArray(np.ascontiguousarray(upper).reshape(array.shape))


class Row:
    """Forward and backward of a row in a dtype, ours and PyTorch's."""

    def __init__(self, number: int, dtype: str) -> None:
        import ours
        import rows

        import cutback as cb
        from cutback import cuda

        self.spec, self.number = rows.ROWS[number], number
        sizes = self.spec.quick if is_small() else SIZES[number]
        self.name = self.spec.named(sizes)
        params, data = self.spec.make(Repeated(number), sizes)  # type: ignore[arg-type]
        params = rows.mapped(params, lambda x: cast(x, dtype))
        data = [cast(x, dtype) for x in data]
        self.params, self.data = cuda.to_device(params), cuda.to_device(data)
        options = self.spec.options
        self.step = cb.value_and_grad(
            lambda p, *d: ours.LOSSES[number](p, *d, **options), seed=1, device="cuda"
        )
        leaves = rows.leaves(self.params)
        arrays = [*rows.leaves(self.data), *leaves, *leaves]
        self.bytes = sum(x.nbytes for x in arrays) + (4 if dtype == "f32" else 2)

    def ours(self, clock: DeviceClock) -> Candidate:
        return Candidate(
            lambda: self.step(self.params, *self.data, stream=clock.stream), after=self.step.wait
        )

    def group_ms(self, rounds: int) -> list[float]:
        """Returns the milliseconds of each group, by events between them: medians of some runs,
        with the L2 cache as the previous group left it."""
        run = self.step.executable
        import rows

        arrays = [*rows.leaves(self.params), *rows.leaves(self.data)]
        outputs = run.outputs(None, arrays[0].device)
        measured = [run.native.profile(run.inputs(arrays), outputs, 1, 0) for _ in range(rounds)]
        return [
            1e3 * statistics.median(group[1] for group in groups)
            for groups in zip(*measured, strict=True)
        ]

    def groups(self, rounds: int = 10) -> list[dict[str, Any]]:
        """Returns the groups with their times (launches.py)."""
        found, times = launches.groups(self.step.executable), self.group_ms(rounds)
        for group, ms in zip(found, times, strict=False):
            group["ms"] = ms
        return found

    def theirs(self, torch: Any) -> tuple[Callable[[], Any], Callable[[Any], Callable[[], Any]]]:
        """Returns PyTorch's call and a function that makes one from another loss, such as a
        compiled one."""
        import in_torch
        import rows

        torch.backends.cuda.matmul.allow_tf32 = False
        p = rows.mapped(self.params, lambda x: tensor(torch, x).requires_grad_())
        d = [tensor(torch, x) for x in self.data]

        function, options = in_torch.LOSSES[self.number], self.spec.options

        def loss(p: Any, *d: Any) -> Any:
            return function(p, *d, **options)

        def call(function: Callable[..., Any]) -> Callable[[], Any]:
            return lambda: torch.autograd.grad(function(p, *d), rows.leaves(p))

        return call(loss), lambda change: call(change(loss))


def figures(name: str, times: Times) -> dict[str, float]:
    """Returns a candidate's columns."""
    return {f"{name} ms": times.device_ms, f"{name} host ms": times.host_ms,
            f"{name} least ms": times.least_ms, f"{name} most ms": times.most_ms}  # fmt: skip


def _compare(found: dict[str, Any], times: dict[str, Times]) -> None:
    """Adds the columns of all candidates, the rate, and the ratios to ours."""
    for name, measured in times.items():
        found |= figures(name, measured)
    ours = times["ours"].device_ms
    found["ours GB/s"] = found["bytes"] / max(ours, 1e-9) * 1e-6
    others = {name: row.device_ms for name, row in times.items() if name != "ours"}
    found |= {f"{name} / ours": ms / max(ours, 1e-9) for name, ms in others.items()}
    if others:
        found["best / ours"] = min(others.values()) / max(ours, 1e-9)


def _summed(what: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the item's result: rows by dtype, and the report's summary of them."""
    ratios = [row["best / ours"] for row in rows if "best / ours" in row]
    parts = []
    for row in rows:
        text = f"{row['dtype']} {row['ours ms']:.4g} ms" if "ours ms" in row else row["failed"]
        for key in ("eager / ours", "compiled / ours", "fused / ours"):
            text += f", {key} {row[key]:.3g}" if key in row else ""
        parts.append(text)
    found = {"what": what, "bytes": max((row.get("bytes", 0) for row in rows), default=0)}
    found |= {"rows": rows, "line": f"{what}: " + "; ".join(parts), **about()}
    if ratios:
        found["best / ours"] = min(ratios)
    if len(problems := [row["failed"] for row in rows if "failed" in row]) == len(rows):
        raise RuntimeError("; ".join(problems))
    return found


def _text(error: BaseException) -> str:
    """Returns an error in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def is_lost(error: BaseException) -> bool:
    """True if the context is lost, in which case everything later in this process would fail
    too."""
    text = str(error)
    return any(word in text for word in ("ILLEGAL", "LAUNCH_FAILED", "MISALIGNED", "CUDA error"))


def measured(number: int, compiled: bool) -> dict[str, Any]:
    """Measures a row in both dtypes: ours, eager, and with `compiled` torch.compile."""
    clock = DeviceClock()
    torch, why = torch_with_gpu()
    name, rows = "", []
    for dtype in DTYPES:
        row: dict[str, Any] = {"dtype": dtype}
        rows.append(row)
        try:
            begin = time.perf_counter()
            one = Row(number, dtype)
            name = one.name
            candidates = {"ours": one.ours(clock)}
            one.step(one.params, *one.data)
            row |= {"bytes": one.bytes, "first s": round(time.perf_counter() - begin, 2)}
            _compare(row, clock.measure(candidates))
            row["groups"] = one.groups(2 if is_small() else 10)
            items.show(_summed(name, rows))
            if torch is None:
                row["torch"] = why
                continue
            _beside(torch, clock, one, candidates, compiled, row)
        except Exception as error:
            row["failed"] = _text(error)
            if is_lost(error):
                raise
        items.show(_summed(name, rows))
    return _summed(name, rows)


def _beside(
    torch: Any,
    clock: DeviceClock,
    one: Row,
    candidates: dict[str, Candidate],
    compiled: bool,
    row: dict[str, Any],
) -> None:
    """Measures the row with PyTorch's candidates, too."""
    with clock.torch_stream():
        call, changed = one.theirs(torch)
        candidates["eager"] = Candidate(call)
        if compiled:
            begin = time.perf_counter()
            fast = changed(lambda loss: torch.compile(loss, dynamic=False))
            fast()
            clock.wait()
            row["compile s"] = round(time.perf_counter() - begin, 2)
            candidates["compiled"] = Candidate(fast)
        _compare(row, clock.measure(candidates))


def why_not_compiled() -> str:
    """Returns the reason why torch.compile cannot be measured here, or ""."""
    torch, why = torch_with_gpu()
    if torch is None:
        return why
    try:
        if torch.cuda.is_available():
            import triton  # noqa: F401
    except Exception as error:
        return f"torch.compile needs Triton: {error}"
    return ""


def compiled(number: int) -> dict[str, Any]:
    """Measures the item of stage compile."""
    if why := why_not_compiled():
        return {"left out": why, **about()}
    return measured(number, True)


def warm(number: int) -> dict[str, Any]:
    """Makes PyTorch compile a row, which fills its disk cache."""
    if why := why_not_compiled():
        return {"left out": why}
    import torch

    found: dict[str, Any] = {}
    for dtype in DTYPES:
        begin = time.perf_counter()
        _, changed = Row(number, dtype).theirs(torch)
        changed(lambda loss: torch.compile(loss, dynamic=False))()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found[f"{dtype} s"] = round(time.perf_counter() - begin, 2)
        items.show(found)
    return found


def squares(params: Any) -> Any:
    """Returns a loss whose forward and backward are short."""
    total = (params[0] * params[0]).sum()
    for p in params[1:]:
        total = total + (p * p).sum()
    return total


def _fused(torch: Any, clock: DeviceClock, shapes: list[Any], **options: Any) -> Candidate:
    """Returns PyTorch's AdamW. As in our step, gradients have just been written, which is not
    timed."""
    device = torch_device(torch)
    params = [torch.full(shape, 0.5, device=device, requires_grad=True) for shape in shapes]
    for p in params:
        p.grad = torch.ones_like(p)
    grads = [p.grad for p in params]
    optimizer = torch.optim.AdamW(params, lr=1e-4, **options)
    begin, end = clock.driver.event(), clock.driver.event()

    def run() -> None:
        torch._foreach_mul_(grads, 1.0)
        clock.record(begin)
        optimizer.step()
        clock.record(end)

    return Candidate(run, own_ms=lambda: clock.elapsed_ms(begin, end))


def adamw(name: str) -> dict[str, Any]:
    """Measures the optimizer's step alone. Ours is timed by the core's events around it, directly
    after the backward that makes the gradients; the host time is that of the whole call."""
    import cutback as cb
    from cutback import cuda

    clock = DeviceClock()
    shapes = [(5,)] * 3 if is_small() else TENSORS[name]
    elements = sum(int(np.prod(shape)) for shape in shapes)
    begin = time.perf_counter()
    params = [cuda.to_device(np.full(shape, 0.5, np.float32)) for shape in shapes]
    step = cb.compile(squares, optimizer=cb.optim.AdamW(lr=1e-4), device="cuda")
    step(params)
    row: dict[str, Any] = {"dtype": "f32", "tensors": len(shapes), "bytes": ADAMW_BYTES * elements}
    row["first s"] = round(time.perf_counter() - begin, 2)
    ours = Candidate(
        lambda: step(params, stream=clock.stream),
        after=step.wait,
        own_ms=lambda: 1e3 * step.executable.update_seconds,
    )
    candidates = {"ours": ours}
    _compare(row, clock.measure(candidates))
    row["update"] = launches.update(step.executable)
    what = f"AdamW, {name}"
    items.show(_summed(what, [row]))
    torch, row["torch"] = torch_with_gpu()
    if torch is not None:
        row["torch"] = torch.__version__
        with clock.torch_stream():
            candidates["fused"] = _fused(torch, clock, shapes, fused=True)
            candidates["foreach"] = _fused(torch, clock, shapes, foreach=True)
            _compare(row, clock.measure(candidates))
    return _summed(what, [row])
