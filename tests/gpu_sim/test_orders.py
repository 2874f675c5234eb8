"""Compares races found in random programs with full vector clocks: a race is found if and only if
it exists, within a block by barriers and warp synchronisation, and between operations by streams,
events and the host."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import cases
from client import CudaError, Driver, Memory

# Threads of a block

WARPS, CELLS = 2, 6
THREADS = 32 * WARPS
HEAD = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k() {
.shared .align 16 .b8 cells[256];
.reg .b32 %i, %v; .reg .pred %p;
mov.u32 %i, %tid.x; setp.eq.u32 %p, %i, 0; mov.u32 %v, 1;
"""


def steps(rng: random.Random) -> list[tuple[str, int, int]]:
    """Returns (what, thread, cell); synchronisation is of all threads, or of each warp
    separately."""
    made = [("write", 0, cell) for cell in range(CELLS)] + [("barrier", 0, 0)]
    threads = [0, 1, 5, 31, 32, 40]
    for _ in range(rng.randrange(4, 12)):
        what = rng.choice(["read", "read", "write", "add", "barrier", "warp", "warp"])
        made.append((what, rng.choice(threads), rng.randrange(CELLS)))
    return made


def as_ptx(program: list[tuple[str, int, int]]) -> str:
    lines = []
    for what, thread, cell in program:
        place = f"[cells+{4 * cell}]"
        lines.append(f"setp.eq.u32 %p, %i, {thread};")
        lines.append(
            {
                "read": f"@%p ld.shared.b32 %v, {place};",
                "write": f"@%p st.shared.b32 {place}, %v;",
                "add": f"@%p red.shared.add.u32 {place}, 1;",
                "barrier": "bar.sync 0;",
                "warp": "bar.warp.sync -1;",
            }[what]
        )
    return HEAD + "\n".join(lines) + "\nret;\n}\n"


def has_race(program: list[tuple[str, int, int]]) -> bool:
    """Finds races with a clock per thread that has an entry for each thread. Two accesses of a
    cell, not both reads or both atomic, race if the later thread does not know of the earlier
    access."""
    clocks = [[int(t == own) for t in range(THREADS)] for own in range(THREADS)]
    seen: list[tuple[str, int, int, int]] = []  # what, thread, its time, cell
    for what, thread, cell in program:
        if what in ("barrier", "warp"):
            size = THREADS if what == "barrier" else 32
            for start in range(0, THREADS, size):
                group = range(start, start + size)
                joined = [max(clocks[t][j] for t in group) for j in range(THREADS)]
                for t in group:
                    clocks[t] = list(joined)
                    clocks[t][t] += 1
            continue
        for other, by, time, where in seen:
            is_conflict = where == cell and {what, other} not in ({"read"}, {"add"})
            if is_conflict and by != thread and clocks[thread][by] < time:
                return True
        seen.append((what, thread, clocks[thread][thread], cell))
    return False


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(n, marks=pytest.mark.very_slow) for n in (1, 2, 3))]
)
def test_blocks(driver: Driver, part: int) -> None:
    rng = random.Random(part)
    outcomes = set()
    for _ in range(12):
        program = steps(rng)
        expected = has_race(program)
        outcomes.add(expected)
        for seed in (0, 1, 3):
            with driver.watching(seed):
                try:
                    driver.launch(as_ptx(program), "k", 1, THREADS)
                    driver.wait()
                    assert not expected, program
                except CudaError as error:
                    assert expected and "race" in error.reports, (program, error)
    assert outcomes == {True, False}


# Operations of streams

STREAMS, BUFFERS, EVENTS, N = 3, 3, 2, 64


def zeros(n: int) -> list[list[int]]:
    return [[0] * STREAMS for _ in range(n)]


@dataclass
class Oracle:
    """Clocks of streams, events and the host, over the operations of each stream."""

    streams: list[list[int]] = field(default_factory=lambda: zeros(STREAMS))
    events: list[list[int]] = field(default_factory=lambda: zeros(EVENTS))
    host: list[int] = field(default_factory=lambda: zeros(1)[0])
    seen: list[tuple[int, int, set[int], set[int]]] = field(default_factory=list)
    is_racing: bool = False

    @staticmethod
    def join(a: list[int], b: list[int]) -> None:
        a[:] = [max(x, y) for x, y in zip(a, b, strict=True)]

    def kernel(self, stream: int, source: int, target: int) -> None:
        clock = self.streams[stream]
        self.join(clock, self.host)
        for by, time, reads, writes in self.seen:
            is_conflict = target in reads | writes or source in writes
            self.is_racing |= is_conflict and clock[by] < time
        clock[stream] += 1
        self.seen.append((stream, clock[stream], {source, target}, {target}))


def commands(rng: random.Random) -> list[tuple[str, int, int, int]]:
    """Returns rows (what, stream, a, b)."""
    kinds = ["kernel", "kernel", "kernel", "record", "wait", "wait", "synchronise"]
    made = []
    for _ in range(rng.randrange(4, 14)):
        what = rng.choice(kinds)
        source, target = rng.sample(range(BUFFERS), 2)
        numbers = (source, target) if what == "kernel" else (rng.randrange(EVENTS), 0)
        made.append((what, rng.randrange(STREAMS), *numbers))
    return made


def expected_race(program: list[tuple[str, int, int, int]]) -> bool:
    oracle = Oracle()
    for what, stream, a, b in program:
        if what == "kernel":
            oracle.kernel(stream, a, b)
        elif what == "record":
            oracle.events[a] = list(oracle.streams[stream])
        elif what == "wait":
            oracle.join(oracle.streams[stream], oracle.events[a])
        else:
            oracle.join(oracle.host, oracle.streams[stream])
    return oracle.is_racing


def perform(
    driver: Driver, program: list[tuple[str, int, int, int]], buffers: list[Memory]
) -> None:
    streams = [driver.stream() for _ in range(STREAMS)]
    events = [driver.event() for _ in range(EVENTS)]
    text, half, n = cases.ptx("pointwise"), ctypes.c_float(0.5), ctypes.c_int(N)
    table: dict[str, Any] = {
        "kernel": lambda s, a, b: driver.launch(
            text, "axpy", 1, N, buffers[a], buffers[b], half, n, stream=streams[s]
        ),
        "record": lambda s, a, b: driver.call("cuEventRecord", events[a], streams[s]),
        "wait": lambda s, a, b: driver.call("cuStreamWaitEvent", streams[s], events[a], 0),
        "synchronise": lambda s, a, b: driver.call("cuStreamSynchronize", streams[s]),
    }
    try:
        for what, stream, a, b in program:
            table[what](stream, a, b)
        driver.wait()
    finally:
        driver.library.sim_recover()
        for stream in streams:
            driver.call("cuStreamDestroy", stream)


@pytest.mark.parametrize("part", range(6))
def test_streams(driver: Driver, part: int) -> None:
    """Ordered programs also give the same numbers in every order."""
    rng = random.Random(part)
    outcomes = set()
    for _ in range(25):
        program = commands(rng)
        expected = expected_race(program)
        outcomes.add(expected)
        results = set()
        for seed in (0, 1, 2 + part):
            buffers = [driver.put(cases.normal(N, seed=i)) for i in range(BUFFERS)]
            with driver.watching(seed):
                try:
                    perform(driver, program, buffers)
                    assert not expected, program
                except CudaError as error:
                    assert expected, (program, error)
            if not expected:
                results.add(b"".join(driver.get(b, np.float32, N).tobytes() for b in buffers))
            driver.free(*buffers)
        assert len(results) == (0 if expected else 1), program
    assert outcomes == {True, False}
