"""Tests threads, fork, Ctrl-C, and the cost of an import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress

import numpy as np
import pytest

import cutback
from cutback.run.executable import Executable


def python(code, *options, timeout=120):
    """Runs a program in a fresh interpreter that finds the same package; returns its standard
    output."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, env=env, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def train(model, n=3):
    params = model.params()
    step = cutback.compile(model.loss, optimizer=cutback.optim.AdamW(lr=1e-2), budget="0.7x")
    for _ in range(n):
        step(params, *model.data())
    return np.concatenate([w.ravel() for w in cutback.tree.flatten(params)[0]])


def test_the_number_of_threads_changes_no_bit(model):
    before = cutback.get_num_threads()
    try:
        results = []
        for n in (1, 2, 3, 5):
            cutback.set_num_threads(n)
            assert cutback.get_num_threads() == n
            results.append(train(model))
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])
        cutback.set_num_threads(0)
        assert cutback.get_num_threads() == len(os.sched_getaffinity(0))
        with pytest.raises(ValueError, match="-1"):
            cutback.set_num_threads(-1)
        with pytest.raises(ValueError, match=r"not in 0\.\.4096"):
            cutback.set_num_threads(10**30)
        with pytest.raises(TypeError, match="got True"):
            cutback.set_num_threads(True)
    finally:
        cutback.set_num_threads(before)


def test_steps_on_several_threads(model):
    expected = train(model)
    results = [None] * 4

    def work(i):
        results[i] = train(model)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_one_step_shared_by_threads():
    step = cutback.compile(lambda x: (x @ x).sum(), argnums=None)
    x = np.random.default_rng(0).standard_normal((64, 64))
    expected = step(x)
    failures = []

    def work():
        for _ in range(50):
            if step(x) != expected:
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("when", ["after import", "after a step"])
def test_fork(when):
    out = python(
        f"""
        import os, sys, numpy as np, cutback
        rng = np.random.default_rng(0)
        a, b = rng.standard_normal((300, 300)), rng.standard_normal((300, 300))
        f = cutback.compile(lambda a, b: cutback.tanh(a @ b).sum(), argnums=None)
        if {when == "after a step"}:
            f(a, b)
        children = []
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                value = float(f(a, b))
                os._exit(0 if abs(value - np.tanh(a @ b).sum()) < 1e-6 else 1)
            children.append(pid)
        codes = [os.waitpid(pid, 0)[1] for pid in children]
        value = float(f(a, b))
        print(codes, abs(value - np.tanh(a @ b).sum()) < 1e-6)
        """
    )
    assert out.strip() == "[0, 0] True"


def interrupt_after(seconds):
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


@pytest.fixture
def ctrl_c():
    """Makes SIGINT raise KeyboardInterrupt, even if this process was started with it ignored, as
    background jobs of a script are."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.within_the_call
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_during_a_step():
    n = 400
    params = {"w": np.eye(n)}

    def loss(p, x):
        for _ in range(400):
            x = cutback.sin(x @ p["w"])
        return x.mean()

    x = np.random.default_rng(0).standard_normal((4 * n, n))
    step = cutback.compile(loss, optimizer=cutback.optim.AdamW(lr=0.1)).prepare(params, x)
    timer = interrupt_after(0.3)
    with pytest.raises(KeyboardInterrupt):
        while timer.is_alive():  # on a fast machine the step may end before the signal comes
            before, count = params["w"].copy(), step.optimizer.t
            step(params, x)
        timer.join()
        list(range(10**6))
    assert step.optimizer.t in (count, count + 1)
    assert np.array_equal(params["w"], before) == (step.optimizer.t == count)


def deep_loss(p, x):
    """Computes one residual layer per parameter."""
    for w in p:
        x = x + cutback.tanh(cutback.exp(cutback.sin(x @ w)) * x) @ w.T
    return x.mean()


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_during_a_plan():
    params = [np.broadcast_to(np.float32(0), (64, 64))] * 400
    traced = cutback.trace(deep_loss, params, np.broadcast_to(np.float32(0), (256, 64)))
    timer = interrupt_after(0.2)
    with pytest.raises(KeyboardInterrupt):
        while timer.is_alive():
            with suppress(cutback.BudgetError):
                Executable(traced.graph, list(range(400)), budget="0.3x", backend="null")
        timer.join()
        list(range(10**6))  # if the signal came between two plans


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_during_a_frontier():
    w, x = (np.broadcast_to(np.float32(0), shape) for shape in ((8, 8), (4, 8)))
    plan = cutback.plan(deep_loss, [w] * 60, x)
    timer = interrupt_after(0.2)
    with pytest.raises(KeyboardInterrupt):
        while timer.is_alive():
            cutback.frontier(plan.problem)
        timer.join()
        list(range(10**6))  # if it came between two of them
    assert cutback.frontier(plan.problem)


def test_a_signal_handler_may_raise_its_own_exception():
    class AlarmError(Exception):
        pass

    def handler(number, frame):
        raise AlarmError

    def loss(x):
        for _ in range(300):
            x = cutback.sin(x @ x)
        return x.mean()

    x = np.eye(500)
    step = cutback.compile(loss, argnums=None).prepare(x)
    previous = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(AlarmError):
            for _ in range(100):
                step(x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_threads_cannot_change_during_a_step():
    started, seen = threading.Event(), []

    def loss(x):
        for _ in range(200):
            x = cutback.sin(x @ x)
        return x.mean()

    x = np.eye(500)
    step = cutback.compile(loss, argnums=None).prepare(x)

    def work():
        started.set()
        for _ in range(100):
            if not seen:
                step(x)

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    while thread.is_alive() and not seen:
        try:
            cutback.set_num_threads(cutback.get_num_threads())
        except RuntimeError as error:
            seen.append(str(error))
    thread.join()
    assert seen and "while a step" in seen[0]


def test_import_is_cheap_and_quiet():
    out = python(
        """
        import sys, threading, numpy, numpy.linalg
        before = set(sys.modules)
        import cutback
        heavy = {"json", "argparse", "gzip", "cutback.report", "cutback.planner.plan", "ml_dtypes"}
        loaded = sorted(heavy & (set(sys.modules) - before))
        print(loaded, threading.active_count())
        """
    )
    assert out.strip() == "[] 1"


def test_a_process_ends_cleanly_with_objects_alive():
    python(
        """
        import numpy as np, cutback
        step = cutback.compile(lambda x: x.sum(), argnums=None)
        step(np.ones(3))
        graph = step.traced.graph
        cutback.keep = (step, graph)
        """
    )


def test_python_in_development_mode_finds_nothing():
    out = python(
        """
        import numpy as np, cutback
        vg = cutback.value_and_grad(lambda x: (x @ x).sum())
        for _ in range(3):
            vg(np.ones((3, 3)))
        print("fine")
        """,
        "-X", "dev", "-W", "error",
    )  # fmt: skip
    assert out.strip() == "fine"
