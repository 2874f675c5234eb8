"""Steps on a GPU beside PyTorch eager, torch.compile and fused optimizers, and against a measured
copy.

python benchmarks/gpu/bench_gpu.py [--only PREFIX] [--again] [--installed] [--stand-in] [--json F]

Builds the package for this Python, and installs nothing (tests/gpu/README.md). Each row is a
process of its own that ends within a minute, and is kept when it ends, so that an interrupted run
goes on. Where all rows have been measured on one GPU they become results/gpu_rows.json.
`--stand-in` goes the same way in small sizes without a GPU: its times mean nothing, and it writes
no results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "gpu")]

SIZES = {  # of benchmarks/cpu/rows.py, as large as a GPU wants them
    1: (128, 32, 128, 128),
    2: (128, 2048, 8, 8),
    3: (1 << 25,),
    4: (32768, 1024),
    5: (256, 512, 512),
    6: (16384, 8192),
    7: (1 << 27,),
    8: (128, 64, 56, 56),
    9: (16384, 4096),
    11: (16, 1024, 768),
}
GPT2 = [(50257, 768), (1024, 768)] + 12 * [
    (768,), (768,), (768, 2304), (2304,), (768, 768), (768,),
    (768,), (768,), (768, 3072), (3072,), (3072, 768), (768,),
] + [(768,), (768,)]  # fmt: skip
TENSORS = {"1,000 tiny tensors": [(16,)] * 1000, "GPT-2 124M": GPT2}
ROUNDS = 30


def is_small() -> bool:
    return bool(os.environ.get("CUTBACK_GPU_ROWS_SMALL"))


def torch_here() -> Any:
    """PyTorch with a GPU; None: there is none."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def milliseconds(run: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """The best of some calls, each waited for, after two that are not counted."""
    times = []
    for i in range(3 if is_small() else ROUNDS + 2):
        begin = time.perf_counter()
        run()
        wait()
        if i >= 2:
            times.append(1e3 * (time.perf_counter() - begin))
    return min(times)


def copy_rate() -> dict[str, Any]:
    """GB/s of a kernel that reads an array and writes another, ours and PyTorch's."""
    import numpy as np

    import cutback as cb
    from cutback import cuda

    n = 1 << 10 if is_small() else 1 << 28
    x = cuda.to_device(np.ones(n, np.float32))
    step = cb.compile(lambda x: x + 1, argnums=None, device="cuda")
    row = {"bytes": 8 * n, "ours GB/s": 8e-6 * n / milliseconds(lambda: step(x), lambda: None)}
    if torch := torch_here():
        a, b = (torch.ones(n, device="cuda") for _ in range(2))
        row["torch GB/s"] = 8e-6 * n / milliseconds(lambda: b.copy_(a), torch.cuda.synchronize)
    return row


def _inputs(number: int) -> tuple[Any, Any, Any]:
    sys.path.insert(0, str(ROOT / "benchmarks" / "cpu"))
    import numpy as np
    import rows

    row = rows.ROWS[number]
    sizes = row.quick if is_small() else SIZES[number]
    params, data = row.make(np.random.default_rng(number), sizes)
    return row, params, data


def gradients(number: int) -> dict[str, Any]:
    """Forward and backward of a row."""
    row, params, data = _inputs(number)
    import ours
    import rows

    import cutback as cb
    from cutback import cuda

    loss = lambda p, *d: ours.LOSSES[number](p, *d, **row.options)  # noqa: E731
    step = cb.value_and_grad(loss, seed=1, device="cuda")
    p, d = cuda.to_device(params), cuda.to_device(data)
    ms = milliseconds(lambda: step(p, *d), lambda: None)
    moved = rows.least_bytes(params, data)
    out = {"what": row.name, "bytes": moved, "ours ms": ms, "ours GB/s": moved / ms * 1e-6}
    if torch := torch_here():
        out |= _torch_gradients(torch, number, params, data, row.options)
        best = min(out["eager ms"], out["compiled ms"])
        out |= {"eager / ours": out["eager ms"] / ms, "compiled / ours": out["compiled ms"] / ms}
        out["best / ours"] = best / ms
    return out


