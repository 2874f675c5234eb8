"""``cutback doctor``: shows the parts of this installation, and checks that it works."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import __version__, _native, cuda_libraries, devices

_VECTOR_BITS = {"baseline": 128, "avx2": 256, "avx512": 512}  # of the core's own kernel
_OPTIONAL = ("ml_dtypes", "tqdm", "scipy")
_TESTED = ((3, 11), (3, 13))  # the first and the last version of Python that the tests run with


def _optional(name: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _matrix_product(machine: dict[str, Any]) -> str:
    """Says which implementation runs matrix products: NumPy's BLAS, unless its vectors are narrower
    than those of the core's kernel."""
    if not machine["blas"]:
        return "own kernel, because NumPy's BLAS was not found"
    where = f"{machine['blas']} in {os.path.normpath(machine['blas_path'])}"
    own = _VECTOR_BITS.get(machine["isa"], 0)
    if machine["blas_bits"] and machine["blas_bits"] < own:
        return f"own kernel with {own}-bit vectors, as {where} uses only {machine['blas_bits']}"
    return where


def version() -> str:
    """Returns the version, the commit it was built from if that is known, and the instruction set
    of the kernels that this machine uses.

    >>> from cutback import doctor
    >>> doctor.version().split()[0] == cutback.__version__
    True
    """
    machine = _native.machine()
    commit = f"commit {machine['commit']}, " if machine["commit"] else ""
    return f"{__version__} ({commit}{machine['isa']})"


def _python() -> str:
    first, last = (".".join(map(str, tested)) for tested in _TESTED)
    known = _TESTED[0] <= sys.version_info[:2] <= _TESTED[1]
    tested = f"supported: {first} to {last}" if known else f"not tested; {first} to {last} are"
    return f"{platform.python_version()} ({tested}; {sys.executable})"


def _torch_keeps_bits() -> bool:
    """Returns True if a tiny PyTorch model has the same gradients with and without a budget."""
    import torch

    from .torch import compile

    layers = [torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()) for _ in range(4)]
    model, x = torch.nn.Sequential(*layers), torch.randn(64, 32)
    weights = tuple(model.parameters())
    before = torch.autograd.grad(model(x).square().mean(), weights)
    after = torch.autograd.grad(compile(model, budget="min")(x).square().mean(), weights)
    return all(map(torch.equal, before, after))


def _torch() -> str:
    """Reports the version of PyTorch, whether Cutback supports it, and whether a step works."""
    found = _optional("torch")
    if found == "not installed":
        return found
    try:
        from .torch import hooks

        gone = hooks.missing()
        if gone is not None:
            return (
                f"{found} (not supported: it lacks {gone[0]}.{gone[1]}; tested with "
                f"{hooks.TESTED}). cutback.torch.checkpoint works"
            )
        known = found.startswith(f"{hooks.TESTED}.")
        tested = "supported" if known else f"not tested; {hooks.TESTED} is"
        if not _torch_keeps_bits():
            return f"FAILED: {found}: a budget changed the gradients"
        return f"{found} ({tested}); a step under a budget: ok"
    except Exception as error:  # a broken installation of PyTorch may raise anything
        return f"FAILED: {found}: {type(error).__name__}: {error}"


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
            return "not run: compiling a kernel needs NVRTC"
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
    """Yields a label and a value for each fact about the installation; the last is the result of a
    training step. ``verbose`` adds the places where NVIDIA's libraries were searched."""
    machine = _native.machine()
    yield "cutback", f"{version()} in {os.path.dirname(os.path.abspath(__file__))}"
    yield "python", _python()
    yield "numpy", np.__version__
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "threads", str(machine["threads"])
    yield "matrix product", _matrix_product(machine)
    row = devices.measured()
    yield "cost model", f"device cpu (fixed numbers); measured: {devices.text(row)}"
    kept = "" if devices.is_kept() else ", but it cannot be written there"
    yield "measured row", f"{devices.cache_file()} (used with device='measured'{kept})"
    yield "kernel cache", "not used: kernels are compiled into the package"
    cuda = list(cuda_libraries.lines(verbose))
    yield from cuda
    if any(what == "cuda device" for what, _ in cuda):
        yield "cuda kernel", _gpu_kernel()
    yield "also", ", ".join(f"{name} {_optional(name)}" for name in _OPTIONAL)
    yield "torch", _torch()
    yield "training step", _training_step()


def main(verbose: bool = False) -> int:
    """Prints the lines. Returns 1 if PyTorch, the training step or the GPU kernel failed, else
    0."""
    failed, indent = False, "\n" + " " * 16
    width = max(24, shutil.get_terminal_size().columns - 16) if sys.stdout.isatty() else 10**6
    for what, result in lines(verbose):
        rows = [row for line in result.split("\n") for row in textwrap.wrap(line, width)]
        sys.stdout.write(f"{what:15} {indent.join(rows)}\n")
        failed |= result.startswith("FAILED")
    return 1 if failed else 0
