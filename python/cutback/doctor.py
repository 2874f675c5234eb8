"""``cutback doctor``: shows the parts of this installation, and checks that it works."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import __version__, _native, cuda_libraries, devices
from .policies import OPS

_VECTOR_BITS = {"baseline": 128, "avx2": 256, "avx512": 512}  # of the core's own kernel
_OPTIONAL = ("ml_dtypes", "torch", "tqdm", "scipy")


def _optional(name: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _matrix_product(machine: dict[str, Any]) -> str:
    """The implementation of matrix products: NumPy's BLAS, unless its vectors are narrower than
    those of the core's kernel."""
    if not machine["blas"]:
        return "own kernel: NumPy's BLAS was not found"
    where = f"{machine['blas']} in {machine['blas_path']}"
    own = _VECTOR_BITS.get(machine["isa"], 0)
    if machine["blas_bits"] and machine["blas_bits"] < own:
        return f"own kernel with {own}-bit vectors; not {where}, which uses {machine['blas_bits']}"
    return where


def _training_step() -> str:
    """Trains a tiny model for a few steps with and without a budget, and checks that the results
    are bitwise equal."""
    from . import Array, compile, mean, optim, tanh

    def loss(params: dict[str, Array], x: Array) -> Array:
        for i in range(4):
            x = tanh(x @ params[f"w{i}"])
        return mean(x * x)

    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((32, 32), np.float32) / 6 for i in range(4)}
    x = rng.standard_normal((64, 32), np.float32)
    ends = []
    for budget in (None, "min"):
        params = {name: w.copy() for name, w in weights.items()}
        step = compile(loss, budget=budget, optimizer=optim.AdamW(lr=1e-2))
        for _ in range(3):
            value = step(params, x)
        if not np.isfinite(value):
            return f"FAILED: loss {value}"
        if step.stats is None or step.stats.peak_bytes != step.planned.arena_bytes:
            return f"FAILED: planned {step.planned.arena_bytes} bytes, measured {step.stats}"
        ends.append(params)
    same = all(np.array_equal(ends[0][name], ends[1][name]) for name in weights)
    return "ok" if same else "FAILED: a budget changed the result"


def _gpu_kernel() -> str:
    """Compiles a kernel, runs it on the first GPU and compares the result with NumPy's. Uses an
    empty kernel cache, so that NVRTC is really tested."""
    from . import compile

    x = np.arange(1000, dtype=np.float32)
    before = os.environ.get("CUTBACK_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CUTBACK_CACHE_DIR"] = folder
        try:
            result = compile(lambda x: x * 2 + 1, argnums=None, device="cuda")(x)
        except cuda_libraries.LibraryError:
            return "not run: without NVRTC nothing can be compiled"
        except (RuntimeError, MemoryError, ValueError, OSError) as error:
            return f"FAILED: {error}"
        finally:
            if before is None:
                del os.environ["CUTBACK_CACHE_DIR"]
            else:
                os.environ["CUTBACK_CACHE_DIR"] = before
    if not np.array_equal(result, x * 2 + 1):
        return "FAILED: a kernel ran on the GPU, but its result is wrong"
    return "ok: compiled one and ran it on the GPU"


def lines(verbose: bool = False) -> Iterator[tuple[str, str]]:
    """Yields (what, value) for each fact; the last is the result of a training step. ``verbose``
    adds the places where NVIDIA's libraries were searched."""
    machine = _native.machine()
    yield "cutback", f"{__version__} in {os.path.dirname(os.path.abspath(__file__))}"
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "numpy", np.__version__
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "instructions", machine["isa"]
    yield "threads", str(machine["threads"])
    yield "matrix product", _matrix_product(machine)
    row = devices.measured()
    yield "cost model", f"device cpu, a fixed guess; measured: {devices.text(row)}"
    yield "measured row", f"{devices.cache_file()} (taken with device='measured')"
    yield "kernel cache", "not used: kernels are compiled into the package"
    cuda = list(cuda_libraries.lines(verbose))
    yield from cuda
    if any(what == "cuda device" for what, _ in cuda):
        yield "cuda kernel", _gpu_kernel()
    for name in _OPTIONAL:
        yield name, _optional(name)
    yield "training step", _training_step()


def main(verbose: bool = False) -> int:
    """Prints the lines. Returns 0 if the training step works and, with a GPU, the kernel; else
    1."""
    failed = False
    for what, result in lines(verbose):
        text = result.replace("\n", "\n" + " " * 16)
        sys.stdout.write(f"{what:15} {text}\n")
        failed |= result.startswith("FAILED")
    return 1 if failed else 0


def list_operations() -> int:
    """Prints the operations of the core. Returns 0."""
    for name, low, high, outs, _, attributes, meaning, differentiable in OPS.values():
        ins = str(low) if low == high else f"{low}+" if high < 0 else f"{low}-{high}"
        gradient = "" if differentiable else "  (no gradient)"
        sys.stdout.write(f"{name:18} {ins:>3} -> {outs}  {meaning}{gradient}\n")
        if attributes:
            sys.stdout.write(f"{'':30}{attributes}\n")
    return 0
