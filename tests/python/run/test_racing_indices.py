"""Lets a second thread overwrite the array of indices while a step runs. The outcome is an error or
a result, never an access outside an array."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import cutback
import cutback.nn.functional as F
from cutback.run.executable import Executable

ROUNDS = 6
WILD = 1 << 40


def gathered(table, index):
    return cutback.take_along_axis(table, index, 0)


def embedded(table, index):
    return F.embedding(index, table)


def labelled(table, index):
    return F.cross_entropy(table, index, reduction="none")


def labelled_rows(table, index):
    """Reads labelled rows in a group with its gradient, on one copy of the indices."""
    return F.cross_entropy(table, index)


def taken_of_rows(table, index):
    """Takes rows in the same way."""
    return cutback.take_along_axis(F.log_softmax(table), index[:, None], 1)


def case(name):
    """Returns (function of (table, index), table, good indices). The forward reads by index, the
    backward adds."""
    n = 100_000
    if name == "gather":
        return gathered, np.ones((50, 4)), np.arange(4 * n).reshape(n, 4) % 50
    if name == "embedding":
        return embedded, np.ones((50, 4)), np.arange(n) % 50
    if name == "labels":
        return labelled, np.ones((n, 3)), np.arange(n) % 3
    function = labelled_rows if name == "rows" else taken_of_rows
    return function, np.ones((4000, 40), np.float32), np.arange(4000) % 40


def bytes_of(index, offset):
    """Returns a view of the same memory that NumPy and the step consider unrelated."""
    address = index.ctypes.data + offset
    return np.frombuffer((ctypes.c_int64 * 1).from_address(address), np.int64)


def race(name, half, backend):
    """Runs steps while another thread makes one index wild and good again; returns how they
    ended."""
    function, table, good = case(name)
    if backend == "ref":
        good = np.ascontiguousarray(good[:3000])
        table = table[: len(good)].copy() if len(table) > 50 else table
    if half == "forward":
        step = cutback.compile(function, argnums=None, backend=backend)
    else:
        step = cutback.grad(lambda t, i: function(t, i).sum(), backend=backend)
    index = good.copy()
    step(table, index)
    last = bytes_of(index, index.nbytes - 8)
    stop, ended = threading.Event(), {"good": 0, "refused": 0}

    def overwrite():
        while not stop.is_set():
            for _ in range(50):
                last[0] = WILD
                last[0] = 0
            time.sleep(0)

    thread = threading.Thread(target=overwrite)
    thread.start()
    try:
        for _ in range(ROUNDS):
            try:
                step(table, index)
                ended["good"] += 1
            except ValueError as error:
                assert str(WILD) in str(error)
                ended["refused"] += 1
    finally:
        stop.set()
        thread.join()
    return ended


def race_all(backend):
    cutback.set_num_threads(1)  # the other core is for the overwriting thread
    for name in ("gather", "embedding", "labels", "rows", "taken"):
        for half in ("forward", "backward"):
            if backend == "ref" and half == "backward" and name in ("gather", "embedding"):
                continue  # the slow twin walks all indices for each element
            ended = race(name, half, backend)
            assert ended["good"] + ended["refused"] == ROUNDS


@pytest.mark.parametrize("backend", ["cpu", "debug", "ref"])
def test_indices_that_another_thread_overwrites(backend):
    """Runs in its own process, which a stray access would end."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", f"import test_racing_indices as t; t.race_all({backend!r})"],
        cwd=os.path.dirname(__file__),
        capture_output=True, text=True, env=env, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)


@pytest.mark.parametrize("backend", ["cpu", "debug", "ref"])
@pytest.mark.parametrize("name", ["gather", "embedding", "labels", "rows", "taken"])
def test_a_wild_index_leaves_the_output_alone(name, backend):
    function, table, good = case(name)
    good = np.ascontiguousarray(good[:3000])
    table = table[: len(good)].copy() if len(table) > 50 else table
    graph = cutback.trace(function, table, good).graph
    run = Executable(graph, backend=backend)
    outputs = run.outputs()
    for array in outputs:
        array[...] = 7
    index = good.copy()
    index.flat[-1] = WILD
    with pytest.raises(ValueError, match=str(WILD)):
        run.native.run(inputs=run.inputs([table, index]), outputs=outputs, seed=0, random_step=0)
    for array in outputs:
        assert (array == 7).all()


@pytest.mark.parametrize("budget", [None, "0.6x", "min"])
@pytest.mark.parametrize("name", ["gather", "embedding", "labels", "rows", "taken"])
def test_the_copy_is_part_of_the_plan(name, budget):
    """Measured bytes equal the planned ones: of the arena (cpu) and of the live values (debug)."""
    function, table, index = case(name)
    for backend, key in (("cpu", "arena_bytes"), ("debug", "live_bytes")):
        try:
            step = cutback.grad(
                lambda t, i: function(cutback.tanh(t), i).sum(), budget=budget, backend=backend
            ).prepare(table, index)
        except cutback.BudgetError:
            pytest.skip("the floor of this step is above the budget")
        step(table, index)
        step(table, index)
        assert step.stats.peak_bytes == getattr(step.planned, key)
        assert backend != "cpu" or step.stats.n_alloc == 0
