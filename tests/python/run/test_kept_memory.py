"""The memory of results and gradients is reused for the next ones of the same size, within a bound,
and never while something can still see it."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import cutback
from cutback import _native

pytestmark = pytest.mark.plans_unchecked

X = np.linspace(-2, 2, 1 << 16, dtype=np.float32)


def loss(x):
    return (x * cutback.tanh(x)).sum()


def address(array):
    return array.__array_interface__["data"][0]


@pytest.fixture(autouse=True)
def nothing_kept():
    gc.collect()
    cutback.release_memory()
    yield
    gc.collect()
    assert _native.kept_memory()["in_use"] == 0
    cutback.release_memory()


def test_the_next_gradient_lies_where_the_last_one_was():
    step = cutback.value_and_grad(loss)
    _, first = step(X)
    at, bits = address(first), first.copy()
    del first
    assert _native.kept_memory()["kept"] == X.nbytes
    _, second = step(X)
    assert address(second) == at and np.array_equal(second, bits)
    assert second.flags.owndata and second.flags.writeable
    assert _native.kept_memory()["kept"] == 0
    del second


def test_what_is_seen_is_not_written():
    step = cutback.value_and_grad(loss)
    _, first = step(X)
    view = first[10:20]
    seen = view.copy()
    del first
    _, second = step(3 * X)
    assert np.array_equal(view, seen) and not np.shares_memory(view, second)
    del view, second


def test_kept_and_used_are_never_more_than_what_was_used_at_once():
    step = cutback.value_and_grad(loss)
    held = [step(X)[1] for _ in range(3)]
    fresh = _native.kept_memory()["n_fresh"]
    del held
    for _ in range(5):
        step(X)
    memory = _native.kept_memory()
    assert memory["in_use"] + memory["kept"] == 3 * X.nbytes and memory["n_fresh"] == fresh
    assert cutback.release_memory() == 3 * X.nbytes + step.planned.arena_bytes
    assert _native.kept_memory()["kept"] == 0
    assert cutback.release_memory() == 0


def test_small_arrays_are_not_kept():
    gradient = cutback.grad(loss)(X[:100])
    del gradient
    assert _native.kept_memory()["kept"] == 0


def test_arrays_are_arrays():
    gradient = cutback.grad(loss)(X)
    same = pickle.loads(pickle.dumps(gradient))
    assert np.array_equal(same, gradient)
    expected = gradient[:50].copy()
    gradient.resize((50,), refcheck=False)
    assert np.array_equal(gradient, expected)
    gradient.resize((1 << 17,), refcheck=False)
    assert np.array_equal(gradient[:50], expected) and not gradient[50:].any()
    assert np.empty(1 << 17).flags.owndata  # NumPy's own handler is in place again
    assert _native.kept_memory()["in_use"] == gradient.nbytes
    del gradient


@pytest.mark.parametrize("shape", [(0,), (), (3, 0, 5), (1 << 15,), (7, 9973)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "?", "i8"])
def test_empty_makes_any_array(shape, dtype):
    array = _native.empty(shape, np.dtype(dtype))
    array[...] = 1
    assert array.shape == shape and array.dtype == dtype and array.all()
    assert array.flags.c_contiguous and array.flags.aligned
    del array


def test_mistakes():
    with pytest.raises((TypeError, ValueError)):
        _native.empty((-1,), np.dtype("f4"))
    with pytest.raises(TypeError):
        _native.empty("x", np.dtype("f4"))
    with pytest.raises(TypeError):
        _native.empty((2,), "no dtype")
    with pytest.raises((MemoryError, ValueError)):
        _native.empty((1 << 62,), np.dtype("f8"))
    assert np.empty(4).flags.owndata


def test_threads():
    step = cutback.value_and_grad(loss)
    want = step(X)[1].copy()
    wrong = []

    def work():
        for _ in range(30):
            if not np.array_equal(step(X)[1], want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_arrays_outlive_the_module():
    """When the interpreter exits, the extension may be unloaded before the arrays are freed."""
    code = (
        "import sys, numpy as np, cutback\n"
        "x = np.ones(1 << 16, np.float32)\n"
        "class Late:\n"
        "    def __del__(self): self.g += 1\n"
        "late = Late(); late.g = cutback.grad(lambda x: (x * x).sum())(x)\n"
        "sys.late = late\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_process_has_its_own():
    code = (
        "import os, numpy as np, cutback\n"
        "x = np.ones(1 << 16, np.float32)\n"
        "step = cutback.grad(lambda x: (x * x).sum())\n"
        "g = step(x)\n"
        "pid = os.fork()\n"
        "g = step(x); g = step(2 * x)\n"
        "assert g[5] == 4\n"
        "if not pid: os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
