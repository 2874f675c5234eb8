"""The parent process: runs contestants in child processes in turns, one at a time."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import rows

WORKER = Path(__file__).parent / "worker.py"
PATIENCE = 900.0  # seconds until a worker counts as stuck
KEPT = {  # glibc returns no memory to the system, and does not use mmap
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "2000000000",
}
BEST_OF = ("eager", "eager kept", "inductor", "inductor kept")


class Settings(NamedTuple):
    """Settings shared by all contestants."""

    threads: int
    quick: bool
    caches: str
    """A folder for Inductor's, new in each run: what is compiled in it is compiled then."""
    jax: str | None = None
    """An interpreter that has JAX."""


class WorkerError(RuntimeError):
    """A worker ended before it was asked to."""


class Worker:
    """One contestant on one row."""

    def __init__(self, name: str, number: int, settings: Settings) -> None:
        self.name = name
        kind = name.removesuffix(" kept")
        task = {"kind": kind, "row": number, "quick": settings.quick, "threads": settings.threads}
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")},
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(settings.threads)),
            "TORCHINDUCTOR_CACHE_DIR": settings.caches,
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
            **(KEPT if name.endswith(" kept") else {}),
        }
        python = settings.jax if kind == "jax" and settings.jax else sys.executable
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  as long as the worker lives
        self.process = subprocess.Popen(
            [python, str(WORKER), json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
        )
        try:
            self.facts = self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, command: str) -> dict[str, Any]:
        """Sends one request; returns the answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._complaint()) from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE):
                raise WorkerError(f"{self.name}: no answer in {PATIENCE:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise WorkerError(self._complaint())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _complaint(self) -> str:
        code = self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return f"{self.name}: ended with {code}: {lines[-1] if lines else 'no message'}"

    def close(self) -> None:
        """Ends the worker without waiting for further output."""
        self.process.kill()
        self.process.communicate()
        self.errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def contestants(settings: Settings) -> list[str]:
    """Returns the available contestants; prints a sentence for each one that is not."""
    from importlib.util import find_spec

    names = ["ours", "ours kept"]
    if find_spec("torch") is None:
        print("PyTorch is not installed: there is nobody to compare with, and no triad.")
        return names
    if settings.quick:
        print("--quick: our gradients beside those of PyTorch eager, at sizes that say no times.")
        return ["ours", "eager"]
    names += ["eager", "eager kept"]
    compilers = (os.environ.get("CXX"), "g++", "clang++")
    if not any(shutil.which(compiler) for compiler in compilers if compiler):
        print("There is no C++ compiler, which Inductor needs: it is left out.")
    else:
        names += _inductor(settings)
    return names + (["jax"] if settings.jax else [])


def _inductor(settings: Settings) -> list[str]:
    """Compiles the headers of Inductor's code once for all rows; returns its name if it works."""
    try:
        Worker("inductor", rows.SMALLEST, settings._replace(quick=True)).close()
    except WorkerError as reason:
        print(f"{reason}; Inductor is left out.")
        return []
    return ["inductor", "inductor kept"]


def distance(ours: Path, theirs: Path) -> float:
    """Returns the largest difference of a gradient, relative to its largest element."""
    files = sorted(path.name for path in theirs.glob("*.npy"))
    if files != sorted(path.name for path in ours.glob("*.npy")) or not files:
        raise WorkerError("gradients: not as many of ours as of theirs")
    worst = 0.0
    for name in files:
        a, b = np.load(ours / name), np.load(theirs / name)
        if a.shape != b.shape:
            raise WorkerError(f"gradient {name}: shape {a.shape} of ours, {b.shape} of theirs")
        largest = float(np.abs(b).max()) or 1.0
        found = float(np.abs(a - b).max()) / largest
        worst = max(worst, found if np.isfinite(found) else float("inf"))
    return worst


def agreement(workers: Sequence[Worker]) -> float | None:
    """Returns the distance of our gradients from eager ones, or None without PyTorch."""
    named = {worker.name: worker for worker in workers}
    if "eager" not in named:
        return None
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name in ("ours", "eager"):
            paths.append(Path(folder) / name)
            paths[-1].mkdir()
            named[name].ask(f"gradients {paths[-1]}")
        return distance(*paths)
