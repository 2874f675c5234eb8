"""Profiles: what each kernel of a step took in time and in memory, measured, not modelled."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import files
from .executable import Executable, draws_of

if TYPE_CHECKING:
    from .executable import Graph


class Kernel(NamedTuple):
    """One kernel of a step."""

    step: int  # its place in the plan's schedule
    kind: str  # "matmul"
    name: str  # "matmul_12"
    location: str  # "model.py:12", "" when not known
    recomputed: bool  # it had run before
    seconds: float
    bytes: int  # allocated while it ran, each storage by itself


class StepProfile:
    """The kernels of one step in order; ``print(profile)`` sums them up by kind."""

    def __init__(self, kernels: list[Kernel], n_step: int) -> None:
        self.kernels = kernels
        self.n_step = n_step

    @property
    def seconds(self) -> float:
        """Time of all kernels together."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def peak_bytes(self) -> int:
        """Most bytes allocated at once."""
        return max((kernel.bytes for kernel in self.kernels), default=0)

    def timeline(self) -> list[int]:
        """Bytes allocated during each step of the schedule; a view keeps what was there."""
        row = [0] * self.n_step
        at = {kernel.step: kernel.bytes for kernel in self.kernels}
        held = 0
        for step in range(self.n_step):
            held = at.get(step, held)
            row[step] = held
        return row

    def by_kind(self) -> list[tuple[str, int, float]]:
        """(kind, kernels, seconds), the dearest first."""
        table: dict[str, tuple[int, float]] = {}
        for kernel in self.kernels:
            count, seconds = table.get(kernel.kind, (0, 0.0))
            table[kernel.kind] = count + 1, seconds + kernel.seconds
        rows = [(kind, count, seconds) for kind, (count, seconds) in table.items()]
        return sorted(rows, key=lambda row: -row[2])

    def times(self) -> dict[str, float]:
        """Seconds by operation, the mean of its runs: what ``cutback.plan(..., profile=...)``
        takes."""
        runs: dict[str, list[float]] = {}
        for kernel in self.kernels:
            runs.setdefault(kernel.name, []).append(kernel.seconds)
        return {name: sum(seconds) / len(seconds) for name, seconds in runs.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the times into a file for ``cutback plan --profile`` and
        :func:`cutback.files.read_times`."""
        document = {"format": "cutback.times", "version": 1, "seconds": self.times()}
        files.write_text(path, json.dumps(document, indent=1))

    def __str__(self) -> str:
        total = self.seconds or 1.0
        lines = [f"{'kernel':20s} {'runs':>5s} {'ms':>9s} {'share':>7s}"]
        lines += [
            f"{kind:20s} {count:5d} {1e3 * seconds:9.3f} {seconds / total:7.1%}"
            for kind, count, seconds in self.by_kind()
        ]
        return "\n".join(lines)


def profile(
    graph: Graph, run: Executable, wrt: Sequence[int], arrays: list[Any], seed: int, rng_step: int
) -> StepProfile:
    """Runs a compiled graph twice on copies of ``arrays``: as it is, for the times, and under the
    same plan on the debug backend, for the bytes."""
    debug = Executable(
        graph, wrt, backend="debug", plan=run.text("plan"), keep_gradients=run.keeps_gradients
    )
    times = _rows(run, arrays, seed, rng_step)
    sizes = _rows(debug, arrays, seed, rng_step)
    document = run.plan.document
    ops = run.plan.problem["ops"]
    steps = document["steps"]
    seen: set[int] = set()
    kernels = []
    for (step, seconds, _), (_, _, size) in zip(times, sizes, strict=True):
        op = ops[steps[step]]
        again = steps[step] in seen
        seen.add(steps[step])
        kernels.append(Kernel(step, op["kind"], op["name"], op.get("at", ""), again, seconds, size))
    return StepProfile(kernels, len(steps))


def _rows(
    run: Executable, arrays: Sequence[np.ndarray[Any, Any]], seed: int, rng_step: int
) -> tuple[tuple[int, float, int], ...]:
    copies = [np.array(array) for array in arrays]
    return run.native.profile(run.inputs(copies), run.outputs(), *draws_of(seed, rng_step))