def _torch_gradients(
    torch: Any, number: int, params: Any, data: Any, options: dict[str, Any]
) -> dict[str, float]:
    import in_torch
    import rows

    torch.backends.cuda.matmul.allow_tf32 = False
    p = rows.mapped(params, lambda x: torch.from_numpy(x).cuda().requires_grad_())
    d = [torch.from_numpy(x).cuda() for x in data]

    def loss(p: Any, *d: Any) -> Any:
        return in_torch.LOSSES[number](p, *d, **options)

    def call(function: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(function(p, *d), rows.leaves(p))

    return {
        "eager ms": milliseconds(call(loss), torch.cuda.synchronize),
        "compiled ms": milliseconds(call(torch.compile(loss)), torch.cuda.synchronize),
    }


def adamw(name: str) -> dict[str, Any]:
    """A step of AdamW: the loss is a sum of squares, and what forward and backward take by
    themselves is taken off."""
    import numpy as np

    import cutback as cb
    from cutback import cuda

    shapes = [(5,)] * 3 if is_small() else TENSORS[name]
    params = [cuda.to_device(np.full(shape, 0.5, np.float32)) for shape in shapes]

    def loss(params: Any) -> Any:
        total = (params[0] * params[0]).sum()
        for p in params[1:]:
            total = total + (p * p).sum()
        return total

    whole = cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-4), device="cuda")
    alone = cb.value_and_grad(loss, device="cuda")
    both = milliseconds(lambda: whole(params), lambda: None)
    without = milliseconds(lambda: alone(params), lambda: None)
    elements = sum(int(np.prod(shape)) for shape in shapes)
    ms = max(both - without, 1e-3)
    out = {"what": f"AdamW, {name}", "bytes": 28 * elements, "whole step ms": both, "ours ms": ms}
    if torch := torch_here():
        theirs = [torch.full(shape, 0.5, device="cuda", requires_grad=True) for shape in shapes]
        for p in theirs:
            p.grad = torch.ones_like(p)
        fused = torch.optim.AdamW(theirs, lr=1e-4, fused=True)
        out["fused ms"] = milliseconds(fused.step, torch.cuda.synchronize)
        out["fused / ours"] = out["fused ms"] / ms
    return out


def named() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """All rows."""
    yield "copy", copy_rate
    for number in SIZES:
        yield f"row {number}", lambda number=number: gradients(number)
    for name in TENSORS:
        yield f"adamw {name}", lambda name=name: adamw(name)


def about() -> dict[str, Any]:
    """The GPU and the versions that a row was measured with."""
    from cutback import cuda

    torch = torch_here()
    import cutback

    return {
        "gpu": cuda.prepare(),
        "cutback": cutback.__version__,
        "torch": torch.__version__ if torch else "absent",
    }


def main() -> int:
    """Command line."""
    if sys.argv[1:2] == ["--row"]:
        print(json.dumps(dict(named())[sys.argv[2]]() | about()))
        return 0
    import resumed

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="PREFIX", help="names that begin so")
    parser.add_argument("--again", action="store_true", help="also what is known")
    parser.add_argument("--installed", action="store_true", help="the package as it is installed")
    parser.add_argument("--stand-in", action="store_true", help="small, and without a GPU")
    parser.add_argument("--json", type=Path, default=resumed.BUILD / "rows.json", metavar="FILE")
    args = parser.parse_args()
    if not args.stand_in and resumed.gpus() == 0:
        print("skipped: there is no GPU here that a driver sees")
        return 0
    variables = resumed.environment(args.installed, args.stand_in)
    if args.stand_in:
        variables["CUTBACK_GPU_ROWS_SMALL"] = "1"
    names = [name for name, _ in named() if name.startswith(args.only)]
    command = [sys.executable, __file__, "--row"]
    found = resumed.run_all(args.json, names, command, variables, again=args.again)
    failed = [name for name, row in found.items() if "failed" in row]
    for name in failed:
        print(f"--- {name}\n{found[name].get('text', found[name]['failed'])}", file=sys.stderr)
    if not (failed or args.only or args.stand_in) and len({r["gpu"] for r in found.values()}) == 1:
        from common import save

        save(
            "gpu_rows",
            "python benchmarks/gpu/bench_gpu.py",
            [{"row": name, **row} for name, row in found.items()],
            "torch",
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
