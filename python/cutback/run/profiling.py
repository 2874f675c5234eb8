"""Profiles: the measured time and memory of each kernel of a step."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import files
from .executable import Executable, draws_of

if TYPE_CHECKING:
    from ..explanation import KernelOp, Kernels
    from .compiling import Graph


class Part(NamedTuple):
    """One operation of a kernel that runs several."""

    step: int  # index in the plan's schedule
    kind: str  # "gelu"
    name: str  # "gelu_13"
    share: float  # share of the kernel's seconds, in proportion to the bytes it moves


class Kernel(NamedTuple):
    """One kernel of a step: an operation, or several that run as one."""

    step: int  # index of the first operation in the plan's schedule
    kind: str  # "matmul"; "add+gelu", "add+gelu+7 more"
    name: str  # name of the first operation: "matmul_12"
    location: str  # location of the first operation: "model.py:12", "" if unknown
    recomputed: bool  # all of its operations have run before in this step
    seconds: float
    bytes: int  # allocated while it ran, each storage separately
    parts: tuple[Part, ...] = ()  # its operations, if there are several

    def operations(self) -> tuple[Part, ...]:
        """Returns the operations of the kernel: its parts, or one part for a single operation."""
        return self.parts or (Part(self.step, self.kind, self.name, 1.0),)


class StepProfile:
    """The kernels of one step in order; ``print(profile)`` prints totals by kind."""

    def __init__(self, kernels: list[Kernel], n_step: int) -> None:
        self.kernels = kernels
        self.n_step = n_step

    @property
    def seconds(self) -> float:
        """Total time of all kernels."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def peak_bytes(self) -> int:
        """Peak of the allocated bytes."""
        return max((kernel.bytes for kernel in self.kernels), default=0)

    def timeline(self) -> list[int]:
        """Returns the bytes allocated during each step of the schedule. A step without a kernel (a
        view) has the value of the step before."""
        row = [0] * self.n_step
        at = {op.step: kernel.bytes for kernel in self.kernels for op in kernel.operations()}
        held = 0
        for step in range(self.n_step):
            held = at.get(step, held)
            row[step] = held
        return row

    def by_kind(self) -> list[tuple[str, int, float]]:
        """Returns rows of (kind, number of kernels, seconds), slowest first."""
        table: dict[str, tuple[int, float]] = {}
        for kernel in self.kernels:
            count, seconds = table.get(kernel.kind, (0, 0.0))
            table[kernel.kind] = count + 1, seconds + kernel.seconds
        rows = [(kind, count, seconds) for kind, (count, seconds) in table.items()]
        return sorted(rows, key=lambda row: -row[2])

    def times(self) -> dict[str, float]:
        """Returns the seconds of each operation by its name, averaged over its runs. Pass the dict
        to ``cutback.plan(..., profile=...)``."""
        runs: dict[str, list[float]] = {}
        for kernel in self.kernels:
            for op in kernel.operations():
                runs.setdefault(op.name, []).append(op.share * kernel.seconds)
        return {name: sum(seconds) / len(seconds) for name, seconds in runs.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the times to a file for ``cutback plan --profile`` and
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
    """Profiles a compiled graph by running it twice on copies of ``arrays``: on its own backend for
    the times, and with the same plan on the debug backend for the bytes.

    The profile names the user's operations. If the step was planned in groups, several of them may
    be one step of the schedule.
    """
    debug = Executable(
        graph, wrt, backend="debug", plan=run.text("plan"), groups=run.groups,
        keep_gradients=run.keeps_gradients, updates=run.updates, slices=run.slices,
        packed=run.packed,
    )  # fmt: skip
    times = _rows(run, arrays, seed, rng_step)
    sizes = {
        step: size for group, _, size in _rows(debug, arrays, seed, rng_step) for step in group
    }
    moved = _bytes_moved(run)
    kernels = []
    for (steps, seconds, _), ops in zip(times, _operations(run), strict=True):
        parts = _parts(steps, ops, moved) if len(ops) > 1 else ()
        kernels.append(
            Kernel(
                step=steps[0],
                kind=_kinds(parts) if parts else ops[0]["kind"],
                name=ops[0]["name"],
                location=ops[0]["at"],
                recomputed=all(op["recomputed"] for op in ops),
                seconds=seconds,
                bytes=max(sizes[step] for step in steps),
                parts=parts,
            )
        )
    return StepProfile(kernels, len(run.plan.core.steps))


def _operations(run: Executable) -> list[list[KernelOp]]:
    """Returns the user's operations in each kernel."""
    kernels: Kernels = json.loads(run.text("kernels"))
    return [group["ops"] for group in kernels["groups"]]


def _bytes_moved(run: Executable) -> dict[str, int]:
    """Returns the bytes that each operation moves if it runs as its own kernel. The problem of a
    plan in groups lacks these numbers, so the problem of single operations is read."""
    problem = json.loads(run.text("single"))
    return {op["name"]: op.get("bytes", 0) for op in problem["ops"]}


def _parts(
    steps: Sequence[int], ops: Sequence[KernelOp], moved: dict[str, int]
) -> tuple[Part, ...]:
    sizes = [max(1, moved[op["name"]]) for op in ops]
    return tuple(
        Part(step, op["kind"], op["name"], size / sum(sizes))
        for step, op, size in zip(steps, ops, sizes, strict=True)
    )


def _kinds(parts: Sequence[Part]) -> str:
    """Joins the distinct kinds in order: ``"add+gelu"``, ``"add+gelu+2 more"``."""
    kinds = list(dict.fromkeys(part.kind for part in parts))
    return "+".join(kinds if len(kinds) <= 3 else [*kinds[:2], f"{len(kinds) - 2} more"])


def _rows(
    run: Executable, arrays: Sequence[np.ndarray[Any, Any]], seed: int, rng_step: int
) -> tuple[tuple[tuple[int, ...], float, int], ...]:
    copies = [np.array(array) for array in arrays]
    return run.native.profile(run.inputs(copies), run.outputs(), *draws_of(seed, rng_step))
